"""``gdn-apc spec``: check the design of the cache with TLC, and hold the code to it.

Imports the standard library and ``gdn_apc.spec``; what checks code outside (metadata builders, an engine whose lives
are traced) is passed in by ``gdn_apc.fuzz.spec_command``. Exercise it with ``gdn-apc spec --only progress``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdn_apc.spec import cases, run, tasks, tlc, traces
from gdn_apc.spec.configurations import CONFIGURATIONS, NIGHTLY, Configuration
from gdn_apc.spec.run import Outcome, Task
from gdn_apc.spec.variants import VARIANTS, WITNESSES, Variant

STATUSES = (
    "exit status: 0 all as it must be; 1 the design is broken, a variant passes, code disagrees, a trace is rejected, "
    "or a recorded number changed; 2 interrupted; 3 the model checker itself failed; 4 bad usage, or Java or the jar "
    "is missing; 5 incomplete: all that was selected is as it must be"
)
ORACLE: dict[str, cases.Builder] = {"oracle": cases.oracle}


def add_parser(
    subparsers: Any,
    builders: Mapping[str, cases.Builder] | None = None,
    life: Callable[[int], list[traces.Event]] | None = None,
) -> argparse.ArgumentParser:
    """Register the ``spec`` command; its parsed arguments carry ``run``.

    ``builders`` are metadata builders to hold to the model's cases, besides the oracle; ``life`` makes the trace of a
    random life of an engine from a seed.
    """
    parser = subparsers.add_parser(
        "spec",
        help="check the design of the cache with the TLC model checker",
        description="Runs every configuration and every must-fail variant of the TLA+ design, and holds the code to it.",
        epilog=STATUSES,
    )
    parser.add_argument(
        "--only", metavar="WORDS", help="tasks with one of these words in their name (see --list)"
    )
    parser.add_argument("--nightly", action="store_true", help="the larger configurations, for a night")
    parser.add_argument(
        "--trace", nargs="+", metavar="FILE", help="check NDJSON traces of an engine, and nothing else"
    )
    parser.add_argument("--list", action="store_true", help="print the tasks, and run nothing")
    parser.add_argument(
        "--show", metavar="NAME", help="print the configuration file of a task, and run nothing"
    )
    parser.add_argument(
        "--explain", action="store_true", help="tell the counterexample of every variant, and every lie, too"
    )
    parser.add_argument("--brief", action="store_true", help="print what is wrong, and the summary")
    parser.add_argument("--record", action="store_true", help="record what is measured, and the cases")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="checkers at a time (2)")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds for a task (3600; nightly 36000)")
    parser.add_argument("--java", metavar="PATH", help="a Java runtime, 11 or newer")
    parser.add_argument("--jar", metavar="PATH", help="another tla2tools.jar than the pinned one")
    parser.set_defaults(run=lambda given: command(given, ORACLE | dict(builders or {}), life))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m gdn_apc.spec.cli``: the command alone."""
    parser = argparse.ArgumentParser(prog="gdn-apc")
    add_parser(parser.add_subparsers(required=True))
    given = parser.parse_args(["spec", *(sys.argv[1:] if argv is None else argv)])
    return given.run(given)


def command(
    given: argparse.Namespace,
    builders: Mapping[str, cases.Builder],
    life: Callable[[int], list[traces.Event]] | None,
) -> int:
    """Run the command; returns the exit status."""
    if given.show:
        return _show(given.show)
    # Whoever stops us means the checkers as well: run_all kills them on its way out.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        tools = tlc.find_tools(given.java, given.jar)
        if given.trace:
            return _check_traces([Path(name) for name in given.trace], tools)
        every = _tasks(given, tools, builders, life)
        words = given.only.replace(",", " ").split() if given.only else [""]
        chosen = [task for task in every if any(word in task.name for word in words)]
        if not chosen:
            print(f"--only: no task has {given.only!r} in its name; see --list", file=sys.stderr)
            return 4
        if given.list:
            print("\n".join(f"{task.name:28} {task.about}" for task in chosen))
            return 0
        return _run(given, every, chosen)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 2
    except (tlc.ToolsMissing, traces.BadTrace, OSError) as unusable:
        print(unusable, file=sys.stderr)
        return 4
    except tlc.TlcFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    finally:
        signal.signal(signal.SIGTERM, before)


def _tasks(
    given: argparse.Namespace,
    tools: tlc.Tools,
    builders: Mapping[str, cases.Builder],
    life: Callable[[int], list[traces.Event]] | None,
) -> list[Task]:
    """All tasks of the run that is asked for."""
    if given.nightly:
        return [tasks.holds(job, tools, given.timeout or 36_000.0) for job in NIGHTLY]
    timeout = given.timeout or 3_600.0
    every = [tasks.holds(job, tools, timeout) for job in CONFIGURATIONS]
    every += [tasks.model_cases(model, tools, builders, timeout) for model in cases.MODELS]
    every += [tasks.random_traces(life, tools, timeout)] if life else []
    return every + [tasks.fails(variant, tools, timeout) for variant in [*VARIANTS, *WITNESSES]]


def _show(name: str) -> int:
    """Print the configuration file of a configuration or a variant."""
    named: list[Configuration | Variant] = [*CONFIGURATIONS, *NIGHTLY, *VARIANTS, *WITNESSES]
    found = [job for job in named if job.name == name]
    if not found:
        print(f"--show: no configuration or variant is called {name!r}; see --list", file=sys.stderr)
        return 4
    job = found[0].configuration() if isinstance(found[0], Variant) else found[0]
    print(f"\\* {job.name}, of module {job.module}: {job.about}\n{job.text()}", end="")
    return 0


def _check_traces(paths: Sequence[Path], tools: tlc.Tools) -> int:
    """Check the traces in files; tell where each that is rejected leaves the design."""
    events = [traces.read(path) for path in paths]
    verdicts = traces.check(events, tools)
    for path, trace, verdict in zip(paths, events, verdicts):
        print(f"{path}: {'accepted' if verdict.accepted else f'REJECTED at line {verdict.line}'}")
        print(traces.explained(trace, verdict, tools))
    return 0 if all(verdict.accepted for verdict in verdicts) else 1


def _run(given: argparse.Namespace, every: Sequence[Task], chosen: Sequence[Task]) -> int:
    started = time.monotonic()
    table = _Table(sys.stdout, len(chosen), given.explain, given.brief)
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        if given.record:
            outcome.complaints = [
                complaint for complaint in outcome.complaints if "recorded" not in complaint
            ]
        outcomes.append(outcome)
        table.row(outcome)

    run.run_all(chosen, workers=given.jobs, done=done, progress=table.progress)
    if given.record:
        run.record(
            outcomes, [task.name for task in every] + [job.name for job in [*CONFIGURATIONS, *NIGHTLY]]
        )
    table.end(outcomes, time.monotonic() - started)
    if any(outcome.complaints for outcome in outcomes):
        return 1
    return 5 if len(chosen) < len(every) else 0


class _Table:
    """The table, a row as each task ends, and one line of progress below it if a person is watching."""

    def __init__(self, out: Any, total: int, all_stories: bool, brief: bool):
        self.out, self.left, self.all_stories, self.brief = out, total, all_stories, brief
        self.watched, self.states = out.isatty(), {}
        self.clear = "\r\x1b[K" if self.watched else ""
        if not brief:
            print(
                f"{'configuration':28} {'distinct':>9} {'depth':>5} {'time':>6}  result", file=out, flush=True
            )

    def progress(self, name: str, generated: int, distinct: int) -> None:
        if self.watched:
            self.states[name] = distinct
            running = ", ".join(f"{other} {states:,}" for other, states in self.states.items())
            print(f"{self.clear}{self.left} to go; states: {running}", end="", file=self.out, flush=True)

    def row(self, outcome: Outcome) -> None:
        self.left -= 1
        self.states.pop(outcome.name, None)
        if self.brief and not outcome.complaints and not self.all_stories:
            return
        result = outcome.result
        states = f"{result.distinct:,}" if result.distinct else "-"
        line = f"{outcome.name:28} {states:>9} {result.depth or '-':>5} {outcome.seconds:5.1f}s  {outcome.verdict}"
        print(self.clear + line, file=self.out)
        for complaint in outcome.complaints:
            print(f"{'':28} wrong: {complaint}", file=self.out)
        if outcome.story and (self.all_stories or not outcome.fails_as_it_must):
            print(f"\n{outcome.story}\n", file=self.out)
        if outcome.details and self.all_stories:
            print(f"\n{outcome.details}\n", file=self.out)
        self.out.flush()

    def end(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        distinct = sum(outcome.result.distinct for outcome in outcomes)
        generated = sum(outcome.result.generated for outcome in outcomes)
        wrong = [outcome.name for outcome in outcomes if outcome.complaints]
        print(self.clear, end="", file=self.out)
        for kind, about in run.KINDS.items():
            right = [outcome for outcome in outcomes if outcome.kind == kind and not outcome.complaints]
            if right:
                print(f"{len(right):4} {about}{self._said(kind, right)}", file=self.out)
        print(
            f"{len(outcomes)} tasks; {distinct:,} distinct states of {generated:,} generated; {seconds:.0f} s",
            file=self.out,
        )
        print(f"WRONG: {', '.join(wrong)}" if wrong else "all as it must be", file=self.out, flush=True)

    @staticmethod
    def _said(kind: str, right: Sequence[Outcome]) -> str:
        if kind == "cases":
            return f", {sum(len(outcome.made.batches) for outcome in right if outcome.made):,} in all"
        return f": {right[0].verdict}" if kind == "traces" else ""


if __name__ == "__main__":
    raise SystemExit(main())
