"""The built-in targets hold the properties on a few cases each, and the order of programs is seen to matter.

The campaign asks them on far more. ``pytest tests/fuzz/test_targets.py``
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from asking import ask

from gdn_apc.fuzz import interpreter, witnesses
from gdn_apc.fuzz.properties import Violation, load_all
from gdn_apc.fuzz.runner import make_batch
from gdn_apc.fuzz.targets import load
from gdn_apc.fuzz.targets.reference import ReferenceTarget

OURS = [p.name for p in load_all().values() if p.kind in ("kernel", "metadata")]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("target", ["native", "native-torch"])
def test_our_kernels_hold_each_property(target, name):
    """Eight cases of each property, on the kernels and on the PyTorch path."""
    loaded = load(target)
    reason = load_all()[name].needs(loaded)
    if reason:
        assert (target, name) == ("native-torch", "program_order"), reason
        return

    assert ask(loaded, name, 8) >= 6


def test_targets_answer_the_same_batch_alike():
    """Metadata by the names of the contract, from the kernels' builder and from the oracle."""
    case = witnesses.witness("mixed_prefill_decode", ReferenceTarget())
    batch = make_batch(case.steps[-1].rows, case.sizes.B, case.sizes.C, torch.device("cpu"))
    native, reference = load("native").metadata(batch), ReferenceTarget().metadata(batch)

    shared = set(native) & set(reference)
    assert {"read_slot", "write_slot", "block_idx_first_scheduled_token", "has_initial_state"} <= shared
    for name in shared - {"num_tokens", "chunk_row", "block_size", "chunk_size", "num_rows", "max_query_len"}:
        assert native[name].tolist() == reference[name].tolist(), name


def test_versions_say_what_a_replay_needs():
    """torch, and triton where kernels run."""
    assert load("native").versions() == {"torch": torch.__version__, "triton": triton.__version__}
    assert "torch" in ReferenceTarget().versions()


@triton.jit
def _racing_kernel(out, count):
    """Every program writes its number to one place: the last one wins."""
    tl.store(out + count, tl.program_id(0).to(tl.float32))


class Racing(ReferenceTarget):
    """The reference, whose last output element comes from programs that race for it."""

    name, runs_triton = "racing", True

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        if out.numel():
            last = torch.zeros(1)
            _racing_kernel[(4,)](last, 0)
            out.view(-1)[-1] = last[0]
        return out


@pytest.mark.skipif(torch.cuda.is_available(), reason="reorders the interpreter's programs")
def test_a_race_between_programs_is_seen():
    """By other bits in another order of programs, and as a meeting in memory."""
    target, check = Racing(), load_all()["program_order"].check
    case = witnesses.witness("cold_prefill", target)
    assert load_all()["program_order"].needs(target) is None and interpreter.is_active()

    def caught(**choice):
        with pytest.raises(Violation) as error:
            check(target, type(case)(**{**vars(case), "choice": choice}))
        return str(error.value)

    assert "depends on the order of programs (reversed)" in caught(order=0, races=False)
    assert "two programs of one launch meet in memory" in caught(order=0, races=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.bool])
def test_memory_that_nobody_wrote_shows(dtype):
    """Of every dtype that our kernels allocate: flags of the metadata too."""
    from gdn_apc.fuzz.targets.native import Uninitialised

    with Uninitialised():
        made = torch.empty(3, dtype=dtype), torch.empty_like(torch.zeros(2, dtype=dtype))
    for t in made:
        assert bool(t.isnan().all() if dtype.is_floating_point else (t.int() >= 1).all())
