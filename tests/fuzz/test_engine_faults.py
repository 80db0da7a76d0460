"""Every fault planted in the engine is found by random lives. ``pytest tests/fuzz/test_engine_faults.py -s``."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from gdn_apc.fuzz.engine import CATALOGUE, Faults, life_of, live_through
from gdn_apc.fuzz.engine.lives import symbolic_lives
from gdn_apc.fuzz.properties.base import Violation

INVARIANTS = {
    "StateTrue",
    "FreshStart",
    "SharedImmutable",
    "WriteExclusive",
    "NullUntouched",
    "PublishTrue",
    "CountsExact",
    "HitLongest",
    "Progress",
}


def test_the_catalogue_describes_every_flag():
    assert set(CATALOGUE) == {f.name for f in dataclasses.fields(Faults)}
    assert set().union(*(planted.caught_by for planted in CATALOGUE.values())) == INVARIANTS


quick = settings(
    database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


class Found(BaseException):
    """Leaves Hypothesis at the first violation, without shrinking."""


def examples_until_found(fault: str, number: int, rounds: int = 15) -> tuple[int, Violation]:
    """How many random lives it takes to find a fault, in rounds of 20 as the campaign has them, and what was found."""
    tried = 0
    found: list[Violation] = []

    @settings(quick, max_examples=20)
    @given(symbolic_lives("machine_symbolic"))
    def search(case):
        nonlocal tried
        tried += 1
        try:
            live_through(life_of(case, Faults(**{fault: True})), case.choice["events"])
        except Violation as violation:
            found.append(violation)
            raise Found from None

    try:
        for i in range(rounds):
            seed(1000 * number + i)(search)()
    except Found:
        return tried, found[0]
    pytest.fail(f"{fault}: {CATALOGUE[fault].doc}: not found in {tried} lives")


@pytest.mark.parametrize("fault", sorted(CATALOGUE))
def test_a_planted_fault_is_found(fault, record_property):
    """Three searches with different seeds; each finds it, and an invariant that may name it does."""
    counts = []
    for number in range(3):
        tried, violation = examples_until_found(fault, number)
        assert violation.where["invariant"] in CATALOGUE[fault].caught_by, str(violation)
        counts.append(tried)
    record_property("examples_to_detection", counts)
    print(f"{fault}: found after {counts} lives: {violation}")
