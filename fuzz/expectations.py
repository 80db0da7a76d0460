"""Failures that are known: an adopter's file of expected ones, and a baseline of a target that is already red.

Both are TOML files of the same entries::

    [[expect]]
    property = "values"                  # or a list: an entry for each
    level = "conv"                       # optional, as are input, state (dtypes) and event (of the ledger)
    message = "the output is wrong"      # a regular expression, searched in the failure's message; or
    kind = "state(#) is wrong at step #" # the message's first clause, # for each number (fuzz/signatures.py)
    worst_ratio = 500                    # optional: not if the error is more tolerances than this
    case = "cases/values-1f0c.json"      # optional: a case that must still fail, relative to this file; for rare kinds
    reason = "y is rounded before SiLU; issue 123"

A failing example that an entry matches is counted and passed over, so the search goes on for others. ``--expect``
entries must still fail: one whose case holds, or that has no case and matched nothing although its property compared
as many examples as a campaign needs, fails the campaign. ``--baseline`` entries may be mended: that is reported, nothing more.
``--write-baseline`` collects every kind of failure that a campaign meets into such a file. Write it with more examples
than the gate will draw, or gate with ``--gdn-profile gate``, which draws the same ones every time: a kind that is rarer
than either run is deep would count as new.

Imports ``fuzz`` (cases, the ledger, properties). Exercise it with ``pytest tests/fuzz/test_expectations.py``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import ledger
from gdn_apc.fuzz.campaign import raised_by_target
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.signatures import signature, worst_ratio
from gdn_apc.fuzz.targets import TargetUnavailable

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings it
    import tomli as tomllib

ROOM = 4
"""A baseline allows errors this many times the largest that it saw."""


class BadExpectations(ValueError):
    """The file cannot be used; the message says why, with the entry. Exit status 4."""


@dataclass(frozen=True)
class Entry:
    """One kind of known failure. ``reason`` says why it is known; ``baseline`` entries may be mended without an error."""

    property: str
    reason: str
    message: str | None = None
    kind: str | None = None
    level: str | None = None
    input: str | None = None
    state: str | None = None
    event: str | None = None
    worst_ratio: float = math.inf
    case: str | None = None
    baseline: bool = False
    name: str = ""  # of the file and entry, for reports

    def matches(self, prop: str, case: Case, message: str) -> bool:
        """Whether a failure is this known one."""
        wanted = {"level": case.level, "input": case.dtypes.input, "state": case.dtypes.state}
        return (
            prop == self.property
            and all(getattr(self, name) in (None, value) for name, value in wanted.items())
            and (self.event is None or ledger.EVENTS[self.event].holds(case, ledger.facts(case)))
            and (self.message is None or re.search(self.message, message) is not None)
            and self.kind in (None, signature(message))
            and (self.worst_ratio == math.inf or worst_ratio(message) <= self.worst_ratio)
        )


@dataclass
class Expectations:
    """Every entry of a campaign, and how to meet failures with them. ``collect``: take in whatever fails."""

    entries: list[Entry] = field(default_factory=list)
    collect: bool = False
    cases: dict[str, Case] = field(default_factory=dict)  # name of an entry → the case that must still fail

    def find(self, prop: str, case: Case, message: str) -> Entry | None:
        """The entry that a failure matches; when collecting, a new one if there is none."""
        found = next((e for e in self.entries if e.matches(prop, case, message)), None)
        if found is None and self.collect:
            name = f"new {len(self.entries)}"
            found = Entry(
                prop, "collected", kind=signature(message), level=case.level, baseline=True, name=name
            )
            self.entries.append(found)
        return found

    def guard(self, prop: Property, record: Callable[[Entry, Case, str], None]) -> Property:
        """The property, which passes over known failures: they are recorded, and compare nothing."""
        if not self.entries and not self.collect:
            return prop

        def check(target: Any, case: Case) -> Checked:
            try:
                return judge(prop, target, case)
            except Violation as e:
                entry = self.find(prop.name, case, str(e))
                if entry is None:
                    raise
                record(entry, case, str(e))
                return Checked(expected=entry.name)

        return dataclasses.replace(prop, check=check)

    def mended(self, known: dict[str, Property], target: Any) -> Iterator[tuple[str, str]]:
        """(entry, what its case does now) for each case that no longer fails as its entry says."""
        entries = {e.name: e for e in self.entries}
        for name, case in self.cases.items():
            prop = known[entries[name].property]
            try:
                judge(prop, target, case)
            except Violation as e:
                if not entries[name].matches(prop.name, case, str(e)):
                    yield name, f"its case fails in another way: {str(e).splitlines()[0]}"
            else:
                yield name, "its case holds"


def judge(prop: Property, target: Any, case: Case) -> Checked:
    """``prop.check``, where an exception that the target raised is a ``Violation`` too."""
    try:
        return prop.check(target, case)
    except Violation:
        raise
    except Exception as e:
        if not raised_by_target(e, target):
            raise
        raise Violation(f"the target raised {type(e).__name__}: {e}", raised=type(e).__name__) from e


def of_options(options: dict[str, Any]) -> Expectations:
    """What a campaign's options ask for. Raises ``TargetUnavailable`` (exit status 4) for a file that cannot be used."""
    expect, baseline = options.get("gdn_expect") or (), options.get("gdn_baseline")
    try:
        return load(expect, baseline, collect=bool(options.get("gdn_write_baseline")))
    except BadExpectations as e:
        raise TargetUnavailable(str(e)) from e


def load(expect: Iterable[str] = (), baseline: str | None = None, collect: bool = False) -> Expectations:
    """The entries of these files. Raises :class:`BadExpectations`."""
    found = Expectations(collect=collect)
    for path, is_baseline in [*((p, False) for p in expect), *([(baseline, True)] if baseline else [])]:
        for entry in read(Path(path), is_baseline):
            found.entries.append(entry)
            if entry.case:
                found.cases[entry.name] = _case(Path(path).parent / entry.case, entry.name)
    return found


def read(path: Path, baseline: bool = False) -> list[Entry]:
    """The entries of one file. Raises :class:`BadExpectations` for one that is not as the module says."""
    try:
        record = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise BadExpectations(f"{path}: cannot be read as expected failures: {e}") from e
    unknown = sorted(set(record) - {"expect"})
    if unknown:
        raise BadExpectations(f"{path}: has {unknown[0]!r} at its top, expected [[expect]] entries only")
    found = []
    for i, e in enumerate(record.get("expect", []), 1):
        several = isinstance(e.get("property"), list)
        for prop in e["property"] if several else [e.get("property")]:
            name = f"{path.name}[{i}]" + (f" {prop}" if several else "")
            found.append(_entry({**e, "property": prop}, name, baseline))
    return found


def _entry(record: dict[str, Any], name: str, baseline: bool) -> Entry:
    from gdn_apc.fuzz import properties

    allowed = {f.name for f in dataclasses.fields(Entry)} - {"baseline", "name"}
    for key in ("property", "reason"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise BadExpectations(
                f"{name}: lacks {key!r}; an entry needs property, reason, and message or kind"
            )
    if ("message" in record) == ("kind" in record):
        raise BadExpectations(f"{name}: needs either message, a regular expression, or kind, and not both")
    unknown = sorted(set(record) - allowed)
    if unknown:
        raise BadExpectations(f"{name}: has {unknown[0]!r}, expected some of {', '.join(sorted(allowed))}")
    known = properties.load_all()
    if record["property"] not in known:
        raise BadExpectations(
            f"{name}: property {record['property']!r} does not exist; choose from {', '.join(known)}"
        )
    if record.get("event") is not None and record["event"] not in ledger.EVENTS:
        raise BadExpectations(f"{name}: event {record['event']!r} is not in the ledger")
    try:
        re.compile(record.get("message", ""))
    except re.error as e:
        raise BadExpectations(f"{name}: message is no regular expression: {e}") from e
    return Entry(**record, baseline=baseline, name=name)


def _case(path: Path, name: str) -> Case:
    try:
        return Case.from_json(path.read_text())
    except (OSError, ValueError) as e:
        raise BadExpectations(f"{name}: its case {path} cannot be read: {e}") from e


def record(found: Expectations, needs: dict[str, str | None]) -> list[dict[str, Any]]:
    """The entries for a campaign's start event; ``asked`` says why their property is not asked, or None."""
    return [
        {
            "name": e.name,
            "property": e.property,
            "reason": e.reason,
            "baseline": e.baseline,
            "asked": needs.get(e.property),
            "has_case": e.case is not None,
        }
        for e in found.entries
    ]


# ---- a baseline, written ------------------------------------------------------------------------------------------------


def write(path: Path, events: list[dict[str, Any]]) -> int:
    """Write a baseline of every failure, expected or not, among a campaign's events; how many kinds there are."""
    start = next((e for e in events if e["event"] == "start"), {})
    versions = ", ".join(f"{k} {v}" for k, v in start.get("versions", {}).items())
    heading = f"Baseline of target {start.get('target')}, seed {start.get('seed')}, on {start.get('device')}.\n{versions}"
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for e in events:
        if e["event"] in ("failure", "expected"):
            key = e["property"], e.get("level", ""), signature(e["message"])
            kinds.setdefault(key, []).append(e["message"])
    lines = [f"# {line}" for line in heading.splitlines()]
    for (prop, level, pattern), messages in sorted(kinds.items()):
        largest = max((worst_ratio(m) for m in messages), default=math.inf)
        lines += ["", "[[expect]]", f"property = {json.dumps(prop)}"]
        lines += [f"level = {json.dumps(level)}"] if level else []
        lines += [f"kind = {json.dumps(pattern, ensure_ascii=False)}"]
        lines += [f"worst_ratio = {largest * ROOM:.3g}"] if math.isfinite(largest) else []
        lines += [
            f"reason = {json.dumps(f'{len(messages)} examples of the baseline, first: {messages[0].splitlines()[0][:160]}')}"
        ]
    path.write_text("\n".join(lines) + "\n")
    return len(kinds)
