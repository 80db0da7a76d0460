"""The measuring command without an engine: its workload, its plan, what it prints, and how it ends."""

from __future__ import annotations

import json

import plan
import pytest
import report
import run
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
    assert {job.part for job in first} == set(plan.PARTS), "a run that is cut short has seen every part"
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
