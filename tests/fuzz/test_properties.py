"""A right target passes every property, and every property catches the faults that it is for.

A property that cannot fail is a defect. ``pytest tests/fuzz/test_properties.py``
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from gdn_apc.fuzz.properties import REGISTRY, Violation, load_all
from gdn_apc.fuzz.targets.base import Claims, Target
from gdn_apc.fuzz.targets.planted import FAULTS
from gdn_apc.fuzz.targets.reference import ReferenceTarget

OURS = [p.name for p in load_all().values() if p.kind in ("kernel", "metadata")]
DRAWN = [name for name in OURS if name != "program_order"]  # the reference runs no programs


def violations(name: str, target: Target, examples: int, number: int = 0):
    """Every violation of a property among so many cases, with its case; the rest is counted."""
    prop, found, compared, events = load_all()[name], [], 0, set()

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=prop.strategy(target))
    def run(case):
        nonlocal compared
        try:
            checked = prop.check(target, case)
        except Violation as e:
            found.append((case, e))
        else:
            compared += checked.comparisons > 0
            events.update(checked.events)

    run()
    return found, compared, events


@pytest.mark.parametrize("name", DRAWN)
def test_the_reference_passes(name):
    """The oracle as a target holds every property, and nearly every case compares something."""
    found, compared, events = violations(name, ReferenceTarget(), 40)

    assert found == []
    assert compared >= 36
    assert bool(events) == (name != "metadata")


CAUGHT_BY = {
    "values": (
        "ReadsFirstScheduled DropsBoundary Transposes WritesShared StateByLength StaleWindow CarriesUnrounded "
        "RoundsBeta IgnoresHit MixesHeads DefaultsScale"
    ),
    "far_slots": "WrapsOffsets ReadsFirstScheduled",
    "write_set": "WritesNull WritesShared WritesPastState RunsPadding",
    "read_set": "MultipliesTail MultipliesForeign StateByLength ReadsFirstScheduled",
    "warm_equals_cold": "CarriesUnrounded DropsBoundary GridFromStart",
    "free_cuts": "GridFromStart CarriesUnrounded IgnoresHit",
    "batch_invariance": "DependsOnBatch DependsOnSlot",
    "index_movement": "Transposes MixesHeads ReadsFirstScheduled DropsBoundary StaleWindow",
    "hit_is_used": "Remembers IgnoresHit",
    "metadata": "LastColumnTooFar KeepsPaddedIndices",
}


def test_every_property_has_a_fault_and_every_fault_a_property():
    """No property is without a proof that it can fail, and no fault is for show."""
    assert set(CAUGHT_BY) == set(DRAWN)
    assert {fault for names in CAUGHT_BY.values() for fault in names.split()} == set(FAULTS)


@pytest.mark.parametrize("name, fault", [(n, f) for n, fs in CAUGHT_BY.items() for f in fs.split()])
def test_planted_faults_are_caught(name, fault):
    """Within a default campaign's examples, and the violation says where."""
    caught = next(
        (found for number in range(4) if (found := violations(name, FAULTS[fault](), 15, number)[0])), None
    )

    assert caught, f"{name} does not see {fault}"
    case, error = caught[0]
    assert case.property == name
    assert "step" in error.where, error.where
    assert len(str(error)) < 4000


def test_only_the_exact_property_sees_a_remembering_target():
    """A target that keeps states of its own is right on undisturbed pools: only a changed slot tells."""
    assert violations("values", FAULTS["Remembers"](), 15)[0] == []


@pytest.mark.parametrize("fault", ["CarriesUnrounded", "GridFromStart"])
def test_bitwise_properties_see_what_tolerances_may_not(fault):
    """One rounding more or less is a violation."""
    found = [violations("warm_equals_cold", FAULTS[fault](), 15, number)[0] for number in range(3)]

    assert any("depends on whether its prefix was a hit" in str(e) for cases in found for _, e in cases)


def test_exhaustive_metadata_is_checked_and_can_fail():
    """The fixed cases compare over 20,000 batches on the reference, and fail on the first wrong index."""
    prop = REGISTRY["metadata"]
    some = list(itertools.islice(prop.fixed(ReferenceTarget()), 12))

    assert sum(prop.check(ReferenceTarget(), case).comparisons for case in some) == 12 * 250
    with pytest.raises(
        Violation, match=r"block_idx_last_scheduled_token is \[1\], expected \[0\].*n 0, m 1.*B = 1"
    ):
        for case in some:
            prop.check(FAULTS["LastColumnTooFar"](), case)


# ---- what a target may lack -----------------------------------------------------------------------------------------


class Narrow(ReferenceTarget):
    """The reference, claiming little."""

    claims = Claims(
        seams=frozenset({"delta"}),
        state_dtypes=frozenset({"fp32"}),
        any_start=False,
        absolute_grid=False,
        batch_invariant=False,
        skips_null=False,
        packed_tail=False,
    )


def test_unclaimed_clauses_are_reasons_not_failures():
    """A property that needs more than is claimed says what, and the others run on what is left."""
    reasons = {name: REGISTRY[name].needs(Narrow()) for name in OURS}

    assert reasons["free_cuts"] == "does not claim absolute_grid"
    assert reasons["warm_equals_cold"] is None
    assert reasons["batch_invariance"] == "does not claim batch_invariant"
    assert reasons["metadata"] == "claims none of the seams metadata"
    for name in ("values", "write_set", "read_set", "hit_is_used", "index_movement"):
        assert reasons[name] is None
        assert violations(name, Narrow(), 10)[0] == []


def test_program_order_has_nothing_to_do_without_kernels():
    """A target without Triton kernels is not asked, rather than passed."""
    assert "no Triton kernels" in REGISTRY["program_order"].needs(ReferenceTarget())


@pytest.mark.parametrize(
    "spoil, words", [(lambda o: o.double(), "torch.float64"), (lambda o: o[..., :-1], "the output has shape")]
)
def test_wrong_shapes_and_dtypes_are_violations(spoil, words):
    """An answer of another shape or dtype is the target's fault, with both in the message."""

    class Odd(ReferenceTarget):
        claims = Claims(seams=frozenset({"delta"}))

        def delta(self, *args):
            return spoil(super().delta(*args))

    found, compared, _ = violations("values", Odd(), 5)

    assert len(found) == 5 and compared == 0
    assert all(words in str(e) for _, e in found)


def test_nan_is_named_as_a_read_that_must_not_be():
    """The message of the read set says what happened."""
    found, _, _ = violations("read_set", FAULTS["MultipliesForeign"](), 5)

    assert "something was read that must not be" in str(found[0][1])
