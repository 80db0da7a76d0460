"""What a failure looks like: errors over positions and heads with the edges of blocks marked, and block tables side by side.

The same two tables are drawn (``draw``, an SVG by matplotlib, if it is installed) and printed (``error_text``, ``table_text``).

Imports torch and ``fuzz``; matplotlib when it draws. Exercise it with ``pytest tests/fuzz/test_triage.py -k picture``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gdn_apc.fuzz.geometry import chunks, state_end
from gdn_apc.fuzz.triage import moves, twins
from gdn_apc.fuzz.triage.localise import Located, Slot
from gdn_apc.fuzz.triage.survey import Survey, View

MOST_POSITIONS, MOST_LANES, MOST_LINES = 160, 24, 14


@dataclass
class Errors:
    """Error / tolerance by lane (a head, or a bundle of channels) and position; NaN where nothing was computed.

    ``edges``: positions at which a block begins; ``grid``: at which a chunk does; ``cuts``: at which a step does.
    """

    title: str
    lanes: list[str] = field(default_factory=list)
    start: int = 0
    values: list[list[float]] = field(default_factory=list)
    edges: set[int] = field(default_factory=set)
    grid: set[int] = field(default_factory=set)
    cuts: set[int] = field(default_factory=set)


def errors(located: Located) -> Errors | None:
    """The outputs of the first wrong request; None where there are none."""
    found = located.survey
    request = located.where.get("request")
    views = [] if found is None else [v for v in found.views if v.r.row.request == request]
    if not views:
        return None
    case = located.case
    B, C = case.sizes.B, case.sizes.C
    first, last = min(v.r.row.n for v in views), max(v.r.row.n + v.r.row.m for v in views)
    bit = _parted(located, found) if case.property in twins.BITWISE else None
    width = views[0].out.shape[1]
    bundle = math.ceil(width / MOST_LANES)
    count = math.ceil(width / bundle)
    grid = torch.full((count, last - first), torch.nan, dtype=torch.float64)
    for v in views:
        flat = v.out.double().reshape(v.r.row.m, width, -1).amax(2).T  # [width, m]
        for lane in range(count):
            part = flat[lane * bundle : (lane + 1) * bundle].amax(0).cpu()
            grid[lane, v.r.row.n - first : v.r.row.n + v.r.row.m - first] = part
    title = f"error / tolerance of the outputs of request {request}"
    if bit:
        title = f"outputs of request {request} that have other bits in its twin"
        grid = torch.where(grid.isnan(), grid, 0.0)
        for position in bit:
            if first <= position < last:
                grid[:, position - first] = 2.0
    name = "channels" if case.level == "conv" else "head"
    lanes = [
        f"{name} {i * bundle}" + (f"..{min(width, (i + 1) * bundle) - 1}" if bundle > 1 else "")
        for i in range(count)
    ]
    around = located.where.get("position", first)
    begin = max(first, min(around - MOST_POSITIONS // 2, last - MOST_POSITIONS))
    end = min(last, begin + MOST_POSITIONS)
    span = range(begin, end)
    starts = (
        {a for v in views for a, _ in chunks(v.r.row.n, v.r.row.m, B, C)} if case.level != "conv" else set()
    )
    return Errors(
        title,
        lanes,
        begin,
        grid[:, begin - first : end - first].tolist(),
        {p for p in span if p % B == 0},
        {p for p in span if p in starts},
        {v.r.row.n for v in views if v.r.row.n in span},
    )


def _parted(located: Located, found: Survey) -> list[int]:
    """The positions at which twins part."""
    place = located.where.get("position")
    return [] if place is None else [place]


def tables(located: Located) -> list[Slot]:
    """The columns of the first wrong row's block table, and slots that were written astray; or fields of metadata."""
    found = located.survey
    if found is None:
        return located.fields
    step = located.where.get("step")
    view = next((v for v in found.views if (v.r.step, v.r.index) == (step, located.where.get("row"))), None)
    lines = [] if view is None else [_line(located, found, view, j) for j in range(len(view.r.row.table))]
    said = {}
    for i, slot, part in found.strays:
        if i == step:
            said.setdefault(slot, []).append({"ssm": "state", "conv": "window"}.get(part, part))
    written = {
        slot for _, slot in ((0, int(line.slot)) for line in lines if line.slot.isdigit() and not line.right)
    }
    for slot, parts in said.items():
        name = "outside" if slot is None else str(slot)
        if slot not in written:
            lines.append(Slot("-", name, "untouched", f"its {' and '.join(parts)} changed", False))
    first = next((i for i, line in enumerate(lines) if not line.right), 0)
    begin = max(0, min(first - 2, len(lines) - MOST_LINES))
    return lines[begin : begin + MOST_LINES]


def _line(located: Located, found: Survey, view: View, column: int) -> Slot:
    case, r = found.world.case, view.r
    slot = r.row.table[column]
    touched = [part for i, s, part in found.strays if i == r.step and s == slot]
    if column not in r.writes:
        if slot == 0:
            return Slot(str(column), "0", "null", "changed" if touched else "null", not touched)
        what = "read, then untouched" if _is_read(case, r, column) else "untouched"
        return Slot(str(column), str(slot), what, "overwritten" if touched else "untouched", not touched)
    end = state_end(column, r.row.n, r.row.m, case.sizes.B)
    parts = {"delta": ("state",), "conv": ("window",), "core": ("state", "window")}[case.level]
    expected = ", ".join(f"{part}({end})" for part in parts)
    actual = []
    if column in view.states:
        wrong = bool((view.states[column] > 1).any())
        match = moves.what_state(found, view, column) if wrong else None
        actual.append(_short(match, f"state({end})", wrong, slot, column))
    if column in view.windows:
        wrong = bool(view.windows[column].any())
        match = moves.what_window(found, view, column) if wrong else None
        actual.append(_short(match, f"window({end})", wrong, slot, column))
    return Slot(str(column), str(slot), expected, ", ".join(actual), column not in view.wrong_columns)


def _is_read(case, r, column: int) -> bool:
    from gdn_apc.fuzz.geometry import read_column

    return bool(r.row.n) and read_column(r.row.n, case.sizes.B) == column


def _short(match: moves.Match | None, right: str, wrong: bool, slot: int, column: int) -> str:
    if not wrong:
        return right
    if match is None:
        return f"not {right}"
    return match.says.removeprefix(f"slot {slot} (column {column}) ").split(": ")[0].removeprefix("holds ")


def error_text(e: Errors) -> list[str]:
    """The errors as characters: ``.`` far below its tolerance, ``-`` near it, ``#`` above, ``!`` not finite."""
    wide = max(len(name) for name in e.lanes)
    count = len(e.values[0])

    def separator(p: int) -> str:
        return "|" if p in e.edges else ":" if p in e.grid else " " if p in e.cuts else ""

    ruler, shown = "", 0
    for i in range(count):
        p = e.start + i
        mark = separator(p)
        ruler += " " * len(mark) if shown <= 0 else ""
        shown -= len(mark)
        if (p in e.edges and shown <= 0) or i == 0:
            ruler += str(p)
            shown = len(str(p)) - 1
        elif shown > 0:
            shown -= 1
        else:
            ruler += " "
    lines = [f"{e.title} (block edges |, chunk edges :)", " " * (wide + 2) + ruler.rstrip()]
    for name, row in zip(e.lanes, e.values):
        marks = "".join(separator(e.start + i) + _mark(x) for i, x in enumerate(row))
        lines.append(f"{name:>{wide}}  {marks}")
    return lines


def _mark(x: float) -> str:
    if math.isnan(x):
        return " "
    if math.isinf(x):
        return "!"
    return "#" if x > 1 else "-" if x > 0.5 else "."


def table_text(lines: list[Slot]) -> list[str]:
    """The block tables side by side."""
    heads = ("column", "slot", "must hold", "holds", "")
    cells = [
        heads,
        *((s.column, s.slot, s.expected, s.actual, "" if s.right else "<-- wrong") for s in lines),
    ]
    wide = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return ["  ".join(f"{c:{w}}" for c, w in zip(row, wide)).rstrip() for row in cells]


def draw(located: Located, path: Path, headline: str) -> bool:
    """Write the picture to ``path`` (.svg or .png). False if matplotlib is not installed or there is nothing to show."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    e, lines = errors(located), tables(located)
    if e is None and not lines:
        return False
    tall = 0.4 + (0.28 * len(e.lanes) + 1.1 if e else 0) + (0.27 * (len(lines) + 1) + 0.5 if lines else 0)
    figure = Figure(figsize=(9, max(2.4, tall)), layout="constrained")
    figure.suptitle(headline, fontsize=10, x=0.01, ha="left")
    ratios = ([0.28 * len(e.lanes) + 1.1] if e else []) + ([0.27 * (len(lines) + 1) + 0.5] if lines else [])
    axes = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    if e is not None:
        _draw_errors(figure, axes[0], e)
    if lines:
        _draw_table(axes[-1], lines)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
    return True


def _draw_errors(figure, axis, e: Errors) -> None:
    from matplotlib.colors import LogNorm

    shown = [[min(max(x, 2.0**-6), 2.0**6) if not math.isnan(x) else x for x in row] for row in e.values]
    count = len(shown[0])
    image = axis.imshow(
        shown, aspect="auto", cmap="RdYlGn_r", norm=LogNorm(2.0**-6, 2.0**6), interpolation="nearest",
        extent=(e.start, e.start + count, len(e.lanes), 0),
    )  # fmt: skip
    for p in e.grid - e.edges:
        axis.axvline(p, color="black", lw=0.5, ls=":")
    for p in e.edges:
        axis.axvline(p, color="black", lw=1.4)
    axis.set_yticks([i + 0.5 for i in range(len(e.lanes))], e.lanes, fontsize=7)
    axis.set_xlabel("position (line: block edge, dots: chunk edge)", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.set_title(e.title, fontsize=9, loc="left")
    bar = figure.colorbar(image, ax=axis, pad=0.01)
    bar.ax.tick_params(labelsize=7)


def _draw_table(axis, lines: list[Slot]) -> None:
    axis.axis("off")
    cells = [[s.column, s.slot, s.expected, s.actual] for s in lines]
    colours = [["white"] * 3 + ["white" if s.right else "#f6c6c0"] for s in lines]
    table = axis.table(
        cells, cellColours=colours, colLabels=["column", "slot", "must hold", "holds"],
        colWidths=[0.08, 0.08, 0.28, 0.56], cellLoc="left", loc="upper left",
    )  # fmt: skip
    table.auto_set_font_size(False)
    table.set_fontsize(8)
