"""``gdn-apc mutants --measure-shrinking``: how small a failing case gets, and how long that takes, for ten planted faults.

One fault of each of ``model.KINDS``, each hunted as a campaign does with several seeds, shrinking included. What is measured is
what a person waits for: from the first failing case to the one that is reported.

Imports the standard library; hypothesis and kernels in the workers only. Exercise it with
``pytest tests/fuzz/test_measure.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.mutants import run
from gdn_apc.fuzz.mutants.catalogue import CATALOGUE, MUTANTS
from gdn_apc.fuzz.mutants.model import KINDS, Mutant
from gdn_apc.fuzz.runs import RunFolder

HEADS = ("fault", "found by", "drawn tokens", "requests", "steps", "tokens", "checks", "seconds")
SIZES = ("first_tokens", "requests", "steps", "tokens", "attempts", "shrink_seconds")


def ten() -> list[Mutant]:
    """The first fault of each kind that every campaign must catch."""
    return [next(m for m in MUTANTS if m.kind == kind) for kind in KINDS]


def measure(
    mutants: list[Mutant], folder: RunFolder, settings: run.Settings, seeds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Hunt every mutant with ``seeds`` seeds from the one in ``settings`` on; the results, each with its shrinking."""
    found = []
    folder.create()
    for seed in range(settings.seed, settings.seed + seeds):
        own = RunFolder(folder.path / f"seed-{seed}")
        asked = run.Settings(seed, settings.budget, settings.shrink_seconds, settings.workers)
        for result in run.run(mutants, own, asked):
            result = {**result, "seed": seed, **_shrinking(own.path / result["mutant"])}
            folder.append("shrinking", **result)
            found.append(result)
            say(line(result))
    return found


def _shrinking(folder: Path) -> dict[str, Any]:
    """How long shrinking took, and how many checks; from the events of a mutant's folder."""
    failures = [e for e in RunFolder(folder).events() if e["event"] == "failure"]
    last = failures[-1] if failures else {}
    return {"shrink_seconds": last.get("seconds", 0.0), "attempts": last.get("attempts", 0)}


def line(r: dict[str, Any]) -> str:
    """One line for the terminal."""
    if r["status"] != "killed":
        return f"{r['mutant']:36}seed {r['seed']}: {r['status']}"
    return (
        f"{r['mutant']:36}seed {r['seed']}: {r['first_tokens']} tokens shrunk to {r['tokens']}, {r['requests']} requests, "
        f"{r['steps']} steps, in {r['shrink_seconds']:.1f} s and {r['attempts']} checks"
    )


def table(results: list[dict[str, Any]], versions: dict[str, str]) -> str:
    """The table in Markdown: medians over the seeds of each fault, and over everything."""
    killed = [r for r in results if r["status"] == "killed"]
    seeds = sorted({r["seed"] for r in results})
    rows = []
    for name in dict.fromkeys(r["mutant"] for r in results):
        own = [r for r in killed if r["mutant"] == name]
        by = ", ".join(sorted({r["by"] for r in own})) or "not found"
        rows.append([name, by, *_medians(own)])
    rows.append(["**all**", "", *(f"**{m}**" for m in _medians(killed))])
    cells = [HEADS, ["---", "---", *["---:"] * len(SIZES)], *rows]
    lost = len(results) - len(killed)
    text = [
        "# Shrinking, measured",
        "",
        "How small the failing case of a planted fault becomes, and how long that takes; made by",
        "`gdn-apc mutants --measure-shrinking`. Each line is the median over the seeds "
        f"{', '.join(map(str, seeds))}; the last one is over all {len(killed)} hunts.",
        "",
        *("| " + " | ".join(str(c) for c in row) + " |" for row in cells),
        "",
        "*drawn tokens*: of the case as the campaign drew it. *checks*: runs of candidates. *seconds*: from the first failing "
        f"case to the reported one, with {versions.get('torch', '?')} of torch and {versions.get('triton', 'no')} of triton on "
        f"{versions.get('machine', '?')}. A metadata case has batches and no requests.",
    ]
    text += [f"{lost} of {len(results)} hunts did not find their fault."] if lost else []
    return "\n".join(text) + "\n"


def _medians(results: Iterable[dict[str, Any]]) -> list[str]:
    results = list(results)
    if not results:
        return [""] * len(SIZES)
    return [f"{statistics.median(r[key] for r in results):.3g}" for key in SIZES]


def chosen(names: list[str] | None) -> list[Mutant]:
    """The mutants called ``names``, or the ten. Raises ``ValueError`` for an unknown name."""
    unknown = sorted(set(names or ()) - set(CATALOGUE))
    if unknown:
        raise ValueError(
            f"mutant: {unknown[0]!r} is not in the catalogue; `gdn-apc mutants --list` shows its names"
        )
    return [CATALOGUE[n] for n in names] if names else ten()
