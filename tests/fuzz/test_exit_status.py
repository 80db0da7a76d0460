"""The exit status of a campaign, for every way in which one can end (DESIGN.md, section 6)."""

import gdn_toys
import pytest

from gdn_apc.fuzz import canary, ledger, properties, targets
from gdn_apc.fuzz.properties.base import Checked

pytest_plugins = ["pytester"]


@pytest.fixture
def campaign(pytester, monkeypatch):
    """Runs a campaign of toy properties in this process; returns pytest's result."""
    monkeypatch.setattr(targets, "prepare_triton", lambda name: None)
    monkeypatch.setattr(properties, "load_all", properties.load_all)
    monkeypatch.setattr(ledger, "EVENTS", ledger.EVENTS)

    def run(*names, options=(), target="gdn_toys:TARGET", arguments=("--pyargs", "gdn_apc.fuzz")):
        gdn_toys.install(names)
        fixed = ["-m", "fuzz", f"--gdn-target={target}", "--gdn-run-dir=run", "-p", "no:cacheprovider"]
        return pytester.runpytest_inprocess(*arguments, *fixed, *options, no_reraise_ctrlc=True)

    return run


@pytest.fixture
def summary(pytester):
    """The page that a campaign left."""
    return lambda: (pytester.path / "run" / "summary.md").read_text()


def test_0_when_everything_held_and_every_floor_is_met(campaign, summary):
    assert campaign("holds").ret == 0
    assert "PASSED (exit status 0)" in summary()
    assert "| holds | held | 100 | 100 | 20 examples |" in summary()


def test_1_when_a_property_fails(campaign, summary):
    result = campaign("holds", "fails")

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*7 tokens: block 3 is wrong*", "*replay it with:  gdn-apc replay run/cases/fails-*.json*"]
    )
    assert "FAILED (exit status 1)" in summary() and "block: 3" in summary()


def test_1_when_the_target_raises(campaign, summary):
    assert campaign("target-raises").ret == 1
    assert "the target raised IndexError: block 7 is out of range" in summary()


def test_2_when_interrupted(campaign, summary):
    assert campaign("interrupts").ret == 2
    assert "INTERRUPTED (exit status 2)" in summary() and "interrupted by Ctrl-C" in summary()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("we-raise", "we-raise: TypeError: 'int' object is not subscriptable"),
        ("strategy-raises", "strategy-raises: drawing a case raised LookupError: no such size"),
    ],
)
def test_3_when_the_suite_itself_breaks(campaign, summary, name, message):
    assert campaign("holds", name).ret == 3
    assert "BROKEN (exit status 3)" in summary() and message in summary()


def test_3_when_the_canary_does_not_fail(campaign, summary, monkeypatch):
    silent = gdn_toys.toy("holds", check=lambda target, case: Checked(1))
    monkeypatch.setattr(canary.run, "__defaults__", (silent,))

    assert campaign("holds", "fails").ret == 3
    assert "the canary property ended as 'held' instead of failing" in summary()


def test_3_when_the_campaign_cannot_be_collected(campaign, summary, monkeypatch):
    def broken():
        raise RuntimeError("two properties share a name")

    monkeypatch.setattr(gdn_toys, "install", lambda names: setattr(properties, "load_all", broken))

    assert campaign("holds").ret == 3
    assert "two properties share a name" in summary()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "target: 'nothing' is not known; choose one of"),
        ("gdn_toys:NOTHING", "could not be loaded: AttributeError"),
        ("gdn_toys:CHECKS", "is a dict, expected a gdn_apc.fuzz.targets.base.Target"),
    ],
)
def test_4_when_the_target_is_not_there(campaign, summary, target, message):
    result = campaign("holds", target=target)

    assert result.ret == 4
    assert message in summary() and message in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gdn-budget=0"], "budget: 0 is too small, expected at least 1 example"),
        (["--gdn-minutes=-1"], "minutes: -1 is too short, expected more than 0"),
        (["--gdn-budget=9", "--gdn-smoke"], "budget and smoke: give one of them"),
        (["--gdn-budget=many"], "invalid int value: 'many'"),
        (["--gdn-property=nothing"], "property: 'nothing' does not exist; choose from holds"),
    ],
)
def test_4_on_bad_usage(campaign, options, message):
    result = campaign("holds", options=options)

    assert result.ret == 4
    assert message in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize(
    ("names", "options", "reason"),
    [
        (["holds"], ["--gdn-budget=5"], "holds: 5 examples, its floor is 20"),
        (["holds", "fails"], ["--gdn-property=holds"], "not selected: fails"),
        (["holds"], ["-k", "canary"], "not selected: holds"),
        (["holds"], ["-k", "holds"], "the canary did not run"),
        (["compares-nothing"], [], "nothing was compared"),
    ],
)
def test_5_when_incomplete(campaign, summary, names, options, reason):
    assert campaign(*names, options=options).ret == 5
    assert "INCOMPLETE (exit status 5)" in summary() and reason in summary()


def test_a_failing_test_of_the_adopter_keeps_the_session_red(campaign, pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.fuzz\ndef test_theirs(): assert False")

    assert campaign("holds", arguments=(".", "--pyargs", "gdn_apc.fuzz")).ret == 1
    assert "PASSED" in (pytester.path / "run" / "summary.md").read_text()
