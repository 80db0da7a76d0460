"""A counterexample in prose, with the block tables drawn.

Sentences come from what changed between two states, so they hold for every module and variant. Imports the standard
library and ``gdn_apc.spec``. Exercise it with ``pytest tests/spec/test_explain.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gdn_apc.spec.tlc import Step

SAYS = {
    "StateTrue": "what the row of a live request reads is not the state of its own tokens",
    "FreshStart": "a row that starts from nothing reads a state",
    "SharedImmutable": "a row is scheduled to write a slot that is published, or that another request refers to",
    "WriteExclusive": "a row writes a slot that is not its request's alone, or that another row of its batch writes",
    "NullUntouched": "a row with tokens meets the null block, or padding touches a slot",
    "PublishTrue": "when all rows in flight have run, a published slot does not hold what its hash names",
    "CountsExact": "reference counts or the free list disagree with the tables",
    "HitLongest": "a lookup does not return the longest usable prefix that is cached",
    "CapHolds": "a request keeps more states behind it than the cap allows, or one that is not retained",
    "Progress": "a request never finishes, although scheduling is fair",
}
"""What it means that each property is broken."""

SCRATCH = 100
"""Speculation's scratch slots count from here."""


def explain(broken: str, trace: Sequence[Step]) -> str:
    """The story of a counterexample: a sentence and a drawing for each step."""
    lines: list[str] = []
    before: Mapping[str, Any] | None = None
    for number, step in enumerate(trace, 1):
        if not step.variables:
            lines += ["", _ending(step.note)]
            continue
        head = f"{number}. {step.action}." if step.action else f"{number}. At the start."
        said = _changes(before, step.variables) if before else _beginning(step.variables)
        lines += ["", " ".join([head, *said]), *("     " + line for line in draw(step.variables))]
        before = step.variables
    if broken == "Progress" and trace and trace[-1].variables:
        lines += ["", "From here on nothing can happen."]
    lines += [
        "",
        f"Now {broken} is broken: {SAYS[broken]}." if broken in SAYS else f"So {broken} is not true.",
    ]
    return "\n".join(lines[1:])


def _ending(note: str) -> str:
    if note == "stuttering":
        return "From here on nothing more happens."
    return f"From here on it goes {note}, and round again for ever."


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """(key, value) of a function, which TLC prints as a sequence if its domain is 1 .. n."""
    return list(value.items()) if isinstance(value, Mapping) else list(enumerate(value, 1))


def text(content: Any) -> str:
    """Tokens in a row. "?" is garbage, "kv" marks an attention block, x a rejected draft; long ones with their length."""
    if isinstance(content, int):
        return f"the first {content} tokens" if content else "-"
    if len(content) > 20:
        return f"{' '.join(content[:3])} … {' '.join(content[-2:])} ({len(content)})"
    words = ["x" if token == 0 else str(token) for token in content]
    apart = any(word.isdigit() or (len(word) > 1 and word != "kv") for word in words)
    return (" " if apart else "").join(words) or "-"


def _row(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    if "k" in row:
        what = f"{row['m']} prompt tokens" if row["m"] else f"1 token and {row['k']} drafts"
        return f"row of {what}, table {_table(row['table'])}"
    if row["req"] == 0:
        return f"padding row with table {_table(row['table'])}"
    whose = f"request {row['req']}" if row["live"] else f"request {row['req']}, which is gone"
    attention = f", attention {_table(row['attn'])}" if row["attn"] else ""
    return (
        f"row of {whose}: tokens {row['n']} → {row['n'] + row['m']}, table {_table(row['table'])}{attention}"
    )


def _table(table: Sequence[Any]) -> str:
    return "[" + " ".join("·" if slot == "Null" else str(slot) for slot in table) + "]"


def _beginning(state: Mapping[str, Any]) -> list[str]:
    if "text" not in state:
        return [f"The prompt has {state['prompt']} tokens."]
    requests = dict(_entries(state["req"]))
    return [
        f"Request {r} will be {text(tokens)}, of which {requests[r]['known']} are its prompt."
        for r, tokens in _entries(state["text"])
    ]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What happened, in sentences."""
    said = _new_rows(old, new)
    if "cache" in new:
        for (r, was), (_, now) in zip(_entries(old["req"]), _entries(new["req"])):
            if was["status"] != now["status"]:
                said.append(f"Request {r} was {was['status']}, now it is {now['status']}.")
        said += _named(old["cache"]["hash"], new["cache"]["hash"])
        freed = [s for s in new["cache"]["free"] if s not in old["cache"]["free"]]
        said += [f"Freed: {' '.join(map(str, freed))}."] if freed else []
    else:
        said += _named(old["hash"], new["hash"])
        said += (
            [f"{new['n']} tokens are right; their state is in {new['at']}."] if old["n"] != new["n"] else []
        )
        said += [f"The scheduler hears of {new['seen']} tokens."] if old["seen"] != new["seen"] else []
    for (slot, was), (_, now) in zip(_entries(old["content"]), _entries(new["content"])):
        if was != now:
            said.append(
                f"{_slot(slot)} holds {text(now)}." if text(now) != "?" else f"{_slot(slot)} is given out."
            )
    return said


def _new_rows(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    queue = "open" if "open" in new else "flight"
    if len(new[queue]) > len(old[queue]):
        return [f"Scheduled: {_row(new[queue][-1])}."]
    if queue == "open" and len(new["pipe"]) > len(old["pipe"]):
        return ["The batch is sent."]
    return []


def _named(old: Any, new: Any) -> list[str]:
    said = []
    for (slot, was), (_, now) in zip(_entries(old), _entries(new)):
        if was != now:
            said.append(
                f"{_slot(slot)} is published as {text(now)}." if now else f"{_slot(slot)} loses its hash."
            )
    return said


def _slot(slot: Any) -> str:
    if isinstance(slot, int):
        return f"scratch {slot - SCRATCH}" if slot >= SCRATCH else f"slot {slot}"
    return str(slot)


def draw(state: Mapping[str, Any]) -> list[str]:
    """The tables, the slots and the rows of a state."""
    if "cache" not in state:
        lines = [f"table {_table(state['table'])}"]
        hashes = dict(_entries(state["hash"]))
        lines += [
            f"{_slot(slot):9} holds {text(content):14} published as {text(hashes.get(slot, 0))}"
            for slot, content in _entries(state["content"])
        ]
        return lines + [f"in flight: {_row(row)}" for row in state["flight"]]
    cache, lines = state["cache"], []
    attention = dict(_entries(cache["attn"]))
    for r, table in _entries(cache["table"]):
        request = dict(_entries(state["req"]))[r]
        more = f"  attention {_table(attention[r])}" if attention[r] else ""
        counts = f"{request['done']} of {request['known']} tokens"
        lines.append(f"request {r}  {request['status']:8} {counts:14} table {_table(table)}{more}")
    hashes, refs = dict(_entries(cache["hash"])), dict(_entries(cache["refs"]))
    for slot, content in sorted(_entries(state["content"])):
        lines.append(f"{slot}  refs {refs[slot]}  holds {text(content):8} published as {text(hashes[slot])}")
    lines.append(f"free {_table(cache['free'])}")
    for i, batch in enumerate(state["pipe"], 1):
        lines += [f"in flight {i}: {_row(row)}" for row in batch]
    return lines + [f"open: {_row(row)}" for row in state["open"]]
