"""Everything that is wrong in a case, not only the first thing: each row, block and slot against the oracle.

A step's rows are compared locally, from the bits that they read (``fuzz/runner.py``), so the first row that is wrong is wrong
by its own doing. What changed where nothing may change is listed too.

    found = survey(target, case)
    found.first                    # the first wrong row, a View, or None
    found.first.states[2]          # error / tolerance of the state that it left in column 2, [HV, V, K]

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.geometry import read_slot
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.runner import How, Ran, RanRow, World, truth
from gdn_apc.fuzz.targets.base import Target

Edit = Callable[[int, World], None]


@dataclass
class View:
    """A live row that ran, what the oracle says of it, and error / tolerance of each element (above 1 is wrong).

    ``out``: [m, …]; ``states``: column → [HV, V, K]; ``windows``: column → bool [W − 1, D], True where bits differ.
    """

    r: RanRow
    want: oracle.StepResult
    out: torch.Tensor
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    windows: dict[int, torch.Tensor] = field(default_factory=dict)
    y: torch.Tensor | None = None  # the target's own convolution [m, D], where it was asked for that alone

    @property
    def wrong_columns(self) -> list[int]:
        """The columns whose state or window is wrong, the first one first."""
        bad = {c for c, ratio in self.states.items() if (ratio > 1).any()}
        return sorted(bad | {c for c, wrong in self.windows.items() if wrong.any()})

    @property
    def wrong_outputs(self) -> torch.Tensor:
        """Indices of the wrong outputs, [count, axes], in order."""
        return (self.out > 1).nonzero()

    @property
    def wrong(self) -> bool:
        """Whether anything of this row is wrong."""
        return bool(self.wrong_columns) or bool(len(self.wrong_outputs))

    @property
    def first_output(self) -> int | None:
        """The first position of the request whose output is wrong, or None."""
        return self.r.row.n + int(self.wrong_outputs[0, 0]) if len(self.wrong_outputs) else None


@dataclass
class Survey:
    """A case on a target: the views of its rows, what was written where nothing may be, and how it ended."""

    world: World
    views: list[View] = field(default_factory=list)
    strays: list[tuple[int, int | None, str]] = field(default_factory=list)  # step, slot, part
    ran: list[Ran] = field(default_factory=list)
    raised: BaseException | None = None  # by the target; what came after did not run

    @property
    def first(self) -> View | None:
        """The first wrong row."""
        return next((v for v in self.views if v.wrong), None)

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return self.first is not None or bool(self.strays) or self.raised is not None

    def at(self, step: int, index: int) -> View:
        """The view of a row."""
        return next(v for v in self.views if (v.r.step, v.r.index) == (step, index))


def survey(target: Target, case: Case, how: How | None = None, edit: Edit | None = None) -> Survey:
    """Run a case to its end, or to where the target raises, and compare everything."""
    how, edit = how or surroundings(case, target), edit or edit_of(case)
    found = Survey(World(target, case, replace(how, hide=False), edit))
    world = found.world
    for i in range(len(case.steps)):
        try:
            ran = world.run(i)
        except Violation as e:
            found.raised = e
            return found
        except Exception as e:
            found.raised = e
            return found
        found.ran.append(ran)
        found.strays += [(i, slot, part) for slot, part in strays(world, ran)]
        found.views += [view(world, r) for r in ran.rows]
    return found


def view(world: World, r: RanRow, want: oracle.StepResult | None = None) -> View:
    """One row against the oracle; exactly, where the case's property demands that."""
    want = truth(world, r) if want is None else want
    exact, dtypes = world.case.property == "index_movement", world.case.dtypes

    def ratio(expected: torch.Tensor, actual: torch.Tensor, tol: torch.Tensor, dtype: str) -> torch.Tensor:
        if exact:
            right = actual.double() == oracle.round_to(expected, dtype).to(actual.device)
            return torch.where(right, 0.0, torch.inf)
        return oracle.ratios(expected, actual, tol, dtype)

    found = View(r, want, ratio(want.o, r.out, want.o_tol, dtypes.input))
    for column, parts in r.writes.items():
        write = want.writes[column]
        if "ssm" in parts:
            found.states[column] = ratio(write.state, parts["ssm"], want.state_tol[column], dtypes.state)
        if "conv" in parts:
            stored = write.window.to(parts["conv"].device, parts["conv"].dtype)
            found.windows[column] = bits(parts["conv"]) != bits(stored)
    return found


def strays(world: World, ran: Ran) -> Iterator[tuple[int | None, str]]:
    """``(slot, part)`` of everything that a step changed and no row of it may; slot None in a red zone."""
    allowed = set(ran.allowed)
    if not world.target.claims.skips_null:
        allowed |= {(0, part) for part in world.parts}
    while (change := world.pages.first_change(ran.before, allowed)) is not None:
        yield change.slot, change.part
        if change.slot is None:
            return
        allowed.add((change.slot, change.part))


def surroundings(case: Case, target: Target) -> How:
    """What the case's property puts around the data (``fuzz/properties``)."""
    if case.property == "read_set":
        tail = case.choice.get("tail", 0) if target.claims.packed_tail else 0
        return How(fill="nan", tail=tail, widen=case.choice.get("widen", 0))
    return How()


def edit_of(case: Case) -> Edit | None:
    """How ``hit_is_used`` changes the pages before a step; None for every other property."""
    if case.property != "hit_is_used":
        return None
    from gdn_apc.fuzz.properties.hits import disturb

    reading = [(i, row) for i, step in enumerate(case.steps) for row in step.rows if row.m and row.n]
    if not reading:
        return None
    at, changed = reading[case.choice["reader"] % len(reading)]

    def edit(i: int, world: World) -> None:
        if i == at:
            disturb(world, read_slot(changed, case.sizes.B), case.choice["noise"])

    return edit
