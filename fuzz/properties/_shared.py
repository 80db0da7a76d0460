"""Small pieces that several properties share. Not a property itself.

Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

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


Pair = tuple[torch.Tensor, torch.Tensor, str, dict]
"""Two tensors that must hold the same bits, what they are, and where."""


def same_bits(one: RanRow, other: RanRow, checked: Checked, why: str) -> None:
    """Two rows produced the same bits: outputs and every written block. Raises ``Violation`` at the first that differs."""
    same_rows([(one, other)], checked, why)


def same_rows(rows: list[tuple[RanRow, RanRow]], checked: Checked, why: str) -> None:
    """``same_bits`` of many pairs of rows; a GPU is asked for all of them at once."""
    named = [(one, one.bits(), other.bits()) for one, other in rows]
    for _, mine, theirs in named:
        if missing := [name for name in mine if name not in theirs]:
            raise ValueError(
                f"rows: one wrote {missing[0]} and the other did not; compare rows of the same n and m"
            )
    alike = all(mine.keys() == theirs.keys() for _, mine, theirs in named)
    if alike and not _differ(pair for one, other in rows for pair in zip(one.all_bits(), other.all_bits())):
        checked.comparisons += sum(len(mine) for _, mine, _ in named)
        return
    pairs = (
        (t, theirs[name], f"{name} of request {one.row.request}", one.place())
        for one, mine, theirs in named
        for name, t in mine.items()
    )
    compare_pairs(pairs, checked, why)


def compare_pairs(pairs: Iterable[Pair], checked: Checked, why: str) -> None:
    """The tensors of each pair hold the same bits, or ``Violation`` says where the first that do not differ first.

    All are compared before a GPU is asked for an answer, once.
    """
    pairs = list(pairs)
    if not _differ((a, b) for a, b, _, _ in pairs):
        checked.comparisons += len(pairs)
        return
    for a, b, what, place in pairs:
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
    raise AssertionError("unreachable: some pair differs")


def _differ(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether the tensors of any pair have different bits."""
    return any_of((bits(a) != bits(b)).any() for a, b in pairs)


def any_of(flags: Iterable[torch.Tensor]) -> bool:
    """Whether any of these scalars on one device is true: one question to a GPU for all of them."""
    flags = list(flags)
    return bool(torch.stack(flags).any()) if flags else False


def run(target: Target, case: Case, how: How = How()) -> tuple[World, list[Ran]]:  # noqa: B008 (frozen)
    """Run a case from a fresh pool."""
    world = World(target, case, how)
    return world, world.run_all()
