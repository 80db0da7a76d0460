"""The matrix of claims: what is claimed, how much was compared, what a failure says of which clause.

``pytest tests/fuzz/test_claims.py``
"""

from __future__ import annotations

import pytest

from gdn_apc.fuzz import claims
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.targets.base import Claims

EVERYTHING = {"clauses": claims.record(Claims())}


def example(prop="values", level="core", dtypes="bf16/fp32", comparisons=1, **events):
    return {
        "event": "example",
        "property": prop,
        "level": level,
        "dtypes": dtypes,
        "comparisons": comparisons,
        "ledger": events,
    }


def failure(message, prop="values", level="core", **events):
    return {**example(prop, level, **events), "event": "failure", "message": message}


def states(events, start=EVERYTHING):
    return {r.clause.name: r for r in claims.matrix(start, events)}


def test_a_verdict_needs_so_many_examples():
    """One example fewer is "not shown", with the number that is needed."""
    few, enough = (states([example()] * n) for n in (claims.FLOOR - 1, claims.FLOOR))
    assert (few["rule"].state, few["rule"].note) == ("not shown", f"{claims.FLOOR} examples needed")
    assert (enough["rule"].state, enough["rule"].compared) == ("held", claims.FLOOR)
    assert enough["persisted_carry"].state == "not shown"  # of another property


def test_examples_count_for_the_clauses_that_they_show():
    """An event of the ledger, a pair of dtypes, a level."""
    found = states([example(chunk_clipped_start=1)] * 3 + [example(level="conv")] * 2)
    assert found["any_start"].compared == 3
    assert found["bf16 inputs, fp32 state"].compared == 5
    assert found["conv_fp32"].compared == 2
    assert found["rule"].compared == 3


def test_what_is_not_claimed_is_not_failed():
    """It stays "not claimed", whatever was met, with why where there is more to say."""
    narrow = Claims(seams=frozenset({"conv"}), any_start=False, block_multiple=8)
    start = {"clauses": claims.record(narrow)}
    found = states([failure("the output is wrong", level="conv", chunk_clipped_start=1)], start)
    assert found["any_start"].state == "not claimed"
    assert found["rule"].verdict == "not claimed (no delta or core)"
    assert found["any block size"].verdict == "not claimed (multiples of 8)"
    assert found["convolution"].state == "broken"


@pytest.mark.parametrize(
    "message, broken, whole",
    [
        ("state(3) is wrong at step 0", "rule", "convolution"),
        ("the window of column 0 is wrong at input 1", "convolution", "rule"),
    ],
)
def test_a_failure_of_the_core_is_in_one_of_its_parts(message, broken, whole):
    """A wrong window says nothing against the rule, nor a wrong state against the convolution."""
    found = states([example()] * 30 + [failure(message)])
    assert found[broken].verdict == "broken (values)"
    assert found[whole].state == "held"


def test_a_known_failure_breaks_its_clause_too():
    """Passing over a failure keeps a campaign green, not a claim."""
    known = {**failure("state(3) is wrong at step 0"), "event": "expected"}
    assert states([example()] * 30 + [known])["rule"].state == "broken"


def test_a_failure_that_values_shows_is_not_held_against_other_properties():
    """``hit_is_used`` compares every row with the oracle: only what it alone meets is about hits."""
    same = [failure("state(3) is wrong at step 0"), failure("state(9) is wrong at step 4", "hit_is_used")]
    held = [example("hit_is_used")] * 30
    assert states(held + same)["hit is used"].state == "held"
    assert states(held + same[1:])["hit is used"].state == "broken"


def test_a_stale_read_breaks_the_fresh_start():
    """Only where the case has a fresh one-token row and NaN was read."""
    event = {"fresh_one_token_row": 1}
    assert (
        states([failure("output of request 0 is nan", "read_set", **event)])["fresh_start"].state == "broken"
    )
    assert states([failure("output of request 0 is nan", "read_set")])["fresh_start"].state == "not shown"


def test_what_the_adapter_does_is_said():
    """A clause that holds by construction is no merit of the target."""
    start = {"clauses": claims.record(Claims(by_adapter=frozenset({"persisted_carry"})))}
    found = states([example("warm_equals_cold")] * 30, start)
    assert found["persisted_carry"].verdict == "held (by the adapter)"
    assert found["boundary_grid"].verdict == "held"


def test_batches_and_steps_are_counted_as_such():
    """An example of the metadata is many batches, and one of a life many steps."""
    found = states([example("metadata", "metadata", comparisons=20_000)])
    assert found["block indices"].verdict == "held"
    heads, lines = claims.table(claims.matrix(EVERYTHING, [example("metadata", "metadata", comparisons=5)]))
    line = next(x for x in lines if x[0] == "block indices")
    assert dict(zip(heads, line))["compared"] == "5 batches"


def test_every_property_that_judges_a_target_is_evidence_of_a_clause():
    """A property whose failures no clause hears of would vanish from the matrix."""
    heard = {name for clause in claims.CLAUSES for name in clause.properties}
    kinds = {p.name: p.kind for p in load_all().values()}
    assert {n for n, kind in kinds.items() if kind in ("kernel", "metadata")} <= heard
    assert heard <= set(kinds)


def test_every_claim_is_a_clause():
    """A flag of ``Claims`` that no clause asks for would be reported nowhere."""
    flags = {name for name, value in vars(Claims()).items() if value is True}
    names = {c.name for c in claims.CLAUSES}
    assert flags <= names
    for flag in flags:
        claimed = {c["name"]: c["missing"] for c in claims.record(Claims(**{flag: False}))}
        assert claimed[flag] == "not claimed"


def test_failures_of_a_kind_are_judged_together():
    """An event that only some of them show, or a dtype, is not what is broken."""
    some = failure("state(3) is wrong at step 0", step_crosses_two_boundaries=1, chunk_clipped_start=1)
    other = {**failure("state(9) is wrong at step 1", chunk_clipped_start=1), "dtypes": "fp16/fp32"}
    held = [example(step_crosses_two_boundaries=1, chunk_clipped_start=1)] * 30
    found = states([*held, some, other])
    assert found["rule"].state == found["any_start"].state == "broken"
    assert found["boundary_states"].state == found["bf16 inputs, fp32 state"].state == "held"
    assert states([*held, some])["boundary_states"].state == "broken"
