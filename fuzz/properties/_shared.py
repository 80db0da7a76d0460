"""Small pieces that several properties share. Not a property itself.

Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from gdn_apc.fuzz import ledger
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runner import How, Ran, RanRow, World
from gdn_apc.fuzz.targets.base import Target

LEVELS = ("conv", "delta", "core")


def needs(*clauses: str, levels: tuple[str, ...] = LEVELS) -> Callable[[Target], str | None]:
    """Why a target cannot be asked: it claims none of the levels, or lacks one of these clauses of the contract."""

    def reason(target: Target) -> str | None:
        if not target.claims.seams & set(levels):
            return f"claims none of the seams {', '.join(levels)}"
        missing = [clause for clause in clauses if not getattr(target.claims, clause)]
        return f"does not claim {', '.join(missing)}" if missing else None

    return reason


def passed(world: World, checked: Checked) -> Checked:
    """A check that held: count the case's events, if anything was compared, and say which bits were seen."""
    if checked.comparisons:
        checked.events.update(ledger.events_of(world.case))
        checked.digest = world.digest()
    return checked


def live_rows(ran: list[Ran]) -> Iterator[RanRow]:
    """All live rows of a run, in order."""
    for step in ran:
        yield from step.rows


def same_bits(one: RanRow, other: RanRow, checked: Checked, why: str) -> None:
    """Two rows produced the same bits: outputs and every written block. Raises ``Violation`` at the first that differs."""
    mine, theirs = one.bits(), other.bits()
    for name, t in mine.items():
        if name not in theirs:
            raise ValueError(
                f"rows: one wrote {name} and the other did not; compare rows of the same n and m"
            )
        compare_bits(t, theirs[name], checked, f"{name} of request {one.row.request}", why, **one.place())


def compare_bits(a: torch.Tensor, b: torch.Tensor, checked: Checked, what: str, why: str, **place) -> None:
    """Two tensors hold the same bits, or ``Violation`` says where they first differ."""
    checked.comparisons += 1
    differs = (bits(a) != bits(b)).nonzero()
    if len(differs):
        at = tuple(int(i) for i in differs[0])
        raise Violation(
            f"{what} depends on {why}: {float(a[at]):.9g} and {float(b[at]):.9g} at {list(at)} "
            f"({', '.join(f'{k} {v}' for k, v in place.items())}); {len(differs)} of {a.numel()} elements differ",
            what=what,
            at=at,
            **place,
        )


def run(target: Target, case: Case, how: How = How()) -> tuple[World, list[Ran]]:  # noqa: B008 (frozen)
    """Run a case from a fresh pool."""
    world = World(target, case, how)
    return world, world.run_all()
