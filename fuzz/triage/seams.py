"""Experiments on a target: the failing step again with one thing replaced by what is right, to see where the fault sits.

``inherited``: the oracle's state in the slot that is read. ``parts``: the row in pieces, cut at every boundary, so that each
starts from a stored state. ``alone``: without the other rows. ``exposed``: NaN in one place at a time. ``kernel``: the
convolution and the delta rule each on the oracle's inputs.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.case import Case, Row, Step
from gdn_apc.fuzz.geometry import read_slot, write_slots
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.runner import How, World, truth
from gdn_apc.fuzz.targets.base import Target
from gdn_apc.fuzz.triage.moves import held_before
from gdn_apc.fuzz.triage.survey import Survey, View, edit_of, survey
from gdn_apc.fuzz.validity import problems


def cut(case: Case, step: int, rows: list[tuple[Row, ...]]) -> Case | None:
    """The case up to ``step``, which is replaced by these batches; None if that is outside the contract."""
    found = replace(case, steps=(*case.steps[:step], *(Step(r) for r in rows)))
    return None if problems(found) else found


def inherited(target: Target, found: Survey, view: View) -> bool | None:
    """Whether the row becomes right once its slot holds the oracle's bits: then its fault came from before. None: reads nothing."""
    case, r = found.world.case, view.r
    slot = read_slot(r.row, case.sizes.B)
    source = _writer(found, view, slot)
    if slot is None or source is None:
        return None
    own = edit_of(case)

    def edit(i: int, world: World) -> None:
        if i == r.step:
            for part, value in (("ssm", source.state), ("conv", source.window)):
                if value is not None and part in world.parts:
                    pages = getattr(world.pages, part)
                    pages[slot] = value.to(pages.device, pages.dtype)
        if own is not None:
            own(i, world)

    again = survey(target, replace(case, steps=case.steps[: r.step + 1]), edit=edit)
    return again.raised is None and not again.at(r.step, r.index).wrong


def _writer(found: Survey, view: View, slot: int | None) -> oracle.cache.Write | None:
    """What the oracle says that the last writer of a slot left there."""
    for other in reversed([v for v in found.views if v.r.step < view.r.step]):
        for column, s in write_slots(other.r.row, found.world.case.sizes.B):
            if s == slot:
                return other.want.writes[column]
    return None


def pieces(target: Target, found: Survey, view: View) -> list[tuple[int, int, bool]] | None:
    """The row cut at every boundary: (start, end, right) of each piece. None if it cannot be cut."""
    case, r, B = found.world.case, view.r, found.world.case.sizes.B
    edges = [r.row.n, *(p for p in range(r.row.n + 1, r.row.n + r.row.m) if p % B == 0), r.row.n + r.row.m]
    if len(edges) < 3:
        return None
    rows = [(replace(r.row, n=a, m=b - a),) for a, b in pairwise(edges)]
    parted = cut(case, r.step, rows)
    if parted is None:
        return None
    again = survey(target, parted)
    views = [v for v in again.views if v.r.step >= r.step]
    return [(v.r.row.n, v.r.row.n + v.r.row.m, not v.wrong) for v in views]


def alone(target: Target, found: Survey, view: View) -> bool | None:
    """Whether the row is right in a batch of its own. None if it already is."""
    case, r = found.world.case, view.r
    if len(case.steps[r.step].rows) < 2:
        return None
    single = cut(case, r.step, [(r.row,)])
    if single is None:
        return None
    again = survey(target, single)
    return again.raised is None and bool(again.views) and not again.views[-1].wrong


def exposed(target: Target, found: Survey, view: View) -> list[str]:
    """Places whose NaN reaches the row: everything that nobody may read is zero, but one place at a time."""
    case, r = found.world.case, view.r
    upto = replace(case, steps=case.steps[: r.step + 1])
    said = []
    for name, how, edit in _places(case, view):
        again = survey(target, upto, how, edit)
        if again.raised is not None or not any(
            (v.r.step, v.r.index) == (r.step, r.index) for v in again.views
        ):
            continue
        if _infected(again, again.at(r.step, r.index)):
            said.append(name)
    return said


def _infected(found: Survey, view: View) -> bool:
    """Whether NaN is in the outputs, or in a block that the step changed: one that it did not write proves nothing."""
    if bool(view.r.out.double().isnan().any()):
        return True
    for column, parts in view.r.writes.items():
        for part, t in parts.items():
            old = held_before(found, view, view.r.row.table[column], part)
            if bool(t.double().isnan().any()) and not torch.equal(bits(old), bits(t)):
                return True
    return False


def padding_acts(target: Target, found: Survey, step: int) -> bool:
    """Whether what a step wrote astray is gone once its padding and zero-length rows are."""
    case = found.world.case
    live = tuple(r for r in case.steps[step].rows if r.request is not None and r.m)
    if len(live) == len(case.steps[step].rows):
        return False
    if not live:
        return True
    again = survey(target, replace(case, steps=(*case.steps[:step], Step(live))))
    return not any(i == step for i, _, _ in again.strays)


def _places(case: Case, view: View) -> Iterator[tuple[str, How, object]]:
    r, B = view.r, case.sizes.B
    rows = case.steps[r.step].rows
    reads = {read_slot(row, B) for row in rows if row.request is not None}
    own = set(r.row.table) - {0}
    named = {slot for row in rows for slot in row.table} - own - {0}
    other = set(range(min(case.pool.num_slots, 64))) - own - named - {0}
    writes = {slot for _, slot in write_slots(r.row, B)}
    places = {
        "the null block": {0},
        "the slot that it writes": writes - reads,
        "columns of its table that it neither reads nor writes": own - writes - reads,
        "slots of other rows": named - reads,
        "slots of nobody": other - reads,
    }
    for name, slots in places.items():
        if slots:
            yield name, How(fill="zero"), _poison(r.step, slots)
    yield "packed inputs after the batch's tokens", How(fill="zero", tail=5), _poison_tail()


def _poison(step: int, slots: set[int]):
    def edit(i: int, world: World) -> None:
        if i == step:
            for slot in slots:
                for part in world.parts:
                    getattr(world.pages, part)[slot].fill_(torch.nan)

    return edit


def _poison_tail():
    """The tail of the packed inputs becomes NaN although the pages hold zeros."""

    def edit(i: int, world: World) -> None:
        world.how = replace(world.how, fill="nan")

    return edit


def kernel(target: Target, found: Survey, view: View) -> tuple[str, list[str]]:
    """Which kernel is wrong: conv, gates, delta recurrent or delta chunk; and the evidence."""
    case, r = found.world.case, view.r
    delta = "delta recurrent" if r.row.m == 1 else "delta chunk"
    if case.level == "conv":
        return "conv", ["the case drives the convolution alone"]
    if case.level == "delta":
        return delta, [
            f"the case drives the delta rule alone, {'one token' if r.row.m == 1 else 'several tokens'} a row"
        ]
    if any(w.any() for w in view.windows.values()):
        both = any((view.states[c] > 1).any() and view.windows[c].any() for c in view.wrong_columns)
        if both and view.first_output is None:
            return f"conv and {delta}", [
                "a window and a state of one column are wrong: both kernels wrote, or did not, by one rule"
            ]
        return "conv", ["a window is wrong, which is a copy of the convolution's inputs"]
    said = []
    conv_right = _conv_alone(target, found, view)
    if conv_right is False:
        return "conv", ["the convolution alone, on the oracle's window, is wrong"]
    delta_right = _delta_alone(target, found, view)
    said += ["the convolution alone is right"] if conv_right else []
    if delta_right is False:
        return delta, [*said, "the delta rule alone, on the oracle's q, k, v, g and beta, is wrong"]
    if conv_right and delta_right:
        return "gates", [*said, "the delta rule alone is right too: what lies between them is wrong"]
    return delta, said


def _fresh_world(target: Target, found: Survey, view: View, level: str) -> World:
    """A world whose pages hold what they held before the view's step."""
    world = World(target, found.world.case)
    world.pages.restore(found.ran[view.r.step].before)
    world.parts = ("conv",) if level == "conv" else ("ssm",)
    return world


def _conv_alone(target: Target, found: Survey, view: View) -> bool | None:
    if "conv" not in target.claims.seams:
        return None
    world, r, case = _fresh_world(target, found, view, "conv"), view.r, found.world.case
    rows = [v for v in found.views if v.r.step == r.step]
    x = torch.cat([v.r.inputs["x"] for v in rows])
    try:
        y = target.conv(world.layer, x, world.pages.conv, world.batch(case.steps[r.step].rows))
    except Exception:
        return False
    at = sum(v.r.row.m for v in rows if v.r.index < r.index)
    want = truth(_at_level(target, case, "conv"), replace(r, inputs={"x": r.inputs["x"]}))
    right = bool((oracle.ratios(want.o, y[at : at + r.row.m], want.o_tol, case.dtypes.input) <= 1).all())
    view.y = y[at : at + r.row.m].clone() if right else None
    return right


def _at_level(target: Target, case: Case, level: str) -> World:
    """A world for the oracle alone: the same layer at another level."""
    return World(target, replace(case, level=level))


def _delta_alone(target: Target, found: Survey, view: View) -> bool | None:
    from gdn_apc.fuzz.tensors import TORCH
    from gdn_apc.fuzz.triage.models import prepared

    if "delta" not in target.claims.seams:
        return None
    world, r, case = _fresh_world(target, found, view, "delta"), view.r, found.world.case
    rows = [v for v in found.views if v.r.step == r.step]
    inputs = [
        [t.to(dtype) for t, dtype in zip(prepared(world, v.r), _dtypes(TORCH[case.dtypes.input]))]
        for v in rows
    ]
    packed = [torch.cat(ts).to(world.device) for ts in zip(*inputs)]
    try:
        o = target.delta(world.layer, *packed, world.pages.ssm, world.batch(case.steps[r.step].rows))
    except Exception:
        return False
    own = inputs[next(i for i, v in enumerate(rows) if v is view)]
    named = dict(zip(("q", "k", "v", "g", "beta"), own))
    want = truth(_at_level(target, case, "delta"), replace(r, inputs=named))
    at = sum(v.r.row.m for v in rows if v.r.index < r.index)
    right = bool((oracle.ratios(want.o, o[at : at + r.row.m], want.o_tol, case.dtypes.input) <= 1).all())
    for column, slot in write_slots(r.row, case.sizes.B):
        state, tol = want.writes[column].state, want.state_tol[column]
        right &= bool((oracle.ratios(state, world.pages.ssm[slot], tol, case.dtypes.state) <= 1).all())
    return right


def _dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    return dtype, dtype, dtype, torch.float32, torch.float32
