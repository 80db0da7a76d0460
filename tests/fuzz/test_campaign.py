"""How a campaign draws, counts, shrinks and keeps cases."""

import dataclasses
import json
import math
import time
from collections import Counter

import gdn_toys
import pytest
from hypothesis import strategies as st

from gdn_apc.fuzz import campaign, canary, profiles
from gdn_apc.fuzz.campaign import DEFAULT_BUDGET, ROUND, Drive, Plan
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runs import RunFolder, digest


@pytest.fixture
def drive(tmp_path):
    """Runs one shard of a property; returns the drive, with its outcome and its run folder."""
    count = iter(range(100))

    def run(prop, *, shard=0, seconds=math.inf, **plan):
        plan = Plan(**{"target": "toy", "seed": 7, "root": tmp_path, **plan})
        folder = RunFolder(tmp_path / f"run{next(count)}").create()
        driven = Drive(prop, gdn_toys.TARGET, plan, folder, shard=shard)
        driven.run(seconds)
        return driven

    return run


def recording(check=lambda case: Checked(1), name="holds"):
    """A toy property that notes the digest of every case it is asked to check."""
    seen = []

    def checked(target, case):
        seen.append(digest(case))
        return check(case)

    return gdn_toys.toy(name, check=checked), seen


def discoveries(driven):
    """The ledger's events of the examples that a drive recorded."""
    return sum(
        (Counter(e["ledger"]) for e in driven.run_folder.events() if e["event"] == "example"), Counter()
    )


def test_a_seed_means_the_same_cases(drive):
    cases = []
    for seed in (7, 7, 8):
        prop, seen = recording()
        drive(prop, seed=seed)
        cases.append(seen)

    assert cases[0] == cases[1] != cases[2]
    assert len(set(cases[0]) & set(cases[2])) == 1  # the simplest case, with which every round starts


def test_a_seed_means_the_same_cases_whatever_the_example_database_holds(drive):
    def check(case):
        if failing and case.num_tokens >= 7:
            raise Violation("wrong")
        return Checked(1)

    failing, (prop, first) = False, recording(check)
    drive(prop)
    failing, (prop, _) = True, recording(check)
    drive(prop)
    failing, (prop, after) = False, recording(check)
    replayed = drive(prop).outcome.replayed

    assert replayed > 0
    assert after[replayed:] == first


def test_shards_and_rounds_draw_different_cases(drive):
    shards = [recording() for _ in range(2)]
    for shard, (prop, _) in enumerate(shards):
        drive(prop, shard=shard, shards=2)
    size = ROUND
    firsts = [seen[start : start + size] for _, seen in shards for start in (0, size)]

    assert all(len(set(a) & set(b)) == 1 for a in firsts for b in firsts if a is not b)
    assert profiles.round_seed(7, "a", 0, 1) != profiles.round_seed(7, "a", 1, 0)


def test_only_distinct_compared_cases_count(drive):
    few = gdn_toys.toy("holds", largest=3)
    few = dataclasses.replace(
        few, strategy=lambda t: st.builds(gdn_toys.case_of, st.just("holds"), st.integers(1, 3), st.just(0))
    )
    outcome = drive(few).outcome

    assert (outcome.examples, outcome.status) == (3, "held")
    assert drive(gdn_toys.toy("compares-nothing")).outcome.examples == 0


def test_fixed_cases_run_first_on_one_shard_each_and_discover_nothing(drive):
    """All of them, before anything is drawn; one that fails is shrunk and reported like a drawn one."""
    fixed = [gdn_toys.case_of("holds", tokens, 99) for tokens in (30, 31, 32, 33, 34)]
    for shard in range(2):
        prop, seen = recording(lambda case: Checked(1, events=Counter(seen=1)))
        prop = dataclasses.replace(prop, fixed=lambda target: fixed)
        outcome = drive(prop, shard=shard, shards=2, budget=20).outcome
        mine = [digest(case) for case in fixed[shard::2]]
        assert seen[: len(mine)] == mine
        assert outcome.ledger["seen"] == outcome.examples - len(mine)

    def check(case):
        if case.num_tokens == 33:
            raise Violation("wrong")
        return Checked(1)

    prop, seen = recording(check)
    failed = drive(dataclasses.replace(prop, fixed=lambda target: fixed))

    assert failed.outcome.status == "failed" and failed.failure.phase == "fixed"
    assert [digest(case) for case in fixed[:4]] == seen[:4]


def test_the_ledger_counts_the_random_phase_only(drive):
    """Neither replayed examples nor those of shrinking are discoveries, and nothing counts before it passed."""

    def check(case):
        if failing and case.num_tokens >= 7:
            raise Violation("wrong")
        return Checked(1, events={"small": int(case.num_tokens < 7), "large": int(case.num_tokens >= 7)})

    failing, (prop, _) = True, recording(check)
    failed = drive(prop)
    discovered = discoveries(failed)
    assert failed.failure.attempts > 10 and discovered["large"] == 0 and discovered["small"] <= 1

    failing, (prop, _) = False, recording(check)
    held = drive(prop)
    assert held.outcome.replayed > 0 and held.outcome.examples == DEFAULT_BUDGET
    assert discoveries(held).total() == DEFAULT_BUDGET


@pytest.mark.parametrize("ci", ["", "1"])
def test_failing_examples_are_kept_and_replayed_on_ci_too(drive, monkeypatch, ci):
    """Hypothesis's own ``ci`` profile would switch the database off and repeat the same cases for ever."""
    monkeypatch.setenv("CI", ci)
    first, second = (drive(gdn_toys.toy("fails")) for _ in range(2))

    assert (first.failure.phase, second.failure.phase) == ("generate", "reuse")
    settings = profiles.settings_for("fuzz", profiles.SEARCH, 5, first.database)
    assert settings.database is first.database and not settings.derandomize and settings.deadline is None
    assert [check.name for check in settings.suppress_health_check] == ["too_slow"]


def test_the_gate_keeps_nothing(drive, tmp_path):
    for _ in range(2):
        assert drive(gdn_toys.toy("fails"), profile="gate").failure.phase == "generate"

    assert not (tmp_path / ".gdn-apc").exists()


def test_an_unknown_profile_is_refused():
    with pytest.raises(ValueError, match="profile: 'ci' is unknown, expected one of fuzz, gate"):
        profiles.settings_for("ci", profiles.SEARCH, 5, None)


def test_a_failing_case_is_saved_unshrunk_then_shrunk(drive):
    driven = drive(gdn_toys.toy("fails"))
    found, failure = (e for e in driven.run_folder.events() if e["event"] in ("found", "failure"))
    unshrunk, shrunk = (
        Case.from_json((driven.run_folder.cases / e["case"]).read_text()) for e in (found, failure)
    )

    assert unshrunk.num_tokens > shrunk.num_tokens == 7
    assert failure["where"] == {"step": "0", "block": "3"} and failure["shrunk"] == ""
    text = json.loads((driven.run_folder.cases / failure["case"]).read_text())
    assert text["provenance"] == {"target": "toy", "seed": 7, "shard": 0, "round": found["round"]}
    assert not list(driven.run_folder.cases.glob("current-*"))


def test_an_edit_that_breaks_does_not_cost_the_failure(drive, monkeypatch):
    """What Hypothesis made of the case is reported, and why it was not edited."""

    def minimise(*arguments):
        raise IndexError("no such row")

    monkeypatch.setattr(campaign, "minimise", minimise)
    driven = drive(gdn_toys.toy("fails"))

    assert driven.outcome.status == "failed" and driven.failure.answer()[0].num_tokens >= 7
    assert driven.failure.shrunk == "editing the case broke: IndexError: no such row"


def test_shrinking_stops_at_its_cap_and_keeps_the_smallest_case(drive):
    started = time.monotonic()
    driven = drive(gdn_toys.toy("fails-slowly"), shrink_seconds=0.7)

    assert time.monotonic() - started < 10
    assert driven.failure.shrunk == "stopped at its cap of 0.7 s"
    assert 1 <= driven.failure.attempts <= 16
    assert driven.failure.answer()[0].num_tokens < Case.from_json(driven.failure.first.read_text()).num_tokens


def test_a_failure_that_does_not_repeat_is_still_a_failure(drive):
    def check(target, case):
        if case.num_tokens >= 7 and not failed:
            failed.append(case)
            raise Violation("a race")
        return Checked(1)

    failed = []
    driven = drive(gdn_toys.toy("holds", check=check))

    assert (driven.outcome.status, driven.outcome.message) == ("failed", "a race")
    assert driven.failure.shrunk == "the case passed when it ran again"


def test_filtering_too_much_is_our_fault(drive):
    prop = gdn_toys.toy("holds")
    wasteful = dataclasses.replace(
        prop, strategy=lambda t: prop.strategy(t).filter(lambda c: c.num_tokens % 97 == 3)
    )
    outcome = drive(wasteful).outcome

    assert outcome.status == "broken"
    assert "FailedHealthCheck" in outcome.message or "Unsatisfiable" in outcome.message


def test_time_is_looked_at_between_rounds_only(drive):
    prop = gdn_toys.toy("holds", check=lambda target, case: time.sleep(0.02) or Checked(1))
    none, some = (drive(prop, budget=None, seconds=seconds).outcome for seconds in (0.0, 3.0))

    assert (none.rounds, none.examples) == (1, ROUND)
    assert some.rounds > 1 and some.seconds < 8


def test_other_kinds_count_their_comparisons(drive):
    prop = dataclasses.replace(
        gdn_toys.toy("holds", check=lambda t, c: Checked(30)), kind="metadata", floor=10_000
    )
    full, third = (drive(prop, budget=budget).outcome for budget in (DEFAULT_BUDGET, DEFAULT_BUDGET // 3))

    assert 10_000 <= full.comparisons < 10_000 + ROUND * 30
    assert 3_300 <= third.comparisons < 3_300 + ROUND * 30


def test_the_canary_is_heard(tmp_path):
    plan = Plan(target="toy", seed=7, root=tmp_path)
    said = canary.run(plan, RunFolder(tmp_path / "run").create())

    assert "failed as it must, shrunk from" in said and "to 3 tokens" in said
    assert not (tmp_path / "run" / "canary").exists()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda target, case: Checked(1), "the canary property ended as 'held' instead of failing"),
        (lambda target, case: 1 / 0, "the canary property ended as 'broken' instead of failing"),
        (gdn_toys.CHECKS["fails"], "the canary was shrunk to 7 tokens, expected 3"),
    ],
)
def test_a_silent_canary_is_heard_too(tmp_path, check, message):
    with pytest.raises(canary.Silent, match=message):
        canary.run(
            Plan(target="toy", seed=7, root=tmp_path),
            RunFolder(tmp_path).create(),
            dataclasses.replace(canary.CANARY, check=check),
        )


def test_a_property_that_is_never_told_its_target_cannot_blame_it(drive):
    """Exceptions count against the target only if they passed through one of its methods."""
    by_target, by_us = (drive(gdn_toys.toy(name)).outcome for name in ("target-raises", "we-raise"))

    assert (by_target.status, by_us.status) == ("failed", "broken")
    assert "IndexError: block 7 is out of range" in by_target.message


def test_a_campaign_by_the_clock_may_have_enough_of_a_property(tmp_path):
    """``most`` is a whole campaign's, divided over its shards; without it the clock decides."""
    plan = Plan(target="toy", seed=7, root=tmp_path, budget=None, minutes=1, shards=8)
    assert plan.goal(gdn_toys.toy("holds")) == math.inf
    assert plan.goal(dataclasses.replace(gdn_toys.toy("holds"), most=20)) == 3
    assert (
        dataclasses.replace(plan, budget=80).goal(dataclasses.replace(gdn_toys.toy("holds"), most=20)) == 10
    )
