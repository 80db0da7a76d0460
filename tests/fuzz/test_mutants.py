"""Planted faults: the catalogue fits the code, faults are killed, harmless edits are not, and every outcome is told."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gdn_apc import impl
from gdn_apc.fuzz import campaign, canary, properties, targets
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.mutants import catalogue, hunt, load, report, run
from gdn_apc.fuzz.mutants.model import DIES, KINDS, NEUTRAL, Edit, Mutant
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.runs import RunFolder

FAULTS = {
    *("kernel-numerics", "kernel-indexing", "metadata", "manager", "scheduler", "spec-decode"),
    *("conv-state", "cudagraph", "dtype", "resource"),
}
"""Classes of the catalogue of public reports."""


def the(name: str) -> Mutant:
    """A mutant by name."""
    return catalogue.CATALOGUE[name]


def hunted(name: str, tmp_path, *names: str, budget: int = 45) -> hunt.Result:
    """Hunt a mutant with these properties only, from seed 0. Shrinking takes seconds; its cap is for a busy machine."""
    return hunt.hunt(
        the(name), RunFolder(tmp_path), seed=0, budget=budget, shrink_seconds=60.0, names=names or None
    )


# ---- the catalogue ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_an_edit_fits_the_code(name):
    """Its text is found exactly once, it changes something, and what comes out is Python."""
    for file, text in load.sources(the(name)).items():
        assert text != (load.source_of_impl() / file).read_text()
        compile(text, file, "exec")


def test_the_catalogue_is_complete():
    """Names are unique, classes are known, each of the ten kinds is there, and so are harmless edits."""
    assert len(catalogue.CATALOGUE) == len(catalogue.MUTANTS) >= 30
    assert {m.fault for m in catalogue.MUTANTS} <= FAULTS
    assert {m.kind for m in catalogue.MUTANTS if m.kind} == set(KINDS)
    assert sum(m.fate == NEUTRAL for m in catalogue.MUTANTS) >= 2
    assert all(m.fate == DIES for m in catalogue.MUTANTS if m.kind)


@pytest.mark.parametrize(("find", "count"), [("no such text", 0), ("torch", 2)])
def test_an_edit_that_no_longer_fits_is_named(find, count):
    """The error names the mutant, the file and the text."""
    mutant = Mutant("old", "metadata", "", (Edit("metadata.py", find, "x"),))

    with pytest.raises(
        load.Stale, match=rf"^mutant old: metadata\.py holds '{find}' \d+ times, expected once"
    ):
        load.sources(mutant)


def test_names_of_several_options_add_up(capsys):
    """``--only A --only B C`` is ``--only A B C``."""
    assert command(["--list", "--only", "comment_only", "--only", "beta_rounded", "one_token_twice"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert names == [
        n for n in catalogue.CATALOGUE if n in ("beta_rounded", "one_token_twice", "comment_only")
    ]
    assert len(names) == 3


def test_select():
    """By name, by kind, in the catalogue's order; an unknown name is an error."""
    assert catalogue.select(None) == list(catalogue.MUTANTS)
    assert [m.name for m in catalogue.select(["carry_not_persisted", "last_computed_next"])] == [
        "last_computed_next",
        "carry_not_persisted",
    ]
    assert {m.kind for m in catalogue.select(["core"])} == set(KINDS)
    with pytest.raises(ValueError, match="mutant: 'nobody' is not in the catalogue"):
        catalogue.select(["carry_not_persisted", "nobody"])


# ---- planting -----------------------------------------------------------------------------------------------------


def test_a_planted_copy_is_apart_from_the_real_one():
    """Both packages are loaded side by side; the copy has the fault and refers to nothing of the real one."""
    copy = load.planted(the("one_token_has_state"))

    assert copy.__name__ == "gdn_apc_mutant_one_token_has_state"
    assert copy.build_metadata is not impl.build_metadata
    assert copy.build_metadata.__globals__["BlockIndexMetadata"] is copy.BlockIndexMetadata
    source = (load.Path(copy.__file__).parent / "metadata.py").read_text()
    assert "(n > 0) | (m == 1)" in source and "gdn_apc.impl" not in source
    assert load.planted(the("one_token_has_state")) is copy


def test_a_mutant_is_a_target_by_name():
    """``--target gdn_apc.fuzz.mutants.targets:NAME``, on the path that runs the edited code."""
    kernels = targets.load(load.target_name(the("carry_not_persisted")))
    plain = targets.load(load.target_name(the("torch_carry_not_persisted")))

    assert (kernels.backend, plain.backend) == ("triton", "torch")
    with pytest.raises(targets.TargetUnavailable, match="'nobody' is no mutant"):
        targets.load("gdn_apc.fuzz.mutants.targets:nobody")


# ---- hunting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prop"),
    [
        ("carry_not_persisted", "warm_equals_cold"),
        ("null_state_written", "write_set"),
        ("boundary_state_dropped", "index_movement"),
        ("packed_tail_not_zeroed", "values"),
    ],
)
def test_a_fault_is_killed(name, prop, tmp_path):
    """By the property that is there for it, within a campaign's budget; its case says nothing against the real code."""
    result = hunted(name, tmp_path, prop)

    assert (result.status, result.by) == ("killed", prop), result
    assert 0 < result.examples <= 45
    assert result.requests <= 3 and result.steps <= 6 and 0 < result.tokens <= 20  # a person can read it
    assert result.where["step"]
    case = Case.from_json((tmp_path / "cases" / result.case).read_text())
    judge = properties.load_all()[prop]
    with pytest.raises(Violation):
        judge.check(load.target(the(name)), case)
    assert judge.check(targets.load("native"), case).comparisons


@pytest.mark.parametrize("name", ["sum_in_the_other_order", "old_window_without_guard"])
def test_a_harmless_edit_survives(name, tmp_path):
    """What the tool can report about a mutant that nothing rejects."""
    result = hunted(name, tmp_path, "values", "write_set", "program_order", budget=3)

    assert (result.status, result.by, result.examples) == ("survived", "", 9)
    assert result.comparisons > 0


def test_a_property_that_cannot_see_a_mutant_is_not_asked():
    """Metadata alone runs for the metadata's mutants only; cheap properties come first."""
    kernels = hunt.asked(the("carry_not_persisted"), targets.load("native"))
    indices = hunt.asked(the("last_computed_next"), targets.load("native"))
    plain = hunt.asked(the("torch_carry_not_persisted"), targets.load("native-torch"))

    assert [p.name for p in indices][:3] == ["metadata", "index_movement", "values"]
    assert {p.name for p in indices} - {p.name for p in kernels} == {"metadata", "machine_symbolic"}
    assert {p.name for p in kernels} - {p.name for p in plain} == {"program_order"}


# ---- many of them -------------------------------------------------------------------------------------------------


COMMAND = (sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())", "mutants")


def test_the_command(tmp_path):
    """As a person uses it: a fault that dies at once and an edit that survives, in a process of their own."""
    done = subprocess.run(
        [
            *COMMAND,
            "--only",
            "last_scheduled_next",
            "comment_only",
            "--budget",
            "1",
            "--run-dir",
            "run",
            "-n",
            "2",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 5, done.stdout + done.stderr  # a selection
    assert "last_scheduled_next                 killed by metadata" in done.stdout
    assert "survived, as it must: comment_only" in done.stdout
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["start", "mutant", "mutant", "end"]
    page = (tmp_path / "run" / "summary.md").read_text()
    assert "| **last_scheduled_next** | metadata | metadata | 0 |" in page
    assert "1 of 1 faults killed" in page


def command(arguments):
    """``gdn-apc mutants`` in this process."""
    from gdn_apc.fuzz import cli

    return cli.main(["mutants", *arguments])


def test_the_list_runs_nothing(capsys):
    """Every mutant with what it says."""
    assert command(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(m.name in said and m.says in said for m in catalogue.MUTANTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nobody"], "mutant: 'nobody'"),
        (["--budget", "0"], "budget"),
        (["-n", "0"], "expected at least 1"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    """Exit status 4, and what is wrong."""
    assert command(arguments) == 4
    assert message in capsys.readouterr().err


def test_a_stale_edit_stops_the_run(tmp_path, monkeypatch, capsys):
    """Exit status 3 before anything runs."""
    old = dataclasses.replace(the("comment_only"), edits=(Edit("ops.py", "no such text", ""),))
    monkeypatch.setattr(catalogue, "select", lambda names: [old])

    assert command(["--run-dir", str(tmp_path / "run")]) == 3
    assert "mutant comment_only: ops.py holds 'no such text' 0 times" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


DIES_IN_A_CASE = """
import json, os, signal, sys, time
options = json.loads(sys.argv[1])
cases = os.path.join(options["folder"], sys.stdin.readline().strip(), "cases")
os.makedirs(cases)
open(os.path.join(cases, "current-main.json"), "w").write({case!r})
{end}
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process died of SIGSEGV"),
        ("time.sleep(60)", "no answer for 1 s"),
    ],
)
def test_a_mutant_that_takes_its_process_with_it_is_killed(end, message, tmp_path, monkeypatch):
    """A crash and a hang are kills by the property that was being asked, with the case; the next one gets a new process."""
    text = canary.case_of(5).to_json(shard=0, round=0, target="native")
    script = DIES_IN_A_CASE.format(case=text, end=end)
    monkeypatch.setattr(run, "worker_command", lambda o: [sys.executable, "-c", script, json.dumps(o)])
    mutants = catalogue.select(["comment_only", "carry_not_persisted"])

    results = run.run(mutants, RunFolder(tmp_path / "run"), run.Settings(), hang_seconds=1.0)

    assert [(r["status"], r["by"], r["tokens"]) for r in results] == [("killed", "canary", 5)] * 2
    assert all(r["message"].startswith(message) for r in results)


def test_a_worker_that_breaks_is_no_kill(tmp_path, monkeypatch):
    """It died without a case: that is our fault."""
    monkeypatch.setattr(
        run, "worker_command", lambda o: [sys.executable, "-c", "input(); raise SystemExit(7)"]
    )

    (result,) = run.run([the("comment_only")], RunFolder(tmp_path / "run"), run.Settings())

    assert (result["status"], result["message"]) == ("broken", "the process died of status 7")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_summary(tmp_path, number):
    """Ctrl-C, or a kill: status 2, what ran so far, and how much did not."""
    child = subprocess.Popen(
        [*COMMAND, "--run-dir", "run"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in a background job
    )
    events = tmp_path / "run" / "events.jsonl"
    for _ in range(600):
        if events.exists() and '"event": "mutant"' in events.read_text():
            break
        time.sleep(0.05)
    child.send_signal(number)

    assert child.wait(timeout=120) == 2
    assert "mutants did not run" in (tmp_path / "run" / "summary.md").read_text()


# ---- the report ---------------------------------------------------------------------------------------------------


def result(name: str, status: str, **more) -> dict:
    """A result as an event."""
    return {**dataclasses.asdict(hunt.Result(name, status)), **more}


@pytest.mark.parametrize(
    ("results", "complete", "status"),
    [
        ([("carry_not_persisted", "killed"), ("comment_only", "survived")], True, 0),
        ([("carry_not_persisted", "killed"), ("comment_only", "survived")], False, 5),
        ([("carry_not_persisted", "survived"), ("comment_only", "survived")], False, 1),
        ([("carry_not_persisted", "killed"), ("comment_only", "killed")], True, 1),
        ([("carry_not_persisted", "broken"), ("comment_only", "killed")], True, 3),
        ([("carry_not_persisted", "killed")], True, 2),
        ([("carry_not_persisted", "killed"), ("no_barrier_before_the_window", "survived")], True, 0),
    ],
)
def test_status(results, complete, status):
    """A fault must die, a harmless edit must not, and nothing is said of what this machine cannot show."""
    found = [result(*r) for r in results]

    assert report.status(found, ["one", "other"], complete) == status


def test_the_report_says_what_is_wrong():
    """Survivors and false alarms by name, and where a case goes wrong from the outside in."""
    where = {"slot": "3", "head": "0", "step": "1", "value": "7", "column": "2"}
    killed = result(
        "carry_not_persisted", "killed", by="values", examples=7, where=where, requests=1, steps=2, tokens=3
    )
    lines = report.totals(
        [killed, result("null_state_written", "survived"), result("comment_only", "killed")]
    )

    assert report.place(killed) == "step 1, column 2, slot 3, head 0"
    assert lines[0] == "1 of 2 faults killed"
    assert any(line.startswith("SURVIVED: null_state_written: ") for line in lines)
    assert any(line.startswith("FALSE ALARM: comment_only: ") for line in lines)
    assert "null slot written: 0 of 1 killed" in lines
    assert "<-- WRONG" in report.line(result("null_state_written", "survived"))
    assert campaign.DEFAULT_BUDGET >= 45  # these tests plant no fault that only more examples find
