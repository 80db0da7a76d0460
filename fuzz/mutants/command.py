"""``gdn-apc mutants``: its options, and what it prints.

Imports the standard library until mutants run. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Plants faults in copies of the implementation, one at a time, and runs the campaign's properties until one of them
rejects it: how strong is the suite?"""

EPILOG = """\
examples:
  gdn-apc mutants                                the whole catalogue, about a quarter of an hour
  gdn-apc mutants --only core --seed 3           the ten faults that every campaign must catch
  gdn-apc mutants --only carry_not_persisted     one of them
  gdn-apc replay CASE.json                       a case that killed a mutant, from its folder

exit status: 0 every fault was killed and every harmless edit survived; 1 one was not; 2 interrupted; 3 the suite
itself broke, or an edit no longer fits the code; 4 bad usage; 5 reduced budget or selection"""


def add_to(commands: Any) -> None:
    """Register the command with ``commands``, the parser's subcommands."""
    parser = commands.add_parser(
        "mutants",
        help="how strong is the suite: plant faults and see them found",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="show the catalogue and run nothing")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="these mutants; `core`: those of the ten kinds"
    )
    parser.add_argument(
        "--budget", type=int, metavar="N", help="examples of each kernel property (default: a campaign's)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the campaign (default: 0)")
    parser.add_argument(
        "--shrink", type=float, default=5.0, metavar="SECONDS", help="cap of shrinking (default: 5)"
    )
    parser.add_argument("-n", type=int, default=1, metavar="WORKERS", help="mutants at a time (default: 1)")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="folder of this run (default: .gdn-apc/mutants/<time>)"
    )
    parser.set_defaults(run=main)


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from gdn_apc.fuzz.mutants import catalogue, load, report, run
    from gdn_apc.fuzz.runs import RunFolder

    try:
        mutants = catalogue.select(given.only)
        if given.n < 1 or (given.budget is not None and given.budget < 1):
            raise ValueError("budget, n: expected at least 1")
    except ValueError as e:
        print(e, file=sys.stderr)
        return 4
    if given.list:
        print(report.listing(mutants))
        return 0
    folder = RunFolder(Path(given.run_dir or run.default_folder(Path.cwd())).absolute())
    settings = run.Settings(given.seed, given.budget, given.shrink, given.n)
    # Both ways to be told to stop; a shell's background job is born deaf to the first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        run.run(mutants, folder, settings, lambda result: print(report.line(result), flush=True))
    except load.Stale as e:
        print(e, file=sys.stderr)
        return report.BROKEN
    except KeyboardInterrupt:
        pass  # the summary says what is missing
    results = [e for e in folder.events() if e["event"] == "mutant"]
    report.write(folder)
    print("", *report.totals(results), f"report: {folder.summary_path}", sep="\n")
    complete = given.only is None and given.budget is None
    return report.status(results, [m.name for m in mutants], complete)
