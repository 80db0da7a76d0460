"""``gdn-apc triage`` and ``gdn-apc bisect``: their options, and what they print.

Imports the standard library until a command runs. Exercise it with ``pytest tests/fuzz/test_triage.py tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

TRIAGE_EPILOG = """\
example:
  gdn-apc triage .gdn-apc/runs/20260101-120000/cases/values-0123456789ab.json --shrink 30

exit status: as replay's: 0 the case holds, 1 it fails, 3 the suite itself broke, 4 it cannot be run here"""


def add_to(commands: Any) -> None:
    """Register the commands with ``commands``, the parser's subcommands."""
    triage = commands.add_parser(
        "triage",
        help="say what is wrong with a failing case",
        description="Runs a case again, finds the layer, the kernel and the first wrong block, names the kind of fault, and "
        "draws it. Files go beside the case, into triage/.",
        epilog=TRIAGE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    triage.add_argument("case", metavar="CASE.json")
    triage.add_argument("--target", metavar="NAME", help="default: the one that it was found with")
    triage.add_argument(
        "--shrink", type=float, default=0.0, metavar="SECONDS", help="first make it smaller, for so long"
    )
    triage.set_defaults(run=triage_main)


def triage_main(given: argparse.Namespace) -> int:
    """Run ``gdn-apc triage``; returns the exit status."""
    from gdn_apc.fuzz.triage.after import triage_file

    return triage_file(
        Path(given.case), given.target, given.shrink, lambda text: print(text, flush=True), sys.stderr
    )
