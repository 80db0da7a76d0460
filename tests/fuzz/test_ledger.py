"""The ledger: every event has a witness that reaches it, and floors that a working campaign never misses.

``pytest tests/fuzz/test_ledger.py``
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from gdn_apc.fuzz import floors, ledger, witnesses
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.floor_table import TABLE
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.strategies import pairs
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.reference import ReferenceTarget
from gdn_apc.fuzz.validity import problems

KERNEL = [p.name for p in load_all().values() if p.kind == "kernel"]
NARROW = Claims(
    seams=frozenset({"delta"}),
    input_dtypes=frozenset({"bf16"}),
    state_dtypes=frozenset({"fp32"}),
    any_start=False,
    skips_null=False,
    head_sizes=frozenset({128}),
    block_multiple=64,
    chunk_sizes=frozenset({64}),
)
TARGETS = {"all": floors.Drawn("cpu"), "narrow": floors.Drawn("cpu", NARROW), "gpu": floors.Drawn("cuda")}


# ---- reached --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", ledger.EVENTS)
def test_every_event_has_a_small_witness(name, kind):
    """Valid, within the claims, and it shows its event; or the ledger says why the target cannot."""
    target = TARGETS[kind]
    reason = witnesses.needed(target)[name]
    if reason:
        with pytest.raises(ValueError, match=f"event: {name} cannot be reached on drawn: "):
            witnesses.witness(name, target)
        assert kind == "narrow", reason
        return

    case = witnesses.witness(name, target)

    assert problems(case) == []
    assert ledger.events_of(case)[name] == 1
    assert (case.dtypes.input, case.dtypes.state) in pairs(target.claims)
    assert case.level in target.claims.seams
    assert case.sizes.B % target.claims.block_multiple == 0 and case.sizes.C in target.claims.chunk_sizes
    assert sum(len(step.rows) for step in case.steps) <= 7


def test_witnesses_hold_on_the_reference():
    """Each runs as a case of ``values``."""
    target, check = ReferenceTarget(), load_all()["values"].check

    for name in ledger.EVENTS:
        assert check(target, witnesses.witness(name, target)).events[name] == 1


def test_an_unknown_event_is_refused():
    """A typo does not pass as reached."""
    with pytest.raises(ValueError, match="event: 'hits' is unknown, expected one of cold_prefill"):
        witnesses.witness("hits", TARGETS["all"])


def test_events_need_what_they_say():
    """Changing the one thing that makes an event removes it."""
    case = witnesses.witness("hit_then_one_token", TARGETS["all"])
    assert {"hit", "hit_then_one_token", "resumed_one_token_row"} <= set(ledger.events_of(case))

    cold = dataclasses.replace(case, steps=case.steps[:1])
    conv = dataclasses.replace(witnesses.witness("beta_one", TARGETS["all"]), level="conv")
    bf16 = dataclasses.replace(
        (edge := witnesses.witness("free_cut_chunk_edge", TARGETS["all"])),
        dtypes=dataclasses.replace(edge.dtypes, state="bf16"),
    )

    assert not {"hit", "hit_then_one_token"} & set(ledger.events_of(cold))
    assert ledger.events_of(conv)["beta_one"] == 0
    assert ledger.events_of(bf16)["free_cut_chunk_edge"] == 0 and ledger.events_of(bf16)["unfree_cut"] == 1
    assert ledger.events_of(dataclasses.replace(case, level="metadata")) == Counter()


def test_events_are_counted_after_the_comparison_only():
    """A case that compares nothing is no discovery."""
    target, prop = ReferenceTarget(), load_all()["hit_is_used"]
    case: Case = witnesses.witness("cold_prefill", target)

    checked = prop.check(target, dataclasses.replace(case, choice={"reader": 0, "noise": 0}))

    assert checked.comparisons == 0 and checked.events == Counter()


# ---- discovered -----------------------------------------------------------------------------------------------------


def test_binomial_is_exact():
    """Against hand-computed values."""
    np.testing.assert_allclose(floors.binomial(3, 0.5), [1 / 8, 3 / 8, 3 / 8, 1 / 8])
    np.testing.assert_allclose(floors.binomial(2, 0.1), [0.81, 0.18, 0.01])
    assert floors.binomial(4, 0.0)[0] == 1 and floors.binomial(4, 1.0)[4] == 1


def test_floor_is_the_largest_that_a_working_campaign_reaches():
    """P(below the floor) < 1e-6 ≤ P(below the floor + 1)."""
    for trials in ([(100, 0.3)], [(45, 0.1), (45, 0.5)], [(500, 0.05)]):
        f = floors.floor(trials)
        pmf = np.ones(1)
        for n, p in trials:
            pmf = np.convolve(pmf, floors.binomial(n, p))
        assert f > 0
        assert pmf[:f].sum() < floors.ALPHA <= pmf[: f + 1].sum()
    assert floors.floor([(100, 0.02)]) == 0
    assert floors.floor([]) == 0


def test_lower_limit_is_below_the_estimate_and_tight_enough():
    """It closes in with more draws, and stays below."""
    assert floors.lower(0, 100) == 0.0
    few, many = floors.lower(10, 100), floors.lower(1000, 10000)
    assert 0.04 < few < 0.05 and 0.09 < many < 0.1
    assert floors.binomial(100, few)[10:].sum() == pytest.approx(floors.CONFIDENCE, rel=1e-3)


def test_every_event_has_a_floor_in_a_default_campaign():
    """An event whose floor is 0 would never be missed. (A GPU compiles kernels for each width: few are drawn there.)"""
    examples = dict.fromkeys(KERNEL, 60)

    for kind in ("all", "gpu"):
        found = floors.floors(TARGETS[kind], examples)
        assert set(found) == set(ledger.EVENTS)
        assert [name for name, f in found.items() if f < 1] == (
            ["k_not_power_of_two"] if kind == "gpu" else []
        )


def test_a_reduced_campaign_has_lower_floors():
    """Floors follow the examples that were compared; none are owed where nothing ran."""
    full, few = (floors.floors(TARGETS["all"], dict.fromkeys(KERNEL, n)) for n in (60, 20))

    assert all(few[name] <= full[name] for name in full)
    assert set(floors.floors(TARGETS["all"], {}).values()) == {0}


@pytest.mark.parametrize("scale, kind", [("small", "all"), ("large", "gpu")])
@pytest.mark.parametrize("name", KERNEL)
def test_the_table_is_not_stale(name, scale, kind):
    """Drawn anew, each event comes as often as the table says. If not: ``python -m gdn_apc.fuzz.floors``."""
    total, counts = TABLE[scale][name]
    draws, found = floors.measure(TARGETS[kind], name, 80)

    for event in ledger.EVENTS:
        p = (counts.get(event, 0) + 0.5) / (total + 1)
        pmf = floors.binomial(draws, p)
        tail = min(pmf[: found[event] + 1].sum(), pmf[found[event] :].sum())
        assert tail > 1e-7, (
            f"{event}: {found[event]} of {draws}, the table says {counts.get(event, 0)} of {total}"
        )


def test_the_table_has_every_property():
    """A new kernel property needs a new measurement."""
    for scale in ("small", "large"):
        assert set(TABLE[scale]) == set(KERNEL), "run: python -m gdn_apc.fuzz.floors"


def test_narrow_targets_are_measured(monkeypatch):
    """Floors of a target that claims less, from its own draws."""
    monkeypatch.setattr(floors, "FEW_DRAWS", 60)
    found = floors.floors(TARGETS["narrow"], {"values": 200, "write_set": 200})

    assert found["cold_prefill"] > 250 and found["dtypes_bf16_fp32"] > 250
    assert "dtypes_fp16_fp32" not in found and "block_size_one" not in found
