"""Measures the plugin in a real vLLM beside stock vLLM: correctness, hits, time to first token, throughput, a workload.

    python tests/benchmarks/serving/run.py --out DIR                  # on a GPU, about 9 minutes
    python tests/benchmarks/serving/run.py --out DIR --scale gpu-short --engines align all --budget 295  # about 4
    python tests/benchmarks/serving/run.py --out DIR --scale tiny     # a rehearsal, on a CPU, about as long
    python tests/benchmarks/serving/run.py --report DIR/results.jsonl # the summary again; of several runs: several files
    python tests/benchmarks/serving/run.py --report tests/benchmarks/serving/results.jsonl DIR/results.jsonl --keep

The last adds a run to what is committed: ``results.jsonl``, ``RESULTS.md`` and the measured sentences of README.md and
impl/vllm/UPSTREAM.md (``pages.py``). Engines are processes of their own, all alive at once, and measured one at a time, in turns, so that a comparison is made
within seconds. Results go to ``DIR/results.jsonl`` as they come, so a run that is cut short loses nothing; ``summary.md``
is made of them (``report.py``). ``--parts`` and ``--engines`` choose; ``--budget`` is in seconds, start included.
Needs vLLM 0.31 and this package in one environment; imports neither. ``plan.py`` lists what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pages
import plan
import report
import runs

HERE = Path(__file__).parent


class Results:
    """What was measured, written down line by line."""

    def __init__(self, out: Path, budget: float) -> None:
        self.file = open(out / "results.jsonl", "w")
        self.began = time.monotonic()
        self.budget = budget

    def left(self) -> float:
        """Seconds of the budget."""
        return self.budget - (time.monotonic() - self.began)

    def add(self, **row: Any) -> None:
        """One row, to the file and to the terminal."""
        row = {"at": round(time.monotonic() - self.began, 1)} | row
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        print(report.line(row), flush=True)


class Process:
    """One engine's process: ``process.py`` says what goes over its pipes."""

    def __init__(self, name: str, setup: dict[str, Any], environment: dict[str, str], out: Path) -> None:
        self.name = name
        self.log = open(out / f"{name}.log", "w")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "process.py", json.dumps(setup)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=os.environ | environment,
        )  # fmt: skip
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            if line.startswith("@@ "):
                self.answers.put(json.loads(line[3:]))
            else:
                self.log.write(line)
        self.answers.put(None)

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer; an error if none comes in time, and then the process is given up."""
        try:
            found = self.answers.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.stop()
            return dict(error=f"no answer within {seconds:.0f} s; given up")
        if found is None:
            self.stop()
            return dict(error="the process ended; see its log")
        return found

    def send(self, what: dict[str, Any]) -> None:
        """One line to it."""
        with contextlib.suppress(OSError):  # it may just have ended; its answer says so
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def started(names: list[str], scale: plan.Scale, out: Path, results: Results) -> dict[str, Process]:
    """The engines that came up.

    The first starts alone: it compiles what the others then find compiled, and nobody disturbs its tuning. One that is
    given up is tried again when the others are up, since what it compiled stays.
    """
    processes = _imported(names, scale, out, results)
    for group, seconds in ((names[:1], scale.first_seconds), (names[1:], scale.start_seconds)):
        _start(group, seconds, processes, results)
    lost = [name for name in names if not processes[name].alive]
    if lost and results.left() > 60:
        processes |= _imported(lost, scale, out, results)
        _start(lost, min(scale.start_seconds, results.left() - 30), processes, results)
    alive = {name: process for name, process in processes.items() if process.alive}
    for name, process in alive.items():
        if name not in plan.AUDITED:
            process.send(dict(job="warm", arguments=scale.warm, seconds=60))
            results.add(engine=name, job="warm", result=process.answer(120))
    return {name: process for name, process in alive.items() if process.alive}


def _imported(names: list[str], scale: plan.Scale, out: Path, results: Results) -> dict[str, Process]:
    """Processes that have imported vLLM, all at once."""
    processes = {name: Process(name, *plan.engine(name, scale, out), out) for name in names}
    for name, process in processes.items():
        results.add(engine=name, job="import", result=process.answer(scale.start_seconds))
    return processes


def _start(group: list[str], seconds: float, processes: dict[str, Process], results: Results) -> None:
    """Let these engines start, and wait until each has answered; some time is kept for those that did."""
    deadline = time.monotonic() + min(seconds, max(results.left() - 45, 30))
    for name in group:
        processes[name].send({"go": True})
    for name in group:
        left = deadline - time.monotonic()
        results.add(engine=name, job="start", result=processes[name].answer(left))


def quiet_core() -> int | None:
    """The core that runs Python fastest at this moment; None where a thread cannot be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    before, took = os.sched_getaffinity(0), {}
    try:
        for core in sorted(before)[:64]:
            os.sched_setaffinity(0, {core})
            began = time.perf_counter()
            sum(i * i for i in range(30_000))
            took[core] = time.perf_counter() - began
    finally:
        os.sched_setaffinity(0, before)
    return min(took, key=took.__getitem__)


def measured(given: argparse.Namespace, scale: plan.Scale, results: Results) -> None:
    """Start the engines, and let each do its jobs."""
    processes, core, compared = started(given.engines, scale, given.out, results), None, None
    kept = scale.steps_seconds if "steps" in given.parts else 0
    for job in plan.jobs(scale):
        process = processes.get(job.engine)
        if job.part not in given.parts or job.engine not in given.engines:
            continue
        row = dict(part=job.part, engine=job.engine, job=job.name, arguments=job.arguments)
        seconds = min(job.seconds, results.left() - 2 - (0 if job.part == "steps" else kept))
        if process is None or not process.alive or seconds < 1:
            results.add(
                **row, result=dict(error="not run: " + ("no time left" if seconds < 1 else "no engine"))
            )
            continue
        if (job.part, job.arguments) != compared:
            core, compared = quiet_core() if job.part in plan.ON_ONE_CORE else None, (job.part, job.arguments)
        process.send(dict(job=job.name, arguments=job.arguments, seconds=seconds, core=core))
        results.add(**row, result=process.answer(seconds + min(20.0, 2 * seconds)))
    for process in processes.values():
        process.stop()


def run(given: argparse.Namespace) -> int:
    """Start, measure, summarise; the exit status is 0 if every check held and every job was answered."""
    given.out.mkdir(parents=True, exist_ok=True)
    measured(given, plan.SCALES[given.scale], Results(given.out, given.budget))
    rows = runs.read([given.out / "results.jsonl"])
    summary = report.summary(rows)
    (given.out / "summary.md").write_text(summary)
    print("\n" + summary)
    return report.status(rows)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder for results, logs and the summary")
    parser.add_argument("--scale", choices=plan.SCALES, default="gpu", help="sizes of models and jobs (gpu)")
    parser.add_argument(
        "--parts", nargs="+", choices=plan.PARTS, default=plan.PARTS, help="what to measure (all)"
    )
    parser.add_argument(
        "--engines", nargs="+", choices=plan.ENGINES, default=plan.ENGINES, help="with what (all)"
    )
    parser.add_argument("--budget", type=float, default=420, help="seconds in all (420)")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="print the summary of these results.jsonl, in order of their runs, and measure nothing",
    )
    parser.add_argument(
        "--keep", action="store_true", help="with --report: also write the committed results and pages"
    )
    given = parser.parse_args(arguments)
    if given.report:
        rows = runs.read(given.report)
        print(report.summary(rows))
        if given.keep:
            print("\n".join(f"wrote {path}" for path in pages.write(rows)))
        return 0
    if given.keep:
        parser.error("--keep: of which results? for example --report DIR/results.jsonl --keep")
    if given.out is None:
        parser.error("--out: where should the results go? for example --out /tmp/serving")
    return run(given)


if __name__ == "__main__":
    raise SystemExit(main())
