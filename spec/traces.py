"""Traces of an engine, checked by TLC: is what it did a behaviour of the design?

A trace is NDJSON, an event a line. Requests count from 1, slots from 1; 0 is padding, and the null block.

========  ======================================================================================================
event     fields
========  ======================================================================================================
start     block_size, slots (without the null block), depth (batches in flight), attention (true or false),
          order: how slots are taken and given back, "lru" or "vllm" (below); free: the free list, first to be taken
          first; requests: for each its tokens (strings) and the number of its prompt's
schedule  request, n, m; table and attention: the block tables after it; published: the slots it published
skip      request, freed: slots behind the state that it reads next, which it gives back
dispatch  requests: of the rows of the batch that is sent, in order
execute   rows: for each its request (0: padding), the slots it reads and writes; finished: requests that end
preempt   request, freed: the slots given back, in that order; unpublished: the slots that lose their hash
abort     request, freed, unpublished
========  ======================================================================================================

In order "lru", attention blocks are taken and given back before states, and join the tail of the free list. In order
"vllm" (0.31.0, linear layer first) states come first, the last column of skipped ones first, and slots without a hash
join the head.

Imports the standard library and ``gdn_apc.spec``. Exercise it with ``gdn-apc spec --trace FILE``, or
``pytest tests/spec/test_traces.py``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdn_apc.spec import explain, tlc
from gdn_apc.spec.configurations import VLLM_ORDER, Configuration, numbers
from gdn_apc.spec.values import as_tla, parse

Event = dict[str, Any]
FIELDS = {
    "start": {
        "block_size": int,
        "slots": int,
        "depth": int,
        "attention": bool,
        "order": str,
        "free": list,
        "requests": list,
    },
    "schedule": {"request": int, "n": int, "m": int, "table": list, "attention": list, "published": list},
    "skip": {"request": int, "freed": list},
    "dispatch": {"requests": list},
    "execute": {"rows": list, "finished": list},
    "preempt": {"request": int, "freed": list, "unpublished": list},
    "abort": {"request": int, "freed": list, "unpublished": list},
}
SIZES = ("block_size", "slots", "depth", "attention", "order")
"""What engines must have in common for one run of TLC to take their traces together."""
ORDERS: dict[str, dict[str, str]] = {
    "lru": {},
    "vllm": VLLM_ORDER | {"InSkipOrder": "LastColumnFirst"},
}
"""Operators of the design that an engine's order replaces."""


class BadTrace(Exception):
    """A trace that is not of the format; the message names the line and the field."""


@dataclass(frozen=True)
class Verdict:
    """``accepted``, or the ``line`` (from 1) of the first event that no step of the design fits.

    ``broken`` names the invariants that did not hold before that event, if it is they that end the trace.
    """

    accepted: bool
    line: int
    broken: tuple[str, ...] = ()

    def at(self, events: Sequence[Event]) -> str:
        """Which event of a trace that is rejected does not fit."""
        if self.broken:
            return f"rejected before line {self.line}: {', '.join(self.broken)} is broken"
        return f"rejected at line {self.line}: {json.dumps(events[self.line - 1])}"


def read(path: Path) -> list[Event]:
    """The events of a file. Raises ``BadTrace`` where it is not of the format."""
    events = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            raise BadTrace(f"{path}, line {number}: not JSON ({error})") from error
    validate(events, str(path))
    return events


def validate(events: Sequence[Event], where: str = "trace") -> None:
    """Raises ``BadTrace`` at the first event that has not the fields it must have."""
    for number, event in enumerate(events, 1):
        kind = event.get("event") if isinstance(event, dict) else None
        if kind not in FIELDS or (kind == "start") != (number == 1):
            expected = "start" if number == 1 else ", ".join(sorted(set(FIELDS) - {"start"}))
            raise BadTrace(f"{where}, line {number}: event is {kind!r}; expected {expected}")
        for field, type_ in FIELDS[kind].items():
            if type(event.get(field)) is not type_:
                raise BadTrace(
                    f"{where}, line {number}: {kind} has {field} = {event.get(field)!r}; expected {type_.__name__}"
                )
    if not events:
        raise BadTrace(f"{where}: is empty; expected a start event and what follows")
    _validate_requests(events, where)


def _validate_requests(events: Sequence[Event], where: str) -> None:
    start = events[0]
    if start["order"] not in ORDERS:
        raise BadTrace(f"{where}, line 1: order is {start['order']!r}; expected {' or '.join(ORDERS)}")
    if sorted(start["free"]) != list(range(1, start["slots"] + 1)):
        raise BadTrace(
            f"{where}, line 1: free is {start['free']}; expected each of 1 to {start['slots']} once"
        )
    known = len(start["requests"])
    for number, event in enumerate(events[1:], 2):
        rows = [row["request"] for row in event.get("rows", ())] + event.get("requests", [])
        for request in [*rows, event.get("request", 1)]:
            least = 0 if "rows" in event else 1
            if not least <= request <= known:
                raise BadTrace(f"{where}, line {number}: request is {request}; expected {least} to {known}")


def check(traces: Sequence[Sequence[Event]], tools: tlc.Tools, timeout: float = 600.0) -> list[Verdict]:
    """A verdict for each trace. Traces of engines with the same sizes are checked by one run of TLC."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, events in enumerate(traces):
        validate(events, f"trace {index}")
        groups[tuple(events[0][name] for name in SIZES)].append(index)
    verdicts: dict[int, Verdict] = {}
    for group in groups.values():
        chosen = [traces[index] for index in group]
        result = tlc.run(
            "Trace",
            _configuration(chosen, "Emit").text(),
            tools,
            modules={"TraceData": data_module(chosen)},
            coverage=False,
            quick=True,
            timeout=timeout,
        )
        verdicts.update(zip(group, _verdicts(chosen, result.printed)))
    return [verdicts[index] for index in range(len(traces))]


def _verdicts(traces: Sequence[Sequence[Event]], printed: Sequence[str]) -> list[Verdict]:
    reached: dict[int, tuple[int, frozenset[str]]] = {}
    for line in printed:
        _, which, at, broken = parse(parse(line))
        reached[which] = max(reached.get(which, (0, frozenset())), (at, broken), key=lambda found: found[0])
    verdicts = []
    for which, events in enumerate(traces, 1):
        at, broken = reached[which]
        # Event at of TLA's sequence, without the start event, is line at + 1.
        verdicts.append(Verdict(at == len(events) and not broken, at + 1, tuple(sorted(broken))))
    return verdicts


def explained(events: Sequence[Event], verdict: Verdict, tools: tlc.Tools) -> str:
    """Why a trace is rejected: the event, and the design's state before it."""
    if verdict.accepted:
        return f"all {len(events)} events are a behaviour of the design"
    last = verdict.line - 1
    result = tlc.run(
        "Trace",
        _configuration([events], "Before", last).text(),
        tools,
        modules={"TraceData": data_module([events])},
        coverage=False,
        quick=True,
    )
    state = result.trace[-1].variables
    lines = [
        f"before line {verdict.line} the design's state is",
        *("  " + line for line in explain.draw(state)),
    ]
    if verdict.broken:
        lines += [f"in which {name} is broken: {explain.SAYS[name]}" for name in verdict.broken]
    else:
        lines += [f"and no step of the design fits line {verdict.line}:", f"  {json.dumps(events[last])}"]
    return "\n".join(lines)


def _configuration(traces: Sequence[Sequence[Event]], invariant: str, last: int = 0) -> Configuration:
    start = traces[0][0]
    constants = {
        "B": start["block_size"],
        "Null": 0,
        "Slots": numbers(1, start["slots"]),
        "Reqs": numbers(1, max(len(events[0]["requests"]) for events in traces)),
        "MaxLen": 1,
        "Prompts": numbers(1, 1),
        "Shares": numbers(0, 0),
        "MaxRows": 1_000,
        "Interval": 1,
        "Attention": start["attention"],
        "Depth": start["depth"],
        "Padding": False,
        "Policy": "any",
        "Cap": 0,
        "LastEvent": last,
    }
    replace = ORDERS[start["order"]]
    return Configuration("trace", "Trace", "TraceSpec", constants, "", (invariant,), replace=replace)


def data_module(traces: Sequence[Sequence[Event]]) -> str:
    """The module TraceData."""
    records = []
    for events in traces:
        requests = events[0]["requests"]
        record = {
            "text": [r["tokens"] for r in requests],
            "prompts": [r["prompt"] for r in requests],
            "free": events[0]["free"],
            "events": list(events[1:]),
        }
        records.append(as_tla(record))
    text = ",\n".join(records)
    return f"---- MODULE TraceData ----\nTraces == <<\n{text}\n>>\n====\n"
