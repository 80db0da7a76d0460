"""The example of a workflow does what it says: its scripts run here, with a toy target, as GitHub would run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import Totals

HERE = Path(__file__).parent
WORKFLOW = yaml.safe_load((HERE.parents[1] / "examples" / "github" / "gdn-apc.yml").read_text())
JOBS = WORKFLOW["jobs"]


def steps(job, having):
    """A job's steps that have a key."""
    return [step for step in JOBS[job]["steps"] if having in step]


def script(job, name):
    """The script of the step called ``name``."""
    (found,) = (step["run"] for step in steps(job, "run") if step["name"] == name)
    return found


@pytest.fixture
def shell(tmp_path):
    """Runs a script as GitHub does (``bash -e``), expressions replaced; returns status and output."""

    def run(text, toys, **environment):
        for shard in ("1", "2", "3"):
            if environment.get("SHARD") == shard:
                text = text.replace("${{ matrix.shard }}", shard)
        toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": toys}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=200,
            env={**os.environ, **toy, "PATH": path, "TARGET": "gdn_toys:TARGET", "SEED": "3", "MINUTES": "2", **environment},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(("toys", "verdict", "word"), [("few", 0, "PASSED"), ("few,fails", 1, "FAILED")])
def test_shards_and_verdict(shell, tmp_path, toys, verdict, word):
    """Three machines, one report; the page of the job says what they found."""
    for shard in ("1", "2", "3"):
        status, said = shell(script("attack", "Attack"), toys, SHARD=shard, GITHUB_STEP_SUMMARY="")
        assert status == 0, said
    page = tmp_path / "step-summary.md"
    status, said = shell(script("verdict", "One report, one verdict"), toys, GITHUB_STEP_SUMMARY=str(page))
    totals = Totals.of(RunFolder(tmp_path / "whole").events())

    assert status == verdict, said
    assert f"# gdn-apc campaign: {word}" in page.read_text()
    assert {shard for _, shard in totals.status} == {0, 1, 2}
    for failure in totals.failures:
        assert (tmp_path / "whole" / "cases" / failure["case"]).exists()
    assert (tmp_path / "whole" / "report.html").exists()
    shutil.rmtree(tmp_path / "run" / "shard-2")  # a machine that did not come back
    text = script("verdict", "One report, one verdict").replace("whole", "part")
    status, said = shell(text, toys)
    assert status == (verdict or 5), said
    assert verdict or "every property: no result of shard 2 of 3" in said


def test_a_target_that_is_missing_ends_the_job(shell):
    status, said = shell(script("attack", "Attack"), "few", SHARD="1", TARGET="no_such:TARGET")

    assert status == 4 and "could not be loaded: ModuleNotFoundError" in said


def test_the_shards_are_as_many_as_the_script_says():
    count = len(JOBS["attack"]["strategy"]["matrix"]["shard"])

    assert f'--shard "${{{{ matrix.shard }}}}/{count}"' in script("attack", "Attack")


def test_reports_are_kept_whatever_happens():
    uploads = [
        s for job in JOBS for s in steps(job, "uses") if s["uses"].startswith("actions/upload-artifact@")
    ]

    assert len(uploads) == 2 and all(s["if"] == "always()" for s in uploads)
    assert JOBS["verdict"]["if"] == "always()" and JOBS["verdict"]["needs"] == "attack"
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_nothing_of_a_pull_request_stands_in_a_script():
    """An expression is pasted into the script as it is: a branch's name could be a command."""
    pasted = [
        part.split("}}")[0].strip()
        for job in JOBS
        for s in steps(job, "run")
        for part in s["run"].split("${{")[1:]
    ]

    assert set(pasted) == {"matrix.shard"}
