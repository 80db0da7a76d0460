"""``kill -9`` of a whole campaign at random moments: nothing is lost. And what the hunt for losses would see."""

from pathlib import Path

import gdn_toys
import pytest

from gdn_apc.fuzz import kills
from gdn_apc.fuzz.kills import Hunt, Seen, hunt
from gdn_apc.fuzz.runs import RunFolder

FAULTY = "gdn_apc.fuzz.targets.planted:WritesShared"
OPTIONS = [
    "--target",
    FAULTY,
    "--seed",
    "5",
    "--budget",
    "22",
    "--gdn-property",
    "values",
    "--gdn-property",
    "free_cuts",
]


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_campaign_that_is_killed_loses_nothing(tmp_path, workers):
    """Three times here; ``python -m gdn_apc.fuzz.kills`` does it ten times."""
    said = []
    run = RunFolder(tmp_path / "run")
    hunted = hunt(
        run, [*OPTIONS, *workers], tmp_path, kills=2 if workers else 3, longest=15.0, seed=4, say=said.append
    )

    assert hunted.lost == [], "\n".join(said)
    assert "values" in {path.name.split("-")[0] for path in run.cases.glob("*.json")}
    assert hunted.replayed and set(hunted.replayed.values()) == {1}
    assert "FAILED (exit status 1)" in run.summary_path.read_text()


def test_the_hunt_sees_what_is_lost(tmp_path, monkeypatch):
    """A counted example, an event, a case that is torn, a case that holds."""
    run = RunFolder(tmp_path).create()
    hunted = Hunt(run, [], tmp_path)
    before = Seen({("values", 0, "ab"), ("values", 0, "cd")}, {"a.json": "values"}, 1)
    hunted.compare(before, Seen({("values", 0, "cd")}, {}, 2))
    (run.cases / "torn.json").write_text('{"schema": 1')
    holding = run.save_case(gdn_toys.case_of("nothing", 3, 0), {})
    hunted.replay({"torn.json": "values", holding.name: "values"})

    assert hunted.lost[:2] == ["an example of values: ab", "the event of a.json"]
    assert hunted.lost[2].startswith(f"{holding.name} does not fail when it is replayed: status 4")
    assert hunted.lost[3].startswith("torn.json cannot be read: ")


def test_the_command_says_what_was_lost(monkeypatch, capsys):
    def found(run, options, cwd, count, longest, seed):
        return Hunt(run, options, Path(), lost=["everything"] if seed else [])

    monkeypatch.setattr(kills, "hunt", found)

    assert kills.main(["--seed", "0"]) == 0
    assert kills.main(["--seed", "1", "--", "--target", "vllm"]) == 1
    assert capsys.readouterr().out == "LOST: everything\n"
