"""The page of a campaign, in Markdown: fit for a pull request and for ``$GITHUB_STEP_SUMMARY``.

What a reviewer needs first is at the top, long tables are folded away. Text that comes from a target is fenced, so that
it cannot become part of the page. Imports ``fuzz.summary``, ``fuzz.claims`` and the standard library. Exercise it with
``pytest tests/fuzz/test_runs.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import claims
from gdn_apc.fuzz.clock import LABELS
from gdn_apc.fuzz.limits import limits
from gdn_apc.fuzz.ratios import LOOSE
from gdn_apc.fuzz.runs import RunFolder, write_whole
from gdn_apc.fuzz.signatures import groups
from gdn_apc.fuzz.summary import PAIR_FLOOR, WORDS, Totals, Verdict, verdict
from gdn_apc.fuzz.triage import files

MOST_FAILURES, MOST_TEXT = 8, 2500
"""Failures that are shown whole, and characters of each: a comment of a pull request holds 65,536."""


def render(totals: Totals, run: RunFolder) -> str:
    """The whole page."""
    return (
        "\n\n".join(
            part
            for part in (
                _head(totals, run),
                _failures(totals, run),
                _broken(totals),
                _properties(totals),
                *extra(totals, run),
                _time(totals),
                _dtypes(totals),
                _ledger(totals),
                _machine(totals),
                _tolerances(totals),
                _limits(totals),
                _how(totals, run),
            )
            if part
        )
        + "\n"
    )


def extra(totals: Totals, run: RunFolder) -> list[str]:
    """Sections that other parts of the suite add to the page, in Markdown (the matrix of claims)."""
    return [_claims(totals, run), _known(totals)]


def _claims(totals: Totals, run: RunFolder) -> str:
    """Clause by clause: claimed or not, examples compared, held or broken."""
    rows = claims.matrix(totals.start, run.events())
    if not rows:
        return ""
    note = "\n\nA verdict needs the stated number of compared examples. What is not claimed is not asked, and no failure."
    return "## Claims\n\n" + table(*claims.table(rows)) + note


def _known(totals: Totals) -> str:
    """The failures that were known before: how often each was met, and why it is known."""
    rows = []
    for e in totals.start.get("known", []):
        met = totals.expected[e["name"]]
        state = f"mended: {totals.mended[e['name']]}" if e["name"] in totals.mended else f"{met} examples"
        rows.append(
            [e["name"], "baseline" if e["baseline"] else "expected", e["property"], state, e["reason"]]
        )
    return "## Known failures\n\n" + table(["entry", "from", "property", "met", "why"], rows) if rows else ""


def write(run: RunFolder) -> tuple[Verdict, list[str]]:
    """Write ``summary.md`` from the events. Returns the verdict, and a few lines about it for a terminal."""
    totals = Totals.of(run.events())
    found = verdict(totals)
    write_whole(run.summary_path, render(totals, run))
    return found, lines_of(totals, run)


def lines_of(totals: Totals, run: RunFolder) -> list[str]:
    """The verdict in a few lines."""
    found, target = verdict(totals), totals.start.get("target", "native")
    lines = [f"{found.word} (exit status {found.status})", *(f"  {r}" for r in found.reasons)]
    for first, *_ in groups(totals.failures):
        lines.append(f"  replay: {replay_line(run, first['case'], target)}")
        lines += [f"  triage: {said}" for said in [files.brief(run.cases / first["case"])] if said]
    lines += [f"  note: {note}" for note in totals.notes]
    lines.append(
        f"  {sum(totals.examples.values()):,} examples, {sum(totals.comparisons.values()):,} comparisons"
    )
    if totals.start.get("code") and totals.end.get("reason") not in (None, "finished"):
        lines.append(f"  go on: gdn-apc fuzz --resume {_shown(run)}")
    lines.append(f"  summary: {run.summary_path}")
    return lines


def _shown(run: RunFolder) -> str:
    path = os.path.relpath(run.path)
    return str(run.path) if path.startswith("..") else path


def replay_line(run: RunFolder, case: str, target: str) -> str:
    """The one line that replays a case, as seen from the current directory."""
    path = os.path.relpath(run.cases / case)
    shown = path if not path.startswith("..") else str(run.cases / case)
    return f"gdn-apc replay {shown}" + ("" if target == "native" else f" --target {target}")


def table(heads: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table; ``|`` in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines)


def fence(text: str) -> str:
    """A block of code whose end no text can forge, cut to what a page can hold."""
    text = text.rstrip()
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n… {len(text) - MOST_TEXT:,} characters more in events.jsonl"
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}\n{text}\n{ticks}"


def folded(title: str, body: str) -> str:
    """A part of the page that is shown when somebody asks for it."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _head(totals: Totals, run: RunFolder) -> str:
    found, start = verdict(totals), totals.start
    versions = ", ".join(f"{k} {v}" for k, v in start.get("versions", {}).items())
    lines = [
        f"# gdn-apc campaign: {found.word} (exit status {found.status})",
        "",
        *(f"- {reason}" for reason in found.reasons),
        "",
        f"Target **{start.get('target', '?')}** on {start.get('device', '?')}"
        + (f", revision {start['revision']}" if start.get("revision") else "")
        + f". {versions}.",
        f"Seed {start.get('seed', '?')}, {_budget(start)}, profile {start.get('profile', '?')}, "
        f"{start.get('shards', 1)} shard(s) a property, {totals.duration:.0f} s{_legs(totals)}.",
        f"**{sum(totals.examples.values()):,} examples, {sum(totals.comparisons.values()):,} comparisons.**",
        "Failing examples are kept for the next campaign."
        if start.get("examples_kept")
        else "No example database (profile gate, or --hypothesis-seed, which switches it off and seeds nothing here).",
        f"Canary: {totals.canary['message'] if totals.canary else 'did not run'}.",
        *(f"Note: {note}." for note in totals.notes + differences(totals)),
    ]
    return "\n".join(lines)


def _legs(totals: Totals) -> str:
    return f", stopped and gone on with {totals.legs - 1} time(s)" if totals.legs > 1 else ""


def differences(totals: Totals) -> list[str]:
    """Where the processes of one campaign ran on different versions: a seed may have meant different cases there."""
    found = {}
    for start in totals.starts:
        for name, version in {**start.get("versions", {}), "device": start.get("device", "?")}.items():
            found.setdefault(name, set()).add(str(version))
    return [
        f"its processes differ in {name}: {', '.join(sorted(versions))}"
        for name, versions in sorted(found.items())
        if len(versions) > 1
    ]


def _budget(start: dict[str, Any]) -> str:
    if start.get("smoke"):
        return "smoke (about a minute)"
    if start.get("minutes"):
        return f"{start['minutes']:g} minutes"
    return f"budget {start.get('budget', '?')} examples a kernel property"


def _failures(totals: Totals, run: RunFolder) -> str:
    kinds = groups(totals.failures)
    parts = [_failure(totals, run, *kind) for kind in kinds[:MOST_FAILURES]]
    rest = kinds[MOST_FAILURES:]
    if rest:
        listed = "\n".join(f"- {f['property']}: `{f['case']}`" for f, *_ in rest)
        parts.append(f"And {len(rest)} more:\n\n{listed}")
    return "## Failures\n\n" + "\n\n".join(parts) if parts else ""


def _failure(totals: Totals, run: RunFolder, f: dict[str, Any], *others: dict[str, Any]) -> str:
    where = "".join(f"\n  {k}: {v}" for k, v in f.get("where", {}).items())
    shrink = f.get("shrunk")
    size = f"{f['tokens']} tokens; " if "tokens" in f else ""
    target = totals.start.get("target", "native")
    return (
        f"### {f['property']}\n\n{fence(f['message'].rstrip() + where)}\n\n{size}{_origin(f)}"
        + (f"; shrinking {shrink}" if shrink else "")
        + f".\n\n    {replay_line(run, f['case'], target)}"
        + _others(others)
        + _triage(run.cases / f["case"])
    )


def _triage(case: Path) -> str:
    """What triage wrote about a case. It quotes the target, so it is fenced like all that a target says."""
    try:
        return f"\n\n{fence(files.beside(case, '.txt').read_text())}"
    except OSError:
        return ""


def _others(failures: tuple[dict[str, Any], ...]) -> str:
    """More failures of one kind, in a line."""
    if not failures:
        return ""
    names = ", ".join(
        f"`{f['case']}`" + (f" (witness of {f['witness']})" if f.get("witness") else "") for f in failures
    )
    return f"\n\n{len(failures)} more of this kind: {names}"


def _origin(f: dict[str, Any]) -> str:
    if f.get("witness"):
        return f"the witness of {f['witness']}"
    return f"round {f['round']} of shard {f['shard']}, phase {f['phase']}"


def _broken(totals: Totals) -> str:
    if not totals.broken:
        return ""
    return "## Broken infrastructure\n\n" + "\n\n".join(map(fence, totals.broken))


def _properties(totals: Totals) -> str:
    rows = []
    for prop in totals.start.get("properties", []):
        name = prop["name"]
        ends = [status for (n, _), status in totals.status.items() if n == name]
        state = next((s for s in ("failed", "broken", "interrupted", "held") if s in ends), "not run")
        if any(f["property"] == name for f in totals.failures):
            state = "failed"
        if prop["needs"]:
            state = f"not asked: {prop['needs']}"
        unit = "examples" if prop["kind"] == "kernel" else "comparisons"
        rows.append(
            [
                name,
                state,
                f"{totals.examples[name]:,}",
                f"{totals.comparisons[name]:,}",
                f"{prop['floor']:,} {unit}",
                f"{totals.replayed[name]}",
                f"{totals.worst[name]:.2g}" if name in totals.worst else "",
                f"{totals.typical(name):.3f} s",
                f"{totals.took(name):.1f} s",
            ]
        )
    heads = [
        "property",
        "result",
        "examples",
        "comparisons",
        "floor",
        "replayed",
        "worst error / tolerance",
        "median",
        "time",
    ]
    note = "\n\nAn example is a whole schedule that was compared; repeated and replayed ones are not counted."
    return "## Properties\n\n" + table(heads, rows) + note if rows else ""


def _time(totals: Totals) -> str:
    """Where the seconds of each property went, and how many examples one of them buys."""
    rows = []
    for name, spent in totals.spent.items():
        took = sum(spent.values())
        pace = f"{totals.examples[name] / took:.1f}" if took else ""
        rows.append([name, f"{took:.1f}", pace, *(f"{spent[label]:.1f}" for label in LABELS)])
    if not rows:
        return ""
    whole = sum(float(row[1]) for row in rows) or 1.0
    shares = [sum(spent[label] for spent in totals.spent.values()) / whole for label in LABELS]
    head = ", ".join(f"{label} {share:.0%}" for label, share in zip(LABELS, shares))
    note = "Seconds of all shards together. Generation includes Hypothesis's own work, comparison all of a check that is neither target nor oracle."
    table_ = table(["property", "seconds", "examples / s", *LABELS], rows)
    return folded(f"Where the time went: {head}", f"{table_}\n\n{note}")


def _dtypes(totals: Totals) -> str:
    pairs = totals.start.get("pairs", [])
    if not pairs:
        return ""
    rows = [[p, totals.pairs[p], "" if totals.pairs[p] >= PAIR_FLOOR else "below its floor"] for p in pairs]
    out = totals.start.get("pairs_left_out", [])
    tail = f"\n\nNot claimed by the target: {', '.join(out)}." if out else ""
    met = sum(totals.pairs[p] >= PAIR_FLOOR for p in pairs)
    head = f"Input / cache dtypes: {met} of {len(pairs)} pairs have {PAIR_FLOOR} kernel examples or more"
    return folded(head, table(["pair", "examples", ""], rows) + tail)


def _ledger(totals: Totals) -> str:
    rows = []
    for e in totals.start.get("ledger", []):
        if e["needs"] is not None:
            rows.append([e["name"], "not claimed", "", "", e["needs"]])
            continue
        reached = {True: "yes", False: "**no**", None: "not run"}[totals.reached.get(e["name"])]
        floor = totals.floors.get(e["name"], "not computed")
        rows.append([e["name"], reached, totals.discovered[e["name"]], floor, e["doc"]])
    if not rows:
        return ""
    note = "Reached: an explicit witness ran through it. Discovered: examples of the random phase that saw it.\n\n"
    asked = [e["name"] for e in totals.start["ledger"] if e["needs"] is None]
    reached = sum(totals.reached.get(name, False) for name in asked)
    met = sum(name in totals.floors and totals.discovered[name] >= totals.floors[name] for name in asked)
    head = f"Ledger: {reached} of {len(asked)} events reached, {met} discovered as often as their floor"
    return folded(head, note + table(["event", "reached", "discovered", "floor", "what"], rows))


def _machine(totals: Totals) -> str:
    rows = [[name, f"{totals.lived[name]:,}", doc] for name, doc in totals.start.get("lives", {}).items()]
    note = "Every event must have happened in some life.\n\n"
    met = sum(totals.lived[row[0]] > 0 for row in rows)
    head = f"The cache machine's lives: {met} of {len(rows)} events"
    return folded(head, note + table(["event", "times", "what"], rows)) if rows else ""


def _tolerances(totals: Totals) -> str:
    rows = []
    for kind, histogram in sorted(totals.ratios.items()):
        p99 = histogram.quantile(0.99)
        slack = 1 / p99 if p99 else None
        rows.append(
            [
                kind,
                f"{histogram.count:,}",
                f"{p99:.3g}",
                f"{histogram.largest:.3g}",
                "exact" if slack is None else f"{slack:.1f}",
                f"**above {LOOSE:g}: too loose**" if slack is not None and slack > LOOSE else "",
            ]
        )
    heads = ["tolerance", "compared", "p99 of error / tolerance", "largest", "tolerance / p99", ""]
    loose = sum(bool(row[-1]) for row in rows)
    head = f"Tolerances against what was observed: {loose} of {len(rows)} too loose"
    return folded(head, table(heads, rows)) if rows else ""


def _limits(totals: Totals) -> str:
    return "## What green does not prove\n\n" + "\n".join(f"- {line}" for line in limits(totals))


def _how(totals: Totals, run: RunFolder) -> str:
    start = totals.start
    again = f"gdn-apc fuzz --target {start.get('target', '?')} --seed {start.get('seed', '?')}"
    workers = f" -n {start['shards']}" if start.get("shards", 1) > 1 else ""
    lines = [
        "## How to run it again",
        "",
        "The same cases (same versions; the clock decides how many under `--minutes` and `--smoke`):",
        "",
        f"    {again}{_flags(start)}{workers}",
        "",
        "One case: `gdn-apc replay PATH` with a file of `cases/`. "
        f"Exit statuses: {', '.join(f'{s} {w.lower()}' for s, w in WORDS.items())}.",
        "",
        f"Run folder: `{run.path}`",
    ]
    return "\n".join(lines)


def _flags(start: dict[str, Any]) -> str:
    if start.get("smoke"):
        return " --smoke"
    if start.get("minutes"):
        return f" --minutes {start['minutes']:g}"
    return f" --budget {start['budget']}" if start.get("budget") else ""
