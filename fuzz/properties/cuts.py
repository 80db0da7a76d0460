"""``free_cuts``: where a prefill may be cut without changing a bit, it changes none; elsewhere, within tolerance.

Imports ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py -k cuts``.
"""

from __future__ import annotations

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.geometry import is_free_cut, state_end
from gdn_apc.fuzz.properties._shared import compare_pairs, live_rows, needs, passed
from gdn_apc.fuzz.properties.base import Checked, Property, register
from gdn_apc.fuzz.runner import NAMES, RanRow, World, compare
from gdn_apc.fuzz.strategies.twins import check_one_and_several, live, one_step_and_several
from gdn_apc.fuzz.targets.base import Target


def check_cuts(target: Target, case: Case) -> Checked:
    """Every row against the oracle; and the twins bit for bit, if all cuts are free (section 4.4)."""
    cut = [row for _, row in check_one_and_several(case)]
    first = next(row for _, row in live(case, case.choice["one"]) if row.n == case.choice["start"])
    checked = Checked()
    world = World(target, case)
    ran = []
    for i in range(len(case.steps)):
        ran.append(world.run(i))
        compare(world, ran[-1], checked)
    one = next(r for r in live_rows(ran) if r.row is first)
    pieces = [r for r in live_rows(ran) if any(r.row is row for row in cut)]
    s = case.sizes
    free = all(is_free_cut(row.n, s.B, s.C, case.dtypes.state) for row in cut[1:])
    if free and all(row.m > 1 for row in cut):
        for piece in pieces:
            _same_as_one_step(one, piece, s.B, checked)
    return passed(world, checked)


def _same_as_one_step(one: RanRow, piece: RanRow, B: int, checked: Checked) -> None:
    """Outputs of the piece, and every block that it completed or that ends where the one step ends."""
    row, why = piece.row, "how the prefill was cut"
    place = piece.place(start=row.n)
    pairs = [
        (
            one.writes[column][part],
            t,
            f"the {NAMES[part]} of column {column} of request {row.request}",
            {**place, "column": column},
        )
        for column, parts in piece.writes.items()
        if state_end(column, row.n, row.m, B) == state_end(column, one.row.n, one.row.m, B)
        for part, t in parts.items()
    ]
    whole = one.out[row.n - one.row.n : row.n - one.row.n + row.m]
    pairs.append((whole, piece.out, f"the output of request {row.request} from {row.n}", place))
    compare_pairs(pairs, checked, why)


register(
    Property(
        name="free_cuts",
        doc="A prefill cut on a boundary, or on a chunk edge with an fp32 state, has the bits of one step; else within tolerance.",
        kind="kernel",
        strategy=lambda target: one_step_and_several(target),
        check=check_cuts,
        needs=needs("boundary_grid", "absolute_grid", "persisted_carry"),
    )
)
