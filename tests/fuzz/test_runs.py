"""The run folder, the sums of its events, the verdict, and the page."""

import json

import gdn_toys
import pytest

from gdn_apc.fuzz import page, summary
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.ratios import Histogram
from gdn_apc.fuzz.runs import RunFolder, compact, default_path, digest, environment, revision
from gdn_apc.fuzz.summary import Totals

CASE = gdn_toys.case_of("holds", 12, 0)
EVENT = {"name": "hit", "doc": "a hit", "needs": None}
FLOORS = {"event": "floors", "floors": {"hit": 3}}


@pytest.fixture
def run(tmp_path):
    """An empty run folder."""
    return RunFolder(tmp_path / ".gdn-apc" / "runs" / "1").create()


def start(**changes):
    """The first event of a campaign of one kernel property."""
    kernel = {"name": "holds", "kind": "kernel", "floor": 2, "doc": "Holds.", "needs": None}
    fields = {"properties": [kernel], "selected": ["holds"], "kernel_floor": 2, "ledger": [], "target": "toy"}
    return {"event": "start", **fields, **changes}


def example(**changes):
    """A compared example."""
    fields = {"property": "holds", "comparisons": 4, "ledger": {"hit": 1}, "size": [8, 12, 1], "seconds": 0.1}
    return {"event": "example", "dtypes": "bf16/fp32", **fields, **changes}


CANARY = {"event": "canary", "ok": True, "message": "failed as it must"}
END = {"event": "end", "reason": "finished", "seconds": 9.0}
FOUND = {
    "event": "found",
    "property": "holds",
    "shard": 0,
    "round": 0,
    "phase": "generate",
    "message": "wrong",
    "case": "a",
}
COMPLETE = [start(), CANARY, example(), example(), END]


def test_the_folder_ignores_itself_in_git(run):
    assert (run.path.parent.parent / ".gitignore").read_text() == "*\n"


def test_a_second_run_in_the_same_second_has_a_folder_of_its_own(tmp_path):
    first = default_path(tmp_path)
    first.mkdir(parents=True)

    assert default_path(tmp_path).name.startswith(first.name[:8])
    assert default_path(tmp_path) != first


def test_events_are_lines_and_a_torn_last_one_is_left_out(run):
    assert run.events() == []
    run.append("witness", name="hit", reached=True)
    run.append("end", reason="finished")
    with run.events_path.open("a") as f:
        f.write('{"event": "exam')

    assert [e["event"] for e in run.events()] == ["witness", "end"]


def test_a_saved_case_is_the_case_and_its_provenance(run):
    path = run.save_case(CASE, {"target": "toy", "seed": 3})

    assert path.name == f"holds-{digest(CASE)}.json"
    assert Case.from_json(path.read_text()) == CASE
    assert json.loads(path.read_text())["provenance"] == {"target": "toy", "seed": 3}


def test_the_quick_json_of_a_case_is_the_case():
    text = compact(CASE, target="toy", seed=3)

    assert Case.from_json(text) == Case.from_json(compact(CASE)) == CASE
    assert json.loads(text)["provenance"] == {"target": "toy", "seed": 3}


def test_the_script_of_a_case_survives_any_message(run):
    path = run.save_repro(CASE, {"target": "toy"}, 'it says """quotes""" and \\n\nand goes on')

    compile(path.read_text(), str(path), "exec")
    assert "it says '''quotes''' and /n" in path.read_text()


def test_the_journal_holds_the_case_that_runs(run):
    long = gdn_toys.case_of("holds", 3, 10**9)
    for case in (long, CASE):
        run.journal("gw1", compact(case))
        assert Case.from_json(run.current_path("gw1").read_text()) == case

    run.clear_journal("gw1")
    assert list(run.cases.iterdir()) == []


def test_a_crash_outside_of_an_example_is_ours(run):
    assert run.record_crash("main", "the process died of SIGSEGV") is None
    assert run.events()[0]["event"] == "broken"


def test_versions_and_revision_are_known(tmp_path):
    assert {"python", "torch", "hypothesis", "gdn-apc"} <= environment().keys()
    assert revision(tmp_path) is None


@pytest.mark.parametrize(
    ("events", "status", "reason"),
    [
        (COMPLETE, summary.HELD, "every property held, the ledger is complete"),
        (COMPLETE[:-1], summary.INTERRUPTED, "the campaign has not finished: it is running, or was killed"),
        ([*COMPLETE[:-1], {**END, "reason": "SIGTERM"}], summary.INTERRUPTED, "interrupted by SIGTERM"),
        ([*COMPLETE, FOUND], summary.FAILED, "holds: wrong"),
        ([*COMPLETE, FOUND, {**CANARY, "ok": False, "message": "silent"}], summary.BROKEN, "silent"),
        ([*COMPLETE, {"event": "broken", "message": "a bug\nof ours"}], summary.BROKEN, "a bug"),
        (
            [*COMPLETE, {**END, "reason": "internal error"}],
            summary.BROKEN,
            "pytest reported an internal error",
        ),
        ([*COMPLETE, {"event": "usage", "message": "no such target"}], summary.USAGE, "no such target"),
        ([start(), CANARY, END], summary.INCOMPLETE, "nothing was compared"),
        ([start(), CANARY, example(), END], summary.INCOMPLETE, "holds: 1 examples, its floor is 2"),
        ([start(), example(), example(), END], summary.INCOMPLETE, "the canary did not run"),
        ([start(selected=[]), *COMPLETE[1:]], summary.INCOMPLETE, "not selected: holds"),
        (
            [start(pairs=["bf16/fp32", "fp32/fp32"]), *COMPLETE[1:]],
            summary.INCOMPLETE,
            "pairs of input and cache dtype below 20 examples: bf16/fp32 2, fp32/fp32 0",
        ),
        (
            [start(lives={"evict": "a block is given out"}), *COMPLETE[1:]],
            summary.INCOMPLETE,
            "ledger: the cache machine never went through evict",
        ),
        ([start(ledger=[EVENT]), *COMPLETE[1:]], summary.INCOMPLETE, "ledger: not reached by a witness: hit"),
        (
            [
                start(ledger=[EVENT]),
                {"event": "witness", "name": "hit", "reached": True},
                FLOORS,
                *COMPLETE[1:],
            ],
            summary.INCOMPLETE,
            "ledger: hit was discovered 2 times, its floor is 3",
        ),
    ],
)
def test_the_verdict(events, status, reason):
    found = summary.verdict(Totals.of(events))

    assert found.status == status
    assert reason in found.reasons


def test_a_ledger_without_floors_is_incomplete():
    reached = {"event": "witness", "name": "hit", "reached": True}
    without, held = (
        Totals.of([start(ledger=[EVENT]), reached, *e, *COMPLETE[1:], example()]) for e in ([], [FLOORS])
    )

    assert summary.verdict(without).reasons == [
        "ledger: the floors of what must be discovered were not computed"
    ]
    assert summary.verdict(held).status == summary.HELD


def test_what_the_target_does_not_claim_is_not_missed():
    ledger = [{**EVENT, "needs": "no hits claimed"}]
    properties = [
        *start()["properties"],
        {**start()["properties"][0], "name": "other", "needs": "not claimed"},
    ]
    totals = Totals.of([start(ledger=ledger, properties=properties), *COMPLETE[1:]])

    assert summary.verdict(totals).status == summary.HELD
    assert "other (not claimed)." in page.limits(
        totals
    ) and "Ledger event hit (no hits claimed)." in page.limits(totals)


def test_a_failure_replaces_what_was_found_first():
    failure = {**FOUND, "event": "failure", "case": "shrunk"}
    totals = Totals.of([*COMPLETE, FOUND, failure])

    assert [f["case"] for f in totals.failures] == ["shrunk"]


def test_an_unknown_event_is_an_error():
    with pytest.raises(ValueError, match="event: unknown kind 'rumour'"):
        Totals.of([{"event": "rumour"}])


def test_the_page_holds_what_a_reviewer_asks_for(run):
    ratios = Histogram()
    ratios.add([0.01] * 200)
    for e in [
        start(
            ledger=[EVENT],
            pairs=["bf16/fp32"],
            seed=5,
            device="cpu",
            lives={"evict": "a block is given out"},
            versions={"torch": "2"},
            budget=45,
        ),
        CANARY,
        {"event": "witness", "name": "hit", "reached": True},
        FLOORS,
        *[example() for _ in range(25)],
        example(property="machine", ledger={"evict": 7}),
        {"event": "ratios", "ratios": {"state bf16": ratios.to_json()}},
        END,
    ]:
        run.append(e["event"], **{k: v for k, v in e.items() if k != "event"})
    found, lines = page.write(run)
    text = run.summary_path.read_text()

    assert found.status == 0 and lines[0] == "PASSED (exit status 0)"
    assert "| holds | not run | 25 | 100 | 2 examples | 0 |  | 0.100 s | 0.0 s |" in text
    assert "| hit | yes | 25 | 3 | a hit |" in text
    assert "| evict | 7 | a block is given out |" in text
    assert "| bf16/fp32 | 25 |  |" in text
    assert "| state bf16 | 200 | 0.0097 | 0.01 | 103.1 | **above 10: too loose** |" in text
    assert "gdn-apc fuzz --target toy --seed 5 --budget 45" in text
    assert "CUDA graphs: no captured graph was replayed." in text


def test_a_page_cell_cannot_break_its_table():
    assert page.table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"


def test_histograms_add_up_and_know_their_quantiles():
    first, second = Histogram(), Histogram()
    first.add([0.0] * 90 + [0.5] * 9)
    second.add([2.0])
    second.merge(json.loads(json.dumps(first.to_json())))

    assert (second.count, second.zeros, second.largest) == (100, 90, 2.0)
    assert second.quantile(0.5) == 0.0
    assert second.quantile(0.99) == pytest.approx(0.5, rel=0.05)
    assert second.quantile(1.0) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("ratio", [-0.1, float("nan")])
def test_a_ratio_that_is_none_is_an_error(ratio):
    with pytest.raises(ValueError, match="is not an error / tolerance, expected 0 or more"):
        Histogram().add([1.0, ratio])
