"""The measuring command without an engine: its workload, its plan, what it prints, and how it ends."""

from __future__ import annotations

import json
import os

import jobs
import pages
import plan
import pytest
import report
import run
import runs
import steps
from workload import LARGE, TINY, Workload


def test_a_seed_names_a_workload():
    """The same seed, the same prompts in the same order; another seed, others."""

    def prompts(seed: int) -> list[list[int]]:
        work = Workload(TINY, 100, seed)
        return [list(work.conversations[turn].ask()) for turn in work.turns]

    assert prompts(3) == prompts(3) != prompts(4)


@pytest.mark.parametrize("shape", [TINY, LARGE])
def test_conversations_share_and_grow(shape):
    """Every turn starts with all turns before it; system prompts are shared; arrivals of conversations are interleaved."""
    work = Workload(shape, 1000, 1)
    said, starts = {}, {}
    for turn in work.turns:
        prompt = list(work.conversations[turn].ask())
        assert prompt[: len(said.get(turn, []))] == said.get(turn, [])
        said[turn] = prompt
        starts.setdefault(turn, tuple(prompt[: min(shape.systems)]))
    assert len(set(starts.values())) <= len(shape.systems) < len(starts)
    assert any(a != b for a, b in zip(work.turns, sorted(work.turns)))
    assert all(not c.questions for c in work.conversations)


@pytest.mark.parametrize("scale", plan.SCALES)
def test_every_part_and_engine_has_jobs(scale):
    """What can be chosen is measured, and stock vLLM is never asked for what only the plugin has."""
    jobs = plan.jobs(plan.SCALES[scale])
    first = jobs[: next(i for i, job in enumerate(jobs) if job.again)]
    assert {job.part for job in first} == set(plan.PARTS) - {"steps"}, (
        "a run that is cut short has seen every part; time for the last is kept"
    )
    assert jobs[-1].part == "steps" and all(job.part != "steps" for job in jobs[: len(first)])
    assert {job.part for job in jobs} == set(plan.PARTS) and {job.engine for job in jobs} == set(plan.ENGINES)
    assert {job.engine for job in jobs if job.name == "check"} == {"check", "invariant"}


def test_engines_are_what_they_are_called(tmp_path):
    """The plugin where it should be, and nowhere else; the same sizes for all that are compared."""
    made = {name: plan.engine(name, plan.SCALES["gpu"], tmp_path) for name in plan.ENGINES}
    assert [name for name, (_, e) in made.items() if e["GDN_APC_PLUGIN"] == "1"] == [
        "all",
        "check",
        "invariant",
    ]
    assert [name for name, (_, e) in made.items() if e["VLLM_USE_V2_MODEL_RUNNER"] == "1"] == ["align-v2"]
    compared = [made[name][0]["options"] for name in ("all", "align", "off", "align-v2")]
    same = [
        {k: v for k, v in o.items() if k not in ("mamba_cache_mode", "enable_prefix_caching")}
        for o in compared
    ]
    assert all(options == same[0] for options in same)


ROWS = [
    dict(at=1.0, engine="all", job="start", result=dict(
        ready=True, mode="all", runner="vllm.v1.worker.gpu_model_runner", layer="L", block_size=576, blocks=10,
        bytes_per_block=100, start_s=20.0)),
    dict(at=2.0, part="prefill", engine="align", job="prefill", arguments={}, result=dict(tokens_per_second=100.0)),
    dict(at=3.0, part="prefill", engine="all", job="prefill", arguments={}, result=dict(tokens_per_second=99.0)),
    dict(at=4.0, part="check", engine="check", job="check", arguments=dict(step="life", eager=True),
         result=dict(ok=True, rows=3, took=1.0)),
]  # fmt: skip


def test_the_summary_shows_what_was_measured():
    """Medians and their ratio to ``align``, checks, and nothing of what did not run."""
    text = report.summary(ROWS)
    assert "| all | 99 | 99 to 99 | 1 | 0.990 |" in text
    assert "| check | life | eager | holds | rows 3 |" in text
    assert "Siblings" not in text and "Not measured" not in text
    assert report.status(ROWS) == 0


@pytest.mark.parametrize("result", [dict(error="Traceback\nValueError: no"), dict(ok=False, rows=1)])
def test_what_failed_is_shown_and_counts(result):
    """An error, or a check that does not hold, is in the summary and in the exit status."""
    rows = [*ROWS, dict(at=5.0, part="check", engine="check", job="check", arguments=dict(step="x", eager=False), result=result)]  # fmt: skip
    assert report.status(rows) == 1
    assert ("ValueError: no" if "error" in result else "FAILS") in report.summary(rows)
    assert ("ERROR ValueError: no" in report.line(rows[-1])) == ("error" in result)


def test_the_command(tmp_path, capsys):
    """A report from a file; what to type when something is missing."""
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert run.main(["--report", str(tmp_path / "results.jsonl")]) == 0
    assert "No-hit prefill" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run.main([])
    assert "--out: where should the results go? for example" in capsys.readouterr().err


def test_an_engine_that_does_not_start(tmp_path):
    """A process that ends is an error with its place in the log, not a crash of the whole run."""
    process = run.Process("gone", dict(model="none"), {"PYTHONPATH": str(tmp_path)}, tmp_path)
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no vLLM')")
    answers = [process.answer(60)]
    process.process.wait()
    process.send(dict(go=True))
    answers.append(process.answer(60))
    assert "error" in answers[0] and answers[1] == dict(error="the process ended; see its log")
    process.stop()


def written(folder, *results):
    """A new file for each list of rows."""
    files = [folder / f"{len(list(folder.iterdir())) + i}.jsonl" for i in range(len(results))]
    for file, rows in zip(files, results):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def test_runs_are_read_together(tmp_path):
    """Later answers replace errors; rows keep their run; the same run is not counted twice; a table is of one run."""
    lost = dict(
        at=9.0,
        part="decode",
        engine="align",
        job="decode",
        arguments=dict(rows=1),
        result=dict(error="no engine"),
    )
    first = [*ROWS, lost, dict(lost, engine="all", result=dict(mean_ms=3.0))]
    second = [dict(lost, engine=name, result=dict(mean_ms=ms)) for name, ms in (("all", 2.0), ("align", 1.6))]
    files = written(tmp_path, first, second)
    rows = runs.read(files)
    assert [row["run"] for row in rows] == [1, 1, 1, 1, 1, 2, 2]
    assert runs.read([*files, files[0]]) == rows
    merged = written(tmp_path, rows)
    assert runs.read([*merged, *files]) == rows, "a kept file and the runs that are in it"
    text = report.summary(rows)
    assert "## Decode, ms a step (run 2)" in text and "| 1 | all | 2 | 2 to 2 | 1 | 1.250 |" in text
    assert "3 to 3" not in text, "the second run repeats all of the first's table"
    assert "## No-hit prefill, tokens a second (run 1)" in text and "Not measured" not in text
    assert "| align | decode | 1 | no engine |" in report.summary(runs.read(files[:1]))
    kept = report.summary(
        runs.read(written(tmp_path, [*first, dict(lost, engine="off", result=dict(mean_ms=1.0))], second))
    )
    assert kept.index("(run 2)") < kept.index("| 1 | all | 3 |"), (
        "what only the first has is compared in its own table"
    )


def test_no_path_is_kept():
    """Files are named from their package on, or by their last two parts."""
    given = {
        "places": {
            "/opt/x/.venv/lib/python3.12/site-packages/torch/cuda/__init__.py:7": 1,
            "/a/b/serving/jobs.py:2": 1,
        }
    }
    assert runs.clean(given) == {"places": {"torch/cuda/__init__.py:7": 1, "serving/jobs.py:2": 1}}
    assert runs.clean("16/16, 3/4 of a/b") == "16/16, 3/4 of a/b"
    assert runs.placed("/tmp/site/vllm/v1/x.py") == "vllm/v1/x.py"


def test_kernels_are_summed_by_name():
    """µs and calls a step, the largest first, and how much of the time the device was busy."""
    events = [
        ("void ns::gemm<float, 3>(int)", 0, 3000),
        ("copy", 4000, 500),
        ("void ns::gemm<half>(int)", 5000, 3000),
    ]
    found = steps.summed(events, 2)
    assert found == dict(
        kernels=1.5, kernel_us=3.25, busy=6500 / 8000, largest=[["ns::gemm", 3.0, 1.0], ["copy", 0.25, 0.5]]
    )
    assert steps.summed([], 2)["kernels"] == 0


def test_parts_are_timed_and_let_go():
    """A timer adds up what a method takes, returns what it returns, and leaves the object as it was."""

    class Thing:
        def double(self, x: int) -> int:
            return 2 * x

    spent, thing = {"n": 0.0}, Thing()
    with steps._timed(thing, "double", "n", spent), steps._timed(thing, "absent", "n", spent):
        assert thing.double(3) == 6
    assert spent["n"] > 0 and not vars(thing)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be placed on this system")
def test_one_core_for_all_engines(monkeypatch):
    """The quiet core is one of ours; a timed part runs there, and the thread is free again after it."""
    before = os.sched_getaffinity(0)
    core = run.quiet_core()
    assert core in before == os.sched_getaffinity(0)
    monkeypatch.setattr(jobs, "core", core)
    with jobs.on_one_core():
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


class Engines:
    """Processes that answer from a script: what each engine says when it is told to go, one for each life."""

    def __init__(self, **lives: list[dict]) -> None:
        self.lives, self.log, self.stopped = lives, [], set()

    def __call__(self, name: str, *_):
        return Life(name, self)


class Life:
    def __init__(self, name: str, engines: Engines) -> None:
        self.name, self.engines, self.alive, self.said = name, engines, True, [dict(imported=1.0)]
        engines.log.append(f"{name} imports")

    def send(self, what: dict) -> None:
        self.engines.log.append(f"{self.name} {what.get('job', 'goes')}")
        self.said.append({} if "job" in what else self.engines.lives[self.name].pop(0))

    def answer(self, seconds: float) -> dict:
        found = self.said.pop(0)
        self.alive = "error" not in found
        return found


def test_an_engine_that_is_given_up_is_tried_again(tmp_path, monkeypatch):
    """No comparison is lost because its first engine compiled for too long: it starts once more when the others are up."""
    engines = Engines(align=[dict(error="no answer"), dict(ready=True)], all=[dict(ready=True)])
    monkeypatch.setattr(run, "Process", engines)
    results = run.Results(tmp_path, 1000)
    alive = run.started(["align", "all"], plan.SCALES["gpu"], tmp_path, results)
    assert set(alive) == {"align", "all"}
    assert engines.log == [
        "align imports", "all imports", "align goes", "all goes", "align imports", "align goes", "align warm", "all warm",
    ]  # fmt: skip
    rows = runs.read([tmp_path / "results.jsonl"])
    assert not any("error" in row["result"] for row in rows)


def test_the_committed_pages_are_made_from_the_committed_rows():
    """RESULTS.md, and every sentence that cites a figure; nothing in the rows names a machine's folder."""
    rows = runs.read([pages.HERE / "results.jsonl"])
    assert pages.page(rows) == (pages.HERE / "RESULTS.md").read_text()
    for path in pages.CITING:
        text = path.read_text()
        assert "<!-- serving" in text and pages.cited(text, rows) == text, path
    assert [runs.clean(row) for row in rows] == rows


def test_sentences_say_what_is_missing():
    """Without rows nothing is claimed; an unknown sentence is an error."""
    assert pages.cited("<!-- serving cost -->7<!-- end -->", []) == (
        "<!-- serving cost -->not measured yet<!-- end -->"
    )
    with pytest.raises(KeyError, match="speed"):
        pages.cited("<!-- serving speed -->7<!-- end -->", [])
