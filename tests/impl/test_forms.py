"""Forms of the kernels that only a GPU takes by itself, run here: split products, and chunks of several tiles of tokens."""

import pytest
import torch
import triton
import triton.language as tl

from gdn_apc.impl import triton_path
from gdn_apc.impl.kernels.chunked import _times
from tests.impl import test_kernels
from tests.impl.batches import DEVICE


@pytest.fixture
def form(monkeypatch):
    """Sets a constant of the launches; what was remembered of them is forgotten, now and afterwards."""

    def set_to(name, value):
        monkeypatch.setattr(triton_path, name, value)
        triton_path._plans.clear()

    yield set_to
    triton_path._plans.clear()


@triton.jit
def times_kernel(x, y, z, N: tl.constexpr):
    """z = x y by split operands. Grid (1,)."""
    t = tl.arange(0, N)
    at = t[:, None] * N + t[None, :]
    tl.store(z + at, _times(tl.load(x + at), tl.load(y + at), "bf16x3"))


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_a_split_product(scale):
    """Off by 2⁻¹⁵ of the products' sizes at most: two operands of 2⁻¹⁷ each, and the product of what is left of both."""
    gen = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=gen) for _ in range(2))
    z = torch.empty(64, 64, device=DEVICE)
    times_kernel[(1,)]((x * scale).to(DEVICE), y.to(DEVICE), z, N=64)
    exact, sizes = x.double() @ y.double(), x.double().abs() @ y.double().abs()
    error = ((z.cpu().double() / scale - exact).abs() / sizes).max()
    assert error < 2.0**-15
    one_rounding = ((x.bfloat16().double() @ y.bfloat16().double() - exact).abs() / sizes).max()
    assert one_rounding > 16 * error


@pytest.mark.parametrize(("B", "C"), [(6, 4), (16, 16), (64, 64)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_delta_rule_by_split_products(form, B, C, dtype):
    """As on a GPU, every row's outputs and states are the oracle's."""
    form("INTERPRETED_BLOCKS", "bf16x3")
    test_kernels.test_delta_rule("triton", B, C, (dtype, "fp32"))


@pytest.mark.parametrize("W", [2, 4, 5])
@pytest.mark.parametrize(("B", "C"), [(16, 16), (6, 16), (32, 32)])
def test_the_convolution_by_short_tiles(form, W, B, C):
    """Chunks of several tiles, clipped at both ends."""
    form("CONV_ROWS", 4)
    test_kernels.test_convolution("triton", W, B, C, "time_major")
