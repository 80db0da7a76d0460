"""One-token rows with resolved slots, at fixed addresses: the same bits as with the block table. Needs no vLLM."""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import pytest
import torch

from gdn_apc.impl import build_metadata, gdn_core
from gdn_apc.impl.vllm.staging import Staging, resolved

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, COLUMNS, SLOTS = 16, 5, 40
H, HV, K, V, W = 1, 2, 16, 32, 4
D = 2 * H * K + HV * V
BATCHES = {
    "decodes": [1, 15, 16, 17, 31, 32, 60],
    "fresh among them": [0, 16, 0, 5, 63],
    "padding": [7, None, 20, None, None],
    "nothing but padding": [None, None],
}
"""n of each row, None for a padding row."""


def backends() -> list:
    """PyTorch, and Triton where it can run: on a GPU or in its interpreter."""
    can = importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1"
    no = pytest.mark.skip(reason="no Triton interpreter here; tests/conftest.py sets it up")
    return ["torch", pytest.param("triton", marks=[] if can else no)]


def batch(starts: list[int | None], padded_tokens: int | None = None):
    """Metadata of one-token rows, each with slots of its own."""
    m = torch.tensor([0 if n is None else 1 for n in starts], dtype=torch.int32)
    n = torch.tensor([n or 0 for n in starts], dtype=torch.int32)
    query_start_loc = torch.cat([m.new_zeros(1), m.cumsum(0, dtype=torch.int32)])
    slots = 1 + torch.arange(len(starts) * COLUMNS, dtype=torch.int32).view(-1, COLUMNS)
    slots[[i for i, start in enumerate(starts) if start is None]] = 0
    return build_metadata(
        n + m, query_start_loc, slots, block_size=B, max_query_len=1, num_tokens=padded_tokens or int(m.sum())
    )


def tensors(count: int, generator: torch.Generator):
    """x, a, b of ``count`` tokens, and the rest of ``gdn_core``'s arguments up to the states."""

    def draw(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    layer = (
        draw(D, W),
        None,
        draw(HV, dtype=torch.float32) - 3,
        draw(HV, dtype=torch.float32),
    )
    return (draw(count, D), draw(count, HV), draw(count, HV), *layer)


def pages(generator: torch.Generator):
    """Windows and states of all slots; the null slot is NaN."""
    windows = torch.randn(SLOTS, W - 1, D, generator=generator).bfloat16()
    states = torch.randn(SLOTS, HV, V, K, generator=generator)
    windows[0], states[0] = torch.nan, torch.nan
    return windows, states


def run(blocks, backend: str):
    """Outputs of the real tokens, and the pages after a step over one seeded batch."""
    generator = torch.Generator().manual_seed(3)
    inputs, (windows, states) = tensors(blocks.num_tokens, generator), pages(generator)
    o = gdn_core(*inputs, windows, states, blocks, num_k_heads=H, head_k_dim=K, backend=backend)
    return o[: int(blocks.query_start_loc[-1])], windows, states


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("staged", [False, True], ids=["resolved", "staged"])
def test_the_same_bits(name, backend, staged):
    """Outputs and every page, to the bit, with the table and with resolved slots."""
    blocks = batch(BATCHES[name], padded_tokens=8)
    other = Staging(8, torch.device("cpu")).stage(blocks) if staged else resolved(blocks)
    for what, expected, actual in zip(("o", "windows", "states"), run(blocks, backend), run(other, backend)):
        assert torch.equal(expected.float().nan_to_num(9e9), actual.float().nan_to_num(9e9)), what


def test_the_comparison_can_fail():
    """A row that resolves to a wrong slot changes pages."""
    blocks = batch([5, 16])
    other = resolved(blocks)
    other.write_slot.copy_(other.write_slot.flip(0))
    assert not torch.equal(run(blocks, "torch")[2][1:], run(other, "torch")[2][1:])


def test_addresses_stay():
    """What a graph captured for some number of rows is where the next such batch is staged; nothing stale is left."""
    staging = Staging(8, torch.device("cpu"))
    first = staging.stage(batch([3, 16, 40, 7]))
    kept = (
        first.query_start_loc,
        first.num_computed_tokens,
        first.read_slot,
        first.write_slot,
        first.block_table,
    )
    addresses = [t.data_ptr() for t in kept]
    second = staging.stage(batch([33, None, None, None], padded_tokens=4))
    now = (second.query_start_loc, second.num_computed_tokens, second.read_slot, second.write_slot)
    assert [t.data_ptr() for t in (*now, second.block_table)] == addresses
    assert second.query_start_loc.tolist() == [0, 1, 1, 1, 1]
    assert second.write_slot.tolist() == [3, 0, 0, 0] and second.read_slot.tolist() == [3, 0, 0, 0]
    assert second.num_computed_tokens.tolist() == [33, 0, 0, 0]
    assert second.block_table.tolist() == [[3], [0], [0], [0]]


def test_built_in_place():
    """Built where a graph reads: the same as built and then staged."""
    starts = [33, None, 0, 16]
    expected = Staging(8, torch.device("cpu")).stage(batch(starts, padded_tokens=4))
    m = torch.tensor([0 if n is None else 1 for n in starts], dtype=torch.int32)
    n = torch.tensor([n or 0 for n in starts], dtype=torch.int32)
    slots = 1 + torch.arange(len(starts) * COLUMNS, dtype=torch.int32).view(-1, COLUMNS)
    staging = Staging(8, DEVICE)
    for _ in range(2):
        built = staging.build(
            *(t.to(DEVICE) for t in (n + m, torch.cat([m.new_zeros(1), m.cumsum(0, dtype=torch.int32)]), slots)),
            B, 64, 4,
        )  # fmt: skip
        for f in dataclasses.fields(built):
            have, want = getattr(built, f.name), getattr(expected, f.name)
            if f.name == "has_initial_state":
                continue  # nothing that a graph reads
            assert torch.equal(have.cpu(), want) if isinstance(want, torch.Tensor) else have == want, f.name
        assert built.read_slot.data_ptr() == staging.read.data_ptr()


def test_what_does_not_fit():
    """More rows than buffers, more padded tokens than buffers, or rows of two tokens."""
    staging = Staging(2, torch.device("cpu"))
    assert staging.fits(2, 2, 1) and not staging.fits(3, 2, 1)
    assert not staging.fits(1, 3, 1) and not staging.fits(1, 2, 2)
    two = build_metadata(
        torch.tensor([2], dtype=torch.int32),
        torch.tensor([0, 2], dtype=torch.int32),
        torch.ones(1, 1, dtype=torch.int32),
        block_size=B,
        max_query_len=2,
        num_tokens=2,
    )
    with pytest.raises(ValueError, match="rows of up to 2 tokens, expected 1"):
        resolved(two)
