"""Campaigns that are stopped, killed, or run out of disk, and go on; and those that may not."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import gdn_toys
import pytest

from gdn_apc.fuzz import begin, lock, resume, runs
from gdn_apc.fuzz.campaign import Drive, Plan
from gdn_apc.fuzz.judge import Broken
from gdn_apc.fuzz.plan import Past
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runs import RunFolder, Unwritable, digest
from gdn_apc.fuzz.summary import Totals, verdict

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs that a kill would not let run."""


@pytest.fixture
def run(tmp_path):
    """A run folder."""
    return RunFolder(tmp_path / "run").create()


def counting(stop_at=None, fails=lambda case: False):
    """A toy property that notes what it checks, and is killed at its ``stop_at``-th check."""
    seen = []

    def check(target, case):
        seen.append(digest(case))
        if len(seen) == stop_at:
            raise Killed
        if fails(case):
            raise Violation("wrong")
        return Checked(1, ratios={"toy": [0.5]})

    return gdn_toys.toy("holds", check=check), seen


def drive(run, prop, past=None, **plan):
    """One shard, from where ``past`` ended; a kill leaves what is on disk."""
    plan = Plan(**{"target": "toy", "seed": 7, "root": run.path, **plan})
    driven = Drive(prop, gdn_toys.TARGET, plan, run, past=past)
    try:
        driven.run()
    except Killed:
        driven.killed = True
    return driven


def forget_the_end(run):
    """Take away what a drive writes on its way out, which a process that is killed does not."""
    lines = run.events_path.read_text().splitlines(keepends=True)
    while (
        lines
        and (e := json.loads(lines[-1]))["event"] in ("item", "round", "ratios")
        and not e.get("complete")
    ):
        lines.pop()
    run.events_path.write_text("".join(lines))


@pytest.mark.parametrize("stop_at", [1, 2, 11, 12, 40, 99])
def test_a_drive_goes_on_where_it_was_killed(run, tmp_path, stop_at):
    """Together they compare the cases of one that was not killed, each counted once."""
    whole = drive(RunFolder(tmp_path / "whole").create(), counting()[0])
    prop, seen = counting(stop_at)
    drive(run, prop)
    forget_the_end(run)
    past = resume.pasts(run.events()).get(("holds", 0), Past())
    assert past.seen == set(seen[:-1])  # nothing that was compared is forgotten
    second = drive(run, counting()[0], past)

    def examples(folder):
        return [e["digest"] for e in folder.events() if e["event"] == "example"]

    assert examples(run) == examples(whole.run_folder)
    assert second.outcome.examples == whole.outcome.examples == 100
    totals = Totals.of(run.events())
    assert totals.examples["holds"] == 100 and totals.ratios["toy"].count >= 100


def test_what_was_found_before_a_kill_is_found_again(run):
    """A kill in the middle of shrinking: the failure is known, and the second run shrinks it to its end."""

    def fails(case):
        return case.num_tokens >= 7

    prop, _ = counting(fails=fails)
    checks = []

    def check(target, case):
        checks.append(case)
        if len(checks) > 1 and fails(case) and len([c for c in checks if fails(c)]) == 3:
            raise Killed
        return prop.check(target, case)

    drive(run, gdn_toys.toy("holds", check=check), profile="gate")
    forget_the_end(run)
    events = [e for e in run.events() if e["event"] != "failure"]
    run.events_path.write_text("".join(json.dumps(e) + "\n" for e in events))
    (found,) = (e for e in run.events() if e["event"] == "found")
    assert runs.RunFolder(run.path).cases.joinpath(found["case"]).exists()
    second = drive(run, prop, resume.pasts(run.events())["holds", 0], profile="gate")

    assert second.outcome.status == "failed"
    (failure,) = Totals.of(run.events()).failures
    assert failure["unshrunk"] == found["case"] and failure["shrunk"] == ""
    assert failure["tokens"] == 7


def test_a_finished_shard_is_over():
    failed = {"event": "failure", "property": "a", "shard": 1, "message": "wrong", "case": "c.json"}
    item = {"event": "item", "property": "a", "shard": 0, "status": "held", "replayed": 2}
    found = resume.pasts([failed, item])

    assert (found["a", 1].status, found["a", 0].status, found["a", 0].replayed) == ("failed", "held", 2)
    assert found["a", 1].failure == failed


def test_a_witness_that_failed_is_no_end_of_its_property():
    failed = {"event": "failure", "property": "a", "shard": 0, "witness": "hit"}

    assert resume.pasts([failed]) == {}
    held = {"event": "witness", "name": "hit", "reached": True}
    assert resume.witnessed([held]) == {"hit": None} and resume.witnessed([failed]) == {"hit": failed}
    assert resume.witnessed([{**held, "reached": False}]) == {}


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_two_campaigns_do_not_share_a_folder(run):
    held = begin.begin(run, resumed=False)
    run.append("start", target="toy")
    with pytest.raises(lock.Taken, match=f"is in use by process {os.getpid()}; wait for it"):
        begin.begin(run, resumed=True)
    held.close()
    with pytest.raises(resume.Mismatch, match="already holds a campaign; go on with it by --resume"):
        begin.begin(run, resumed=False)
    begin.begin(run, resumed=True).close()

    assert [e["event"] for e in run.events()] == ["start", "resumed"]


def test_workers_that_outlive_their_controller_are_waited_for(run):
    worker = lock.work(run)
    with pytest.raises(lock.Taken, match="in use by workers of an earlier campaign"):
        lock.control(run, patience=0.3)
    lock.control(run, patience=None).close()
    worker.close()
    lock.control(run, patience=0.3).close()


def test_a_torn_line_costs_itself_only(run):
    run.append("start", target="toy")
    with run.events_path.open("a") as f:
        f.write('{"event": "exam')
    assert [e["event"] for e in run.events()] == ["start"]
    run.append("resumed")

    assert [e["event"] for e in run.events()] == ["start", "torn", "resumed"]
    assert Totals.of(run.events()).broken == []  # whatever was torn is done again
    run.append_line('"half a line')
    assert Totals.of(run.events()).broken == [
        'events.jsonl: line 4 is no event (was the disk full, or the file edited?): "half a line'
    ]


def test_what_was_running_is_kept(run):
    run.journal("gw3", "{}")
    (kept,) = resume.set_aside(run)

    assert kept.name.startswith("interrupted-") and kept.read_text() == "{}"
    assert resume.set_aside(run) == []


def test_a_case_is_there_whole_or_not_at_all(run, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        Unwritable, match=r"run cannot be written|No space left on device; make room or mend it"
    ):
        run.save_case(gdn_toys.case_of("holds", 3, 0), {})

    assert list(run.cases.iterdir()) == []


def test_a_full_disk_is_no_failure_of_the_property(run):
    """Hypothesis would take it for one, and shrink it."""
    run.events_path.symlink_to("/dev/full")
    with pytest.raises(
        Unwritable, match="No space left on device; make room or mend it, then go on with: gdn-apc"
    ):
        drive(run, counting()[0])


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match=r"file/run cannot be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create()


# ---- what may go on with what ---------------------------------------------------------------------------------------

START = {
    "event": "start", "target": "toy", "seed": 7, "profile": "fuzz", "code": "abc", "device": "cpu", "shards": 2,
    "versions": {"torch": "2.1"}, "budget_asked": None, "minutes": 5.0, "smoke": False, "selection": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gdn_target": "vllm"}, "target: 'vllm' cannot go on with a campaign that began with 'toy'"),
        ({"gdn_seed": 8}, "seed: 8 cannot go on with a campaign that began with 7"),
        ({"gdn_profile": "gate"}, "profile: 'gate' cannot go on"),
    ],
)
def test_another_campaign_is_refused(given, message):
    with pytest.raises(resume.Mismatch, match=message):
        resume.options_of(START, given)


def test_options_hold_and_how_much_to_run_may_be_given_anew():
    assert resume.options_of(START, {})["gdn_minutes"] == 5.0
    assert resume.options_of(START, {"gdn_seed": 7, "gdn_budget": 9}) == {
        "gdn_target": "toy", "gdn_seed": 7, "gdn_profile": "fuzz", "gdn_budget": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": {"torch": "2.2"}}, "torch was 2.1, is 2.2; what it counted says nothing about that"),
        ({"versions": {}}, "torch was 2.1, is absent"),
        ({"code": "def"}, "code was abc, is def"),
        ({"device": "cuda (X)"}, r"device was cpu, is cuda \(X\)"),
    ],
)
def test_another_version_is_refused(change, message):
    resume.same(START, dict(START))
    with pytest.raises(resume.Mismatch, match=message):
        resume.same(START, {**START, **change})


def test_a_folder_without_a_campaign_is_refused(run):
    with pytest.raises(resume.Mismatch, match="holds no campaign that began"):
        resume.start_of(run)
    run.append("start", target="gone")
    with pytest.raises(resume.Mismatch, match="start anew"):
        resume.start_of(run)


def test_the_code_is_known_by_its_text(tmp_path):
    (tmp_path / "impl").mkdir()
    file = tmp_path / "impl" / "a.py"
    file.write_text("x = 1")
    before = resume.code(tmp_path)
    file.write_text("x = 2")

    assert resume.code(tmp_path) != before != resume.code(tmp_path, [Path(__file__)])


def test_a_working_tree_under_test_is_part_of_the_code(tmp_path, monkeypatch):
    """Its version does not change with an edit. Modules that are about other things do not count."""
    for name in ("vllm_toy", "vllm.layers.mamba.gdn", "vllm.entrypoints.cli"):
        file = tmp_path / f"{name}.py"
        file.write_text("x = 1")
        module = types.ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)

    ours = [
        path for path in resume.sources("vllm_toy") if path.parent == tmp_path
    ]  # other tests load a vLLM too
    assert [path.stem for path in ours] == ["vllm.layers.mamba.gdn", "vllm_toy"]
    before = resume.code(tmp_path, resume.sources("vllm_toy"))
    (tmp_path / "vllm.entrypoints.cli.py").write_text("x = 2")
    assert resume.code(tmp_path, resume.sources("vllm_toy")) == before
    (tmp_path / "vllm.layers.mamba.gdn.py").write_text("x = 2")
    assert resume.code(tmp_path, resume.sources("vllm_toy")) != before


# ---- as a person does it --------------------------------------------------------------------------------------------


def fuzz(tmp_path, toys, *arguments, **environment):
    """Run ``gdn-apc fuzz`` with toy properties to its end; returns its status and what it printed."""
    toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": toys, **environment}
    done = subprocess.run(
        [*COMMAND, "fuzz", *arguments], cwd=tmp_path, env={**os.environ, **toy}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


TOY = ("--target", "gdn_toys:TARGET", "--run-dir", "run")


def test_a_stopped_campaign_goes_on_by_one_line(tmp_path):
    """SIGTERM in the middle of the second property: the first is not run again, and what holds is green at the end."""
    toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": "holds,slow"}
    child = subprocess.Popen(
        [*COMMAND, "fuzz", *TOY, "--seed", "3"], cwd=tmp_path, env={**os.environ, **toy},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    run = RunFolder(tmp_path / "run")
    for _ in range(1200):
        if sum(e["event"] == "example" and e["property"] == "slow" for e in run.events()) >= 15:
            break
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=60)[0]
    assert child.returncode == 2 and "go on: gdn-apc fuzz --resume run" in said, said
    before = Totals.of(run.events())
    status, said = fuzz(tmp_path, "holds,slow", "--resume", "run")

    assert status == 0, said
    totals = Totals.of(run.events())
    assert before.counted < totals.counted and totals.examples == {"holds": 100, "slow": 100}
    assert sum(e["event"] == "item" and e["property"] == "holds" for e in run.events()) == 1
    assert "stopped and gone on with 1 time(s)" in run.summary_path.read_text()


def test_a_refusal_leaves_the_campaign_as_it_was(tmp_path):
    assert fuzz(tmp_path, "holds", *TOY)[0] == 0
    run = RunFolder(tmp_path / "run")
    events = [json.loads(line) for line in run.events_path.read_text().splitlines()]
    for e in events:
        if e["event"] == "start":
            e["versions"]["torch"] = "1.0"
    run.events_path.write_text("".join(json.dumps(e) + "\n" for e in events))
    status, said = fuzz(tmp_path, "holds", "--resume", "run")

    assert status == 4 and "torch was 1.0, is" in said
    assert verdict(Totals.of(run.events())).status == 0
    assert "PASSED" in run.summary_path.read_text()
    status, said = fuzz(tmp_path, "holds", "--resume", "run", "--target", "native")
    assert status == 4 and "cannot go on with a campaign that began with 'gdn_toys:TARGET'" in said


def test_a_second_campaign_in_a_folder_is_refused(tmp_path):
    assert fuzz(tmp_path, "holds", *TOY)[0] == 0
    status, said = fuzz(tmp_path, "holds", *TOY)

    assert status == 4 and "run already holds a campaign; go on with it by --resume" in said
    assert "PASSED" in (tmp_path / "run" / "summary.md").read_text()


def test_a_full_disk_ends_the_campaign_as_broken(tmp_path):
    """Beyond a size, no file grows: what a full disk does to ``events.jsonl``. With room, it goes on."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))"
    (tmp_path / "sitecustomize.py").write_text(limit)
    status, said = fuzz(tmp_path, "holds", *TOY, PYTHONPATH=f"{tmp_path}:{HERE}")

    assert status == 3, said
    assert (
        "run cannot be written: File too large; make room or mend it, then go on with: gdn-apc fuzz --resume"
        in said
    )
    status, said = fuzz(tmp_path, "holds", "--resume", "run")
    assert status == 0, said


def test_a_folder_that_cannot_be_written_is_bad_usage(tmp_path):
    (tmp_path / "file").touch()
    status, said = fuzz(tmp_path, "holds", "--target", "gdn_toys:TARGET", "--run-dir", "file/run")

    assert status == 4 and "file/run cannot be written: Not a directory" in said


def test_the_drive_is_broken_by_what_is_ours_only(run):
    """``Broken`` still is what it was: the tests above must not pass because everything is caught."""
    with pytest.raises(Broken):
        from gdn_apc.fuzz.judge import check

        check(gdn_toys.toy("we-raise"), gdn_toys.TARGET, gdn_toys.case_of("we-raise", 3, 0))


def test_workers_go_on_too_and_a_full_disk_ends_them_all(tmp_path):
    """They are told what the campaign began with; there may be more or fewer of them than before."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))"
    (tmp_path / "sitecustomize.py").write_text(limit)
    status, said = fuzz(tmp_path, "holds", *TOY, "-n", "2", PYTHONPATH=f"{tmp_path}:{HERE}")
    assert status == 3 and "go on with: gdn-apc fuzz --resume" in said, said
    before = Totals.of(RunFolder(tmp_path / "run").events())
    status, said = fuzz(tmp_path, "holds", "--resume", "run", "-n", "3")
    totals = Totals.of(RunFolder(tmp_path / "run").events())

    assert status == 0, said
    assert (
        before.counted and before.counted < totals.counted and {shard for _, shard in totals.status} == {0, 1}
    )
