"""Shrinking by editing explicit rows: small, valid, claimed, and still failing. ``pytest tests/fuzz/test_shrink.py``."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from gdn_apc.fuzz import ledger, shrink, targets
from gdn_apc.fuzz.case import Case, Request, Row, Step
from gdn_apc.fuzz.floors import Drawn
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.strategies import cases
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.planted import FAULTS
from gdn_apc.fuzz.validity import problems


def first(strategy, condition, tokens: int = 11) -> Case:
    """The first drawn case that meets the condition, unshrunk; of at most 2,000. Of at least so many tokens."""
    found = []

    for number in range(20):

        @seed(number)
        @settings(
            max_examples=100,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def draw(case):
            if not found and case.num_tokens >= tokens and condition(case):
                found.append(case)

        draw()
        if found:
            break
    return found[0]


def shows(event: str):
    return lambda case: event in ledger.events_of(case)


@pytest.mark.parametrize(
    "event, tokens, rows",
    [
        ("hit", 5, 3),
        ("preempt_resume", 3, 2),
        ("shared_block_two_readers", 6, 3),
        ("boundary_reached_by_decode", 4, 3),
        ("fresh_one_token_in_decode_batch", 3, 3),
        ("step_crosses_two_boundaries", 8, 1),
        ("zero_length_row_between", 4, 4),
    ],
)
def test_a_case_shrinks_to_what_its_failure_needs(event, tokens, rows):
    """What is left is the event and hardly anything else, on small and plain sizes."""
    case = first(cases(Drawn("cpu"), "values"), lambda c: shows(event)(c) and c.sizes.B <= 4)

    small = shrink.minimise(case, shows(event), Claims(), seconds=90)

    assert shows(event)(small) and problems(small) == []
    assert small.num_tokens <= tokens, small
    assert sum(len(step.rows) for step in small.steps) <= rows, small
    assert len(small.requests) <= rows and all(r.length for r in small.requests)
    assert (small.sizes.H, small.sizes.HV, small.sizes.K, small.sizes.V) == (1, 1, 8, 8)
    assert small.inputs.seed == 0 and small.dtypes.input == "fp32" and small.pool.page_padding == 0


def test_shrinking_stays_inside_the_claims():
    """A target with one head size and one dtype is not shown others."""
    claims = dataclasses.replace(Claims(), head_sizes=frozenset({16, 32}), input_dtypes=frozenset({"bf16"}))
    case = first(cases(Drawn("cpu", claims), "values"), shows("hit"))

    small = shrink.minimise(case, shows("hit"), claims, seconds=90)

    assert small.num_tokens < case.num_tokens
    assert (small.sizes.K, small.sizes.V, small.dtypes.input) == (16, 16, "bf16")


def test_nothing_smaller_leaves_the_case():
    """A failure that every edit removes keeps its case, and time that is up ends the search."""
    case = first(cases(Drawn("cpu"), "values"), lambda c: True)

    assert shrink.minimise(case, lambda c: c == case, Claims(), seconds=90) == case
    assert shrink.minimise(case, lambda c: True, Claims(), seconds=0) == case


@pytest.mark.parametrize(
    "name, fault, tokens",
    [
        ("values", "DropsBoundary", 3),
        ("values", "WritesShared", 5),
        ("read_set", "StateByLength", 1),
        ("write_set", "RunsPadding", 2),
        ("hit_is_used", "Remembers", 5),
        ("index_movement", "StaleWindow", 3),
        ("warm_equals_cold", "CarriesUnrounded", 24),
        ("free_cuts", "GridFromStart", 80),
    ],
)
def test_planted_faults_shrink_to_readable_cases(name, fault, tokens):
    """A violation of a property shrinks to a few tokens and stays a violation of it."""
    prop, target = load_all()[name], FAULTS[fault]()

    def fails(case: Case) -> bool:
        return shrink.violation(prop, target, case) is not None

    small = shrink.minimise(first(prop.strategy(target), fails), fails, target.claims, seconds=90)

    assert fails(small) and problems(small) == []
    assert small.num_tokens <= tokens, small


def test_metadata_cases_shrink_too():
    """Batches, rows, lengths and sizes."""
    prop, target = load_all()["metadata"], FAULTS["LastColumnTooFar"]()

    def fails(case: Case) -> bool:
        return shrink.violation(prop, target, case) is not None

    small = shrink.minimise(first(prop.strategy(target), fails), fails, target.claims, seconds=90)

    assert (len(small.steps), len(small.steps[0].rows)) == (1, 1)
    assert small.num_tokens == 1 and small.steps[0].rows[0].n <= 1 and small.sizes.B <= 2


def test_a_zero_length_row_of_a_request_that_goes_is_padding():
    """No row is left with a number that no request has."""
    one, zero = Row(0, 0, 2, (1,)), Row(1, 0, 0, ())
    case = dataclasses.replace(
        first(cases(Drawn("cpu"), "values"), lambda c: True),
        requests=(Request(2), Request(0)),
        steps=(Step((one, zero)),),
    )

    *_, small = shrink.drop_unused(case)

    assert small.requests == (Request(2),)
    assert small.steps == (Step((one, dataclasses.replace(zero, request=None))),)


@pytest.mark.parametrize(
    "name, fault, tokens",
    [("machine_kernels", "DropsBoundary", 5), ("machine_kernels", "WritesShared", 5), ("machine_symbolic", "LastColumnTooFar", 1)],
)  # fmt: skip
def test_a_life_of_the_cache_machine_shrinks(name, fault, tokens):
    """Events, requests, habits and sizes: what is left is one request's life, of 3 tokens mostly.

    The case that is drawn depends on what else the process has imported, and from a few of them it ends at 5.
    """
    prop, target = load_all()[name], FAULTS[fault]()

    def fails(case: Case) -> bool:
        return shrink.violation(prop, target, case) is not None

    small = shrink.minimise(first(prop.strategy(target), fails, tokens=0), fails, target.claims, seconds=90)

    assert fails(small) and small.choice["events"] == [["submit", 0]] and len(small.requests) == 1
    assert small.requests[0].length <= tokens and small.choice["prompts"][0] <= tokens
    assert (small.choice["depth"], small.choice["attention"], small.sizes.H) == (1, False, 1)


class Raises(FAULTS["DropsBoundary"]):
    """Raises where it should write a second block."""

    def write_slots(self, line, batch):
        if line.m > 2:
            raise IndexError("no such column")
        return super().write_slots(line, batch)


def test_an_exception_of_the_target_is_a_failure_to_shrink():
    """So that a crash is made small as well; our own is not taken for one."""
    prop, target = load_all()["write_set"], Raises()

    def fails(case: Case) -> bool:
        found = shrink.violation(prop, target, case)
        return found is not None and found.where.get("raised") == "IndexError"

    small = shrink.minimise(first(prop.strategy(target), fails), fails, target.claims, seconds=90)

    assert small.num_tokens == 3 and len(small.steps) == 1


def test_a_request_gets_tokens_of_its_own_where_nothing_is_shared():
    """A parent whose tokens are not needed goes."""
    row = Row(1, 0, 2, (1,))
    case = dataclasses.replace(
        first(cases(Drawn("cpu"), "values"), lambda c: True),
        requests=(Request(4), Request(4, 0, 4)),
        steps=(Step((row,)),),
    )

    small = shrink.minimise(case, lambda c: c.num_tokens == 2, Claims(), seconds=30)
    assert small.requests == (Request(2),) and small.steps[0].rows[0].request == 0


@pytest.mark.parametrize(
    "name, one, other", [("warm_equals_cold", "warm", "cold"), ("free_cuts", "one", "cut")]
)
def test_twins_with_other_tokens_are_no_case(name, one, other):
    """A request that gets tokens of its own is no twin any more: no target is accused of what differs then."""
    target, prop = targets.load("native-torch"), load_all()[name]
    case = first(prop.strategy(target), lambda c: c.requests[c.choice[other]].parent is not None)
    alone = dataclasses.replace(case.requests[case.choice[other]], parent=None, shared=0)
    requests = [alone if r == case.choice[other] else x for r, x in enumerate(case.requests)]
    edited = dataclasses.replace(case, requests=tuple(requests))

    assert prop.check(target, case).comparisons
    with pytest.raises(
        ValueError,
        match=f"requests {case.choice[one]} and {case.choice[other]} differ in their first [0-9]+ tokens",
    ):
        prop.check(target, edited)
