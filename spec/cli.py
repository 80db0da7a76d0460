"""``gdn-apc spec``: check the design of the cache with TLC, and hold the code to it.

Imports the standard library and ``gdn_apc.spec``. Exercise it with ``gdn-apc spec --only progress``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from gdn_apc.spec import explain, run, tlc
from gdn_apc.spec.configurations import CONFIGURATIONS, NIGHTLY, Configuration
from gdn_apc.spec.variants import VARIANTS, Variant

STATUSES = (
    "exit status: 0 all as it must be; 1 the design is broken, a variant passes, or a recorded number changed; "
    "2 interrupted; 3 the model checker itself failed; 4 bad usage, or Java or the jar is missing; "
    "5 incomplete: only a selection was run"
)
Job = Configuration | Variant


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the ``spec`` command; its parsed arguments carry ``run``."""
    parser = subparsers.add_parser(
        "spec",
        help="check the design of the cache with the TLC model checker",
        description="Runs every configuration and every must-fail variant of the TLA+ design.",
        epilog=STATUSES,
    )
    parser.add_argument(
        "--only", metavar="WORDS", help="names of configurations or variants, or parts of names"
    )
    parser.add_argument("--nightly", action="store_true", help="the larger configurations, for a night")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    parser.add_argument(
        "--show", metavar="NAME", help="print the configuration file of one run, and run nothing"
    )
    parser.add_argument(
        "--record", action="store_true", help="write what is measured into spec/expected.json"
    )
    parser.add_argument(
        "--explain", action="store_true", help="tell the counterexample of every variant, too"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="checkers at a time (2)")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds for each run of TLC (600; nightly 36000)"
    )
    parser.add_argument("--java", metavar="PATH", help="a Java runtime, 11 or newer")
    parser.add_argument("--jar", metavar="PATH", help="another tla2tools.jar than the pinned one")
    parser.set_defaults(run=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m gdn_apc.spec.cli``: the command alone."""
    parser = argparse.ArgumentParser(prog="gdn-apc")
    add_parser(parser.add_subparsers(required=True))
    given = parser.parse_args(["spec", *(sys.argv[1:] if argv is None else argv)])
    return given.run(given)


def command(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    jobs = select(given)
    if given.list or given.show:
        return _print_only(given, jobs)
    if not jobs:
        print(
            f"--only: no configuration or variant has {given.only!r} in its name; see --list", file=sys.stderr
        )
        return 4
    try:
        tools = tlc.find_tools(given.java, given.jar)
    except tlc.ToolsMissing as missing:
        print(missing, file=sys.stderr)
        return 4
    try:
        return _run(given, jobs, tools)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 2
    except tlc.TlcFailed as failed:
        print(failed, file=sys.stderr)
        return 3


def select(given: argparse.Namespace) -> list[Job]:
    """The runs that the options ask for."""
    jobs: list[Job] = [*NIGHTLY] if given.nightly else [*CONFIGURATIONS, *VARIANTS]
    if given.only:
        words = given.only.replace(",", " ").split()
        jobs = [
            job
            for job in jobs
            if any(w in job.name or (w == "variants" and isinstance(job, Variant)) for w in words)
        ]
    return jobs


def _print_only(given: argparse.Namespace, jobs: Sequence[Job]) -> int:
    if given.list:
        for job in jobs:
            print(f"{job.name:28} {job.about}")
        return 0
    named = [job for job in [*CONFIGURATIONS, *NIGHTLY, *VARIANTS] if job.name == given.show]
    if not named:
        print(f"--show: no configuration or variant is called {given.show!r}; see --list", file=sys.stderr)
        return 4
    job = named[0].configuration() if isinstance(named[0], Variant) else named[0]
    print(f"\\* {job.name}, of module {job.module}: {job.about}\n{job.text()}", end="")
    return 0


def _run(given: argparse.Namespace, jobs: Sequence[Job], tools: tlc.Tools) -> int:
    started = time.monotonic()
    table = _Table(sys.stdout, len(jobs), given.explain)
    timeout = given.timeout or (36_000.0 if given.nightly else 600.0)
    outcomes: list[run.Outcome] = []

    def done(job: Job, outcome: run.Outcome) -> None:
        if given.record:
            outcome.complaints = [c for c in outcome.complaints if "recorded" not in c]
        outcomes.append(outcome)
        table.row(job, outcome)

    run.run_all(jobs, tools, workers=given.jobs, done=done, progress=table.progress, timeout=timeout)
    if given.record:
        run.record(outcomes)
    wrong = [outcome for outcome in outcomes if outcome.complaints]
    table.end(outcomes, time.monotonic() - started)
    if wrong:
        return 1
    return 5 if given.only else 0


class _Table:
    """The table, a row as each run ends, and one line of progress below it if a person is watching."""

    def __init__(self, out: Any, total: int, explain_variants: bool):
        self.out, self.total, self.explain_variants = out, total, explain_variants
        self.live = out.isatty()
        self.left, self.states = total, {}
        print(f"{'configuration':28} {'distinct':>9} {'depth':>5} {'time':>6}  result", file=out, flush=True)

    def progress(self, name: str, generated: int, distinct: int) -> None:
        if self.live:
            self.states[name] = distinct
            running = ", ".join(f"{n} {d:,}" for n, d in self.states.items())
            print(
                f"\r\x1b[K{self.left} of {self.total} to go; states: {running}",
                end="",
                file=self.out,
                flush=True,
            )

    def row(self, job: Job, outcome: run.Outcome) -> None:
        self.left -= 1
        self.states.pop(job.name, None)
        result, clear = outcome.result, "\r\x1b[K" if self.live else ""
        assert result is not None
        variant = isinstance(job, Variant)
        found = outcome.measured
        verdict = outcome.verdict
        if variant and found:
            verdict += f" after {found['length']} states, by {found['last']}"
        states = f"{result.distinct:,}" if result.distinct else "-"
        depth = str(result.depth or "-")
        print(f"{clear}{job.name:28} {states:>9} {depth:>5} {result.seconds:5.1f}s  {verdict}", file=self.out)
        for complaint in outcome.complaints:
            print(f"{'':28} wrong: {complaint}", file=self.out)
        if result.trace and (outcome.broken or (variant and self.explain_variants)):
            broken = outcome.broken or job.breaks
            print("\n" + explain.explain(broken, result.trace) + "\n", file=self.out)
        self.out.flush()

    def end(self, outcomes: Sequence[run.Outcome], seconds: float) -> None:
        generated = sum(o.result.generated for o in outcomes if o.result)
        distinct = sum(o.result.distinct for o in outcomes if o.result)
        wrong = [o.name for o in outcomes if o.complaints]
        failing = sum(o.verdict.startswith("breaks") for o in outcomes)
        clear = "\r\x1b[K" if self.live else ""
        print(
            f"{clear}{len(outcomes) - failing} configurations and {failing} variants that fail as they must; "
            f"{distinct:,} distinct states of {generated:,} generated; {seconds:.0f} s",
            file=self.out,
        )
        print(f"WRONG: {', '.join(wrong)}" if wrong else "all as it must be", file=self.out)


if __name__ == "__main__":
    raise SystemExit(main())
