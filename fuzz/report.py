"""Everything that people read of a campaign, made from its events: ``summary.md``, ``report.html``, ``junit.xml``.

    gdn-apc report RUN_DIR                  write them again
    gdn-apc report A B C --into RUN_DIR     one report of several machines' shards

``report.html`` is one file that needs no network and runs no script. Its text is that of ``summary.md``, so the two cannot
disagree; plots come first, and with each failure the picture that triage drew. Imports the standard library and
``fuzz``, no torch. Exercise it with ``pytest tests/fuzz/test_report.py``.
"""

from __future__ import annotations

import base64
import os
from html import escape
from pathlib import Path

from gdn_apc.fuzz import junit, page
from gdn_apc.fuzz.markup import markdown
from gdn_apc.fuzz.plots import AMBER, GREEN, RED, plots
from gdn_apc.fuzz.runs import RunFolder, write_whole
from gdn_apc.fuzz.summary import Totals, Verdict, verdict
from gdn_apc.fuzz.triage import files

__all__ = ["markdown", "publish", "write", "write_all"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733 }
table { border-collapse: collapse; font-size: 13px } th, td { padding: .2rem .7rem; border-bottom: 1px solid #dde3ea }
th { text-align: left; background: #f3f6f9 } pre { background: #f3f6f9; padding: .8rem; overflow-x: auto }
td { font-variant-numeric: tabular-nums } code { background: #f3f6f9 } svg { display: block; margin: .5rem 0 1.5rem }
summary { cursor: pointer; padding: .4rem 0 } img { max-width: 100%; border: 1px solid #dde3ea }
.verdict { padding: .6rem 1rem; border-left: 6px solid var(--c); background: #f3f6f9; font-size: 18px }
"""
COLOUR = {0: GREEN, 1: RED, 3: RED}

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def write_all(run: RunFolder, ended: bool = True) -> tuple[Verdict, list[str]]:
    """Write the pages; before the end only ``summary.md``. Returns the verdict, and lines about it for a terminal."""
    totals = Totals.of(run.events())
    write_whole(run.summary_path, page.render(totals, run))
    if ended:
        write(totals, run)
        write_whole(run.path / "junit.xml", junit.render(totals))
    return verdict(totals), page.lines_of(totals, run)


def write(totals: Totals, run: RunFolder) -> None:
    """Write ``report.html`` into the run folder."""
    found = verdict(totals)
    colour = COLOUR.get(found.status, AMBER)
    body = [
        f'<p class="verdict" style="--c: {colour}">{escape(found.word)}: {escape("; ".join(found.reasons))}</p>',
        _pictures(totals, run),
        plots(totals),
        markdown(page.render(totals, run)),
    ]
    head = f'<meta charset="utf-8"><title>gdn-apc campaign: {found.word}</title><style>{STYLE}</style>'
    write_whole(run.path / "report.html", f"<!doctype html>{head}{''.join(body)}\n")


def _pictures(totals: Totals, run: RunFolder) -> str:
    """What triage drew of the failures. As images: a script in one would not run, and names inside do not clash."""
    shown = []
    for f in totals.failures[: page.MOST_FAILURES]:
        drawn = files.svg(run.cases / f["case"])
        if drawn:
            data = base64.b64encode(drawn.encode()).decode()
            name = escape(f["case"], quote=True)
            shown.append(
                f'<h3>{escape(f["property"])}</h3><img alt="{name}" src="data:image/svg+xml;base64,{data}">'
            )
    return "".join(shown)


def publish(run: RunFolder) -> str | None:
    """Append ``summary.md`` to the summary of a GitHub job, if this is one. Returns why that failed, or None."""
    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return None
    try:
        with Path(path).open("a") as f:
            f.write(run.summary_path.read_text() + "\n")
    except OSError as e:
        return f"{STEP_SUMMARY}: {path} cannot be written: {e.strerror}"
    return None
