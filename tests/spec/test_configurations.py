"""The tables of what is checked: they say what DESIGN.md and the issue ask for, and name only what exists."""

import json
import re

import pytest

from gdn_apc.spec import MODULES, cases
from gdn_apc.spec.configurations import CONFIGURATIONS, NIGHTLY, SAFETY
from gdn_apc.spec.run import EXPECTED
from gdn_apc.spec.variants import VARIANTS


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
    names = [job.name for job in [*CONFIGURATIONS, *NIGHTLY, *VARIANTS]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("job", [*CONFIGURATIONS, *NIGHTLY], ids=lambda job: job.name)
def test_a_configuration_names_what_exists(job):
    """Its specification, invariants, properties, and actions said to be never taken."""
    named = {job.specification, *job.invariants, *job.properties, *job.never}
    assert named <= defined_in(job.module)


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


def test_the_record_is_of_these_tasks_and_within_the_budget():
    """Every task that measures something is recorded, nothing else is, and all states together are at most 8 million."""
    recorded = json.loads(EXPECTED.read_text())
    measured = {job.name for job in CONFIGURATIONS if not job.simulate} | {v.name for v in VARIANTS}
    measured |= {f"cases-{model.name}" for model in cases.MODELS}
    assert measured <= set(recorded) <= measured | {job.name for job in NIGHTLY}
    default = [recorded[name].get("generated", 0) for name in measured]
    assert 1_000_000 < sum(default) <= 8_000_000
