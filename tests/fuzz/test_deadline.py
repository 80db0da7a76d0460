"""A limited time is the wall clock's, from the command's start to its end."""

import json
import math
import subprocess
import sys
import time

import gdn_toys
import pytest

from gdn_apc.fuzz import clock, floors, plan
from gdn_apc.fuzz.campaign import ROUND, Drive, Plan
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.session import Session
from gdn_apc.fuzz.targets.base import Claims

COMMAND = [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())"]


def drive(folder, check, until, **changes):
    """One shard of a toy property without a budget, until a moment."""
    asked = Plan(target="toy", seed=7, root=folder, budget=None, **changes)
    driven = Drive(
        gdn_toys.toy("holds", check=check), gdn_toys.TARGET, asked, RunFolder(folder / "run").create()
    )
    driven.run(math.inf, until)
    return driven


def slow(target, case):
    """An example that takes a while."""
    time.sleep(0.4)
    return Checked(1)


def test_no_example_starts_after_the_end(tmp_path):
    """Not even the rest of a round: eleven examples of a slow target may take minutes."""
    began = time.monotonic()
    outcome = drive(tmp_path, slow, began + 3.0).outcome

    assert time.monotonic() - began < 6
    assert outcome.status == "held" and 1 <= outcome.examples < ROUND
    assert drive(tmp_path / "none", slow, began).outcome.examples == 0


def test_shrinking_ends_soon_after_the_end(tmp_path, monkeypatch):
    """A failure that the last example finds is still made small, for a few seconds."""
    monkeypatch.setattr(plan, "SHRINK_GRACE", 1.0)
    monkeypatch.setattr("gdn_apc.fuzz.campaign.SHRINK_GRACE", 1.0)

    def check(target, case):
        time.sleep(0.1)
        if case.num_tokens >= 7:
            raise Violation("wrong")
        return Checked(1)

    began = time.monotonic()
    driven = drive(tmp_path, check, began + 1.0)

    assert driven.outcome.status == "failed" and driven.failure.seconds <= 1.0
    assert time.monotonic() - began < 6


@pytest.mark.parametrize(
    ("options", "elapsed", "left"),
    [
        ({"gdn_minutes": 1.0}, 0.0, 57.0),
        ({"gdn_minutes": 1.0}, 20.0, 37.0),  # a slow start counts
        ({"gdn_minutes": 1.0}, 90.0, -30.0),
        ({"gdn_minutes": 0.1}, 0.0, 5.4),  # the reports get no more than a tenth
        ({"gdn_smoke": True}, 5.0, 52.0),
        ({"gdn_budget": 9}, 5.0, math.inf),
    ],
)
def test_the_end_counts_from_the_commands_start(tmp_path, monkeypatch, options, elapsed, left):
    monkeypatch.setattr(clock, "elapsed", lambda: elapsed)
    monkeypatch.setattr("gdn_apc.fuzz.floors.measuring_seconds", lambda target, root: 0.0)
    session = Session(
        {"gdn_target": "gdn_toys:TARGET", **options}, root=tmp_path, run=RunFolder(tmp_path / "run"), seed=1
    )
    session.open([], 0)
    session.close()

    assert session.deadline - time.monotonic() == pytest.approx(left, abs=0.5)


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_campaign_ends_in_time(tmp_path, workers):
    """Start, shards, witnesses and reports included; every property gets its share."""
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "fuzz", "--target", "native-torch", "--minutes", "0.4", "--run-dir", "run", "-q", *workers],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    took = time.monotonic() - began

    assert done.returncode == 5, done.stdout + done.stderr
    assert took < 24 + 6  # what takes a while at the end is an example that had begun


def test_what_a_narrow_targets_floors_need_is_measured_once(tmp_path, monkeypatch):
    """Measuring takes longer than the reports may: it is kept for the next campaign, until claims or sources change."""
    asked = []

    def measure(target, name, draws):
        asked.append(name)
        return 100, {"block_size_one": 50}

    monkeypatch.setattr(floors, "measure", measure)
    narrow, narrower = (
        floors.Drawn("cpu", Claims(state_dtypes=frozenset(states))) for states in ({"fp32", "bf16"}, {"fp32"})
    )
    assert floors.measuring_seconds(narrow, tmp_path) == floors.MEASURING
    first = floors.floors(narrow, {"values": 100}, ["values"], tmp_path)
    assert floors.floors(narrow, {"values": 100}, ["values"], tmp_path) == first
    assert first["block_size_one"] > 0 and floors.measuring_seconds(narrow, tmp_path) == 0.0
    floors.floors(narrower, {"values": 100}, ["values"], tmp_path)

    assert asked == ["values", "values"]
    assert floors.measuring_seconds(floors.Drawn("cpu"), tmp_path) == 0.0  # the table has the default's


def test_floors_need_what_a_start_recorded_only():
    """A machine without the target can give the verdict."""
    narrow = floors.Drawn("cpu", Claims(head_sizes=frozenset({8, 16}), block_multiple=2))
    record = json.loads(json.dumps(floors.claims_record(narrow.claims)))
    start = {"claims": record, "device": "cpu", "properties": []}

    assert floors.recorded(start, {}, None) == floors.floors(narrow, {}, [])
