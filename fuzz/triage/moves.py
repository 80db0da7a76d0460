"""Where wrong bits come from, if they are right ones in a wrong place: what a slot or an output holds instead.

A slot is compared with what it held before, with what every other column, row and position must hold, and with those turned
over: transposed, in other heads, through another dtype. A match is a sentence: "slot 3 holds what column 1 must hold".

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py -k slot``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.runner import NAMES, World
from gdn_apc.fuzz.triage.survey import Survey, View

PARTS = {"ssm": "state", "conv": "window"}


@dataclass(frozen=True)
class Match:
    """What a place holds: a keyword for ``classes`` and a sentence for a reader."""

    kind: str
    says: str


def states_along(world: World, view: View) -> torch.Tensor | None:
    """The exact state after each token of a row, [m + 1, HV, V, K]; None where the level has none."""
    from gdn_apc.fuzz.triage.models import prepared

    if world.case.level == "conv":
        return None
    q, k, v, g, beta = prepared(world, view.r)
    layer = world.layer
    return oracle.recurrence(
        q,
        k,
        v,
        g,
        beta,
        scale=layer.scale,
        initial_state=view.r.state,
        use_qk_l2norm=layer.use_qk_l2norm,
    )[1]


def what_state(found: Survey, view: View, column: int) -> Match | None:
    """What the state in a wrong column's slot is, if it is one that belongs elsewhere."""
    case, r = found.world.case, view.r
    actual, slot = r.writes[column]["ssm"], r.row.table[column]
    place = f"slot {slot} (column {column})"
    before = held_before(found, view, slot, "ssm")
    if before is not None and torch.equal(bits(before), bits(actual)):
        state = (
            "never was written" if bool(before.isnan().any()) else "still holds what it held before the step"
        )
        return Match("stale", f"{place} {state}: the write is missing")
    if not bool(actual.double().any()):
        return Match("zero", f"{place} holds zeros")
    if r.state is not None and torch.equal(bits(r.state), bits(actual)):
        return Match("start", f"{place} holds the state that the row read: nothing of this step")
    tol = view.want.state_tol[column]
    for match, want in _candidates(found, view, column):
        if _fits(case, want, actual, tol, view.want.writes[column].state):
            return Match(match.kind, f"{place} {match.says}")
    return None


def _candidates(found: Survey, view: View, column: int) -> Iterator[tuple[Match, torch.Tensor]]:
    """States that the slot may hold by mistake, the likeliest first."""
    want = view.want.writes[column].state
    for j, write in view.want.writes.items():
        if j != column:
            yield Match("column", f"holds what column {j} must hold"), write.state
    yield Match("transposed", "holds its state with keys and values exchanged"), want.mT.reshape(want.shape)
    along = states_along(found.world, view)
    end = min((column + 1) * found.world.case.sizes.B, view.r.row.n + view.r.row.m)
    for t in sorted(range(len(along)), key=lambda t: abs(view.r.row.n + t - end)):
        p = view.r.row.n + t
        if p != end:
            yield Match("position", f"holds state({p}), it must hold state({end})"), along[t]
    for other in found.views:
        if other is not view and other.r.step == view.r.step:
            for j, write in other.want.writes.items():
                who = f"row {other.r.index} (request {other.r.row.request})"
                yield Match("neighbour", f"holds what column {j} of {who} must hold"), write.state
    for shift in range(1, want.shape[0]):
        yield Match("head", f"holds the state of the head {shift} further on"), want.roll(-shift, 0)
    dtypes = found.world.case.dtypes
    for name in ("bf16", "fp16"):
        if name != dtypes.state and dtypes.state == "fp32":
            yield Match("narrow", f"holds its state rounded to {name}"), oracle.round_to(want, name)


def _fits(
    case: Case, want: torch.Tensor, actual: torch.Tensor, tol: torch.Tensor, right: torch.Tensor
) -> bool:
    """Whether ``actual`` is ``want`` within tolerance, and ``want`` is not the right answer as well."""
    if bool((oracle.ratios(right, want, tol, case.dtypes.state) <= 1).all()):
        return False
    scale = tol + 2.0**-10 * want.abs() if case.dtypes.state != "fp32" else tol + 2.0**-20 * want.abs()
    return bool((oracle.ratios(want, actual, scale, case.dtypes.state) <= 1).all())


def what_window(found: Survey, view: View, column: int) -> Match | None:
    """What the window in a wrong column's slot is."""
    r = view.r
    actual, slot = r.writes[column]["conv"], r.row.table[column]
    place, want = f"slot {slot} (column {column})", view.want.writes[column].window
    before = held_before(found, view, slot, "conv")
    if before is not None and torch.equal(bits(before), bits(actual)):
        state = (
            "never was written"
            if bool(before.isnan().any())
            else "still holds the window from before the step"
        )
        return Match("stale", f"{place} {state}: the write is missing")
    if r.window is not None and torch.equal(bits(r.window), bits(actual)):
        return Match("start", f"{place} holds the window that the row read: nothing of this step")
    taps = [_tap(found.world, view, row) for row in actual]
    end = min((column + 1) * found.world.case.sizes.B, r.row.n + r.row.m)
    wanted = list(range(end - len(taps), end))
    if torch.equal(actual.double(), want.double().to(actual.device)):
        return Match("sign", f"{place} holds the right inputs, but the sign of a zero is lost")
    for j, write in view.want.writes.items():
        if j != column and torch.equal(actual.double(), write.window.double().to(actual.device)):
            return Match("column", f"{place} holds what column {j} must hold")
    if any(t is not None for t in taps):
        shown = ", ".join("?" if t is None else t[1] for t in taps)
        own = [t[0] if t and t[0] is not None else None for t in taps]
        kind = "position"
        if any(t and t[2] == "zero" for t in taps):
            kind = "forgets"
        if any(t and t[2] == "neighbour" for t in taps):
            kind = "neighbour"
        if own != wanted:
            return Match(kind, f"{place} holds the inputs [{shown}], expected {wanted}")
    return None


def _tap(world: World, view: View, row: torch.Tensor) -> tuple[int | None, str, str] | None:
    """Which input one tap of a window holds: (position, text, kind). Zeros are text ``0``; None if it is none."""
    own = view.r.row.request
    if not bool(row.double().any()):
        return None, "0", "zero"
    if bool(row.isnan().any()):
        return None, "NaN", "nan"
    for request in sorted(range(len(world.streams)), key=lambda i: i != own):
        stream = world.streams[request]["x"].double()
        hit = (stream == row.double()).all(-1).nonzero()
        if len(hit):
            p = int(hit[0, 0])
            return (p, str(p), "own") if request == own else (None, f"{p} of request {request}", "neighbour")
    return None


def what_output(found: Survey, view: View) -> Match | None:
    """What the first wrong output is: that of another position, row or head."""
    position, r = view.first_output, view.r
    if position is None:
        return None
    t = position - r.row.n
    actual, tol = r.out[t], view.want.o_tol[t]
    dtype = found.world.case.dtypes.input
    if bool(actual.double().isnan().any()):
        return None

    def fits(want: torch.Tensor) -> bool:
        if bool((oracle.ratios(view.want.o[t], want, tol, dtype) <= 1).all()):
            return False
        return bool((oracle.ratios(want, actual, tol + 2.0**-9 * want.abs(), dtype) <= 1).all())

    if not bool(actual.double().any()) and not fits(actual.double()):
        pass
    for other in found.views:
        if other.r.step != r.step:
            continue
        for s in range(other.r.row.m):
            if (other is not view or s != t) and fits(other.want.o[s]):
                who = "" if other is view else f" of request {other.r.row.request} (row {other.r.index})"
                kind = "position" if other is view else "neighbour"
                return Match(
                    kind,
                    f"the output at position {position} is that of position {other.r.row.n + s}{who}",
                )
    if found.world.case.level != "conv":
        for shift in range(1, view.want.o.shape[1]):
            if fits(view.want.o[t].roll(-shift, 0)):
                return Match(
                    "head", f"the output at position {position} is that of the head {shift} further on"
                )
    return None


def held_before(found: Survey, view: View, slot: int, part: str) -> torch.Tensor | None:
    """A slot's part before the view's step, as the cache's dtype."""
    ran = found.ran[view.r.step]
    pages = found.world.pages
    now = pages.snapshot()
    try:
        pages.restore(ran.before)
        return getattr(pages, part)[slot].clone()
    finally:
        pages.restore(now)


def strays_of(found: Survey) -> list[Match]:
    """What was written outside of the rows' blocks, a sentence each, the first step's only."""
    if not found.strays:
        return []
    step = found.strays[0][0]
    rows = found.world.case.steps[step].rows
    said = []
    for i, slot, part in found.strays:
        if i != step:
            continue
        what = f"the {NAMES[part]} of slot {slot}" if part in NAMES else f"the {part} after slot {slot}"
        if slot is None:
            said.append(Match("outside", f"step {step} wrote outside of the pool ({part})"))
        elif part not in NAMES:
            said.append(Match("outside", f"step {step} wrote to {what}, bytes that are nobody's"))
        elif slot == 0:
            said.append(Match("null", f"step {step} wrote {what}, the null block"))
        else:
            said.append(_stray(found, step, slot, part, rows, what))
    return said


def _stray(found: Survey, step: int, slot: int, part: str, rows: tuple, what: str) -> Match:
    """A live slot that a step overwrote: one that a row reads, or one that a table merely names."""
    from gdn_apc.fuzz.geometry import read_slot, write_slots

    B = found.world.case.sizes.B
    reader = next(
        (j for j, row in enumerate(rows) if row.request is not None and read_slot(row, B) == slot), None
    )
    if reader is not None and all(slot != s for _, s in write_slots(rows[reader], B)):
        column = rows[reader].table.index(slot)
        return Match(
            "shared", f"step {step} overwrote {what}, which row {reader} reads as column {column} and shares"
        )
    padding = [j for j, row in enumerate(rows) if not row.m and slot in row.table]
    if padding:
        return Match("padding", f"step {step} wrote {what}, which only padding row {padding[0]} names")
    named = [j for j, row in enumerate(rows) if slot in row.table]
    if named:
        column = rows[named[0]].table.index(slot)
        return Match(
            "column",
            f"step {step} wrote {what}: column {column} of row {named[0]}, not one of its write columns",
        )
    return Match("foreign", f"step {step} wrote {what}, which no row of the batch names")
