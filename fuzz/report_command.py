"""``gdn-apc report``: the pages of a run again, or one report of several machines' shards.

Imports argparse's objects only, until the command runs. Exercise it with ``pytest tests/fuzz/test_merge.py``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

EXAMPLES = """examples:
  gdn-apc report .gdn-apc/runs/20260101-120000           write summary.md, report.html and junit.xml again
  gdn-apc report shard-*/ --into whole                    one verdict of what several machines did

The exit status is the verdict's, as of gdn-apc fuzz; 4 if there is no campaign in the folder."""


def add_to(commands: Any) -> None:
    """Register the command with argparse's ``commands``."""
    parser = commands.add_parser(
        "report",
        help="write a run's pages again, or merge the shards of several machines",
        description="Everything in the pages comes from events.jsonl and the cases beside it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUN_DIR", nargs="+", type=Path)
    parser.add_argument("--into", metavar="RUN_DIR", type=Path, help="merge into this new folder")
    parser.add_argument("-q", "--quiet", action="store_true", help="only the exit status")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from gdn_apc.fuzz import merge, report
    from gdn_apc.fuzz.resume import Mismatch
    from gdn_apc.fuzz.runs import RunFolder, Unwritable
    from gdn_apc.fuzz.summary import USAGE

    if len(given.runs) > 1 and given.into is None:
        return _refuse("runs: several folders were given; --into DIR makes one report of them")
    try:
        if given.into is not None:
            folder = merge.merge(given.runs, given.into, Path.cwd())
        else:
            folder = RunFolder(given.runs[0].absolute())
            if not folder.events():
                return _refuse(f"runs: {given.runs[0]} holds no campaign; give a folder with events.jsonl")
        found, lines = report.write_all(folder)
    except Mismatch as e:
        return _refuse(str(e))
    except (Unwritable, ValueError) as e:  # an event of a newer version
        print(e, file=sys.stderr)
        return 3 if isinstance(e, Unwritable) else USAGE
    failed = report.publish(folder)
    if failed:
        print(failed, file=sys.stderr)
    if not given.quiet:
        print("\n".join(lines))
    return found.status


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 4
