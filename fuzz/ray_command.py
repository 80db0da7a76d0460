"""``gdn-apc campaign --ray``: one campaign on many machines.

Imports argparse's objects only, until the command runs. Exercise it with ``pytest -m ray tests/fuzz/test_ray.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import options

EXAMPLES = """examples:
  gdn-apc campaign --ray local -n 4 --minutes 30             four shards on this machine
  gdn-apc campaign --ray auto --minutes 60                   the cluster that this machine belongs to
  gdn-apc campaign --ray ray://head:10001 --target vllm -n 64
  gdn-apc campaign --ray auto --resume .gdn-apc/runs/TIME    go on after the driver was killed

Every machine needs this version of gdn-apc, and the target. A machine that is lost costs what it did in its last
second: its shard goes on elsewhere. To share failing examples between machines, give --database."""

LEFT_OUT = {"run-dir", "shard"}
"""Options of a campaign that the driver decides for its machines."""


def add_to(commands: Any) -> None:
    """Register the command with argparse's ``commands``."""
    parser = commands.add_parser(
        "campaign",
        help="run one campaign on many machines (Ray)",
        description="Each shard is a `gdn-apc fuzz --shard I/N` on some machine; all results come into one run folder.",
        epilog=EXAMPLES + "\n\n" + options.STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ray", metavar="ADDRESS", required=True, help="address of a Ray cluster, or: local")
    parser.add_argument(
        "-n",
        metavar="SHARDS",
        type=int,
        help="default: one for each GPU of the cluster, else one for each CPU",
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", dest="gdn_run_dir", help="folder of this run, which must be new"
    )
    for option in options.OPTIONS:
        if option.name not in LEFT_OUT:
            parser.add_argument(
                f"--{option.name}", help=option.help, dest=options.dest(option.name), **option.keywords
            )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the verdict")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from gdn_apc.fuzz import begin, clock, lock, report, resume
    from gdn_apc.fuzz.runs import RunFolder, Unwritable, default_path

    clock.start()
    wrong = options.problem(vars(given))
    if wrong or (given.n is not None and given.n < 1):
        return _refuse(wrong or f"n: {given.n} shards cannot be run, expected 1 or more")
    try:
        import ray
    except ImportError:
        return _refuse(
            "ray: it is not installed here; pip install 'gdn-apc[ray]', on every machine of the cluster"
        )
    from gdn_apc.fuzz import ray_campaign

    folder = RunFolder(Path(given.gdn_resume or given.gdn_run_dir or default_path(Path.cwd())).absolute())
    try:
        resolved, shards = begin.resolve(vars(given))
        vars(given).update(resolved)
        held = begin.begin(folder, bool(given.gdn_resume))
    except (resume.Mismatch, lock.Taken, Unwritable) as e:
        return _refuse(str(e))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of ours talks to the network unasked
    try:
        with held:
            ray_campaign.run(ray, given, folder, shards, print if not given.quiet else lambda line: None)
            found, lines = report.write_all(folder)
            report.publish(folder)
    except ray_campaign.NoCluster as e:
        return _refuse(str(e))
    except Unwritable as e:
        print(e, file=sys.stderr)
        return 3
    except Exception:  # ours, or Ray's: no verdict on the target
        traceback.print_exc()
        report.write_all(folder)
        return 3
    print("\n".join(lines))
    return found.status


def _refuse(message: str) -> int:
    print(f"gdn-apc campaign: {message}", file=sys.stderr)
    return 4
