"""One run folder of several: the shards of a campaign that ran on machines of their own.

Each machine ran ``gdn-apc fuzz --shard I/N`` with one seed. Their events become one campaign's, with one verdict; what
they found comes along. Imports the standard library and ``fuzz``, no torch. Exercise it with
``pytest tests/fuzz/test_merge.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.resume import Mismatch
from gdn_apc.fuzz.runs import RunFolder

ALIKE = ("target", "seed", "shards", "code", "budget", "minutes", "smoke", "profile")
"""What shards of one campaign have in common. Versions and devices may differ, and are named on the page."""

OWN = {"end", "resumed", "floors"}
"""Events about one machine's process, not about the campaign."""

FOUND = ("cases", "repro")
"""Folders with what was found."""


def alike(starts: Iterable[dict[str, Any]]) -> None:
    """Raises ``Mismatch`` if these do not begin one campaign."""
    first, *others = starts
    for other in others:
        for key in ALIKE:
            if first.get(key) != other.get(key):
                raise Mismatch(
                    f"shards: they are not of one campaign: {key} is {first.get(key)} in one and {other.get(key)} in "
                    "another; run them with the same options and seed, on the same code"
                )


def of_campaign(events: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """A shard's events as events of the whole campaign, ``at`` counted over all its legs; and how it ended."""
    found, earlier, now, reason = [], 0.0, 0.0, ""
    for e in events:
        if e["event"] == "resumed":
            earlier, now, reason = earlier + now, 0.0, ""
        now = max(now, e.get("at", 0.0))
        reason = e["reason"] if e["event"] == "end" else reason
        if e["event"] not in OWN:
            found.append({**e, "at": round(earlier + e.get("at", 0.0), 2)})
    return found, reason or "killed"


def copy_found(source: RunFolder, into: RunFolder) -> None:
    """Cases, scripts and what triage wrote; nothing that is there already is replaced."""
    for name in FOUND:
        for path in sorted((source.path / name).rglob("*")):
            target = into.path / name / path.relative_to(source.path / name)
            if path.is_file() and not path.name.startswith((".", "current-")) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def merge(sources: list[Path], into: Path, root: Path) -> RunFolder:
    """Make one run folder of several. Raises ``Mismatch`` if they do not belong together, or ``into`` is in use."""
    from gdn_apc.fuzz.session import record_floors

    run = RunFolder(into.absolute())
    if run.events():
        raise Mismatch(f"into: {into} already holds a campaign; choose another folder")
    shards = [RunFolder(path.absolute()) for path in sources]
    every = [(shard, shard.events()) for shard in shards]
    empty = [str(shard.path) for shard, events in every if not events]
    if empty:
        raise Mismatch(f"shards: {empty[0]} holds no campaign; give folders of runs")
    alike(e for _, events in every for e in events if e["event"] == "start" and "code" in e)
    run.create()
    reasons, seconds = [], 0.0
    for shard, events in every:
        found, reason = of_campaign(events)
        reasons.append(reason)
        seconds = max([seconds, *(e["at"] for e in found)])
        for e in found:
            run.append_line(json.dumps(e, sort_keys=True))
        copy_found(shard, run)
    finish(run, reasons, seconds, record_floors, root)
    return run


def finish(run: RunFolder, reasons: list[str], seconds: float, record_floors: Any, root: Path) -> None:
    """End a campaign of several machines: finished if all of them are."""
    reason = next((r for r in reasons if r != "finished"), "finished")
    if reason == "finished":
        record_floors(run, root)
    run.append("end", reason=reason, seconds=round(seconds, 1))
