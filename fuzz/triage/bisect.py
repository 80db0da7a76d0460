"""The search for the first bad version: both ends proven first, untestable ones stepped around, every result kept on disk.

    found = search(versions, attempt, Record(path), say)

``versions`` are releases or revisions in order. If the oldest fails and the newest holds, it is the fix that is searched.
Imports the standard library. Exercise it with ``pytest tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.triage.trial import BAD, GOOD, UNTESTABLE, Verdict

Say = Callable[[str], None]


class NoBisection(Exception):
    """There is nothing to search: an end is not what it must be, or cannot be tested. The message says what to do."""


class Record:
    """Results by version in a JSON file, so that an interrupted search goes on where it was.

    ``about`` names everything that a result depends on (case, target, our own revision); a file about something else is
    put aside by being overwritten.
    """

    def __init__(self, path: Path, about: dict[str, Any]):
        self.path, self.about = path, about
        self.results: dict[str, Verdict] = {}
        self.resumed = 0
        try:
            old = json.loads(path.read_text())
        except (OSError, ValueError):
            return
        if old.get("about") == about:
            self.results = {name: Verdict(**v) for name, v in old["results"].items()}
            self.resumed = len(self.results)

    def add(self, name: str, verdict: Verdict) -> None:
        """Keep a result; the file is there whole or not at all."""
        self.results[name] = verdict
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        results = {n: v.record() for n, v in self.results.items()}
        part.write_text(json.dumps({"about": self.about, "results": results}, indent=1))
        os.replace(part, self.path)


@dataclass
class Found:
    """The outcome. ``first`` is the first version that differs from the oldest one, ``last`` the one before it.

    ``fixed``: it is the first good one, not the first bad one. ``between``: untestable versions between the two.
    """

    first: str
    last: str
    fixed: bool
    tried: int
    total: int
    between: list[str] = field(default_factory=list)
    results: dict[str, Verdict] = field(default_factory=dict)  # of what was tried, the oldest first

    def text(self, kind: str = "version") -> list[str]:
        """A summary to paste: every version tried, in order, and the answer."""
        wide = max(len(v) for v in self.results)
        lines = [f"  {v:{wide}}  {_word(verdict)}" for v, verdict in self.results.items()]
        what, before = ("good", "bad") if self.fixed else ("bad", "good")
        lines.append(f"first {what} {kind}: {self.first} ({self.last} is the last {before} one)")
        if self.between:
            lines.append(f"  untestable in between: {', '.join(self.between)}; it may be one of them")
        return [*lines, f"  {self.tried} of {self.total} {kind}s tried"]


def _word(verdict: Verdict) -> str:
    head = {GOOD: "holds", BAD: "FAILS", UNTESTABLE: "untestable"}[verdict.word]
    return f"{head:10}  {verdict.says[:150]}"


def search(
    versions: Sequence[str],
    attempt: Callable[[str], Verdict],
    record: Record,
    say: Say = print,
    every: bool = False,
    expected: tuple[str, str] | None = None,
) -> Found:
    """Search ``versions``, the oldest first. ``every``: try all of them. ``expected``: words that the ends must have.

    Raises :class:`NoBisection`.
    """
    if len(versions) < 2:
        raise NoBisection(
            f"versions: {', '.join(versions) or 'none'}; expected at least two, a good one and a bad one"
        )
    if record.resumed:
        say(f"going on with {record.resumed} result(s) of {record.path}")

    def result(i: int, note: str = "") -> Verdict:
        name = versions[i]
        if name not in record.results:
            say(f"  {name}: trying{note} …")
            record.add(name, attempt(name))
        verdict = record.results[name]
        say(f"  {name}: {_word(verdict)} ({verdict.seconds:g} s)")
        return verdict

    if every:
        for i in range(len(versions)):
            result(i)
        spans = ranges(versions, record.results)
        for span in spans:
            say(f"  {span}")
        if len(spans) == 1:
            raise NoBisection(f"no change between {versions[0]} and {versions[-1]}: {spans[0]}")
    low, high = _ends(versions, result, expected)
    old = record.results[versions[low]].word
    while True:
        inside = [i for i in range(low + 1, high) if _word_of(record, versions[i]) != UNTESTABLE]
        if not inside:
            break
        middle = min(inside, key=lambda i: (abs(2 * i - low - high), i))
        verdict = result(middle, f", {len(inside)} left")
        if verdict.word == old:
            low = middle
        elif verdict.word != UNTESTABLE:
            high = middle
    between = list(versions[low + 1 : high])
    tried = {v: record.results[v] for v in versions if v in record.results}
    return Found(versions[high], versions[low], old == BAD, len(tried), len(versions), between, tried)


def ranges(versions: Sequence[str], results: dict[str, Verdict]) -> list[str]:
    """What a complete list of results says, untestable ones left out: ``bad from 0.23.0 to 0.28.0``, and so on."""
    known = [(v, results[v].word) for v in versions if results[v].word != UNTESTABLE]
    spans: list[list[str]] = []
    for version, word in known:
        if spans and spans[-1][0] == word:
            spans[-1][2] = version
        else:
            spans.append([word, version, version])
    return [
        f"{word} from {first} to {last}" if first != last else f"{word} in {first}"
        for word, first, last in spans
    ]


def _word_of(record: Record, name: str) -> str:
    return record.results[name].word if name in record.results else ""


def _ends(
    versions: Sequence[str], result: Callable[..., Verdict], expected: tuple[str, str] | None
) -> tuple[int, int]:
    """Prove both ends. An end that was not asked for by name may move inwards past untestable versions."""
    low, high = 0, len(versions) - 1
    first = result(low, " (the old end)")
    while first.word == UNTESTABLE and expected is None and low < high - 1:
        low += 1
        first = result(low, " (the old end)")
    last = result(high, " (the new end)")
    while last.word == UNTESTABLE and expected is None and high > low + 1:
        high -= 1
        last = result(high, " (the new end)")
    for end, verdict, want in ((versions[low], first, 0), (versions[high], last, 1)):
        if verdict.word == UNTESTABLE:
            raise NoBisection(f"{end}: cannot be tested ({verdict.says}); choose another end")
        if expected is not None and verdict.word != expected[want]:
            raise NoBisection(
                f"{end}: was given as {expected[want]}, and is {verdict.word} ({verdict.says}); choose another end"
            )
    if first.word == last.word:
        word = "fail" if first.word == BAD else "hold"
        raise NoBisection(
            f"{versions[low]} and {versions[high]} both {word}: nothing changed between them, as far as the case tells; "
            "choose ends further apart"
        )
    return low, high
