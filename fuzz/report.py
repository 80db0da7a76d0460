"""``report.html``: the page of a campaign with pictures, in one file that needs no network.

The text is that of ``summary.md`` (so the two cannot disagree); three plots come first: examples of each property
against its floor, the time of each property, and the errors against their tolerances.

Imports ``fuzz.page``, ``fuzz.summary`` and the standard library. Exercise it with ``pytest tests/fuzz/test_report.py``.
"""

from __future__ import annotations

import re
from html import escape

from gdn_apc.fuzz.page import render
from gdn_apc.fuzz.ratios import BINS_PER_OCTAVE, Histogram
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import Totals, applicable, verdict
from gdn_apc.fuzz.triage.files import svg

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733 }
table { border-collapse: collapse; font-size: 13px } th, td { padding: .2rem .7rem; border-bottom: 1px solid #dde3ea }
th { text-align: left; background: #f3f6f9 } pre { background: #f3f6f9; padding: .8rem; overflow-x: auto }
td { font-variant-numeric: tabular-nums } code { background: #f3f6f9 } svg { display: block; margin: .5rem 0 1.5rem }
.verdict { padding: .6rem 1rem; border-left: 6px solid var(--c); background: #f3f6f9; font-size: 18px }
"""
GREEN, RED, AMBER, BLUE = "#2e8b57", "#c0392b", "#c98a00", "#4878a8"
COLOUR = {0: GREEN, 1: RED, 3: RED}
ROW, LABEL, WIDTH = 20, 190, 520


def write(totals: Totals, run: RunFolder) -> None:
    """Write ``report.html`` into the run folder."""
    found = verdict(totals)
    colour = COLOUR.get(found.status, AMBER)
    body = [
        f'<p class="verdict" style="--c: {colour}">{escape(found.word)}: {escape("; ".join(found.reasons))}</p>',
        _plot("Examples against their floor (the line)", _floors(totals)),
        _plot("Seconds", _seconds(totals)),
        _plot("Error / tolerance, the tolerance at the right edge", _errors(totals)),
        *(f"<h3>{escape(f['property'])}</h3>{svg(run.cases / f['case'])}" for f in totals.failures),
        markdown(render(totals, run)),
    ]
    head = f'<meta charset="utf-8"><title>gdn-apc campaign: {found.word}</title><style>{STYLE}</style>'
    (run.path / "report.html").write_text(f"<!doctype html>{head}{''.join(body)}\n")


def _plot(title: str, rows: list[tuple[str, str]]) -> str:
    """Rows of (label, SVG of a row 0..WIDTH wide and ROW high) under a title."""
    if not rows:
        return ""
    drawn = "".join(
        f'<g transform="translate(0 {i * ROW})"><text x="{LABEL - 8}" y="14" text-anchor="end" font-size="12">'
        f'{escape(label)}</text><g transform="translate({LABEL} 0)">{shape}</g></g>'
        for i, (label, shape) in enumerate(rows)
    )
    size = f'width="{LABEL + WIDTH + 110}" height="{ROW * len(rows)}"'
    return f'<h3>{escape(title)}</h3><svg {size} role="img">{drawn}</svg>'


def _bar(share: float, text: str, colour: str) -> str:
    width = max(1.0, min(1.0, share) * WIDTH)
    return (
        f'<rect y="3" width="{width:.1f}" height="14" fill="{colour}"/>'
        f'<text x="{width + 6:.1f}" y="14" font-size="12">{escape(text)}</text>'
    )


def _floors(totals: Totals) -> list[tuple[str, str]]:
    """How far each property is beyond its floor; the floor is in the middle."""
    rows = []
    for p in applicable(totals):
        units, floor = totals.units(p), max(1, p["floor"])
        failed = any(f["property"] == p["name"] for f in totals.failures)
        colour = RED if failed else GREEN if units >= floor else AMBER
        line = f'<path d="M{WIDTH / 2} 0v{ROW}" stroke="#1d2733"/>'
        rows.append((p["name"], _bar(units / floor / 2, f"{units:,} / {p['floor']:,}", colour) + line))
    return rows


def _seconds(totals: Totals) -> list[tuple[str, str]]:
    most = max(totals.seconds.values(), default=0.0)
    return [(n, _bar(s / most if most else 0, f"{s:.1f} s", BLUE)) for n, s in totals.seconds.items()]


def _errors(totals: Totals, octaves: int = 12) -> list[tuple[str, str]]:
    """A strip for each tolerance: the darker, the more errors; from 2^-12 of the tolerance on the left to all of it."""
    rows = []
    for kind, histogram in sorted(totals.ratios.items()):
        most = max(histogram.bins.values(), default=1)
        cells = octaves * BINS_PER_OCTAVE
        strip = "".join(
            f'<rect x="{max(0, index + cells) * WIDTH / cells:.1f}" y="3" width="{WIDTH / cells:.1f}" height="14" '
            f'fill="{BLUE}" fill-opacity="{0.15 + 0.85 * count / most:.2f}"/>'
            for index, count in sorted(histogram.bins.items())
            if index < BINS_PER_OCTAVE
        )
        rows.append((kind, f'{strip}<path d="M{WIDTH} 0v{ROW}" stroke="{RED}"/>{_p99(histogram)}'))
    return rows


def _p99(histogram: Histogram) -> str:
    return f'<text x="{WIDTH + 6}" y="14" font-size="12">p99 {histogram.quantile(0.99):.2g}</text>'


def markdown(text: str) -> str:
    """The Markdown that ``fuzz/page.py`` writes as HTML: headings, tables, lists, code, paragraphs. Nothing more."""
    html, lines = [], text.split("\n")
    while lines:
        line = lines.pop(0)
        if line.startswith("```"):
            end = lines.index("```")
            html.append(f"<pre>{escape(chr(10).join(lines[:end]))}</pre>")
            del lines[: end + 1]
        elif line.startswith("    "):
            html.append(f"<pre>{escape(line.strip())}</pre>")
        elif line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            html.append(f"<h{level}>{_inline(line[level:].strip())}</h{level}>")
        elif line.startswith("- "):
            html.append(f"<li>{_inline(line[2:])}</li>")
        elif line.startswith("|"):
            rows = [line]
            while lines and lines[0].startswith("|"):
                rows.append(lines.pop(0))
            html.append(_table(rows))
        elif line:
            html.append(f"<p>{_inline(line)}</p>")
    return "\n".join(html)


def _table(rows: list[str]) -> str:
    cells = [[_inline(c.replace("\\|", "|").strip()) for c in re.split(r"(?<!\\)\|", r)[1:-1]] for r in rows]
    head = "".join(f"<th>{c}</th>" for c in cells[0])
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in r) + "</tr>" for r in cells[2:])
    return f"<table><tr>{head}</tr>{body}</table>"


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
