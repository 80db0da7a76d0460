"""The kill table: from the events of a mutants run to ``summary.md``, the terminal's lines and the exit status.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gdn_apc.fuzz.mutants.catalogue import CATALOGUE
from gdn_apc.fuzz.mutants.model import DIES, KINDS, NEUTRAL, UNSEEN, Mutant
from gdn_apc.fuzz.runs import RunFolder

HELD, FAILED, INTERRUPTED, BROKEN, INCOMPLETE = 0, 1, 2, 3, 5

QUIET = ("what", "at", "race", "raised", "row", "tap", "value", "key", "element")
"""Parts of a place that say little to a reader of the table."""

PLACES = ("step", "request", "position", "column", "slot", "block", "head")
"""Parts of a place, from the outside in."""


def is_wrong(result: dict[str, Any]) -> bool:
    """Whether a mutant that must die survived, or one that is no fault was killed."""
    fate = CATALOGUE[result["mutant"]].fate
    return (fate, result["status"]) in ((DIES, "survived"), (NEUTRAL, "killed"))


def status(results: list[dict[str, Any]], asked: Iterable[str], complete: bool) -> int:
    """The exit status. ``complete``: the whole catalogue with the budget of a default campaign."""
    if len(results) < len(list(asked)):
        return INTERRUPTED
    if any(r["status"] == "broken" for r in results):
        return BROKEN
    if any(map(is_wrong, results)):
        return FAILED
    return HELD if complete else INCOMPLETE


def place(result: dict[str, Any]) -> str:
    """The first wrong place in a few words."""
    where = result["where"]
    if "raised" in where:
        return f"raised {where['raised']}"
    if "race" in where:
        return "two programs meet in memory"
    known = [key for key in PLACES if key in where]
    rest = [key for key in where if key not in PLACES and key not in QUIET]
    return ", ".join(f"{key} {where[key]}" for key in known + rest)


def line(result: dict[str, Any]) -> str:
    """One line for the terminal."""
    name = result["mutant"]
    if result["status"] == "killed":
        how = f"killed by {result['by']} after {result['examples']} examples, {result['seconds']:.1f} s"
        how += f"; {_size(result)}"
    elif result["status"] == "survived":
        how = f"survived {result['examples']} examples, {result['seconds']:.0f} s"
    else:
        how = f"BROKEN: {result['message'].strip().splitlines()[-1] if result['message'] else 'no message'}"
    return f"{name:36}{how}{'   <-- WRONG' if is_wrong(result) else ''}"


def _size(r: dict[str, Any]) -> str:
    return f"{r['requests']} requests, {r['steps']} steps, {r['tokens']} tokens"


def listing(mutants: list[Mutant]) -> str:
    """``gdn-apc mutants --list``."""
    return "\n".join(
        f"{m.name:36}{m.fate:9}{m.fault:18}{', '.join(sorted(m.files))}\n    {m.says}"
        + (f"\n    [{m.kind}]" if m.kind else "")
        for m in mutants
    )


def totals(results: list[dict[str, Any]]) -> list[str]:
    """The end of the report: counts, medians, survivors."""
    killed = [r for r in results if r["status"] == "killed"]
    must = [r for r in results if CATALOGUE[r["mutant"]].fate == DIES]
    lines = [f"{sum(r['status'] == 'killed' for r in must)} of {len(must)} faults killed"]
    if killed:
        median = {
            key: statistics.median(r[key] for r in killed)
            for key in ("examples", "seconds", "requests", "steps", "tokens", "first_tokens")
        }
        lines.append(
            f"median: killed after {median['examples']:g} kernel examples and {median['seconds']:.1f} s; shrunk from "
            f"{median['first_tokens']:g} to {median['tokens']:g} tokens, {median['requests']:g} requests, {median['steps']:g} steps"
        )
        by = Counter(r["by"] for r in killed).most_common()
        lines.append("first killed by: " + ", ".join(f"{name} {count}" for name, count in by))
    for kind in KINDS:
        of_kind = [r for r in must if CATALOGUE[r["mutant"]].kind == kind]
        if of_kind:
            caught = sum(r["status"] == "killed" for r in of_kind)
            lines.append(f"{kind}: {caught} of {len(of_kind)} killed")
    for r in results:
        mutant = CATALOGUE[r["mutant"]]
        if r["status"] == "survived":
            word = {DIES: "SURVIVED", NEUTRAL: "survived, as it must", UNSEEN: "not seen here"}[mutant.fate]
            lines.append(f"{word}: {mutant.name}: {mutant.says}")
        elif is_wrong(r):
            lines.append(f"FALSE ALARM: {mutant.name}: {mutant.says} {r['message']}")
        elif r["status"] == "broken":
            lines.append(f"BROKEN: {mutant.name}: {r['message'].strip()}")
    return lines


def summary(events: list[dict[str, Any]]) -> str:
    """``summary.md`` of a run's events."""
    start = events[0]
    results = [e for e in events if e["event"] == "mutant"]
    order = list(CATALOGUE)
    rows = sorted(results, key=lambda r: order.index(r["mutant"]))
    versions = ", ".join(f"{name} {version}" for name, version in start["versions"].items())
    budget = start["budget"] or "of a default campaign"
    text = [
        "# Planted faults",
        "",
        f"Seed {start['seed']}, budget {budget}, revision {start['revision']}. {versions}.",
        "",
        "| mutant | class | killed by | examples | seconds | requests | steps | tokens | first wrong place |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        mutant = CATALOGUE[r["mutant"]]
        name = f"**{mutant.name}**" if mutant.kind else mutant.name
        if r["status"] == "killed":
            sizes = [r["requests"], r["steps"], r["tokens"]]
            cells = [r["by"], r["examples"], f"{r['seconds']:.1f}", *sizes, place(r).replace("|", "/")]
        else:
            cells = [r["status"], r["examples"], f"{r['seconds']:.1f}", "", "", "", ""]
        text.append("| " + " | ".join(str(c) for c in (name, mutant.fault, *cells)) + " |")
    missing = len(start["mutants"]) - len(results)
    text += ["", "Bold: one of the ten faults that every campaign must catch.", ""]
    text += [f"- {line}" for line in totals(results)]
    text += [f"- {missing} mutants did not run"] if missing else []
    return "\n".join(text) + "\n"


def write(folder: RunFolder) -> None:
    """Write ``summary.md`` from the folder's events."""
    folder.summary_path.write_text(summary(folder.events()))
