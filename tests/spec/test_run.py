"""Verdicts: a design that breaks, a variant that passes, an action never taken, a number that changed."""

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gdn_apc.spec import MODULES, cli, run, tasks, tlc
from gdn_apc.spec.configurations import CONFIGURATIONS, ONE_REQUEST, Configuration, speculation
from gdn_apc.spec.tlc import TlcFailed
from gdn_apc.spec.variants import VARIANTS

BY_NAME = {variant.name: variant for variant in VARIANTS}
SMALL = Configuration("small", "Speculation", "SpecSpeculation", speculation(2, 1, 4), "", ONE_REQUEST)


def ignore(generated, distinct):
    """Progress that no one watches."""


def test_a_design_that_breaks_is_told(tools):
    """Verdict, complaint and story."""
    broken = BY_NAME["first-candidate"].configuration()
    outcome = tasks.holds(broken, tools, 60).run(ignore)
    assert outcome.verdict == "BROKEN" and outcome.complaints == ["StateTrue is broken"]
    assert outcome.story.endswith("is not the state of its own tokens.")


def test_a_variant_that_passes_is_wrong(tools):
    """A variant that replaces nothing is the design, which holds."""
    harmless = replace(BY_NAME["first-candidate"], replace={}, constants=speculation(2, 1, 4))
    outcome = tasks.fails(harmless, tools, 60).run(ignore)
    assert outcome.verdict == "PASSES" and outcome.complaints == ["StateTrue is not broken"]
    assert not outcome.fails_as_it_must


def test_an_action_that_is_never_taken_is_wrong(tools):
    """Unless it is listed, with a reason; and then it must never be taken."""
    one_token = replace(SMALL, constants=speculation(1, 1, 4))
    assert tasks.holds(one_token, tools, 60).run(ignore).complaints == [
        "action RollBack is never taken",
        "not covered: drafts are rejected (RollBack)",
    ]
    listed = replace(
        one_token, never={"RollBack": "each token is a boundary", "Report": "wrong", "Nothing": "wrong"}
    )
    assert tasks.holds(listed, tools, 60).run(ignore).complaints == [
        "action Report is listed as never taken, but it is",
        "no action Nothing, listed as never taken",
    ]


def test_a_pair_that_is_not_covered_is_wrong(tools, tmp_path, monkeypatch):
    """Also if its action was lost from the module, where no coverage can show it."""
    job = next(job for job in CONFIGURATIONS if job.name == "preempt-abort")
    job = replace(
        job, constants=job.constants | {"MaxLen": 2, "Prompts": frozenset({2}), "Shares": frozenset({1})}
    )
    for path in MODULES.glob("*.tla"):
        text = path.read_text().replace("PreemptFor(r) == PreemptIdle(r) \\/ PreemptInFlight(r) \\/ PreemptSameStep(r)",
                                        "PreemptFor(r) == PreemptIdle(r) \\/ PreemptInFlight(r)")  # fmt: skip
        (tmp_path / path.name).write_text(text)
    monkeypatch.setattr(tlc, "MODULES", tmp_path)
    complaints = tasks.holds(job, tools, 60).run(ignore).complaints
    lost = "a preemption, and a row of the victim in the batch that needs its blocks (PreemptSameStep)"
    assert f"not covered: {lost}" in complaints
    assert not any("PreemptSameStep is never taken" in complaint for complaint in complaints)


def test_walks_find_what_is_wrong(tools):
    """Random walks of a variant end in its counterexample: a walk that holds says something."""
    broken = replace(BY_NAME["served-before-written"].configuration(), simulate=(2_000, 30, 1))
    outcome = tasks.holds(broken, tools, 60).run(ignore)
    assert outcome.complaints == ["StateTrue is broken"] and "AbortInFlight" in outcome.story


def test_no_coverage_is_wrong():
    """Rather than all actions taken."""
    assert run.expected() and tasks.coverage_complaints(SMALL, {}) == ["TLC reported no coverage"]


def test_a_number_that_changed_is_wrong():
    """Also one that was never recorded."""
    recorded = {"small": {"distinct": 3}}
    same = run.Outcome("small", "holds", measured={"distinct": 3})
    other = run.Outcome("small", "holds", measured={"distinct": 4})
    new = run.Outcome("new", "holds", measured={"distinct": 4})
    for outcome in (same, other, new):
        run.against_record(outcome, recorded)
    assert same.complaints == []
    assert other.complaints == [f"recorded {{'distinct': 3}}, found {{'distinct': 4}}; {run.STALE}"]
    assert new.complaints == [f"recorded None, found {{'distinct': 4}}; {run.STALE}"]


def test_recording_keeps_what_was_not_run_and_drops_what_is_gone(tmp_path, monkeypatch):
    """So that --only --record works."""
    monkeypatch.setattr(run, "EXPECTED", tmp_path / "expected.json")
    run.record([run.Outcome("a", "", measured={"n": 1}), run.Outcome("b", "", measured={"n": 2})], ["a", "b"])
    run.record([run.Outcome("b", "", measured={"n": 3})], ["a", "b"])
    assert run.expected() == {"a": {"n": 1}, "b": {"n": 3}}
    run.record([], ["b"])
    assert run.expected() == {"b": {"n": 3}}


def test_a_checker_that_fails_stops_the_run():
    """No table that looks complete."""

    def fail(progress):
        raise TlcFailed("no memory")

    seen = []
    with pytest.raises(TlcFailed, match="no memory"):
        run.run_all([run.Task("bad", "", fail)], workers=1, done=seen.append)
    assert seen == []


def test_the_command(capsys):
    """A selection is incomplete; a name that no task has is bad usage."""
    assert cli.main(["--only", "state-by-length drafts-published"]) == 5
    said = capsys.readouterr().out
    assert "state-by-length" in said and "breaks FreshStart after 2 states, by AdmitCold" in said
    assert "   2 variants that fail as they must\n2 tasks; " in said and "all as it must be" in said
    assert cli.main(["--brief", "--only", "state-by-length witness-PublishTrue"]) == 5
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0].endswith("1 variants that fail as they must") and "1 witnesses" in said[1] and len(said) == 4
    )
    assert cli.main(["--only", "nothing-like-this"]) == 4
    assert "no task has 'nothing-like-this' in its name" in capsys.readouterr().err


def test_a_changed_number_fails_the_command(capsys, monkeypatch):
    """With status 1, and the task named again at the end."""
    monkeypatch.setattr(run, "expected", dict)
    assert cli.main(["--only", "state-by-length"]) == 1
    said = capsys.readouterr().out
    assert "wrong: recorded None" in said and "WRONG: state-by-length" in said


def test_the_command_shows_and_lists(capsys):
    """What it would give to TLC, and what there is."""
    assert cli.main(["--show", "padding-writes"]) == 0
    shown = capsys.readouterr().out
    assert "  Touches <- PaddingTouches\nINVARIANT NullUntouched\n" in shown and "  Padding = TRUE\n" in shown
    assert cli.main(["--show", "nothing"]) == 4
    assert cli.main(["--list", "--only", "progress"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_missing_tools_are_bad_usage(capsys):
    """Status 4, and the message of the runner."""
    assert cli.main(["--java", "no-such-java"]) == 4
    assert "java: 'no-such-java' is not a program" in capsys.readouterr().err


def test_a_run_that_is_stopped_leaves_no_checker_behind():
    """Status 2, also on SIGTERM; TLC is gone when we are."""
    command = [sys.executable, "-m", "gdn_apc.spec.cli", "--only", "pipeline-deep preempt-abort"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while len(checkers := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=90)
    assert (process.returncode, said.strip()) == (2, "interrupted")
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in checkers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(checkers) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in checkers)


def children(pid):
    """The processes that a process started, from any of its threads."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += task.read_text().split()
    return found
