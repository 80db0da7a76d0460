"""One report of several machines' shards, and a run's pages made again."""

import json

import pytest

from gdn_apc.fuzz import cli, merge, report
from gdn_apc.fuzz.resume import Mismatch
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import HELD, INCOMPLETE, INTERRUPTED, Totals, verdict

PROPERTY = {"name": "holds", "kind": "kernel", "floor": 2, "doc": "Holds.", "needs": None}
START = {
    "target": "toy", "seed": 7, "shards": 2, "code": "abc", "budget": 4, "minutes": None, "smoke": False,
    "profile": "fuzz", "properties": [PROPERTY], "selected": ["holds"], "kernel_floor": 2, "ledger": [],
    "versions": {"torch": "2"}, "device": "cpu",
}  # fmt: skip


def shard(tmp_path, number, *, end="finished", **changes):
    """The run folder of one machine."""
    run = RunFolder(tmp_path / f"shard-{number}").create()
    run.append("start", **{**START, **changes})
    run.append("canary", ok=True, message="failed as it must")
    where = {"property": "holds", "shard": number, "round": 0, "phase": "generate"}
    example = {"comparisons": 4, "ledger": {}, "size": [1, 2, 3], "dtypes": "bf16/fp32", "seconds": 0.1}
    for i in range(2):
        run.append("example", **where, digest=f"{number}{i}", **example)
    run.append("round", **where, spent={"target": 1.0, "oracle": 0.5}, complete=True)
    (run.cases / f"holds-{number}.json").write_text("{}")
    (run.cases / "current-main.json").write_text("{}")
    if end:
        run.append("item", **where, status="held", seconds=1.0, replayed=0)
        run.append("end", reason=end, seconds=9.0)
    return run.path


def test_shards_add_up(tmp_path):
    run = merge.merge([shard(tmp_path, 0), shard(tmp_path, 1)], tmp_path / "whole", tmp_path)
    totals = Totals.of(run.events())

    assert verdict(totals).status == HELD
    assert totals.examples["holds"] == 4 and totals.spent["holds"]["target"] == 2.0
    assert sorted(p.name for p in run.cases.iterdir()) == ["holds-0.json", "holds-1.json"]


def test_a_missing_shard_is_no_verdict(tmp_path):
    run = merge.merge([shard(tmp_path, 1)], tmp_path / "whole", tmp_path)
    found = verdict(Totals.of(run.events()))

    assert found.status == INCOMPLETE and found.reasons == ["every property: no result of shard 1 of 2"]


@pytest.mark.parametrize(("end", "word"), [("", "killed"), ("SIGTERM", "SIGTERM")])
def test_a_shard_that_did_not_end_is_no_verdict(tmp_path, end, word):
    run = merge.merge([shard(tmp_path, 0), shard(tmp_path, 1, end=end)], tmp_path / "whole", tmp_path)
    found = verdict(Totals.of(run.events()))

    assert found.status == INTERRUPTED and found.reasons[0] == f"interrupted by {word}"


@pytest.mark.parametrize(("key", "value"), [("target", "vllm"), ("seed", 8), ("code", "def"), ("shards", 3)])
def test_what_does_not_belong_together_is_refused(tmp_path, key, value):
    with pytest.raises(
        Mismatch, match=f"not of one campaign: {key} is {START[key]} in one and {value} in another"
    ):
        merge.merge([shard(tmp_path, 0), shard(tmp_path, 1, **{key: value})], tmp_path / "whole", tmp_path)


def test_machines_that_differ_are_named_on_the_page(tmp_path):
    shards = [shard(tmp_path, 0), shard(tmp_path, 1, versions={"torch": "3"}, device="cuda (X)")]
    run = merge.merge(shards, tmp_path / "whole", tmp_path)
    report.write_all(run)

    text = run.summary_path.read_text()
    assert "Note: its processes differ in torch: 2, 3." in text
    assert "Note: its processes differ in device: cpu, cuda (X)." in text


def test_seconds_count_over_all_legs_of_a_shard():
    events = [
        {"event": "example", "at": 5.0}, {"event": "end", "reason": "SIGTERM", "at": 6.0},
        {"event": "resumed", "at": 0.0}, {"event": "example", "at": 2.0},
    ]  # fmt: skip
    found, reason = merge.of_campaign(events)

    assert [e["at"] for e in found] == [5.0, 8.0] and reason == "killed"


def test_pages_are_made_again_from_the_events(tmp_path, capsys):
    """Bit for bit what was there, and with the exit status of the verdict."""
    path = merge.merge([shard(tmp_path, 0), shard(tmp_path, 1)], tmp_path / "whole", tmp_path).path
    pages = [path / name for name in ("summary.md", "report.html", "junit.xml")]
    assert cli.main(["report", str(path)]) == 0
    before = [page.read_bytes() for page in pages]
    for page in pages:
        page.unlink()
    assert cli.main(["report", str(path), "-q"]) == 0

    assert [page.read_bytes() for page in pages] == before
    assert "PASSED (exit status 0)" in capsys.readouterr().out


def test_the_page_of_a_job_is_appended_to(tmp_path, monkeypatch):
    path = merge.merge([shard(tmp_path, 0), shard(tmp_path, 1)], tmp_path / "whole", tmp_path).path
    (tmp_path / "page").write_text("what was there\n")
    monkeypatch.setenv(report.STEP_SUMMARY, str(tmp_path / "page"))
    cli.main(["report", str(path)])

    assert (tmp_path / "page").read_text() == "what was there\n" + (path / "summary.md").read_text() + "\n"


def test_a_page_that_cannot_be_appended_to_costs_nothing(tmp_path, monkeypatch, capsys):
    path = merge.merge([shard(tmp_path, 0), shard(tmp_path, 1)], tmp_path / "whole", tmp_path).path
    monkeypatch.setenv(report.STEP_SUMMARY, str(tmp_path / "no" / "page"))

    assert cli.main(["report", str(path)]) == 0
    assert "GITHUB_STEP_SUMMARY: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "{1}"], "runs: several folders were given; --into DIR makes one report of them"),
        (["{0}", "--into", "{1}"], "already holds a campaign; choose another folder"),
        (["nothing"], "runs: nothing holds no campaign; give a folder with events.jsonl"),
        (["nothing", "--into", "x"], "holds no campaign; give folders of runs"),
    ],
)
def test_bad_usage_is_status_4(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    folders = [shard(tmp_path, 0), shard(tmp_path, 1)]

    assert cli.main(["report", *(a.format(*folders) for a in arguments)]) == 4
    assert message in capsys.readouterr().err


def test_events_of_a_newer_version_are_not_dropped(tmp_path, capsys):
    path = shard(tmp_path, 0)
    with (path / "events.jsonl").open("a") as f:
        f.write(json.dumps({"event": "rumour"}) + "\n")

    assert cli.main(["report", str(path)]) == 4
    assert "event: unknown kind 'rumour' in events.jsonl" in capsys.readouterr().err
