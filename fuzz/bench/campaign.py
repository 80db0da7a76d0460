"""The fuzzer's own speed: a short campaign, and what its events say: examples a minute, and where the time goes.

The campaign is a real one (``gdn-apc fuzz --minutes M``), whose folder keeps everything; it runs in a child, and on a GPU
its kernels should be compiled before (a first campaign does that), or compiling is what it measures. From the events
follows the cheapest order of checks too: properties by the median seconds of one example.
Imports the standard library and ``fuzz.bench``. Exercise it with ``pytest tests/benchmarks/test_bench_report.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
COMMAND = (sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())")
FAULTS = (1, 3, 4)
"""Exit statuses of a campaign after which its speed means nothing: a failure, a broken suite, bad usage."""


class CampaignFailed(Exception):
    """The campaign ended with a status after which its speed means nothing."""


def run(folder: Path, *, target: str, minutes: float, workers: int | None) -> list[dict[str, Any]]:
    """A campaign's events. Raises :class:`CampaignFailed` if it did not hold: shrinking would be what is measured."""
    command = [*COMMAND, "fuzz", "--target", target, "--minutes", str(minutes), "--run-dir", str(folder)]
    command += ["--quiet", "--profile", "gate"] + (["-n", str(workers)] if workers else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode in FAULTS:
        raise CampaignFailed(
            f"the campaign ended with status {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
        )
    return events(folder)


def events(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``events.jsonl``."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def row(found: list[dict[str, Any]], device: str, workers: int | None) -> Row:
    """One row of results: time of one kernel example, and beside it everything that the campaign says of its time."""
    start = next(e for e in found if e["event"] == "start")
    kinds = {p["name"]: p["kind"] for p in start["properties"]}
    each: dict[str, list[float]] = {}
    for e in found:
        if e["event"] == "example":
            each.setdefault(e["property"], []).append(e["seconds"])
    seconds: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for e in found:
        if e["event"] == "item":
            seconds[e["property"]] += e["seconds"]
        if e["event"] == "round":
            spent.update(e["spent"])
    examples = sum(len(v) for name, v in each.items() if kinds.get(name) == "kernel")
    busy = sum(s for name, s in seconds.items() if kinds.get(name) == "kernel")
    count = workers or 1
    minutes = busy / 60 / count
    properties = {
        name: dict(
            kind=kinds.get(name),
            examples=len(times),
            seconds=round(seconds[name], 2),
            median_ms=round(1e3 * median(times), 3),
        )
        for name, times in sorted(each.items(), key=lambda item: median(item[1]))
    }
    return dict(
        op="fuzz",
        impl=start["target"],
        heads=None,
        shape=f"{count} worker{'s' * (count > 1)}",
        export=None,
        dtype="all",
        ms=60e3 / (examples / minutes) if examples and minutes else None,
        floor_ms=None,
        device=device,
        name=f"fuzz/{start['target']}/{count}",
        variant="",
        version=start["versions"].get("gdn-apc", ""),
        examples=examples,
        examples_a_minute=examples / minutes if minutes else 0.0,
        properties=properties,
        spent={label: round(s, 2) for label, s in spent.most_common()},
        samples=[],
    )


def line(row: Row) -> str:
    """One line of progress."""
    total = sum(row["spent"].values()) or 1.0
    where = ", ".join(f"{label} {100 * s / total:.0f} %" for label, s in row["spent"].items())
    return f"{row['name']:58} {row['examples']:,} kernel examples, {row['examples_a_minute']:,.0f} a minute; {where}"
