"""What is measured is the issue's list, and the floors are the issue's numbers."""

import pytest

from gdn_apc.fuzz.bench.floors import export_ms, floor_ms, operations, traffic
from gdn_apc.fuzz.bench.problems import (
    BATCHES,
    IN_PLACE,
    SHAPES,
    SLOT_TO_SLOT,
    Problem,
    decode,
    prefill,
    problems,
)


def test_every_shape_has_every_export():
    """Seven shapes, five exports each, and convolution, gates and core once."""
    delta = {(p.heads, p.shape, p.block) for p in prefill() if p.op == "delta"}
    for H, HV, lengths in SHAPES:
        shape = Problem("delta", H, HV, lengths).shape
        assert {(f"{H}/{HV}", shape, B) for B in (64, 576, 1024, 1088, None)} <= delta
    ops = [p.op for p in prefill()]
    assert (ops.count("conv"), ops.count("gates"), ops.count("core")) == (7, 7, 7)
    assert ("16/32", "1,63,64,1000,5000,2068", 64) in delta


def test_every_batch_is_decoded_both_ways():
    """Seven batches, two dtypes of states, in place and slot to slot, and they are what they say."""
    found = list(decode())
    assert len(found) == len(BATCHES) * 4
    for p in found:
        read, write = (p.computed - 1) // p.block_size, p.computed // p.block_size
        assert (read == write) == (p.variant == IN_PLACE) and (read != write) == (p.variant == SLOT_TO_SLOT)


@pytest.mark.parametrize("cpu", [True, False])
def test_names_are_unique_and_select(cpu):
    """A name is one problem; a part of it selects, a glob too; areas are kept apart."""
    areas = ["prefill", "decode", "metadata"]
    found = problems(areas, cpu=cpu, quick=False, only=[])
    assert len({p.name for p in found}) == len(found) > 20
    assert {p.op for p in problems(["decode"], cpu=cpu, quick=False, only=[])} == {"decode"}
    some = problems(areas, cpu=cpu, quick=False, only=["conv/", "*1 group*"])
    assert {p.op for p in some} == {"conv", "metadata"}
    assert problems(areas, cpu=cpu, quick=False, only=["nothing"]) == []
    quick = problems(areas, cpu=cpu, quick=True, only=[])
    assert len(quick) < len(found) / 2 and {p.op for p in quick} == {p.op for p in found}


def test_a_cpu_gets_small_shapes():
    """At most some thousand multiplications of tiny heads."""
    for p in problems(["prefill", "decode"], cpu=True, quick=False, only=[]):
        assert p.K == 32 and p.tokens <= 1024


def test_the_floor_is_the_issues():
    """16/32, 8,192 tokens: about 0.2 GB, 35 GFLOP, 0.05 ms either way."""
    p = Problem("delta", 16, 32, (8192,))
    assert traffic(p) == pytest.approx(0.2e9, rel=0.05)
    assert operations(p) == pytest.approx(35e9, rel=0.05)
    assert floor_ms(p) == pytest.approx(0.05, rel=0.05)


def test_states_are_counted():
    """Boundaries inside the step and its end, for every row; a last state alone costs no export."""
    assert Problem("delta", 1, 1, (64,), block=64).states_written == 1
    assert Problem("delta", 1, 1, (65,), block=64).states_written == 2
    assert Problem("delta", 1, 1, (1, 200), 60, block=64).states_written == 1 + 5
    assert Problem("delta", 1, 1, (8192,) * 3).states_written == 3
    assert export_ms(Problem("delta", 16, 32, (8192,))) == 0
    one = 32 * 128 * 128 * 4 / 4.3e12 * 1e3
    assert export_ms(Problem("delta", 16, 32, (8192,), block=1024)) == pytest.approx(7 * one)


def test_decode_reads_and_writes_each_state_once():
    """128 rows of 2 MB states: 0.5 GB and what little else there is."""
    p = Problem("decode", 16, 32, (1,) * 128, 1000, block=1024)
    assert traffic(p) == pytest.approx(2 * 128 * 32 * 128 * 128 * 4, rel=0.05)
    assert floor_ms(p) == pytest.approx(0.128, rel=0.05)
