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
  gdn-apc mutants --measure-shrinking 3          the median size of ten faults' shrunk cases, and the time to it

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
        "--only",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="these mutants; `core`: those of the ten kinds",
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
    parser.add_argument(
        "--measure-shrinking",
        type=int,
        metavar="SEEDS",
        nargs="?",
        const=3,
        help="instead: how small ten faults' cases become, and how fast, over so many seeds (default: 3)",
    )
    parser.add_argument("--write", metavar="FILE", help="with it: also write the table there")
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
    if given.measure_shrinking:
        return _measure(given)
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


def _measure(given: argparse.Namespace) -> int:
    """Run ``--measure-shrinking``: 0 if every fault was found, 1 if one was not."""
    from gdn_apc.fuzz.campaign import SHRINK_SECONDS
    from gdn_apc.fuzz.mutants import measure, run
    from gdn_apc.fuzz.runs import RunFolder, environment

    folder = RunFolder(Path(given.run_dir or run.default_folder(Path.cwd())).absolute())
    settings = run.Settings(given.seed, given.budget, SHRINK_SECONDS, given.n)
    mutants = measure.chosen(given.only)
    found = measure.measure(
        mutants, folder, settings, given.measure_shrinking, lambda text: print(text, flush=True)
    )
    text = measure.table(found, environment())
    for path in filter(None, (folder.summary_path, given.write and Path(given.write))):
        path.write_text(text)
    print("", text, f"table: {given.write or folder.summary_path}", sep="\n")
    return 0 if found and all(r["status"] == "killed" for r in found) else 1
