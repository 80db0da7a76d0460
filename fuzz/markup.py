"""The Markdown that ``fuzz/page.py`` writes as HTML: headings, tables, lists, code, folded parts, paragraphs. Nothing more.

Everything else is escaped, so no message of a target becomes a part of the page. Imports the standard library. Exercise
it with ``pytest tests/fuzz/test_report.py``.
"""

from __future__ import annotations

import re
from html import escape

FOLD = re.compile(r"<details><summary>(.*)</summary>$")


def markdown(text: str) -> str:
    """HTML of a page's Markdown."""
    html, lines = [], text.splitlines()
    while lines:
        line = lines.pop(0)
        if line.startswith("```"):
            ticks = line[: len(line) - len(line.lstrip("`"))]
            end = lines.index(ticks)
            html.append(f"<pre>{escape(chr(10).join(lines[:end]))}</pre>")
            del lines[: end + 1]
        elif fold := FOLD.match(line):
            html.append(f"<details><summary>{_inline(fold[1])}</summary>")
        elif line == "</details>":
            html.append(line)
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
