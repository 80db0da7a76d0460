"""From events to a verdict: what a campaign did, whether that is enough, and what it does not prove.

``Totals.of`` adds up ``events.jsonl``, ``verdict`` turns that into an exit status with its reasons. The page is
written by ``fuzz/page.py``. Everything follows from the events, so a page can be made again from them alone.

Imports the standard library, ``fuzz.ratios`` and ``fuzz.signatures``. Exercise it with ``pytest tests/fuzz/test_runs.py``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gdn_apc.fuzz.ratios import Histogram
from gdn_apc.fuzz.signatures import groups, stale

HELD, FAILED, INTERRUPTED, BROKEN, USAGE, INCOMPLETE = range(6)

WORDS = {
    HELD: "PASSED",
    FAILED: "FAILED",
    INTERRUPTED: "INTERRUPTED",
    BROKEN: "BROKEN",
    USAGE: "NOT RUN",
    INCOMPLETE: "INCOMPLETE",
}

PAIR_FLOOR = 20
KERNEL_FLOOR = 300
"""Compared schedules of a default campaign: for each supported pair of dtypes, and in all (DESIGN.md, section 7)."""


@dataclass
class Totals:
    """A campaign in numbers."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    examples: Counter[str] = field(default_factory=Counter)  # property → distinct compared cases
    comparisons: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)  # property → seconds, all shards together
    each: dict[str, list[float]] = field(default_factory=dict)  # property → seconds of each example
    pairs: Counter[str] = field(default_factory=Counter)  # "bf16/fp32" → kernel examples
    discovered: Counter[str] = field(default_factory=Counter)  # ledger event → examples that saw it
    lived: Counter[str] = field(default_factory=Counter)  # what the cache machine's lives went through
    floors: dict[str, int] = field(default_factory=dict)  # ledger event → least number of discoveries
    reached: dict[str, bool] = field(default_factory=dict)  # ledger event → whether its witness reached it
    ratios: dict[str, Histogram] = field(default_factory=dict)
    largest: list[int] = field(default_factory=lambda: [0, 0, 0])  # block size, tokens, steps
    status: dict[tuple[str, int], str] = field(default_factory=dict)  # (property, shard) → how it ended
    failures: list[dict[str, Any]] = field(default_factory=list)
    expected: Counter[str] = field(default_factory=Counter)  # known failure → examples that were passed over
    mended: dict[str, str] = field(default_factory=dict)  # known failure whose case holds → what it does now
    triaged: dict[str, dict[str, Any]] = field(default_factory=dict)  # case → what triage said, in short
    broken: list[str] = field(default_factory=list)
    usage: str = ""
    canary: dict[str, Any] | None = None
    spent: dict[str, Counter[str]] = field(default_factory=dict)  # property → where its seconds went
    worst: dict[str, float] = field(default_factory=dict)  # property → largest error / tolerance
    course: list[tuple[float, int]] = field(default_factory=list)  # of each example: seconds, comparisons
    notes: list[str] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)  # of every process
    before: tuple[dict, str, list, dict | None] | None = None  # how the earlier leg ended
    refused: str = ""  # why this leg may not go on
    legs: int = 1  # how often the campaign was started, the first time included
    earlier: float = 0.0  # seconds of all legs but this one
    now: float = 0.0  # seconds of this leg so far
    counted: set[tuple[str, int, str]] = field(default_factory=set)  # (property, shard, digest)

    @staticmethod
    def of(events: Iterable[dict[str, Any]]) -> Totals:
        """Add up a run's events. An event of an unknown kind is an error: nothing is dropped silently."""
        totals = Totals()
        for event in events:
            try:
                add = getattr(totals, f"_add_{event['event']}")
            except AttributeError:
                raise ValueError(f"event: unknown kind {event['event']!r} in events.jsonl") from None
            if event["event"] != "resumed":  # whose clock has started anew
                totals.now = max(totals.now, event.get("at", 0.0))
            add(event)
        return totals

    def _add_start(self, e: dict[str, Any]) -> None:
        self.start = self.start or e  # every worker writes one
        self.starts.append(e)

    def _add_resumed(self, e: dict[str, Any]) -> None:
        """The campaign goes on: what ended, hindered or broke the earlier leg is over."""
        self.legs += 1
        self.earlier, self.now = self.earlier + self.now, e.get("at", 0.0)
        self.before, self.refused = (self.end, self.usage, self.broken, self.canary), ""
        self.end, self.usage, self.broken, self.canary = {}, "", [], None

    def _add_refused(self, e: dict[str, Any]) -> None:
        """It did not go on after all: what was before stands. A campaign that never began was used wrongly."""
        self.refused = self.refused or e["message"]
        if self.before is None:
            self.usage = self.usage or e["message"]
        else:
            self.end, self.usage, self.broken, self.canary = self.before
            self._add_note({"message": f"going on was refused: {e['message']}"})

    def _add_note(self, e: dict[str, Any]) -> None:
        if e["message"] not in self.notes:
            self.notes.append(e["message"])

    def _add_torn(self, e: dict[str, Any]) -> None:
        text = "was the disk full, or the file edited?"
        self.broken.append(f"events.jsonl: line {e['line']} is no event ({text}): {e['text']}")

    def _add_end(self, e: dict[str, Any]) -> None:
        self.end = e

    def _add_usage(self, e: dict[str, Any]) -> None:
        self.usage = self.usage or e["message"]

    def _add_broken(self, e: dict[str, Any]) -> None:
        self.broken.append(e["message"])

    def _add_canary(self, e: dict[str, Any]) -> None:
        if self.canary is None or not e["ok"]:  # one for each machine
            self.canary = e

    def _add_witness(self, e: dict[str, Any]) -> None:
        self.reached[e["name"]] = e["reached"]

    def _add_floors(self, e: dict[str, Any]) -> None:
        self.floors = e["floors"]

    def _add_example(self, e: dict[str, Any]) -> None:
        name = e["property"]
        key = name, e.get("shard", 0), e.get("digest", str(len(self.course)))
        if key in self.counted:  # two processes went on from one place
            return
        self.counted.add(key)
        self.course.append((self.earlier + e.get("at", 0.0), e["comparisons"]))
        self.examples[name] += 1
        self.comparisons[name] += e["comparisons"]
        self.each.setdefault(name, []).append(e["seconds"])
        seen = Counter({event: 1 for event, count in e["ledger"].items() if count > 0})
        if self.kinds.get(name) == "kernel":
            self.pairs[e["dtypes"]] += 1
            self.discovered += seen
            self.largest = [max(a, b) for a, b in zip(self.largest, e["size"])]
        else:
            self.lived += Counter(e["ledger"])

    def _add_ratios(self, e: dict[str, Any]) -> None:
        for kind, record in e["ratios"].items():
            self.ratios.setdefault(kind, Histogram()).merge(record)
            name = e.get("property", "")
            self.worst[name] = max(self.worst.get(name, 0.0), record["largest"])

    def _add_round(self, e: dict[str, Any]) -> None:
        self.spent.setdefault(e["property"], Counter()).update(e["spent"])

    def _add_expected(self, e: dict[str, Any]) -> None:
        self.expected[e["entry"]] += 1

    def _add_mended(self, e: dict[str, Any]) -> None:
        self.mended[e["entry"]] = e["message"]

    def _add_found(self, e: dict[str, Any]) -> None:
        self.failures.append({**e, "shrunk": "never finished: only the unshrunk case was saved"})

    def _add_failure(self, e: dict[str, Any]) -> None:
        same = _origin(e)
        self.failures = [f for f in self.failures if _origin(f) != same] + [e]

    def _add_triage(self, e: dict[str, Any]) -> None:
        self.triaged[e["case"]] = e

    def _add_item(self, e: dict[str, Any]) -> None:
        name = e["property"]
        self.status[name, e["shard"]] = e["status"]
        self.seconds[name] += e["seconds"]
        self.replayed[name] += e["replayed"]
        if e["status"] == "broken":
            self.broken.append(e["message"])

    @property
    def kinds(self) -> dict[str, str]:
        """Kind of each property."""
        return {p["name"]: p["kind"] for p in self.start.get("properties", [])}

    def units(self, prop: dict[str, Any]) -> int:
        """What a property's floor counts: examples of a kernel property, comparisons of the others."""
        return (self.examples if prop["kind"] == "kernel" else self.comparisons)[prop["name"]]

    def took(self, name: str) -> float:
        """Seconds of a property, all shards and legs together."""
        return max(self.seconds[name], sum(self.spent.get(name, {}).values()))

    @property
    def duration(self) -> float:
        """Seconds of all legs together, by the clock on the wall."""
        return self.earlier + max(self.now, self.end.get("seconds", 0.0))

    def typical(self, name: str) -> float:
        """Median seconds of an example."""
        return statistics.median(self.each[name]) if self.each.get(name) else 0.0


@dataclass(frozen=True)
class Verdict:
    """The exit status and why."""

    status: int
    reasons: list[str]

    @property
    def word(self) -> str:
        """One word for the status."""
        return WORDS[self.status]


def _origin(e: dict[str, Any]) -> tuple[str, int, str | None]:
    """What found a failure: a later report of the same origin replaces an earlier one."""
    return e["property"], e["shard"], e.get("witness")


def verdict(totals: Totals) -> Verdict:
    """The exit status of DESIGN.md section 6. What makes the campaign itself untrustworthy comes first."""
    reason = totals.end.get("reason")
    missing = incomplete(totals)
    if totals.usage:
        return Verdict(USAGE, [totals.usage])
    if reason is None:
        return Verdict(INTERRUPTED, ["the campaign has not finished: it is running, or was killed"])
    if totals.canary is not None and not totals.canary["ok"]:
        return Verdict(BROKEN, [totals.canary["message"]])
    if reason not in ("finished", "internal error"):
        return Verdict(INTERRUPTED, [f"interrupted by {reason}", *_found(totals)])
    if totals.failures or (stale := stale_entries(totals)):
        return Verdict(FAILED, _found(totals) if totals.failures else stale)
    if totals.broken or reason == "internal error":
        return Verdict(
            BROKEN, [b.splitlines()[0] for b in totals.broken] or ["pytest reported an internal error"]
        )
    return (
        Verdict(INCOMPLETE, missing)
        if missing
        else Verdict(HELD, ["every property held, the ledger is complete"])
    )


def _found(totals: Totals) -> list[str]:
    """A line for each kind of failure, and for each known failure that is none any more."""
    lines = []
    for first, *others in groups(totals.failures):
        more = f" (and {len(others)} more of this kind)" if others else ""
        lines.append(f"{first['property']}: {first['message'].splitlines()[0]}{more}")
    return lines + stale_entries(totals)


def stale_entries(totals: Totals) -> list[str]:
    """Known failures that must go from their file: they matched nothing, or their case holds."""
    by_name = {p["name"]: p for p in applicable(totals)}

    def enough(name: str) -> bool:
        ended = [s for (n, _), s in totals.status.items() if n == name]
        return name in by_name and bool(ended) and totals.units(by_name[name]) >= by_name[name]["floor"]

    return stale(totals.start.get("known", []), totals.expected, enough, totals.mended)


def applicable(totals: Totals) -> list[dict[str, Any]]:
    """The properties that the target's claims allow."""
    return [p for p in totals.start.get("properties", []) if p["needs"] is None]


def incomplete(totals: Totals) -> list[str]:
    """Everything that keeps a campaign without failures from being a complete one."""
    asked = applicable(totals)
    reasons = []
    if sum(totals.comparisons.values()) == 0:
        reasons.append("nothing was compared")
    left_out = sorted({p["name"] for p in asked} - set(totals.start.get("selected", [])))
    if left_out:
        reasons.append(f"not selected: {', '.join(left_out)}")
    for prop in asked:
        if prop["name"] not in left_out and totals.units(prop) < prop["floor"]:
            unit = "examples" if prop["kind"] == "kernel" else "comparisons"
            reasons.append(f"{prop['name']}: {totals.units(prop):,} {unit}, its floor is {prop['floor']:,}")
    reasons += _missing_shards(totals, [p["name"] for p in asked if p["name"] not in left_out])
    reasons += _incomplete_kernels(totals, [p for p in asked if p["kind"] == "kernel"])
    reasons += _incomplete_ledger(totals)
    if totals.canary is None:
        reasons.append("the canary did not run")
    return reasons


def _missing_shards(totals: Totals, names: list[str]) -> list[str]:
    """Shards of a campaign on several workers or machines that brought no result."""
    count = totals.start.get("shards", 1)
    ran = {name: {shard for n, shard in totals.status if n == name} for name in names}
    missing = {n: sorted(set(range(count)) - ran[n]) for n in names if count > 1 and len(ran[n]) < count}
    if not missing:
        return []
    same = len({str(shards) for shards in missing.values()}) == 1 and len(missing) == len(names)
    who = "every property" if same else ", ".join(missing)
    shards = ", ".join(str(s + 1) for s in next(iter(missing.values()))) if same else "some"
    return [f"{who}: no result of shard {shards} of {count}"]


def _incomplete_kernels(totals: Totals, kernels: list[dict[str, Any]]) -> list[str]:
    """Floors over all kernel properties together: examples in all, and of each supported pair of dtypes."""
    if not kernels:
        return []
    reasons = []
    in_all, floor = sum(totals.pairs.values()), totals.start.get("kernel_floor", KERNEL_FLOOR)
    if in_all < floor:
        reasons.append(f"kernel properties: {in_all} examples in all, the floor is {floor}")
    short = [p for p in totals.start.get("pairs", []) if totals.pairs[p] < PAIR_FLOOR]
    if short:
        counts = ", ".join(f"{p} {totals.pairs[p]}" for p in short)
        reasons.append(f"pairs of input and cache dtype below {PAIR_FLOOR} examples: {counts}")
    return reasons


def _incomplete_ledger(totals: Totals) -> list[str]:
    names = [e["name"] for e in totals.start.get("ledger", []) if e["needs"] is None]
    missed = [name for name in names if not totals.reached.get(name, False)]
    reasons = [f"ledger: not reached by a witness: {', '.join(missed)}"] if missed else []
    never = [name for name in totals.start.get("lives", {}) if not totals.lived[name]]
    reasons += [f"ledger: the cache machine never went through {', '.join(never)}"] if never else []
    if names and not totals.floors:
        reasons.append("ledger: the floors of what must be discovered were not computed")
    return reasons + [
        f"ledger: {name} was discovered {totals.discovered[name]} times, its floor is {totals.floors[name]}"
        for name in names
        if totals.discovered[name] < totals.floors.get(name, 0)
    ]
