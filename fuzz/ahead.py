"""Compiles a target's kernels before a campaign on a GPU, in many processes, into the compilers' caches on disk.

    python -m gdn_apc.fuzz.ahead native -n 14 --seconds 60
    gdn-apc fuzz --target native --minutes 10 -n 14

A campaign's workers meet the same new kernels at the same time, and each compiles them itself: the first minutes go by
with that. Here cases are drawn as a campaign draws them, one is kept of each kind that kernels are compiled for, and the
kinds are shared out, those first that are drawn most often. Nothing is compared. Without a GPU nothing is compiled: Triton's
interpreter only runs the cases. Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_ahead.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from gdn_apc.fuzz import children, targets

if TYPE_CHECKING:
    from gdn_apc.fuzz.case import Case
    from gdn_apc.fuzz.targets.base import Target

ROUNDS = 6
"""Rounds of each property that are drawn: some 1,000 cases in all, in a few seconds."""


def kind(case: Case) -> Hashable:
    """What kernels may be compiled for: everything of a case but its lengths, blocks and values."""
    s = case.sizes
    lengths = {min(row.m, 2) for step in case.steps for row in step.rows if row.m}
    return (
        (
            case.level,
            case.dtypes,
            case.options.use_qk_l2norm,
            case.options.conv_bias,
            case.options.activation,
        ),
        (s.H, s.HV, s.K, s.V, s.W, s.C, case.pool.channel_major, frozenset(lengths)),
    )


def representatives(cases: Iterable[Case]) -> list[Case]:
    """One case of each kind, the one with the fewest tokens; frequent kinds first."""
    counts: Counter[Hashable] = Counter()
    least: dict[Hashable, Case] = {}
    for case in cases:
        which = kind(case)
        counts[which] += 1
        if which not in least or tokens(case) < tokens(least[which]):
            least[which] = case
    return [least[which] for which, _ in counts.most_common()]


def tokens(case: Case) -> int:
    """Scheduled tokens of all steps."""
    return sum(row.m for step in case.steps for row in step.rows)


def drawn(target: Target, rounds: int = ROUNDS) -> list[Case]:
    """Cases of every kernel property that the target can be asked, as a campaign draws them."""
    from gdn_apc.fuzz.floors import draw_round
    from gdn_apc.fuzz.properties import load_all

    return [
        case
        for prop in load_all().values()
        if prop.kind == "kernel" and prop.needs(target) is None
        for number in range(rounds)
        for case in draw_round(prop.name, prop.strategy(target), 0, number)
    ]


def run(task: tuple[str, Case]) -> None:
    """Every step of a case on a target, both by ``(name, case)``. Compares nothing."""
    from gdn_apc.fuzz.runner import World

    name, case = task
    World(targets.load(name), case).run_all()


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, or 4 if the target cannot run here."""
    parser = argparse.ArgumentParser(
        prog="python -m gdn_apc.fuzz.ahead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", nargs="?", default=targets.DEFAULT, metavar="TARGET", help="default: native"
    )
    parser.add_argument("-n", type=int, default=max(1, (os.cpu_count() or 1) - 2), metavar="PROCESSES")
    parser.add_argument("--seconds", type=float, default=60.0, help="no longer than this (default: 60)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each property (default: {ROUNDS})")
    given = parser.parse_args(arguments)
    try:
        target = targets.load(given.target)
    except targets.TargetUnavailable as e:
        print(e, file=sys.stderr)
        return 4
    cases = representatives(drawn(target, given.rounds))
    print(f"compiling ahead: {len(cases)} kinds of cases in {given.n} processes …", flush=True)
    seconds = children.share_out(run, [(given.target, case) for case in cases], given.n, given.seconds)
    print(f"compiled in {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
