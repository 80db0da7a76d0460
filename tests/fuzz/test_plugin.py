"""The pytest plugin as an adopter meets it: light, namespaced, and indifferent to their own layout."""

import os
import subprocess
import sys
from pathlib import Path

import gdn_toys
import pytest

from gdn_apc.fuzz import ledger, options, profiles, properties, targets
from gdn_apc.fuzz.runs import RunFolder

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent

PROBE = """
import os, sys
before = dict(os.environ)
import pytest
light = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]  # Hypothesis's own plugin imports Hypothesis
status = pytest.main(["-q", "--strict-markers", *light, "test_theirs.py"])
heavy = sorted({"torch", "triton", "hypothesis", "numpy"} & set(sys.modules))
changed = sorted(k for k in os.environ if os.environ[k] != before.get(k) and not k.startswith("PYTEST_"))
print("status", int(status), "heavy", heavy, "changed", changed)
"""


@pytest.fixture
def toys(monkeypatch):
    """Toy properties and no interpreter, for campaigns in this process."""
    monkeypatch.setattr(targets, "prepare_triton", lambda name: None)
    monkeypatch.setattr(properties, "load_all", properties.load_all)
    monkeypatch.setattr(ledger, "EVENTS", ledger.EVENTS)
    gdn_toys.install(["holds"])


CAMPAIGN = ["--pyargs", "gdn_apc.fuzz", "-m", "fuzz", "--gdn-target=gdn_toys:TARGET", "--gdn-run-dir=run"]


def test_a_session_without_our_items_stays_light(pytester):
    """Neither torch, triton nor hypothesis is imported, no variable set, and our marker is known."""
    pytester.makepyfile(test_theirs="import pytest\n@pytest.mark.fuzz\ndef test_one(): pass")
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=pytester.path, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "status 0 heavy [] changed []", done.stdout + done.stderr
    assert not (pytester.path / ".gdn-apc").exists()


def test_the_probe_would_see_a_heavy_import(pytester):
    pytester.makepyfile(test_theirs="import os, numpy\nos.environ['X_THEIRS'] = '1'\ndef test_one(): pass")
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=pytester.path, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "status 0 heavy ['numpy'] changed ['X_THEIRS']"


def test_another_checkouts_layout_does_not_matter(pytester, toys):
    """Its own tests are not collected; its package ``fuzz``, its naming rules and its strictness are respected."""
    pytester.makeini("[pytest]\npython_functions = check_*\naddopts = --strict-markers --strict-config")
    pytester.makepyfile(**{"fuzz/__init__": "THEIRS = True", "test_theirs": "def check_it(): assert False"})
    pytester.makeconftest("import fuzz\nassert fuzz.THEIRS")
    result = pytester.runpytest_inprocess(*CAMPAIGN, "-v")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_campaign.py::test_canary PASSED*", "*::test_property?holds? PASSED*"])
    assert "check_it" not in result.stdout.str()


def test_collecting_runs_nothing(pytester, toys):
    result = pytester.runpytest_inprocess(*CAMPAIGN, "--collect-only", "-q")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_canary*", "*test_property?holds?*"])
    assert not (pytester.path / "run").exists()


def test_a_short_option_is_not_ours_elsewhere(pytester):
    result = pytester.runpytest_inprocess("--smoke")

    assert result.ret == 4
    assert "unrecognized arguments: --smoke" in result.stderr.str()


def test_quiet_is_quiet(pytester, toys):
    said = pytester.runpytest_inprocess(*CAMPAIGN, "-q").stdout.str()

    assert "passed  canary" not in said and "run folder" not in said
    assert "PASSED (exit status 0)" in said


def test_progress_has_a_line_for_each_item(pytester, toys):
    said = pytester.runpytest_inprocess(*CAMPAIGN).stdout.str()

    assert "  passed  holds  100 examples, 100 comparisons" in said
    assert "\n  passed  canary" in said


def test_workers_have_shards_and_one_page(pytester):
    environment = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": "holds"}
    command = [sys.executable, "-m", "pytest", *CAMPAIGN, "-n", "2", "--gdn-seed=3", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=pytester.path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    events = RunFolder(pytester.path / "run").events()
    drawn = [
        {e["digest"] for e in events if e["event"] == "example" and e["shard"] == shard} for shard in (0, 1)
    ]

    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(d) for d in drawn] == [50, 50]
    assert len(drawn[0] & drawn[1]) == 1
    assert "--seed 3 --budget 100 -n 2" in (pytester.path / "run" / "summary.md").read_text()


def test_our_checkout_knows_the_short_forms_too(pytester, toys):
    pytester.makeconftest((HERE.parent.parent / "conftest.py").read_text())
    result = pytester.runpytest_inprocess(
        *CAMPAIGN[:4], "--target=gdn_toys:TARGET", "--gdn-run-dir=run", "--budget=3"
    )

    assert result.ret == 5
    assert "budget 3 examples" in (pytester.path / "run" / "summary.md").read_text()


def test_help_has_the_examples(pytester):
    said = pytester.runpytest_inprocess("--help").stdout.str()

    assert "pytest -m fuzz --gdn-minutes 60 --gdn-seed 7" in said
    assert "--gdn-target=NAME" in said


def test_the_options_of_pytest_and_of_the_command_line_agree():
    values = {
        "gdn_target": "vllm",
        "gdn_smoke": True,
        "gdn_property": ["a", "b"],
        "gdn_seed": 0,
        "gdn_budget": None,
    }

    assert options.command_line(values) == [
        "--gdn-target=vllm",
        "--gdn-smoke",
        "--gdn-seed=0",
        "--gdn-property=a",
        "--gdn-property=b",
    ]
    profile = next(o for o in options.OPTIONS if o.name == "profile")
    assert tuple(profile.keywords["choices"]) == profiles.PROFILES
