"""TLA+ values as TLC prints them, turned into Python values.

Sequences become tuples, sets frozensets, records and functions dicts, model values ``Name``s. Imports the standard
library only. Exercise it with ``pytest tests/spec/test_values.py``.
"""

from __future__ import annotations

import re
from typing import Any

_TOKEN = re.compile(r'\s*(?:(-?\d+)|"((?:[^"\\]|\\.)*)"|(<<|>>|\|->|:>|@@|\.\.|[\[\](){},])|(\w+))')


class Name(str):
    """A model value: ``s1`` is not the string "s1"."""

    def __repr__(self) -> str:
        return str(self)


class _Reader:
    """A recursive-descent reader over the tokens of one value."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, Any]] = []
        end, stripped = 0, text.rstrip()
        while end < len(stripped):
            match = _TOKEN.match(stripped, end)
            if not match:
                raise ValueError(f"text: no TLA+ value at {stripped[end : end + 30]!r}")
            number, string, mark, word = match.groups()
            if number is not None:
                self.tokens.append(("value", int(number)))
            elif string is not None:
                self.tokens.append(("value", re.sub(r"\\(.)", r"\1", string)))
            elif mark:
                self.tokens.append((mark, None))
            else:
                self.tokens.append(("word", word))
            end = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def take(self, kind: str) -> Any:
        if self.peek() != kind:
            raise ValueError(f"text: expected {kind!r}, found {self.peek()!r} in {self.text[:80]!r}")
        if kind == "end":
            raise ValueError(f"text: ends before its value does: {self.text[:80]!r}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def items(self, close: str) -> list[Any]:
        found = []
        while self.peek() != close:
            found.append(self.value())
            if self.peek() == ",":
                self.take(",")
        self.take(close)
        return found

    def value(self) -> Any:
        kind = self.peek()
        if kind == "value":
            first = self.take("value")
            if self.peek() != "..":
                return first
            self.take("..")
            return frozenset(range(first, self.take("value") + 1))
        if kind == "word":
            word = self.take("word")
            return {"TRUE": True, "FALSE": False}.get(word, Name(word))
        self.take(kind)
        if kind == "<<":
            return tuple(self.items(">>"))
        if kind == "{":
            return frozenset(_frozen(item) for item in self.items("}"))
        if kind == "[":
            return self.record()
        if kind == "(":
            return self.function()
        raise ValueError(f"text: a value cannot start with {kind!r} in {self.text[:80]!r}")

    def record(self) -> dict[str, Any]:
        found = {}
        while self.peek() != "]":
            field = self.take("word")
            self.take("|->")
            found[field] = self.value()
            if self.peek() == ",":
                self.take(",")
        self.take("]")
        return found

    def function(self) -> dict[Any, Any]:
        found = {}
        while self.peek() != ")":
            key = self.value()
            self.take(":>")
            found[key] = self.value()
            if self.peek() == "@@":
                self.take("@@")
        self.take(")")
        return found


def _frozen(value: Any) -> Any:
    """A hashable form, for members of sets."""
    return tuple(sorted((k, _frozen(v)) for k, v in value.items())) if isinstance(value, dict) else value


def parse(text: str) -> Any:
    """The value that TLC printed. Raises ``ValueError`` where the text is not one TLA+ value."""
    reader = _Reader(text)
    value = reader.value()
    if reader.peek() != "end":
        raise ValueError(f"text: more after the value in {text[:80]!r}")
    return value


def parse_state(text: str) -> dict[str, Any]:
    r"""The variables of a state, printed as ``/\ name = value`` lines, or as one line for a single variable."""
    parts = re.split(r"(?m)^(?:/\\ )?(\w+) = ", text)
    return {name: parse(value) for name, value in zip(parts[1::2], parts[2::2])}


def as_tla(value: Any) -> str:
    """The TLA+ text of a Python value: tuples and lists are sequences, dicts with string keys records."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (tuple, list)):
        return "<<" + ", ".join(as_tla(item) for item in value) + ">>"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(as_tla(item) for item in value)) + "}"
    if isinstance(value, dict):
        if all(isinstance(key, str) and not isinstance(key, Name) for key in value):
            return "[" + ", ".join(f"{key} |-> {as_tla(item)}" for key, item in value.items()) + "]"
        return "(" + " @@ ".join(f"{as_tla(key)} :> {as_tla(item)}" for key, item in value.items()) + ")"
    raise TypeError(
        f"value: {value!r} has no TLA+ form; expected booleans, integers, strings and collections"
    )
