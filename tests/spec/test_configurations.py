"""The tables of what is checked: they say what DESIGN.md and the issue ask for, and name only what exists."""

import json
import re

import pytest

from gdn_apc.spec import MODULES, cases
from gdn_apc.spec.configurations import CONFIGURATIONS, COVERS, NIGHTLY, ONE_REQUEST, PAIRS, SAFETY
from gdn_apc.spec.run import EXPECTED
from gdn_apc.spec.variants import VARIANTS, WITNESSES


def defined_in(module):
    """Every operator that a module defines or extends."""
    text = (MODULES / f"{module}.tla").read_text()
    found = set(re.findall(r"(?m)^(\w+)(?:\([^)]*\))? ==", text))
    for name in re.findall(r"(?m)^EXTENDS (.*)$", text)[0].replace(",", " ").split():
        if (MODULES / f"{name}.tla").exists():
            found |= defined_in(name)
    return found


def test_names_are_unique():
    """They are the keys of the record."""
    names = [job.name for job in [*CONFIGURATIONS, *NIGHTLY, *VARIANTS, *WITNESSES]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("job", [*CONFIGURATIONS, *NIGHTLY], ids=lambda job: job.name)
def test_a_configuration_names_what_exists(job):
    """Its specification, invariants, properties, and actions said to be never taken."""
    named = {job.specification, *job.invariants, *job.properties, *job.never, *job.covers, *job.replace}
    assert named <= defined_in(job.module)


@pytest.mark.parametrize("job", [*CONFIGURATIONS, *NIGHTLY], ids=lambda job: job.name)
def test_a_configuration_says_which_pairs_it_must_cover(job):
    """Unless it measures no coverage: walks, and liveness, which never runs with symmetry (TLC would miss loops)."""
    if job.properties:
        assert not job.symmetry and not job.invariants and job.specification.startswith("Fair")
        return
    assert job.specification in COVERS and set(job.covers) | set(job.never) >= set(COVERS[job.specification])


def test_every_pair_is_covered_by_some_configuration():
    """And each is an action of the design."""
    covered = {pair for job in CONFIGURATIONS if not job.simulate for pair in job.covers}
    assert covered == set(PAIRS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_checks_one_thing(variant):
    """One property, and operators of the design replaced by operators of the variants' module."""
    job = variant.configuration()
    assert [*job.invariants, *job.properties] == [variant.breaks]
    design = defined_in("Speculation" if job.module == "SpeculationVariants" else "Retention") | defined_in(
        "Preempt"
    )
    assert set(job.replace) <= design
    assert set(job.replace.values()) <= defined_in(job.module) - design


def test_every_property_is_checked_and_can_be_broken():
    """By a configuration, and by a variant: so none of them is true of anything whatever."""
    checked = {name for job in CONFIGURATIONS for name in (*job.invariants, *job.properties)}
    assert checked == {*SAFETY, "CapHolds", "Progress"}
    assert {variant.breaks for variant in VARIANTS} == checked
    assert len(VARIANTS) >= 15


def test_speculation_has_definitions_of_its_own_and_each_can_be_broken():
    """They are others than Cache's, by the same names."""
    broken = {v.breaks for v in VARIANTS if v.configuration().module == "SpeculationVariants"}
    assert broken == {*ONE_REQUEST, "Progress"}


@pytest.mark.parametrize(
    "name",
    ["published-row-dropped", "no-same-step-guard", "write-to-shared-block", "no-clamp", "wrong-block-size",
     "published-block-rolled-back", "out-of-order"],
)  # fmt: skip
def test_the_variants_that_the_design_was_asked_for(name):
    """Publish before write with the writer's row dropped, no guard, a shared block, no clamp, another block size, …"""
    (variant,) = [v for v in VARIANTS if v.name == name]
    assert variant.breaks in SAFETY and variant.replace


def test_every_invariant_has_a_witness_that_its_case_comes_up():
    """One that claims it never does, and replaces nothing: so no invariant holds for want of a case."""
    assert {w.name.removeprefix("witness-") for w in WITNESSES} == {*SAFETY, "CapHolds"}
    for witness in WITNESSES:
        assert not witness.replace and witness.breaks in defined_in("Witnesses") - defined_in("Retention")


def test_the_record_is_of_these_tasks_and_within_the_budget():
    """Every task that measures something is recorded, nothing else is, and all states together are at most 8 million."""
    recorded = json.loads(EXPECTED.read_text())
    measured = {job.name for job in CONFIGURATIONS if not job.simulate} | {
        v.name for v in [*VARIANTS, *WITNESSES]
    }
    measured |= {f"cases-{model.name}" for model in cases.MODELS}
    assert measured <= set(recorded) <= measured | {job.name for job in NIGHTLY}
    default = [recorded[name].get("generated", 0) for name in measured]
    assert 1_000_000 < sum(default) <= 8_000_000
