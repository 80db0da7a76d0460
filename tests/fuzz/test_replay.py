"""``gdn-apc replay``: one case again, and how it differs from when it was found."""

import dataclasses
import re
import runpy

import gdn_toys
import pytest

from gdn_apc.fuzz import ledger, properties, replay, targets
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked
from gdn_apc.fuzz.runs import RunFolder, environment
from gdn_apc.fuzz.targets.reference import ReferenceTarget

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
    toy = gdn_toys.toy("holds", check=lambda target, case: Checked(5))
    monkeypatch.setattr(properties, "load_all", lambda: {"holds": toy})

    assert replay.replay_file(saved("holds")) == 0
    said = capsys.readouterr().out
    assert "HOLDS: 5 comparisons\n" in said and "digest" not in said  # the toy was asked nothing


def kernel_case(path, target, **provenance):
    """A real case of ``values`` on a target, in a file."""
    case = Case.from_json(KERNEL_CASE)
    path.write_text(case.to_json(target=target, **provenance))
    return path


KERNEL_CASE = dataclasses.replace(gdn_toys.case_of("values", 5, 3), note="five tokens").to_json()


def digest_in(text):
    return re.search(r"digest of \d+ answers: ([0-9a-f]{12})", text).group(1)


def test_the_digest_is_of_every_bit_of_the_target(tmp_path, capsys, monkeypatch):
    """Equal for two runs, the same whether the case holds or fails, and another one where one bit differs."""
    monkeypatch.undo()
    reference, planted = "gdn_apc.fuzz.targets.reference:ReferenceTarget", "gdn_apc.fuzz.targets.planted"
    monkeypatch.setattr(targets, "prepare_triton", lambda name: None)
    path = kernel_case(tmp_path / "case.json", reference)
    said = []
    for target in (reference, reference, f"{planted}:CarriesUnrounded", f"{planted}:Transposes"):
        status = replay.replay_file(path, target)
        said.append((status, digest_in(capsys.readouterr().out)))

    assert [status for status, _ in said] == [0, 0, 0, 1]
    assert len({digest for _, digest in said[:3]}) == 1 and said[3][1] != said[0][1]

    path = kernel_case(path, reference, digest=said[0][1])
    replay.replay_file(path)
    assert f"{said[0][1]}, the same bits as when it was found" in capsys.readouterr().out
    path = kernel_case(path, reference, digest="0" * 12)
    replay.replay_file(path)
    assert f"{said[0][1]}; it was 000000000000 when it was found" in capsys.readouterr().out


class Fickle(ReferenceTarget):
    """Right every other time."""

    calls = 0

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        Fickle.calls += 1
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        return out + (Fickle.calls % 2 == 0)


FICKLE = Fickle()


def test_runs_that_differ_are_a_failure_with_both_digests(tmp_path, capsys, monkeypatch):
    """A case that passes once and fails once is not dropped."""
    monkeypatch.undo()
    path = kernel_case(tmp_path / "case.json", f"{__name__}:FICKLE")
    Fickle.calls = 0

    assert replay.replay_file(path, times=3) == 1
    said = capsys.readouterr().out
    found = re.search(
        r"not deterministic: 3 runs gave the digests (\w{12}) \(holds\) and (\w{12}) \(fails\)", said
    )
    assert found and found.group(1) != found.group(2) and "it failed 1 times" in said


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
