"""The oracle where its inputs are: the same answers and tolerances on a GPU, at full head shapes in seconds."""

import time

import pytest
import torch

from gdn_apc.oracle import check, delta_step
from tests.oracle import regimes

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@cuda
def test_answers_do_not_depend_on_the_device():
    """Values to 1e-12 and tolerances to 1e-6: sums run in another order there."""
    x = regimes.row(0, m=70, n=33, H=2, HV=4, K=32, V=16, dtypes=("bf16", "fp32"))
    args = dict(n=33, block_size=16, chunk_size=16, dtypes=("bf16", "fp32"))
    there = {name: t.cuda() if isinstance(t, torch.Tensor) else t for name, t in x.items()}
    want, got = delta_step(**x, **args), delta_step(**there, **args)
    assert got.o.is_cuda
    torch.testing.assert_close(got.o.cpu(), want.o, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.o_tol.cpu(), want.o_tol, rtol=1e-6, atol=0)
    for j, write in want.writes.items():
        torch.testing.assert_close(got.writes[j].state.cpu(), write.state, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.state_tol[j].cpu(), want.state_tol[j], rtol=1e-6, atol=0)


@pytest.mark.gpu
@cuda
def test_full_head_shapes_are_usable():
    """HV = 64, K = V = 128, 2,000 tokens, blocks of 528: prints its time and memory; every tolerance is finite."""
    x = regimes.row(1, m=2000, n=528, H=16, HV=64, K=128, V=128, dtypes=("bf16", "fp32"))
    x = {name: t.cuda() if isinstance(t, torch.Tensor) else t for name, t in x.items()}
    start = time.perf_counter()
    found = delta_step(**x, n=528, block_size=528, chunk_size=64, dtypes=("bf16", "fp32"))
    torch.cuda.synchronize()
    print(f"{time.perf_counter() - start:.1f} s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    assert list(found.writes) == [1, 2, 3, 4]
    assert found.o_tol.isfinite().all() and all(t.isfinite().all() for t in found.state_tol.values())
    assert check(found.o, found.o.bfloat16(), found.o_tol).ok
