"""Answers first: a right kernel gets a time, a wrong one gets none, and every kind of wrong is seen."""

import re
from functools import partial

import pytest
import torch

from gdn_apc import oracle
from gdn_apc.fuzz.bench import run
from gdn_apc.fuzz.bench.check import Answer, Wrong, check, ends, expected
from gdn_apc.fuzz.bench.floors import traffic
from gdn_apc.fuzz.bench.inputs import L2_BYTES, make, sets_of
from gdn_apc.fuzz.bench.peers.base import Peer, Run
from gdn_apc.fuzz.bench.peers.native import Native, NativeTorch
from gdn_apc.fuzz.bench.problems import Problem
from gdn_apc.fuzz.bench.timing import Timing, measure
from tests.benchmarks.small import CPU, DECODES, LAST, METADATA, PREFILLS, interpreted

pytestmark = interpreted

EVERY = [*PREFILLS, LAST, *DECODES, METADATA]


@pytest.mark.parametrize("problem", EVERY, ids=lambda p: p.name)
@pytest.mark.parametrize("peer", [Native(), NativeTorch()], ids=lambda p: p.name)
def test_our_paths_are_right_and_timed(problem, peer):
    """Both of ours, in every operation."""
    [row] = list(run.rows([problem], [peer], CPU, quick=True))
    assert row["ms"] > 0 and row["error"] <= 0.01, row
    assert {"op", "impl", "heads", "shape", "export", "dtype", "ms", "floor_ms", "device"} <= row.keys()
    assert (row["export"], row["device"], row["dtype"]) == (problem.block, "cpu", problem.dtypes)


class Spoiled(NativeTorch):
    """Ours, with something changed afterwards."""

    name, ours = "spoiled", False

    def __init__(self, spoil):
        self.spoil = spoil

    def prepare(self, inputs):
        good = super().prepare(inputs)
        return Run([partial(self._spoiled, inputs, call) for call in good.calls], good.answer)

    def _spoiled(self, inputs, call):
        return self.spoil(inputs, call())


def head(inputs, o):
    o[64:70, 1] *= 1.5
    return o


def one_tile(inputs, o):
    o[1:3, 0] = -o[1:3, 0]
    return o


def unwritten(inputs, o):
    inputs.states[int(inputs.sets[0].table[0, 1])] = float("nan")
    return o


def last_state(inputs, o):
    inputs.states[int(inputs.sets[0].table[1, 0])].mul_(1.1)
    return o


def window(inputs, o):
    inputs.windows[int(inputs.sets[0].table[0, 2])][0, 0] += 1
    return o


def transposed(inputs, o):
    return o.transpose(1, 2)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (head, "the outputs of row 0: relative error"),
        (one_tile, "the outputs of row 0: relative error"),
        (unwritten, "the state of row 0, column 1: relative error (nan|inf)"),
        (last_state, "the state of row 1, column 0: relative error 0.1"),
        (window, "the window of row 0, column 2 is not a copy"),
        (transposed, r"outputs have shape \[75, 32, 2\], expected \[75, 2, 32\]"),
    ],
)
def test_a_wrong_kernel_gets_no_time(spoil, text):
    """The row says what is wrong, the line too, and the next peer is measured on clean pools."""
    lines = []
    core = Problem("core", 1, 2, (70, 5), block=32, K=16, V=32)
    found = list(run.rows([core], [NativeTorch(), Spoiled(spoil)], CPU, quick=True, say=lines.append))
    wrong, right = found
    assert wrong["ms"] is None and re.search(text, wrong["wrong"]), wrong
    assert "WRONG, not timed" in lines[0]
    assert right["ms"] > 0 and "wrong" not in right


def test_wrong_metadata_gets_no_time():
    """One index off by one."""

    def off(inputs, metas):
        metas[2].read_slot[1] += 1
        return metas

    [row] = list(run.rows([METADATA], [Spoiled(off)], CPU, quick=True))
    assert row["ms"] is None and row["wrong"].startswith("read_slot is [")


class Broken(Peer):
    """Raises as soon as it is asked."""

    name = "broken"

    def version(self):
        return "0"

    def solves(self, problem, device):
        return True

    def prepare(self, inputs):
        raise TypeError("no such argument\nand more")


def test_a_peer_that_breaks_is_a_row():
    """The others go on; a failure of ours is not swallowed."""
    found = list(run.rows([LAST], [Broken(), NativeTorch()], CPU, quick=True))
    assert [r.get("failed") for r in found] == ["TypeError: no such argument", None]

    class Ours(Broken):
        ours = True

    with pytest.raises(TypeError, match="no such argument"):
        list(run.rows([LAST], [Ours()], CPU, quick=True))


def test_who_stores_one_state_is_measured_once_a_shape():
    """Another block changes nothing for it; ours is measured with each."""

    class Other(NativeTorch):
        name, ours, exports = "other", False, False

    found = list(run.rows([PREFILLS[0], LAST], [NativeTorch(), Other()], CPU, quick=True))
    assert [(r["impl"], r["export"]) for r in found] == [
        ("other", None),
        ("native-torch", 32),
        ("native-torch", None),
    ]


def test_what_is_done_is_not_measured_again():
    """By problem and implementation."""
    done = {(LAST.name, "native-torch")}
    assert list(run.rows([LAST], [NativeTorch()], CPU, done=done)) == []


@pytest.mark.parametrize(
    ("n", "m", "B"), [(0, 200, 64), (5, 300, 100), (64, 1, 64), (63, 130, 1), (130, 500, 129)]
)
def test_chunks_are_the_oracles(n, m, B):
    """The quick walk over columns gives what the oracle's walk over tokens gives."""
    want = [
        (a, b, column if (a, b) == chunks[-1] else -1)
        for column, chunks in oracle.cache.segments(n, m, B, 64)
        for a, b in chunks
    ]
    assert list(ends(Problem("delta", 1, 1, (m,), n, block=B), m)) == want


def test_the_expected_answer_is_the_step_oracles():
    """The chunk form that judges full-size shapes equals the token-by-token step of the campaign's oracle."""
    inputs = make(LAST, CPU, 3)
    want = expected(inputs)
    part = slice(0, 70)
    step = oracle.delta_step(
        *(t[part] for t in inputs.sets[0].tensors(LAST)),
        n=0,
        block_size=LAST.block_size,
        chunk_size=64,
        state=None,
        dtypes=("bf16", "fp32"),
        use_qk_l2norm=True,
    )
    assert torch.allclose(want.o[part], step.o, rtol=1e-9, atol=1e-12)
    [state] = [stored.exact[0] for stored in want.states if stored.rows == [0]]
    assert torch.allclose(state, step.writes[0].state, rtol=1e-9, atol=1e-12)


def test_sets_leave_the_cache_behind():
    """Small problems rotate over many sets, large ones over two; numbers differ from set to set and run to run."""
    small, large = Problem("decode", 16, 32, (1,), 1000, block=1024), Problem("delta", 16, 32, (32768,))
    assert sets_of(small) * traffic(small) >= 2 * L2_BYTES and sets_of(large) == 2
    first, second = make(LAST, CPU, 1), make(LAST, CPU, 2)
    assert not torch.equal(first.sets[0].operands["q"], first.sets[1].operands["q"])
    assert not torch.equal(first.sets[0].operands["q"], second.sets[0].operands["q"])
    tables = [s.table.flatten().tolist() for s in first.sets]
    assert not set(tables[0]) & set(tables[1]) and 0 not in tables[0]


@pytest.mark.parametrize("op", ["core", "decode"])
def test_rows_of_one_length_are_computed_together(op):
    """Each row's answer is the one that it has alone, whatever the others are."""
    lengths = (1, 1, 1) if op == "decode" else (40, 7, 40)
    together = make(Problem(op, 1, 2, lengths, 20, block=16, K=16, V=16), CPU, 4)
    want = expected(together)
    for row, m in enumerate(lengths):
        alone = make(Problem(op, 1, 2, (m,), 20, block=16, K=16, V=16), CPU, 4)
        part = slice(together.offsets[row], together.offsets[row] + m)
        first = together.sets[0]
        alone.sets[0].operands = {name: t[part] for name, t in first.operands.items()}
        alone.sets[0].table = first.table[row : row + 1]
        for name in ("weight", "A_log", "dt_bias", "windows", "states"):
            setattr(alone, name, getattr(together, name))
        single = expected(alone)
        assert torch.allclose(single.o, want.o[part], rtol=1e-9, atol=1e-12)
        for kind in ("states", "windows"):
            mine = {s.column: s.exact[s.rows.index(row)] for s in getattr(want, kind) if row in s.rows}
            theirs = {s.column: s.exact[0] for s in getattr(single, kind)}
            assert mine.keys() == theirs.keys() and all(
                torch.allclose(mine[c].double(), theirs[c].double(), rtol=1e-9, atol=1e-12) for c in mine
            )


def test_the_check_accepts_the_expected_answer_itself():
    """Nothing but the right answer has error 0."""
    inputs = make(PREFILLS[1], CPU, 5)
    want = expected(inputs)
    for stored in want.windows:
        inputs.windows[inputs.sets[0].table[stored.rows, stored.column].long()] = stored.exact
    assert check(inputs, want, Answer(o=want.o)) == 0
    with pytest.raises(Wrong, match="relative error"):
        check(inputs, want, Answer(o=want.o * 1.1))


def test_times_on_a_cpu():
    """Calls rotate, at least a few times; the median and the spread are of the samples."""
    seen = []
    timing = measure([lambda: seen.append(0), lambda: seen.append(1)], CPU, budget_ms=1, most=7, least=5)
    assert 5 <= len(seen) <= 7 and seen[:4] == [0, 1, 0, 1] and len(timing.samples) == len(seen)
    assert Timing([3.0, 1.0, 2.0]).ms == 2.0 and Timing([float(i) for i in range(11)]).spread == (1.0, 9.0)
