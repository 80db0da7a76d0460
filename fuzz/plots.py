"""The plots of a campaign's report, as SVG text that stands in the page itself.

Imports ``fuzz.summary``, ``fuzz.ratios`` and the standard library. Exercise it with ``pytest tests/fuzz/test_report.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2

from gdn_apc.fuzz.clock import LABELS
from gdn_apc.fuzz.ratios import BINS_PER_OCTAVE, Histogram
from gdn_apc.fuzz.summary import Totals, applicable

GREEN, RED, AMBER, BLUE, INK = "#2e8b57", "#c0392b", "#c98a00", "#4878a8", "#1d2733"
COLOURS = dict(zip(LABELS, ("#9db7d1", "#4878a8", "#c98a00", "#7a9e7e", "#c0392b")))
"""Of the parts of the time."""

ROW, LABEL, WIDTH, RIGHT = 20, 250, 520, 130
HIGH = 160  # of a curve
POINTS = 400  # of a curve, at most


def plots(totals: Totals) -> str:
    """All plots that have something to show."""
    return "".join(
        (
            curves("Examples and comparisons over time", totals),
            rows("Examples against their floor (the line)", floors(totals)),
            rows("Seconds of each property: " + _legend(), seconds(totals)),
            rows("Worst error / tolerance of each property, the tolerance at the right edge", worst(totals)),
            rows("Error / tolerance, the tolerance at the right edge", errors(totals)),
            rows("Ledger: discoveries against their floor (the line), logarithmic", ledger(totals)),
        )
    )


def rows(title: str, found: list[tuple[str, str]]) -> str:
    """Rows of (label, SVG of a row 0..WIDTH wide and ROW high) under a title, which may hold HTML."""
    if not found:
        return ""
    drawn = "".join(
        f'<g transform="translate(0 {i * ROW})"><text x="{LABEL - 8}" y="14" text-anchor="end" font-size="12">'
        f'{escape(label)}</text><g transform="translate({LABEL} 0)">{shape}</g></g>'
        for i, (label, shape) in enumerate(found)
    )
    return f"<h3>{title}</h3>{_svg(ROW * len(found), drawn)}"


def _svg(height: float, drawn: str) -> str:
    size = f'width="{LABEL + WIDTH + RIGHT}" height="{height:g}"'
    return f'<svg {size} role="img">{drawn}</svg>'


def bar(share: float, text: str, colour: str) -> str:
    """A bar of a share of the width, with a text behind it."""
    width = max(1.0, min(1.0, share) * WIDTH)
    return (
        f'<rect y="3" width="{width:.1f}" height="14" fill="{colour}"/>'
        f'<text x="{width + 6:.1f}" y="14" font-size="12">{escape(text)}</text>'
    )


def _line(at: float, colour: str = INK) -> str:
    return f'<path d="M{at:.1f} 0v{ROW}" stroke="{colour}"/>'


def curves(title: str, totals: Totals) -> str:
    """How many examples and comparisons there were at each moment, each against its own end."""
    course = sorted(totals.course)
    if len(course) < 2:
        return ""
    end = max(course[-1][0], totals.duration)
    counts = [(t, i + 1) for i, (t, _) in enumerate(course)]
    total, sums = 0, []
    for t, comparisons in course:
        total += comparisons
        sums.append((t, total))
    drawn = "".join(
        _curve(points, end, colour, f"{points[-1][1]:,} {what}", 14 + 16 * i)
        for i, (points, colour, what) in enumerate(((counts, GREEN, "examples"), (sums, BLUE, "comparisons")))
    )
    axis = (
        f'<path d="M0 {HIGH}h{WIDTH}" stroke="{INK}"/><text y="{HIGH + 16}" font-size="12">0 s</text>'
        f'<text x="{WIDTH}" y="{HIGH + 16}" text-anchor="end" font-size="12">{end:.0f} s</text>'
    )
    return f'<h3>{escape(title)}</h3>{_svg(HIGH + 20, f"""<g transform="translate({LABEL} 0)">{drawn}{axis}</g>""")}'


def _curve(points: Sequence[tuple[float, int]], end: float, colour: str, text: str, text_at: int) -> str:
    most = points[-1][1] or 1
    shown = [*points[:: max(1, len(points) // POINTS)], points[-1]]
    path = "L".join(f"{t / end * WIDTH:.1f} {HIGH - y / most * (HIGH - 4):.1f}" for t, y in shown)
    last = f"L{WIDTH} 4" if most else ""
    return (
        f'<path d="M0 {HIGH}L{path}{last}" fill="none" stroke="{colour}" stroke-width="2"/>'
        f'<text x="8" y="{text_at}" font-size="12" fill="{colour}">{escape(text)}</text>'
    )


def floors(totals: Totals) -> list[tuple[str, str]]:
    """How far each property is beyond its floor; the floor is in the middle."""
    found = []
    for p in applicable(totals):
        units, floor = totals.units(p), max(1, p["floor"])
        failed = any(f["property"] == p["name"] for f in totals.failures)
        colour = RED if failed else GREEN if units >= floor else AMBER
        found.append(
            (p["name"], bar(units / floor / 2, f"{units:,} / {p['floor']:,}", colour) + _line(WIDTH / 2))
        )
    return found


def _legend() -> str:
    return ", ".join(f'<span style="color: {COLOURS[label]}">■</span> {label}' for label in LABELS)


def seconds(totals: Totals) -> list[tuple[str, str]]:
    """The seconds of each property, cut into what they were spent on where that is known."""
    names = [p["name"] for p in totals.start.get("properties", []) if totals.took(p["name"])]
    most = max((totals.took(n) for n in names), default=0.0)
    found = []
    for name in names:
        took, at, shapes = totals.took(name), 0.0, ""
        for label, part in sorted(totals.spent.get(name, {}).items(), key=lambda kv: LABELS.index(kv[0])):
            wide = part / most * WIDTH
            shapes += f'<rect x="{at:.1f}" y="3" width="{wide:.1f}" height="14" fill="{COLOURS[label]}"/>'
            at += wide
        if not shapes:
            found.append((name, bar(took / most, f"{took:.1f} s", BLUE)))
        else:
            found.append((name, f'{shapes}<text x="{at + 6:.1f}" y="14" font-size="12">{took:.1f} s</text>'))
    return found


def worst(totals: Totals) -> list[tuple[str, str]]:
    """How near its tolerance each property came."""
    return [
        (name, bar(share, f"{share:.3g}", BLUE if share <= 1 else RED) + _line(WIDTH, RED))
        for name, share in totals.worst.items()
        if name
    ]


def errors(totals: Totals, octaves: int = 12) -> list[tuple[str, str]]:
    """A strip for each tolerance: the darker, the more errors; from 2^-12 of the tolerance on the left to all of it."""
    found = []
    for kind, histogram in sorted(totals.ratios.items()):
        most = max(histogram.bins.values(), default=1)
        cells = octaves * BINS_PER_OCTAVE
        strip = "".join(
            f'<rect x="{max(0, index + cells) * WIDTH / cells:.1f}" y="3" width="{WIDTH / cells:.1f}" height="14" '
            f'fill="{BLUE}" fill-opacity="{0.15 + 0.85 * count / most:.2f}"/>'
            for index, count in sorted(histogram.bins.items())
            if index < BINS_PER_OCTAVE
        )
        found.append((kind, f"{strip}{_line(WIDTH, RED)}{_p99(histogram)}"))
    return found


def _p99(histogram: Histogram) -> str:
    return f'<text x="{WIDTH + 6}" y="14" font-size="12">p99 {histogram.quantile(0.99):.2g}</text>'


def ledger(totals: Totals) -> list[tuple[str, str]]:
    """Each must-happen event: discoveries over their floor, a factor of two a quarter of the width."""
    found = []
    for e in totals.start.get("ledger", []):
        if e["needs"] is not None:
            continue
        name, count = e["name"], totals.discovered[e["name"]]
        floor = totals.floors.get(name)
        reached = totals.reached.get(name, False)
        good = reached and floor is not None and count >= floor
        share = _log_share(count, floor) if floor else 0.5
        text = f"{count:,} / {floor if floor is not None else '?'}" + ("" if reached else ", no witness")
        found.append(
            (name, bar(share, text, GREEN if good else AMBER if reached else RED) + _line(WIDTH / 2))
        )
    return found


def _log_share(count: int, floor: int) -> float:
    """0.5 at the floor, a quarter more for each factor of two."""
    return max(0.0, 0.5 + log2(count / floor) / 4) if count else 0.0
