"""The command line ``gdn-apc``: the commands fuzz, replay and doctor, and where the other ones are found.

``fuzz`` runs pytest in a child process and watches it: a kernel that kills the process is a finding, with its case,
not the end of the report. Imports the standard library until a command needs more. Exercise it with
``pytest tests/fuzz/test_cli.py``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import clock, options, ray_command, report_command, spec_command
from gdn_apc.fuzz.bench import command as bench
from gdn_apc.fuzz.mutants import command as mutants
from gdn_apc.fuzz.runs import RunFolder, default_path
from gdn_apc.fuzz.triage import command as triage

CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals by which a process brings itself down; others come from outside."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``gdn-apc``. Returns the exit status of DESIGN.md section 6."""
    parser = _parser()
    given = parser.parse_args(arguments)
    return given.run(given)


class _Parser(argparse.ArgumentParser):
    """Bad usage is status 4 here; argparse's own 2 means "interrupted"."""

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(4, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gdn-apc", description="Prefix caching for Gated DeltaNet layers that can be trusted."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    keywords = {"formatter_class": argparse.RawDescriptionHelpFormatter}

    fuzz = commands.add_parser(
        "fuzz",
        help="run a campaign against an implementation",
        description="Searches for wrong prefix caching, and reports under .gdn-apc/runs/<time>/.",
        epilog="examples:\n" + options.examples("gdn-apc fuzz", "") + "\n\n" + options.STATUSES,
        **keywords,
    )
    for option in options.OPTIONS:
        names = [f"--{option.name}", f"--gdn-{option.name}"]
        fuzz.add_argument(*names, help=option.help, dest=options.dest(option.name), **option.keywords)
    fuzz.add_argument(
        "-n", metavar="WORKERS", help="a shard of every property for each worker (needs pytest-xdist)"
    )
    fuzz.add_argument("-q", "--quiet", action="store_true", help="no progress, only the verdict")
    fuzz.set_defaults(run=_fuzz)

    replay = commands.add_parser(
        "replay",
        help="run one case again",
        description="Exit status: 0 the case holds, 1 it fails, 3 the suite itself broke, 4 it cannot be run here.",
        epilog="example:\n  gdn-apc replay .gdn-apc/runs/20260101-120000/cases/outputs-0123456789ab.json --target vllm",
        **keywords,
    )
    replay.add_argument("case", metavar="CASE.json")
    replay.add_argument(
        "--target", "--gdn-target", metavar="NAME", help="default: the one that it was found with"
    )
    replay.add_argument(
        "--times",
        type=int,
        default=1,
        metavar="N",
        help="so often; runs that differ in a bit count as failing",
    )
    replay.set_defaults(run=_replay)

    doctor = commands.add_parser("doctor", help="versions, devices, and which targets can run here")
    doctor.add_argument(
        "--model", type=Path, help="also: block size and states of this model's folder, as served"
    )
    doctor.add_argument("--memory", type=float, help="GiB of KV cache a rank: how many states fit")
    doctor.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks (1)")
    doctor.set_defaults(run=_doctor)
    report_command.add_to(commands)
    ray_command.add_to(commands)
    mutants.add_to(commands)
    bench.add_to(commands)
    triage.add_to(commands)
    spec_command.add_to(commands)
    return parser


def _replay(given: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "gdn_apc.fuzz.replay", given.case]
    status = _watch([*command, given.target or "", str(max(1, given.times))])
    if status >= 0:
        return status
    number = signal.Signals(-status)
    print(
        f"FAILS: the process died of {number.name}" if number in CRASHES else f"interrupted by {number.name}"
    )
    return 1 if number in CRASHES else 2


def _doctor(given: argparse.Namespace) -> int:
    from gdn_apc.fuzz import doctor

    return doctor.main(given.model, given.memory, given.tp)


def _fuzz(given: argparse.Namespace) -> int:
    wrong = options.problem(vars(given))
    if wrong:
        print(f"gdn-apc fuzz: {wrong}", file=sys.stderr)
        return 4
    run = RunFolder(Path(given.gdn_resume or given.gdn_run_dir or default_path(Path.cwd())).absolute())
    if not given.gdn_resume:
        given.gdn_run_dir = str(run.path)
    os.environ[clock.BEGAN] = str(clock.start())
    status = _watch(pytest_command(given))
    return status if status >= 0 else _died(run, signal.Signals(-status))


def pytest_command(given: argparse.Namespace) -> list[str]:
    """pytest on our items alone: no configuration, no conftest and no cache in the current directory."""
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / "test_campaign.py"), "-m", "fuzz"]
    command += ["-c", os.devnull, "--rootdir", os.getcwd(), "--noconftest", "-p", "no:cacheprovider"]
    command += ["--no-header", "-p", "no:benchmark"]
    command += options.command_line(vars(given))
    command += ["-n", given.n] if given.n else []
    return command + (["-q"] if given.quiet else [])


def _watch(command: list[str]) -> int:
    """Run a child to its end and return its status, negative for a signal. SIGTERM is handed on to it.

    Ctrl-C reaches the child by itself, which then writes its summary: wait for that.
    """
    child = subprocess.Popen(command)
    old = signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    try:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, old)


def _died(run: RunFolder, number: signal.Signals) -> int:
    """The child was killed: by its own crash, which is a failure of the case that it ran, or from outside."""
    from gdn_apc.fuzz import report

    run.create()  # it may have died before its first item
    if number in CRASHES:
        run.record_crash("main", f"the process died of {number.name}")
        run.append("end", reason="finished", seconds=round(clock.elapsed(), 1))
    else:
        run.append("end", reason=number.name, seconds=round(clock.elapsed(), 1))
    found, lines = report.write_all(run)
    report.publish(run)
    print("\n".join(lines))
    return found.status
