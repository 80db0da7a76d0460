"""Which layer, which kernel, where first, and whether the read, the carry or the write: the answers of all experiments together.

    located = localise(target, case, violation)
    located.layer, located.kernel, located.seam, located.where, located.evidence

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.geometry import chunks, state_end
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.targets.base import Target
from gdn_apc.fuzz.triage import conv_models, models, moves, seams, twins
from gdn_apc.fuzz.triage.classes import Evidence
from gdn_apc.fuzz.triage.indices import wrong_indices
from gdn_apc.fuzz.triage.moves import Match
from gdn_apc.fuzz.triage.survey import Survey, View, survey

MOVED = frozenset(
    "column position neighbour head transposed slot fresh nothing stale start zero null shared foreign outside padding "
    "forgets window exposed layout slots".split()
)
"""Kinds that say that something moved wrongly, rather than was computed wrongly."""


@dataclass(frozen=True)
class Slot:
    """A line of the block tables: what a slot, or a field of the metadata, must hold, and what it holds."""

    column: str
    slot: str
    expected: str
    actual: str
    right: bool


@dataclass
class Located:
    """Where a failure is. ``layer``: metadata, indexing, numerics or manager; ``seam``: read, carry, write, compute or empty.

    ``kernel``: conv, gates, delta recurrent, delta chunk, or empty. ``says``: the one sentence. ``evidence``: why.
    ``case`` and ``survey`` are what was looked at (a life of the cache machine becomes explicit steps).
    """

    case: Case
    layer: str = ""
    kernel: str = ""
    seam: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    evidence: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    survey: Survey | None = None
    fields: list[Slot] = field(default_factory=list)

    def add(self, match: Match | None) -> None:
        """One more finding."""
        if match is not None:
            self.kinds.add(match.kind)
            if match.says not in self.evidence:
                self.evidence.append(match.says)
            self.says = self.says or match.says

    def to_classes(self) -> Evidence:
        """What ``classes`` needs to know."""
        view = self._view()
        row = view.r.row if view else None
        return Evidence(
            self.layer,
            self.kernel,
            self.seam,
            frozenset(self.kinds),
            self.case.property,
            fresh=row is not None and row.n == 0,
            short=row is not None and row.m < self.case.sizes.W - 1,
            nan=view is not None and any(bool(t.double().isnan().any()) for t in view.r.bits().values()),
            far=self.case.pool.page_padding >= 1 << 30,
        )

    def _view(self) -> View | None:
        if self.survey is None:
            return None
        step, row = self.where.get("step"), self.where.get("row")
        return next((v for v in self.survey.views if (v.r.step, v.r.index) == (step, row)), None)


def localise(target: Target, case: Case, violation: Violation) -> Located:
    """Look into a failing case. Experiments that break are left out, and said so."""
    if case.level == "metadata" or case.property == "metadata":
        return _metadata(target, case)
    if case.property.startswith("machine_"):
        return _machine(target, case, violation)
    return _kernels(target, case, violation)


def _metadata(target: Target, case: Case) -> Located:
    located = Located(case, layer="metadata", seam="compute")
    wrong = wrong_indices(target, case)
    for w in wrong:
        located.add(Match("index", w.says))
        row = "all" if w.row is None else f"row {w.row}"
        located.fields.append(Slot(w.field, row, w.expected, w.actual, False))
    if wrong:
        located.where = {"step": wrong[0].step, "row": wrong[0].row, "field": wrong[0].field}
    return located


def _machine(target: Target, case: Case, violation: Violation) -> Located:
    """A life of the cache machine: the batches that ran become explicit steps, and are looked at like any others."""
    from gdn_apc.fuzz.engine import life_of, live_through
    from gdn_apc.fuzz.engine.target_workers import KernelWorker, MetadataWorker

    kernels = case.property == "machine_kernels"
    if kernels:
        worker = KernelWorker(target, case, Checked())
    else:
        worker = MetadataWorker(target, case) if "metadata" in target.claims.seams else None
    life = life_of(case, worker=worker)
    try:
        live_through(life, case.choice["events"])
    except Violation as e:
        violation = e
    steps = worker.world.case.steps if kernels else tuple(life.steps)
    explicit = replace(case, steps=steps, choice={}, property="values" if kernels else "metadata")
    note = f"in a life of the cache machine: {violation.where.get('invariant', str(violation).split(':')[0])}"
    if "metadata" in target.claims.seams and wrong_indices(target, explicit):
        located = _metadata(target, explicit)
    elif kernels:
        located = _kernels(target, explicit, violation)
    else:
        located = Located(case, layer="manager", says=str(violation).splitlines()[0])
        located.kinds.add("invariant")
        located.where = dict(violation.where)
    located.evidence.insert(0, note)
    return located


def _kernels(target: Target, case: Case, violation: Violation) -> Located:
    located = Located(case)
    if "raised" in violation.where:
        located.add(Match("raised", str(violation).splitlines()[0]))
    if "race" in violation.where:
        located.add(Match("race", str(violation).splitlines()[0]))
    try:
        found = located.survey = survey(target, case)
    except ValueError as e:
        located.evidence.append(f"the case cannot be surveyed: {e}")
        return located
    if found.raised is not None:
        located.add(Match("raised", f"the target raised {type(found.raised).__name__}: {found.raised}"))
        located.where |= {"step": len(found.ran)}
    strays = moves.strays_of(found)
    if strays and seams.padding_acts(target, found, found.strays[0][0]):
        located.add(Match("padding", "without the padding rows nothing is written astray"))
    for match in strays:
        located.add(match)
    view = _first(found)
    if found.strays and (view is None or found.strays[0][0] < view.r.step or not view.wrong):
        _stray_place(located, found)
    elif view is not None:
        _row(located, target, found, view)
    elif found.raised is None:
        _bitwise(located, target, case, violation)
    _layer(located, target, case)
    return located


def _first(found: Survey) -> View | None:
    """The first wrong row; in one step, a row whose outputs are wrong before one whose blocks are."""
    wrong = [v for v in found.views if v.wrong]
    first = [v for v in wrong if v.r.step == wrong[0].r.step]
    return min(first, key=lambda v: v.r.index, default=None)


def _stray_place(located: Located, found: Survey) -> None:
    step, slot, part = found.strays[0]
    rows = found.world.case.steps[step].rows
    row = next((j for j, r in enumerate(rows) if slot is not None and slot in r.table), None)
    located.seam = "write"
    located.where |= {"step": step, "slot": slot, "part": part}
    if row is not None:
        request = rows[row].request
        located.where |= {"row": row, "request": request, "column": rows[row].table.index(slot)}
        if request is None or not rows[row].m:
            row = next((j for j, r in enumerate(rows) if r.request is not None and r.m), None)
    view = next((v for v in found.views if v.r.step == step and v.r.index == row), None)
    if view is not None:
        delta = "delta recurrent" if view.r.row.m == 1 else "delta chunk"
        located.kernel = "conv" if part == "conv" else delta if part == "ssm" else ""


def _row(located: Located, target: Target, found: Survey, view: View) -> None:
    """The first wrong row: where in it, and which seam."""
    case, r = found.world.case, view.r
    located.where |= place_of(case, view)
    if seams.inherited(target, found, view):
        located.evidence.append(
            "given the oracle's state in the slot that it reads, the row is right: the fault came from before"
        )
    elif r.row.n:
        located.evidence.append(
            "given the oracle's state in the slot that it reads, the row is still wrong: the fault is this step's"
        )
    if seams.alone(target, found, view):
        located.add(Match("neighbour", "in a batch of its own the row is right: the rows around it matter"))
    located.kernel, why = seams.kernel(target, found, view)
    located.evidence += why
    outputs_wrong = view.first_output is not None
    column = next(iter(view.wrong_columns), None)
    if outputs_wrong or (column is not None and not any(w.any() for w in view.windows.values())):
        _values(located, target, found, view)
    if not located.seam and column is not None and not _before(case, view, column):
        located.seam = "write"
    for c in view.wrong_columns[:2]:
        if (view.states.get(c, torch.zeros(1)) > 1).any() and not located.seam == "read":
            located.add(moves.what_state(found, view, c))
        if c in view.windows and view.windows[c].any():
            match = moves.what_window(found, view, c)
            located.add(match)
            if match is not None and match.kind == "forgets" and outputs_wrong and r.row.n:
                located.seam = "read"
    if outputs_wrong and not located.kinds:
        located.add(moves.what_output(found, view))
    if not located.seam:
        located.seam = "compute" if outputs_wrong else "write"


def _before(case: Case, view: View, column: int) -> bool:
    """Whether an output before the end of a column is wrong."""
    end = state_end(column, view.r.row.n, view.r.row.m, case.sizes.B)
    return view.first_output is not None and view.first_output < end


def _values(located: Located, target: Target, found: Survey, view: View) -> None:
    """Outputs or states are wrong: what was read, what was carried, or how it was computed."""
    r = view.r
    explained = models.explanation(found, view) or conv_models.explanation(found, view)
    if explained is not None:
        located.seam = explained[0]
        located.add(explained[1])
    if explained is None and any(bool(t.double().isnan().any()) for t in r.bits().values()):
        for name in seams.exposed(target, found, view):
            kind = "reads the slot that it writes" if "writes" in name and "nor" not in name else "exposed"
            located.add(Match(kind, f"NaN in {name} reaches it: it reads that place"))
            located.kinds |= {"reads a foreign slot"} if "slots of" in name else set()
            located.seam = "read"
    parts = seams.pieces(target, found, view)
    if parts is not None:
        right = all(ok for _, _, ok in parts)
        wrong = next((f"{a} to {b}" for a, b, ok in parts if not ok), "")
        what = f"the first wrong one is {wrong}" if wrong else "all are right"
        located.evidence.append(
            f"cut at its boundaries into {len(parts)}, each from its stored state: {what}"
        )
        if right and not located.seam and view.first_output is not None and view.first_output >= parts[0][1]:
            located.seam = "carry"
            located.add(
                Match(
                    "carry", "each block is right by itself: what goes wrong is carried from one to the next"
                )
            )


def place_of(case: Case, view: View) -> dict[str, Any]:
    """The first wrong place of a row, with its block, chunk, slot, head and element."""
    r, B = view.r, case.sizes.B
    position, column = view.first_output, next(iter(view.wrong_columns), None)
    place = r.place(n=r.row.n, m=r.row.m)
    end = state_end(column, r.row.n, r.row.m, B) if column is not None else None
    if position is not None and (end is None or position < end):
        at = view.wrong_outputs[0].tolist()
        place |= {"position": position, "block": position // B}
        place |= dict(zip(("channel",) if case.level == "conv" else ("head", "value"), at[1:]))
    elif column is not None:
        position = end - 1
        place |= {"position": end, "block": column, "column": column, "slot": r.row.table[column]}
        if (view.states.get(column, torch.zeros(1)) > 1).any():
            place |= dict(zip(("head", "value", "key"), (view.states[column] > 1).nonzero()[0].tolist()))
        else:
            place |= dict(zip(("tap", "channel"), view.windows[column].nonzero()[0].tolist()))
    grid = chunks(r.row.n, r.row.m, B, case.sizes.C)
    chunk = (
        next((i for i, (a, b) in enumerate(grid) if a <= position < b), None)
        if position is not None
        else None
    )
    if case.level != "conv" and chunk is not None:
        place |= {"chunk": chunk, "chunks": len(grid)}
    return place


def _bitwise(located: Located, target: Target, case: Case, violation: Violation) -> None:
    """Every value is right within tolerance and every write in its place: two runs differ in bits."""
    located.evidence.append("every value is within tolerance of the oracle: only bits differ")
    located.where |= {
        k: v
        for k, v in violation.where.items()
        if k in ("step", "row", "request", "column", "at", "what", "start")
    }
    found = located.survey
    if case.property == "batch_invariance":
        for match in twins.differing_variants(target, case):
            located.add(match)
    elif case.property in twins.BITWISE:
        said, place = twins.why_twins_differ(target, case)
        located.where |= place
        for match in said:
            located.add(match)
        located.seam = "carry" if "unrounded" in located.kinds else "compute"
    elif case.property == "program_order" and "race" not in located.kinds:
        located.add(Match("order", str(violation).splitlines()[0]))
    elif case.property == "read_set":
        for view in found.views:
            for name in seams.exposed(target, found, view):
                own = "writes" in name and "nor" not in name
                located.add(
                    Match(
                        "reads the slot that it writes" if own else "exposed",
                        f"NaN in {name} reaches row {view.r.index} of step {view.r.step}",
                    )
                )
                located.seam = "read"
                located.where |= view.r.place()
            if located.seam:
                break
        if not located.seam and "inputs of request" in str(violation):
            located.add(Match("neighbour", str(violation).splitlines()[0]))
    rows = {(v.r.step, v.r.index): v for v in found.views}
    view = rows.get((located.where.get("step"), located.where.get("row")))
    if view is not None:
        part = "conv" if case.level == "conv" or "window" in str(located.where.get("what", "")) else ""
        located.kernel = part or ("delta recurrent" if view.r.row.m == 1 else "delta chunk")
    located.says = located.says or str(violation).splitlines()[0]


def _layer(located: Located, target: Target, case: Case) -> None:
    """Metadata if the target's own indices are wrong, indexing if something moved, else numerics."""
    if "metadata" in target.claims.seams and case.level != "metadata":
        try:
            wrong = wrong_indices(target, located.case)
        except Exception as e:
            wrong = []
            located.evidence.append(f"its metadata cannot be asked: {type(e).__name__}: {e}")
        if wrong:
            located.layer = "metadata"
            located.evidence.append(f"its own metadata is wrong already: {wrong[0].says}")
            return
        located.evidence.append("its own metadata is right for every batch")
    located.layer = "indexing" if located.kinds & MOVED or located.seam == "read" else "numerics"
