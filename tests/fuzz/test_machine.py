"""The cache machine: its properties, its state machine, and what it sees in targets. ``pytest tests/fuzz/test_machine.py``."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gdn_apc.fuzz import validity
from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Sizes
from gdn_apc.fuzz.engine import EVENTS, Faults, Life, life_of, live_through
from gdn_apc.fuzz.engine.lives import ALL, KERNELS, SYMBOLIC, events_by_name, request_sets, symbolic_lives
from gdn_apc.fuzz.engine.target_workers import KernelWorker, MetadataWorker
from gdn_apc.fuzz.properties import machine
from gdn_apc.fuzz.properties.base import REGISTRY, Checked, Violation
from gdn_apc.fuzz.targets.native import NativeTarget, NativeTorchTarget
from gdn_apc.fuzz.targets.reference import ReferenceTarget

quick = settings(
    database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def examples(name: str, target, number: int, count: int) -> list[Case]:
    """So many cases that a property draws for a target."""
    drawn: list[Case] = []

    @seed(number)
    @settings(quick, max_examples=count)
    @given(REGISTRY[name].strategy(target))
    def collect(case):
        drawn.append(case)

    collect()
    return drawn


# On labels


@pytest.fixture(scope="module")
def symbolic() -> list[tuple[Case, Checked]]:
    """200 lives on labels, moved by our own metadata."""
    target = NativeTorchTarget()
    return [(c, machine.check_symbolic(target, c)) for c in examples("machine_symbolic", target, 5, 200)]


def test_lives_are_long_enough_for_the_budget(symbolic):
    """5,000 steps are about 700 lives, which the campaign affords: the average life has six steps or more."""
    assert sum(checked.comparisons for _, checked in symbolic) >= 6 * len(symbolic)


def test_lives_reach_every_event(symbolic):
    """By chance alone, each in at least 2 % of lives: over the 700 of a campaign a miss has p < 10⁻⁶."""
    reached = Counter(name for _, checked in symbolic for name in checked.events)
    assert set(reached) <= set(EVENTS)
    rare = {name: reached[name] for name in EVENTS if reached[name] < 0.02 * len(symbolic)}
    assert not rare


def test_a_case_of_the_machine_is_plain_json_and_replays(symbolic):
    for case, checked in symbolic[::20]:
        again = machine.check_symbolic(ReferenceTarget(), Case.from_json(case.to_json()))
        assert (again.comparisons, again.events) == (checked.comparisons, checked.events)


def test_the_steps_of_a_life_are_inside_the_contract_by_the_rules_of_cases(symbolic):
    """``fuzz/validity.py`` follows the slots on its own; the explicit steps of every life satisfy it."""
    for case, _ in symbolic[:60]:
        lived = live_through(life_of(case), case.choice["events"])
        assert len(lived.steps) == lived.step
        assert validity.problems(replace(case, steps=tuple(lived.steps))) == []


def test_a_planted_fault_shrinks_to_a_life_that_a_person_can_read():
    """A write into the block that was hit: a few requests of a token or two, and a handful of events."""

    def fails(case: Case) -> bool:
        try:
            live_through(life_of(case, Faults(write_shared_block=True)), case.choice["events"])
        except Violation as violation:
            return violation.where["invariant"] == "SharedImmutable"
        return False

    case = hypothesis.find(
        symbolic_lives("machine_symbolic", replace(SYMBOLIC, requests=6, events=15, blocks=3)),
        fails,
        settings=settings(max_examples=400, database=None, deadline=None),
        random=random.Random(0),
    )
    assert len(case.requests) <= 4 and len(case.choice["events"]) <= 6
    assert sum(r.length for r in case.requests) <= 8


# As a state machine, step by step


class CacheMachine(RuleBasedStateMachine):
    """The same engine, events and invariants, with Hypothesis choosing each event. ``worker`` is what executes."""

    sizes = Sizes(H=1, HV=1, K=4, V=4, W=2, B=3, C=16)
    rules = events_by_name(sizes.B)
    faults = Faults()

    def worker(self, case: Case):
        """None: labels by the contract alone."""
        return None

    @initialize(
        drawn=request_sets(sizes.B, replace(KERNELS, requests=6)),
        room=st.integers(0, 16),
        depth=st.integers(1, 3),
        habits=st.fixed_dictionaries({name: st.booleans() for name in ("attention", "skip", "stale")}),
    )
    def begin(self, drawn: tuple[list[Request], list[int]], room: int, depth: int, habits: dict[str, bool]):
        requests, prompts = drawn
        most = max(-(-r.length // self.sizes.B) for r in requests) * (1 + habits["attention"])
        self.case = Case(
            property="machine_symbolic",
            level="core",
            sizes=self.sizes,
            dtypes=Dtypes("bf16", "fp32", "bf16"),
            inputs=Inputs(seed=room),
            requests=tuple(requests),
            steps=(),
            pool=Pool(1 + most + room),
            choice={"prompts": prompts, "depth": depth, "events": [], **habits},
        )
        self.life: Life = life_of(self.case, self.faults, self.worker(self.case))

    @rule(event=rules["submit"])
    def submit(self, event):
        self.life.apply(event)

    @rule(event=rules["pass"])
    def schedule(self, event):
        self.life.apply(event)

    @rule(event=rules["rows"])
    def schedule_rows(self, event):
        self.life.apply(event)

    @rule(event=rules["dispatch"])
    def dispatch(self, event):
        self.life.apply(event)

    @rule(event=rules["execute"])
    def execute(self, event):
        self.life.apply(event)

    @rule(event=rules["abort"])
    def abort(self, event):
        self.life.apply(event)

    @rule(event=rules["preempt"])
    def preempt(self, event):
        self.life.apply(event)

    @invariant()
    def holds(self):
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self):
        if hasattr(self, "life"):
            self.life.drain()


class KernelMachine(CacheMachine):
    """On our PyTorch path, with real pages."""

    def worker(self, case: Case):
        return KernelWorker(NativeTorchTarget(), case, Checked())


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(quick, max_examples=60, stateful_step_count=40, derandomize=True)
TestKernelMachine = KernelMachine.TestCase
TestKernelMachine.settings = settings(quick, max_examples=15, stateful_step_count=30, derandomize=True)


def test_the_state_machine_can_fail():
    """The same rules on an engine that leaks find the leak."""

    class Leaky(CacheMachine):
        faults = Faults(leak_reference=True)

    Leaky.TestCase.settings = settings(quick, max_examples=300, stateful_step_count=40, derandomize=True)
    with pytest.raises(Violation, match="CountsExact"):
        hypothesis.stateful.run_state_machine_as_test(Leaky, settings=Leaky.TestCase.settings)


# Through the kernels


@pytest.mark.parametrize("target", [NativeTarget, NativeTorchTarget, ReferenceTarget])
def test_lives_through_the_kernels(target):
    """Every step of every life equals the oracle's, and nothing else in the pool changes."""
    it = target()
    total = Checked()
    for case in examples("machine_kernels", it, 7, 20):
        checked = machine.check_kernels(it, case)
        total.comparisons += checked.comparisons
        total.events += checked.events
    assert total.comparisons > 100
    assert {"machine_hit", "machine_preempt_resume", "machine_recycled_slot"} <= set(total.events)


class ReadsFresh(ReferenceTarget):
    """One-token rows are taken for decodes with state."""

    def read_slot(self, line, batch):
        return line.table[max(line.n - 1, 0) // batch.block_size] if line.n or line.m == 1 else None


class ResumesFresh(ReferenceTarget):
    """Rows of two tokens or more start from nothing."""

    def read_slot(self, line, batch):
        return super().read_slot(line, batch) if line.m == 1 else None


class ReadsNextColumn(ReferenceTarget):
    """Reads the column that it writes, which is another one if a step starts at a boundary."""

    def read_slot(self, line, batch):
        return line.table[line.n // batch.block_size] if line.n else None


class WritesThroughRead(ReferenceTarget):
    """Short rows store through the slot that they read (vllm#56196)."""

    def write_slots(self, line, batch):
        read = self.read_slot(line, batch)
        own = super().write_slots(line, batch)
        return [(j, read) for j, _ in own] if read and line.m < 3 else own


class DropsBoundaries(ReferenceTarget):
    """Leaves the state of the last column only."""

    def write_slots(self, line, batch):
        return super().write_slots(line, batch)[-1:]


class WritesNull(ReferenceTarget):
    """Every batch leaves something in the null block."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        ssm_state[0] = 0
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch)


class WritesForPadding(ReferenceTarget):
    """A padding row writes through the stale table it carries."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        lengths = batch.query_start_loc.diff()
        for i in (lengths == 0).nonzero()[:, 0].tolist():
            ssm_state[int(batch.block_table[i, 0])] = 0
        return out


@pytest.mark.parametrize(
    "target, names",
    [
        (ReadsFresh, {"FreshStart"}),
        (ResumesFresh, {"StateTrue"}),
        (ReadsNextColumn, {"StateTrue"}),
        (WritesThroughRead, {"SharedImmutable", "WriteExclusive"}),
        (DropsBoundaries, {"StateTrue"}),
        (WritesNull, {"NullUntouched"}),
        (WritesForPadding, {"NullUntouched", "SharedImmutable", "WriteExclusive", "StateTrue"}),
    ],
)
def test_kernels_that_break_the_contract_are_named(target, names):
    it = target()
    for tried, case in enumerate(examples("machine_kernels", it, 3, 60)):
        try:
            machine.check_kernels(it, case)
        except Violation as violation:
            assert violation.where["invariant"] in names, str(violation)
            assert {"step", "expected", "actual", "slot"} <= set(violation.where)
            print(f"{target.__name__}: found in life {tried + 1}: {violation}")
            return
    pytest.fail(f"{target.__name__}: not found in 60 lives")


class StateByLength(ReferenceTarget):
    """Says that one-token rows have state."""

    def metadata(self, batch):
        found = super().metadata(batch)
        found["has_initial_state"] |= batch.query_start_loc.diff() == 1
        return found


class FloorForCeiling(ReferenceTarget):
    """last_computed = floor(n / B): off by one at boundaries."""

    def metadata(self, batch):
        found = super().metadata(batch)
        found["block_idx_last_computed_token"] = found["num_computed_tokens"] // batch.block_size
        columns = (
            found["block_idx_last_computed_token"].long()[:, None].clamp(max=batch.block_table.shape[1] - 1)
        )
        found["read_slot"] = batch.block_table.gather(1, columns)[:, 0]
        return found


class PaddingResolves(ReferenceTarget):
    """Padding rows resolve to the stale slot of their table."""

    def metadata(self, batch):
        found = super().metadata(batch)
        padding = batch.query_start_loc.diff() == 0
        found["write_slot"] = torch.where(padding, batch.block_table[:, 0], found["write_slot"])
        return found


@pytest.mark.parametrize(
    "target, name",
    [(StateByLength, "FreshStart"), (FloorForCeiling, "StateTrue"), (PaddingResolves, "NullUntouched")],
)
def test_metadata_that_breaks_the_contract_is_named(target, name):
    it = target()
    for case in examples("machine_symbolic", it, 3, 60):
        try:
            machine.check_symbolic(it, case)
        except Violation as violation:
            assert violation.where["invariant"] == name, str(violation)
            return
    pytest.fail(f"{target.__name__}: not found in 60 lives")


def test_a_target_without_kernels_is_not_asked():
    class IndexOnly(ReferenceTarget):
        claims = replace(ReferenceTarget.claims, seams=frozenset({"metadata"}))

    assert (
        REGISTRY["machine_kernels"].needs(IndexOnly())
        == "it has no kernels: none of the seams conv, delta and core"
    )
    assert REGISTRY["machine_kernels"].needs(ReferenceTarget()) is None


def test_rows_off_the_chunk_grid_take_one_token_where_a_target_cannot_start_anywhere():
    class OnGrid(ReferenceTarget):
        claims = replace(ReferenceTarget.claims, any_start=False)

    it, starts = OnGrid(), 0
    for case in examples("machine_kernels", it, 11, 15):
        size, chunk = case.sizes.B, case.sizes.C
        for step in live_through(life_of(case), case.choice["events"]).steps:
            long = [row for row in step.rows if row.m > 1]
            assert all(row.n % size % chunk == 0 for row in long)
            starts += len(long)
    assert starts > 20


def test_a_life_on_labels_moves_where_the_metadata_says():
    """A row that resumes inside a block reads and writes the same slot, and then the next."""
    case = Case(
        "machine_symbolic",
        "core",
        Sizes(1, 1, 1, 1, 2, 4, 16),
        Dtypes("fp32", "fp32", "fp32"),
        Inputs(0),
        (Request(9),),
        (),
        Pool(5),
        choice={"prompts": [9], "depth": 1, "attention": False, "skip": False, "stale": False, "events": []},
    )
    worker = MetadataWorker(NativeTorchTarget(), case)
    life = life_of(case, worker=worker)
    for event in (["submit", 0], ["pass", ALL, 6, []], ["execute"], ["pass", ALL, 3, []]):
        life.apply(event)
    (touch,) = worker.touches(life.engine.pipe[0])
    assert touch.reads == [("state", 1, 2, 6)]
    assert touch.writes == [("state", 1, 2, 8), ("state", 2, 3, 9)]
