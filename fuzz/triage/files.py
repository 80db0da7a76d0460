"""Where triage leaves its files, and what summaries and reports show of them. Nothing here looks at a target.

``brief`` is one line, ``shown`` Markdown, ``svg`` the picture for a page. Imports the standard library and
``fuzz.triage.classes``. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.triage.classes import CLASSES

PLACES = "step row request n m position block chunk column slot head value key tap channel field part start".split()
"""Parts of a place, in the order in which they are said."""


def beside(case: Path, suffix: str) -> Path:
    """The file of a case's triage with this suffix."""
    return case.parent / "triage" / f"{case.stem}{suffix}"


def words(where: dict[str, Any]) -> list[str]:
    said = []
    for name in PLACES:
        if name not in where or where[name] is None:
            continue
        words = f"{name} {where[name]}"
        if name == "chunk" and "chunks" in where:
            words = f"chunk {int(where[name]) + 1} of {where['chunks']}"
        if name == "m":
            continue
        if name == "n":
            words = f"tokens {where['n']} to {int(where['n']) + int(where['m'])}" if "m" in where else words
        said.append(words)
    return said


def text_of(record: dict[str, Any]) -> list[str]:
    """The record in a few lines."""
    size = record["size"]
    lines = [
        f"TRIAGE of {record['property']} on {record['target']}: "
        f"{size['requests']} request(s), {size['steps']} step(s), {size['tokens']} token(s)"
    ]
    if record["fickle"]:
        lines.append(f"  runs     {record['fickle']}")
    else:
        run = record["runs"][0]
        lines.append(
            f"  runs     {len(record['runs'])}, each {run['verdict']} with the digest {run['digest']}"
        )
    kernel = f", kernel {record['kernel']}" if record["kernel"] else ""
    lines.append(f"  layer    {record['layer'] or 'not found'}{kernel}")
    where = ", ".join(words(record["where"]))
    if where:
        lines.append(f"  first    {where}")
    if record["says"]:
        seam = f"the {record['seam']}: " if record["seam"] in ("read", "carry", "write") else ""
        lines.append(f"  what     {seam}{record['says']}")
    if record["class"]:
        like = f"; like {', '.join(record['like'])}" if record["like"] else ""
        lines.append(f"  class    {record['class']}: {record['kind']}{like}")
        lines.append(f"           ({CLASSES[record['class']]})")
    if record["also"]:
        lines.append(f"  also     {', '.join(record['also'])}")
    lines += ["  because", *(f"    - {e}" for e in record["evidence"])] if record["evidence"] else []
    lines += [f"  left out {b}" for b in record["broke"]]
    return lines


def read(case: Path) -> dict[str, Any] | None:
    """The record of a case's triage; None if there is none."""
    try:
        return json.loads(beside(case, ".json").read_text())
    except (OSError, ValueError):
        return None


def shown(case: Path) -> str:
    """What a summary shows of a failure's triage, in Markdown, picture in text included; empty if there is none."""
    try:
        text = beside(case, ".txt").read_text().rstrip()
    except OSError:
        return ""
    return f"\n\n```\n{text}\n```"


def brief(case: Path) -> str:
    """One line: class, kind and place."""
    record = read(case)
    if record is None or not record["class"]:
        return ""
    place = ", ".join(words(record["where"]))
    return f"{record['class']}: {record['kind']} ({place})"


def svg(case: Path) -> str:
    """The picture as SVG text for a page, without its XML head; empty if there is none."""
    try:
        text = beside(case, ".svg").read_text()
    except OSError:
        return ""
    return text[text.index("<svg") :]
