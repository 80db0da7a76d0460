"""Counterexamples in prose."""

from gdn_apc.spec import tlc
from gdn_apc.spec.explain import explain
from gdn_apc.spec.tlc import Step
from gdn_apc.spec.variants import VARIANTS


def story(name, tools):
    variant = next(v for v in VARIANTS if v.name == name)
    job = variant.configuration()
    result = tlc.run(job.module, job.text(), tools, coverage=False, quick=True, deadlock=variant.liveness)
    return explain(variant.breaks, result.trace)


def test_the_story_of_an_abort(tools):
    """vLLM's: hashes published when scheduled, the row never run. The tables are drawn at each step."""
    told = story("served-before-written", tools)
    assert "1. At the start. Request 1 will be ssssa, of which 2 are its prompt." in told
    assert "2. AdmitCold. Scheduled: row of request 1: tokens 0 → 2, table [s1]." in told
    assert "s1 is published as ss." in told
    assert "4. AbortInFlight. Request 1 was running, now it is done. Freed: s1." in told
    assert "     s1  refs 0  holds ?        published as ss\n" in told
    assert told.splitlines()[-3] == "     open: row of request 2: tokens 2 → 3, table [s1 s2]"
    assert told.endswith(
        "Now StateTrue is broken: what the row of a live request reads is not the state of its own tokens."
    )


def test_the_story_of_a_rejected_draft(tools):
    """Speculation has variables of its own."""
    told = story("last-candidate", tools)
    assert "Scheduled: row of 1 token and 1 drafts, table [1 2]." in told
    assert "slot 2 holds 1 2 x." in told and "     scratch 0 holds x " in told
    assert "tokens are right; their state is in 2." in told


def test_a_story_that_never_ends():
    """Counterexamples of Progress."""
    assert explain("Progress", [Step("", {}, "back to state 3")]).startswith(
        "From here on it goes back to state 3, and round again for ever."
    )
    assert explain("Progress", [Step("", {}, "stuttering")]).startswith("From here on nothing more happens.")
