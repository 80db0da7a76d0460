"""Failures that only two runs show: the same row with other bits. What, changed by itself, changes them?

``batch_invariance``: each variant alone. ``warm_equals_cold`` and ``free_cuts``: the first position at which the twins part, and
whether they still do with an fp32 state, or when the longer row is cut at the edges of the chunk grid. ``read_set``: which
places the row reads (``seams.exposed``), and whose inputs.

Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py -k twins``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from gdn_apc.fuzz.case import Case, Row, Step
from gdn_apc.fuzz.geometry import chunks
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties._shared import live_rows, run
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runner import How, Ran, RanRow
from gdn_apc.fuzz.targets.base import Target
from gdn_apc.fuzz.triage.moves import Match
from gdn_apc.fuzz.validity import problems

BITWISE = ("warm_equals_cold", "free_cuts")


def differing_variants(target: Target, case: Case) -> list[Match]:
    """The variants of a batch that change a row's bits, each tried by itself."""
    from gdn_apc.fuzz.properties.invariance import (
        VARIANTS,
    )  # properties are imported by who needs them, not by triage

    plain = run(target, case)[1]
    said = []
    kinds = {
        "alone": "batch",
        "permuted": "batch",
        "padded": "batch",
        "other_slots": "slots",
        "other_layout": "layout",
    }
    for name, kind in kinds.items():
        other = VARIANTS[name](case, random.Random(case.choice.get("seed", 0)))
        if not _same(plain, run(target, other)[1]):
            doc = VARIANTS[name].__doc__.strip().rstrip(".").lower()
            said.append(Match(kind, f"its bits change with this alone: {doc}"))
    if target.claims.packed_tail and not _same(plain, run(target, case, How(tail=5))[1]):
        said.append(Match("tail", "its bits change with 5 packed tokens more after the last one"))
    return said


def _same(ran: list[Ran], other: list[Ran]) -> bool:
    from gdn_apc.fuzz.properties.invariance import compare_runs

    try:
        compare_runs(ran, other, Checked(), "")
    except Violation:
        return False
    return True


def pairs(case: Case, ran: list[Ran]) -> Iterator[tuple[RanRow, RanRow]]:
    """(the longer row, a shorter one that computes some of its tokens again) of the twins of a bitwise property."""
    rows = list(live_rows(ran))
    if case.property == "warm_equals_cold":
        ends = {r.row.n + r.row.m: r for r in rows if r.row.request == case.choice["cold"]}
        for r in rows:
            if r.row.request == case.choice["warm"] and r.row.n + r.row.m in ends:
                yield ends[r.row.n + r.row.m], r
        return
    start = case.choice["start"]
    whole = next(r for r in rows if r.row.request == case.choice["one"] and r.row.n == start)
    for r in rows:
        inside = whole.row.n <= r.row.n and r.row.n + r.row.m <= whole.row.n + whole.row.m
        if r.row.request == case.choice["cut"] and inside:
            yield whole, r


def parting(case: Case, ran: list[Ran]) -> tuple[int, RanRow, RanRow] | None:
    """The first position whose outputs differ between twins, and the two rows."""
    found = []
    for longer, shorter in pairs(case, ran):
        start = max(longer.row.n, shorter.row.n)
        end = min(longer.row.n + longer.row.m, shorter.row.n + shorter.row.m)
        a = longer.out[start - longer.row.n : end - longer.row.n]
        b = shorter.out[start - shorter.row.n : end - shorter.row.n]
        differs = (bits(a) != bits(b)).flatten(1).any(1).nonzero()
        if len(differs):
            found.append((start + int(differs[0, 0]), longer, shorter))
    return min(found, key=lambda f: f[0], default=None)


def why_twins_differ(target: Target, case: Case) -> tuple[list[Match], dict]:
    """What makes the twins differ, and where they part."""
    B, C = case.sizes.B, case.sizes.C
    ran = run(target, case)[1]
    found = parting(case, ran)
    place: dict = {}
    said = []
    if found is not None:
        position, longer, shorter = found
        place = longer.place(position=position, block=position // B)
        edge = (
            "a boundary"
            if position % B == 0
            else "a chunk edge"
            if position % B % C == 0
            else "no edge of the grid"
        )
        said.append(
            Match(
                "parting",
                f"outputs part at position {position}, which is {edge}; the other row starts at {shorter.row.n}",
            )
        )
    narrow = case.dtypes.state != "fp32"
    if narrow and not fails(target, replace(case, dtypes=replace(case.dtypes, state="fp32"))):
        said.append(
            Match(
                "unrounded",
                f"with an fp32 state they agree: what is carried over a boundary is not the stored {case.dtypes.state}",
            )
        )
        return said, place
    if narrow:
        said.append(Match("not rounding", "with an fp32 state they still differ"))
    return said + _grid(target, case), place


def fails(target: Target, case: Case) -> bool:
    """Whether the case's property is violated."""
    try:
        load_all()[case.property].check(target, case)
    except Violation:
        return True
    except ValueError:
        return False
    return False


def _grid(target: Target, case: Case) -> list[Match]:
    """Whether a row's chunks count from its start: then cuts there change no bit, and cuts on the absolute grid do."""
    case = replace(case, dtypes=replace(case.dtypes, state="fp32"))
    B, C = case.sizes.B, case.sizes.C
    ran = run(target, case)[1]
    rows = {id(r): r for pair in pairs(case, ran) for r in pair}
    for r in rows.values():
        row = r.row
        absolute = [a for a, _ in chunks(row.n, row.m, B, C)][1:]
        relative = list(range(row.n + C, row.n + row.m, C))
        free = {
            name: _cut_is_free(target, case, r, at) for name, at in (("grid", absolute), ("start", relative))
        }
        if absolute != relative and free["start"] is not False and free["grid"] is False:
            return [
                Match(
                    "grid",
                    f"cut at {relative} the row from {row.n} keeps its bits, cut at the grid's {absolute} it does not: its chunks count from its start",
                )
            ]
    return []


def _cut_is_free(target: Target, case: Case, longer: RanRow, edges: list[int]) -> bool | None:
    """Whether a row in pieces has the same output bits; None if the pieces are outside the contract, or one is one token."""
    row = longer.row
    if not edges:
        return True
    at = [row.n, *edges, row.n + row.m]
    steps = [Step((Row(row.request, a, b - a, row.table),)) for a, b in pairwise(at)]
    parted = replace(case, steps=(*case.steps[: longer.step], *steps))
    if problems(parted) or any(step.rows[0].m < 2 for step in steps):
        return None
    rows = [r for r in live_rows(run(target, parted)[1]) if r.step >= longer.step]
    return all(
        bool((bits(r.out) == bits(longer.out[r.row.n - row.n : r.row.n - row.n + r.row.m])).all())
        for r in rows
    )
