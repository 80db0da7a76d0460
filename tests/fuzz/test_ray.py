"""A campaign on a Ray cluster: one on this machine. ``pip install '.[ray]' && pytest -m ray tests/fuzz/test_ray.py``"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import Totals

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())"]

pytestmark = pytest.mark.ray


def start(tmp_path, toys, *arguments):
    """Start ``gdn-apc campaign --ray local`` with toy properties, in a session of its own."""
    toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": toys}
    command = [*COMMAND, "campaign", "--ray", "local", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **toy}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def campaign(tmp_path, toys, *arguments):
    """Run one to its end; returns its status and what it printed."""
    child = start(tmp_path, toys, *arguments)
    said, _ = child.communicate(timeout=240)
    return child.returncode, said


NEW = ("--target", "gdn_toys:TARGET", "--run-dir", "run")


def test_shards_of_several_tasks_become_one_campaign(tmp_path):
    """One folder, one verdict; a failing case comes along with its script, and replays."""
    status, said = campaign(tmp_path, "holds,fails", *NEW, "-n", "2", "--seed", "3", "--profile", "gate")
    run = RunFolder(tmp_path / "run")
    totals = Totals.of(run.events())

    assert status == 1, said
    assert totals.examples["holds"] == 100 and {shard for _, shard in totals.status} == {0, 1}
    assert "FOUND   fails-shard" in said and "FAILED (exit status 1)" in said
    (tmp_path / "sitecustomize.py").write_text(
        "import gdn_toys"
    )  # a replay runs without pytest and its plugins
    for failure in totals.failures:
        replay = subprocess.run(
            [*COMMAND, "replay", str(run.cases / failure["case"])], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{HERE}", "GDN_TOYS": "fails"},
        )  # fmt: skip
        assert replay.returncode == 1, replay.stdout + replay.stderr
    assert (run.path / "report.html").exists() and (run.path / "junit.xml").exists()


def test_a_killed_driver_loses_nothing(tmp_path):
    """``kill -9`` of the driver: its tasks end with it, and the campaign goes on where it was."""
    child = start(tmp_path, "holds,slow", *NEW, "-n", "2", "--seed", "3")
    run = RunFolder(tmp_path / "run")
    for _ in range(2400):
        if sum(e["event"] == "example" and e["property"] == "slow" for e in run.events()) >= 10:
            break
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    before = Totals.of(run.events())
    status, said = campaign(tmp_path, "holds,slow", "--resume", "run")
    totals = Totals.of(run.events())

    assert status == 0, said
    assert before.counted and before.counted < totals.counted
    assert totals.examples == {"holds": 100, "slow": 100} and totals.legs == 2


def test_a_task_that_dies_is_started_again(tmp_path):
    """Its process is killed from outside, as a machine that goes away would."""
    child = start(tmp_path, "slow", *NEW, "-n", "1", "--seed", "3")
    run = RunFolder(tmp_path / "run")
    killed = False
    for _ in range(2400):
        if sum(e["event"] == "example" for e in run.events()) >= 10:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                words = path.read_bytes().replace(b"\0", b" ")
                owner = path.parent / "environ"
                if words.startswith(b"ray::machine") and str(HERE).encode() in owner.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    killed = True
            break
        time.sleep(0.05)
    said, _ = child.communicate(timeout=240)

    assert killed and child.returncode == 0, said
    assert "note: shard 1 lost its machine" in said
    assert Totals.of(run.events()).examples == {"slow": 100}


def test_minutes_end_by_the_clock_on_the_wall(tmp_path):
    began = time.monotonic()
    status, said = campaign(tmp_path, "slow", *NEW, "-n", "2", "--minutes", "0.6")

    assert status in (0, 5), said  # 5: a busy machine compared too little in that time
    assert time.monotonic() - began < 36 + 24  # until Ray has gone


def test_no_cluster_is_bad_usage(tmp_path):
    child = subprocess.run(
        [*COMMAND, "campaign", "--ray", "127.0.0.1:1", "-n", "1"], cwd=tmp_path, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip

    assert child.returncode == 4
    assert "ray: no cluster at '127.0.0.1:1'" in child.stderr


def test_events_are_those_of_the_machines(tmp_path):
    """What the driver wrote can be made into pages again, and says which machine did what."""
    assert campaign(tmp_path, "holds", *NEW, "-n", "2", "--seed", "3")[0] == 0
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]

    assert {e["machine"] for e in events if e["event"] == "start"} == {0, 1}
    assert [e["event"] for e in events].count("end") == 1
