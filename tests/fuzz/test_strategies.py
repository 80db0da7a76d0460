"""Strategies draw valid cases, of all kinds, shrink far, and reach what they are for. No kernel runs here.

``pytest tests/fuzz/test_strategies.py``
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings

from gdn_apc.fuzz import geometry, ledger
from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Row, Sizes, Step
from gdn_apc.fuzz.floors import Drawn
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.strategies import SCENARIOS, cases, left_out, pairs
from gdn_apc.fuzz.strategies.metadata import SMALL, exhaustive
from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.validity import check, problems

SIZES = Sizes(H=1, HV=2, K=16, V=16, W=4, B=4, C=16)
CPU, GPU = Drawn("cpu"), Drawn("cuda")
NARROW = Drawn(
    "cpu",
    Claims(
        seams=frozenset({"delta", "metadata"}),
        input_dtypes=frozenset({"bf16"}),
        state_dtypes=frozenset({"fp32", "bf16"}),
        any_start=False,
        skips_null=False,
        head_sizes=frozenset({64, 128}),
        block_multiple=16,
        chunk_sizes=frozenset({16}),
    ),
)
KERNEL = [p.name for p in load_all().values() if p.kind in ("kernel", "metadata")]


def drawn(strategy, examples=60, number=0) -> list[Case]:
    """So many cases of a strategy, the same every time."""
    found = []

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def draw(case):
        found.append(case)

    draw()
    return found


# ---- validity -------------------------------------------------------------------------------------------------------


TWO = (Request(12), Request(9, parent=0, shared=8))


def case_of(*steps, requests=TWO, slots=8, sizes=SIZES, dtypes=("bf16", "fp32", "bf16")):
    return Case(
        property="values",
        level="core",
        sizes=sizes,
        dtypes=Dtypes(*dtypes),
        inputs=Inputs(0),
        requests=requests,
        steps=tuple(Step(tuple(rows)) for rows in steps),
        pool=Pool(slots),
    )


GOOD = case_of(
    [Row(0, 0, 8, (1, 2))], [Row(1, 8, 1, (7, 2, 3)), Row(0, 8, 2, (1, 2, 4)), Row(None, 9, 0, (1,))]
)


def test_a_good_case_has_no_problems():
    """A hit with a stale first column, beside its donor and a padding row."""
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    "case, words",
    [
        (case_of([Row(0, 4, 2, (1, 2))]), "reads slot 1 for state(4) of request 0, but it holds None"),
        (case_of([Row(0, 0, 6, (1, 2))], [Row(0, 4, 2, (1, 2))], [Row(1, 8, 1, (1, 2, 3))]), "holds (0, 6)"),
        (case_of([Row(0, 0, 8, (1, 2))], [Row(1, 8, 1, (1, 0, 3))]), "reads column 1, which is null"),
        (case_of([Row(0, 0, 4, (1,)), Row(1, 0, 4, (1,))]), "rows 0 and 1 both write slot 1"),
        (case_of([Row(0, 0, 8, (1, 1))]), "rows 0 and 0 both write slot 1"),
        (
            case_of([Row(0, 0, 8, (1, 2))], [Row(1, 8, 1, (0, 2, 3)), Row(0, 0, 4, (2,))]),
            "row 0 reads slot 2, which row 1 writes",
        ),
        (case_of([Row(0, 0, 8, (1, 2))], [Row(1, 0, 4, (2,))], [Row(0, 8, 1, (1, 2, 3))]), "it holds (0, 4)"),
        (case_of([Row(0, 0, 13, (1, 2, 3, 4))]), "n + m = 0 + 13, but request 0 has 12 tokens"),
        (case_of([Row(0, 0, 8, (1,))]), "the table has 1 columns, column 1 is written"),
        (case_of([Row(0, 0, 4, (9,))]), "slot 9 is outside the pool of 8"),
        (case_of([Row(2, 0, 4, (1,))]), "request 2 does not exist"),
        (case_of([Row(None, 0, 4, (1,))]), "a padding row with m = 4"),
        (case_of([Row(0, 0, 2, (1,)), Row(0, 0, 1, (2,))]), "request 0 has two rows"),
        (
            case_of(requests=(Request(4, 1, 2), Request(4))),
            "requests[0].parent: 1, expected an earlier request",
        ),
        (case_of(requests=(Request(4), Request(9, 0, 8))), "requests[1].shared: 8 is longer"),
        (case_of(sizes=dataclasses.replace(SIZES, HV=3, H=2)), "sizes.HV: 3, expected a multiple of H = 2"),
        (case_of(sizes=dataclasses.replace(SIZES, W=1)), "sizes.W: 1, expected at least 2"),
        (case_of(dtypes=("fp32", "fp32", "bf16")), "dtypes.conv: bf16 cannot hold fp32 inputs exactly"),
    ],
)
def test_every_breach_of_the_contract_is_named(case, words):
    """A case outside the contract cannot judge a target, and says why."""
    assert any(words in problem for problem in problems(case)), problems(case)
    with pytest.raises(ValueError, match="case: outside the contract"):
        check(case)


# ---- the planner ----------------------------------------------------------------------------------------------------


def test_planner_hits_only_what_a_finished_batch_wrote():
    """A block that is being written in this batch cannot be hit in it; afterwards it can."""
    plan = Planner(SIZES, budget=99, tokens=99)
    donor = plan.admit(9)
    assert plan.hits(donor) == []

    plan.end_step()

    assert plan.hits(donor) == [1, 2]
    assert plan.hit(donor, 2, 1) is not None


def test_planner_never_recycles_a_slot_in_use():
    """A finished donor's block stays while a reader refers to it."""
    plan = Planner(SIZES, budget=99, tokens=99)
    donor = plan.admit(8)
    plan.end_step()
    reader = plan.hit(donor, 2, 1)
    plan.end_step()
    kept = plan.lives[reader].table[1]
    plan.finish(donor, recycle=True)
    fresh = plan.admit(12)

    assert kept not in plan.lives[fresh].table


def test_planner_keeps_the_budget():
    """Rows are cut short when the budget is spent, and never below a token."""
    plan = Planner(SIZES, budget=6, tokens=99)
    plan.admit(40)
    plan.admit(40)

    _, steps, _ = plan.build()
    assert [row.m for row in steps[0].rows] == [12, 4]


# ---- strategies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CPU, GPU, NARROW], ids=["cpu", "gpu", "narrow"])
@pytest.mark.parametrize("name", KERNEL)
def test_every_drawn_case_is_valid_and_claimed(name, target):
    """What a property draws is inside the contract and inside the target's claims, and survives its JSON."""
    prop = load_all()[name]
    if prop.needs(target):
        assert target is not CPU, prop.needs(target)
        return
    claims = target.claims

    for case in drawn(prop.strategy(target)):
        assert problems(case) == [], case
        assert case.property == name
        assert Case.from_json(case.to_json()) == case
        assert case.level in claims.seams
        assert case.sizes.B % claims.block_multiple == 0
        if case.level == "metadata":
            continue
        assert (case.dtypes.input, case.dtypes.state) in pairs(claims)
        assert case.sizes.C in claims.chunk_sizes
        assert claims.head_sizes is None or {case.sizes.K, case.sizes.V} <= claims.head_sizes
        if not claims.any_start:
            for _, _, row in geometry.rows(case):
                assert row.m <= 1 or geometry.on_grid(row.n, case.sizes.B, case.sizes.C)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_are_valid_on_all_sizes(name):
    """Each scenario alone, on many sizes."""
    for case in drawn(cases(CPU, "values", names=(name,)), examples=80):
        assert problems(case) == []
        assert case.note == name and case.num_tokens > 0


TRIGGERS = {
    "tiny_chunk_after_hit": (
        "hit_then_one_token",
        "shared_block_two_readers",
        "hit_then_two_tokens_below_window",
    ),
    "fresh_token_among_decodes": ("fresh_one_token_in_decode_batch", "zero_length_row", "padding_row_stale"),
    "uniform_rows": ("uniform_rows_of_both_kinds", "fresh_one_token_in_decode_batch"),
    "empty_row_between": ("zero_length_row_between",),
    "clipped_chunks": ("chunk_clipped_both_ends", "chunk_clipped_start"),
    "many_boundaries": ("step_crosses_two_boundaries", "null_write_column", "hit"),
    "preempted_and_resumed": ("preempt_resume", "recycled_slot", "resumed_one_token_row"),
    "unequal_rows": ("mixed_prefill_decode",),
    "as_many_rows_as_tokens": ("as_many_rows_as_tokens",),
    "decode_over_a_boundary": ("boundary_reached_by_decode", "hit"),
    "recycled_slots": ("recycled_slot", "fresh_one_token_row"),
    "shared_by_many": ("shared_block_two_readers", "mixed_prefill_decode"),
    "long_prefill": ("step_crosses_two_boundaries",),
    "chunks_smaller_than_blocks": ("unfree_cut",),
    "null_last_column": ("null_write_column",),
    "prompt_in_pieces": ("free_cut_boundary", "free_cut_chunk_edge", "unfree_cut"),
}


def test_every_scenario_has_its_trigger_named():
    """A new scenario says what it is for."""
    assert set(TRIGGERS) == set(SCENARIOS)


@pytest.mark.parametrize("name", TRIGGERS)
def test_scenarios_reach_what_they_are_for(name):
    """The events that a scenario exists for are found in it, not by luck elsewhere."""
    seen = Counter()
    for case in drawn(cases(CPU, "values", names=(name,)), examples=150):
        seen.update(ledger.events_of(case))

    assert [event for event in TRIGGERS[name] if not seen[event]] == []


def test_all_dtype_pairs_are_drawn_evenly():
    """Each of the nine pairs in a fair share of examples."""
    count = Counter()
    for number in range(30):
        count.update((c.dtypes.input, c.dtypes.state) for c in drawn(cases(CPU, "values"), 11, number))

    assert len(count) == 9
    assert min(count.values()) > 15, count


def test_what_is_left_out_is_listed():
    """A narrower target's gaps can be printed."""
    assert left_out(Claims()) == {}
    gaps = left_out(NARROW.claims)
    assert "fp16/fp32" in gaps["dtype pairs"] and "bf16/fp32" not in gaps["dtype pairs"]
    assert gaps["levels"] == ["conv", "core"]
    assert gaps["clauses"] == ["any_start", "skips_null"]


def test_hypothesis_shrinks_sizes_and_events():
    """The draws shrink to one head, one small block and few events; ``fuzz/shrink.py`` goes on from there."""
    case = find(
        cases(CPU, "values", names=("decode_over_a_boundary",)),
        lambda case: "boundary_reached_by_decode" in ledger.events_of(case),
        settings=settings(
            max_examples=500, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

    assert case.num_tokens <= 12, case
    assert case.sizes == Sizes(H=1, HV=1, K=8, V=8, W=4, B=4, C=16)
    assert (case.dtypes.input, case.dtypes.state, case.inputs.seed) == ("fp32", "fp32", 0)


# ---- metadata -------------------------------------------------------------------------------------------------------


def test_exhaustive_metadata_is_exhaustive():
    """Every batch of up to so many rows of every length up to 2B + 1 is there once."""
    found = Counter()
    for case in exhaustive(Claims()):
        assert problems(case) == []
        found.update(
            (case.sizes.B, case.sizes.C, tuple((r.n, r.m) for r in step.rows)) for step in case.steps
        )

    assert set(found.values()) == {1}
    for B, C, most in SMALL:
        shapes = (2 * B + 2) * (2 * B + 3) // 2
        assert sum(1 for b, c, _ in found if (b, c) == (B, C)) == sum(shapes**r for r in range(1, most + 1))
    assert found.total() > 20_000
    assert (4, 3, ((0, 0), (9, 0))) in found and (2, 2, ((5, 0), (1, 4))) in found
