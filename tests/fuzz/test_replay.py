"""``gdn-apc replay``: one case again, and how it differs from when it was found."""

import runpy

import gdn_toys
import pytest

from gdn_apc.fuzz import ledger, properties, replay, targets
from gdn_apc.fuzz.properties.base import Checked
from gdn_apc.fuzz.runs import RunFolder, environment

TOY = {"target": "gdn_toys:TARGET"}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """All toy properties, and no interpreter."""
    monkeypatch.setattr(targets, "prepare_triton", lambda name: None)
    monkeypatch.setattr(properties, "load_all", properties.load_all)
    monkeypatch.setattr(ledger, "EVENTS", ledger.EVENTS)
    gdn_toys.install(list(gdn_toys.CHECKS))


@pytest.fixture
def saved(tmp_path):
    """Saves a case of a toy property with its provenance; returns its path."""
    run = RunFolder(tmp_path).create()
    return lambda name, tokens=12, **more: run.save_case(gdn_toys.case_of(name, tokens, 0), {**TOY, **more})


def test_a_failing_case_fails_again(saved, capsys):
    assert replay.replay_file(saved("fails")) == 1
    said = capsys.readouterr().out
    assert "fails on gdn_toys:TARGET: 12 tokens in 1 step(s)" in said
    assert "FAILS: 12 tokens: block 3 is wrong" in said and "  block: 3" in said


def test_a_case_that_holds_says_what_was_seen(saved, capsys, monkeypatch):
    toy = gdn_toys.toy("holds", check=lambda target, case: Checked(5, digest="c0ffee"))
    monkeypatch.setattr(properties, "load_all", lambda: {"holds": toy})

    assert replay.replay_file(saved("holds")) == 0
    assert "HOLDS: 5 comparisons\n  digest of the observations: c0ffee" in capsys.readouterr().out


def test_the_target_can_be_another_one(saved, capsys):
    assert replay.replay_file(saved("fails"), target="gdn_toys:NOTHING") == 4
    assert replay.replay_file(saved("holds", target="gdn_toys:NOTHING"), target="gdn_toys:TARGET") == 0


def test_our_own_fault_is_not_the_targets(saved, capsys):
    assert replay.replay_file(saved("we-raise")) == 3
    assert "BROKEN, our own code and not the target's" in capsys.readouterr().out


def test_other_versions_are_named(saved, capsys):
    now = environment()
    path = saved("holds", versions={**now, "torch": "2.11.0", "gone": "1"})

    assert replay.replay_file(path) == 0
    said = capsys.readouterr().out
    assert f"torch is {now['torch']} here, it was 2.11.0 when the case was found" in said
    assert "gone is absent here, it was 1 when the case was found" in said
    assert "hypothesis is" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ('{"schema": 99}', "this version reads case schema 1, the file has 99"),
        (
            gdn_toys.case_of("retired", 3, 0).to_json(**TOY),
            "property: the case belongs to 'retired', which this version",
        ),
        (gdn_toys.case_of("holds", 3, 0).to_json(target="x"), "target: 'x' is not known"),
    ],
)
def test_what_is_no_case_is_refused(capsys, text, message):
    assert replay.replay_text(text) == 4
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys):
    assert replay.replay_file(tmp_path / "nothing.json") == 4
    assert (
        "cannot be read: No such file or directory; give a JSON file of a run's cases/ folder"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("name", "status"), [("fails", 1), ("holds", 0)])
def test_the_script_of_a_case_replays_it(tmp_path, name, status):
    path = RunFolder(tmp_path).create().save_repro(gdn_toys.case_of(name, 12, 0), TOY, "wrong")

    with pytest.raises(SystemExit) as e:
        runpy.run_path(str(path), run_name="__main__")
    assert e.value.code == status
