"""Traces with one lie in them, which the design must reject: they show that checking traces can fail.

Only what a trace must say exactly is falsified: slots, starts, what was published, read, written, given back or
finished, and whether batches were sent and ran. Imports the standard library. Exercise it with
``pytest tests/spec/test_traces.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

Event = dict[str, Any]


def lie(events: Sequence[Event], seed: int) -> list[Event]:
    """A copy of a trace with one event falsified, left out, or told twice. The same for the same seed.

    Raises ``ValueError`` if no event can be falsified.
    """
    random = Random(seed)
    ways = [(at, way) for at in range(1, len(events)) for way in _ways(events, at)]
    if not ways:
        raise ValueError(f"events: of {len(events)} none can be falsified; give a longer trace")
    copy = json.loads(json.dumps(list(events)))
    at, way = random.choice(ways)
    if way == "left out":
        del copy[at]
    elif way == "told twice":
        copy.insert(at, json.loads(json.dumps(copy[at])))
    else:
        _falsify(copy[at], way, copy[0]["slots"], random)
    return copy


def told(honest: Sequence[Event], lying: Sequence[Event]) -> str:
    """Where a trace and its copy part, in words."""
    at = next(i for i, (a, b) in enumerate(zip([*honest, None], [*lying, None])) if a != b)
    if len(lying) != len(honest):
        return f"line {at + 1} {'left out' if len(lying) < len(honest) else 'told twice'}"
    true, false = honest[at], lying[at]
    field = next(name for name in true if true[name] != false[name])
    if field == "rows":
        true, false = next((a, b) for a, b in zip(true["rows"], false["rows"]) if a != b)
        field = next(name for name in true if true[name] != false[name])
        return f"line {at + 1}, {field} of request {true['request']}: {true[field]} made {false[field]}"
    return f"line {at + 1}, {field} of {true['event']}: {json.dumps(true[field])} made {json.dumps(false[field])}"


def _ways(events: Sequence[Event], at: int) -> list[str]:
    """How event ``at`` can be falsified: a field of it, or all of it."""
    event, slots = events[at], events[0]["slots"]
    ways: list[str] = []
    if event["event"] == "schedule":
        ways += ["n", "published", *(["table"] if slots > 1 else [])]
    elif event["event"] in ("skip", "preempt", "abort"):
        ways += [field for field in ("freed", "unpublished") if event.get(field)]
    elif event["event"] == "execute" and slots > 1:
        ways += ["reads", "writes", "finished"]
    if event["event"] in ("dispatch", "execute", "skip") and at < len(events) - 1:
        ways += ["left out", *(["told twice"] if event["event"] != "skip" else [])]
    return ways


def _falsify(event: Event, way: str, slots: int, random: Random) -> None:
    """Change one field of an event."""
    if way == "n":
        event["n"] += 1
    elif way == "table":
        event["table"][-1] = event["table"][-1] % slots + 1
    elif way in ("published", "unpublished", "freed", "finished") and event[way]:
        event[way].pop()
    elif way == "published":
        event["published"] = [event["table"][-1]]
    elif way == "finished":
        event["finished"] = [event["rows"][-1]["request"] or 1]
    else:
        row = random.choice([row for row in event["rows"] if row["request"]])
        first, *rest = row[way] or [0]
        row[way] = [first % slots + 1, *rest]
