"""The command line, as a person uses it: in processes of their own, with toy properties."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gdn_apc.fuzz import cli, interpreter, targets
from gdn_apc.fuzz.runs import RunFolder

HERE = Path(__file__).parent


def start(tmp_path, toys, *arguments):
    """Start ``gdn-apc`` with toy properties in an empty folder."""
    toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": toys}
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())", *arguments],
        cwd=tmp_path,
        env={**os.environ, **toy},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fuzz(tmp_path, toys, *arguments):
    """Run ``gdn-apc fuzz`` to its end; returns its status and what it printed."""
    child = start(tmp_path, toys, "fuzz", "--target", "gdn_toys:TARGET", "--run-dir", "run", *arguments)
    said, _ = child.communicate(timeout=60)
    return child.returncode, said


def wait_for(path):
    """Wait until a file exists."""
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise TimeoutError(path)


def test_a_campaign_leaves_its_folder_and_nothing_else(tmp_path):
    status, said = fuzz(tmp_path, "holds", "--seed", "5")

    assert status == 0, said
    assert sorted(p.name for p in tmp_path.iterdir()) == [".gdn-apc", "run"]
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "summary.md",
        "events.jsonl",
        "cases",
        "junit.xml",
    }
    assert list((tmp_path / "run" / "cases").iterdir()) == []
    assert 'name="gdn_examples" value="100"' in (tmp_path / "run" / "junit.xml").read_text()
    assert "--target gdn_toys:TARGET --seed 5 --budget 100" in (tmp_path / "run" / "summary.md").read_text()


def test_the_case_that_kills_the_process_is_a_failure(tmp_path):
    status, said = fuzz(tmp_path, "segfaults,holds")

    assert status == 1
    assert "segfaults: the process died of SIGSEGV while it ran this case" in said
    (case,) = (tmp_path / "run" / "cases").glob("segfaults-*.json")
    assert f"gdn-apc replay run/cases/{case.name}" in (tmp_path / "run" / "summary.md").read_text()
    replay = start(tmp_path, "segfaults", "replay", str(case))
    assert "FAILS: the process died of SIGSEGV" in replay.communicate(timeout=60)[0]
    assert replay.returncode == 1


def test_a_worker_that_dies_leaves_its_case(tmp_path):
    status, said = fuzz(tmp_path, "segfaults", "-n", "2")

    assert status == 1
    assert "the worker process died while it ran this case" in said
    assert list((tmp_path / "run" / "cases").glob("segfaults-*.json"))


def test_sigterm_leaves_a_summary_and_the_current_case(tmp_path):
    child = start(tmp_path, "hangs", "fuzz", "--target", "gdn_toys:TARGET", "--run-dir", "run")
    current = tmp_path / "run" / "cases" / "current-main.json"
    wait_for(current)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)

    assert child.returncode == 2
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert "INTERRUPTED (exit status 2)" in summary and "interrupted by SIGTERM" in summary
    assert json.loads(current.read_text())["property"] == "hangs"


def test_a_kill_leaves_the_current_case_and_a_page_that_says_so(tmp_path):
    child = start(tmp_path, "hangs", "fuzz", "--target", "gdn_toys:TARGET", "--run-dir", "run")
    current = tmp_path / "run" / "cases" / "current-main.json"
    wait_for(current)
    (pytest_pid,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(pytest_pid), signal.SIGKILL)
    child.communicate(timeout=60)

    assert child.returncode == 2
    assert json.loads(current.read_text())["property"] == "hangs"
    assert "interrupted by SIGKILL" in (tmp_path / "run" / "summary.md").read_text()


def test_an_early_end_leaves_a_page_too(tmp_path, capsys):
    early, crashed = (RunFolder(tmp_path / name) for name in "ab")

    assert cli._died(early, signal.SIGTERM) == 2
    assert cli._died(crashed, signal.SIGSEGV) == 3
    assert "interrupted by SIGTERM" in early.summary_path.read_text()
    assert "it died outside of the examples" in crashed.summary_path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["fuzz", "--budget", "many"], "argument --budget/--gdn-budget: invalid int value: 'many'"),
        (["fuzz", "--profile", "ci"], "invalid choice: 'ci'"),
    ],
)
def test_bad_usage_is_status_4(capsys, arguments, message):
    with pytest.raises(SystemExit) as e:
        cli.main(arguments)

    assert e.value.code == 4
    assert message in capsys.readouterr().err


def test_help_shows_examples_and_exit_statuses(capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(["fuzz", "--help"])
    said = capsys.readouterr().out

    assert e.value.code == 0
    assert "gdn-apc fuzz --minutes 60 --seed 7" in said and "5 incomplete (reduced budget" in said


def test_doctor_tells_which_targets_can_run_and_why_others_cannot(capsys, monkeypatch):
    monkeypatch.setattr(
        targets, "BUILTIN", {"native-torch": targets.BUILTIN["native-torch"], "gone": "gdn_gone:X"}
    )
    monkeypatch.setattr(targets, "DEFAULT", "gone")

    assert cli.main(["doctor"]) == 4
    said = capsys.readouterr().out
    assert "hypothesis" in said and (
        "no GPU: Triton kernels run in the mended interpreter" in said or "cuda:0" in said
    )
    assert "native-torch             yes, on c" in said
    assert "gone                     no: target: 'gone' is not known; choose one of native" in said


def test_a_triton_that_the_interpreter_does_not_know_makes_a_target_unavailable(monkeypatch):
    def activate():
        raise RuntimeError("triton 9.0 is not known")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(interpreter, "activate", activate)

    with pytest.raises(
        targets.TargetUnavailable, match=r"'native' needs Triton's interpreter.*triton 9.0 is not known"
    ):
        targets.prepare_triton("native")
    targets.prepare_triton("native-torch")
