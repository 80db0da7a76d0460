"""What a target does, clause by clause: so many examples of every property, past every failure, on one page.

A campaign gates a change: it stops a property at its first failure. A survey judges an implementation: it asks the
witnesses of the ledger and a fixed number of examples of each property, sorts failures by their kind, makes the
smallest of each kind small, and goes on. The page has the matrix of claims and one line for each kind::

    python -m gdn_apc.fuzz.verdicts fla vllm                        # 40 examples a property, in about two minutes each
    python -m gdn_apc.fuzz.verdicts vllm --examples 100 --expect known.toml --json vllm.json

``--expect`` names kinds that are known, with reasons; others are marked as new. Imports hypothesis and ``fuzz``.
Exercise it with ``pytest tests/fuzz/test_verdicts.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import claims, expectations, ledger
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.signatures import signature

ROUND = 11
"""Examples of one run of Hypothesis: it draws more widely in short runs (``fuzz/campaign.py``)."""

SHRINK_SECONDS = 10.0
"""For the smallest case of each kind."""


@dataclass
class Kind:
    """One kind of failure: its smallest case, that case's message, and the entry that knows it ("" if none)."""

    property: str
    pattern: str
    case: Case
    message: str
    count: int = 0
    entry: str = ""
    reason: str = ""
    witnesses: list[str] = field(default_factory=list)
    shown: dict[str, Any] = field(
        default_factory=dict
    )  # what all its examples have in common, see claims.common


@dataclass
class Survey:
    """What one target did."""

    target: str
    versions: dict[str, str]
    device: str
    start: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    not_asked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def new(self) -> list[Kind]:
        """Kinds that no entry knows."""
        return [k for k in self.kinds if not k.entry]

    def compared(self) -> dict[str, int]:
        """Examples of each property that compared something and held."""
        found: dict[str, int] = {}
        for e in self.events:
            if e["event"] == "example":
                found[e["property"]] = found.get(e["property"], 0) + 1
        return found

    def to_json(self) -> str:
        """The survey as JSON, each kind's case inside."""
        record = {
            "target": self.target,
            "versions": self.versions,
            "device": self.device,
            "not_asked": self.not_asked,
            "compared": self.compared(),
            "clauses": self.start["clauses"],
            "counts": claims.tally(self.events),
            "kinds": [
                {
                    "property": k.property,
                    "message": k.message.splitlines()[0],
                    "count": k.count,
                    "reason": k.reason,
                    "entry": k.entry,
                    "witnesses": k.witnesses,
                    "shown": {key: k.shown[key] for key in ("level", "dtypes", "ledger")},
                    "case": json.loads(k.case.to_json()),
                }
                for k in self.kinds
            ],
        }
        return json.dumps(record, indent=1)


class Enough(Exception):
    """The time for asking is over."""


class Surveyor:
    """Asks one target, for at most ``seconds``. ``known`` may be empty; ``on_property`` hears of each property that
    came to its end. What was asked before the time was over is judged; a clause with too few examples is not shown."""

    def __init__(
        self,
        target: Any,
        known: expectations.Expectations | None = None,
        *,
        shrink_seconds: float = SHRINK_SECONDS,
        seconds: float = math.inf,
        on_property: Callable[[str, int, int, float], None] = lambda name, held, failed, seconds: None,
    ):
        from gdn_apc.fuzz import properties
        from gdn_apc.fuzz.session import device_name

        self.target, self.known = target, known or expectations.Expectations()
        self.shrink_seconds, self.on_property = shrink_seconds, on_property
        self.until = time.monotonic() + seconds
        self.properties = properties.load_all()
        self.needs = {p.name: p.needs(target) for p in self.properties.values()}
        start = {"clauses": claims.record(target.claims)}
        self.survey = Survey(target.name, target.versions(), device_name(target), start)
        self.seen: set[str] = set()

    def run(
        self, examples: int, names: Iterable[str] | None = None, seed: int = 0, fixed: bool = True
    ) -> Survey:
        """The witnesses, then ``examples`` distinct cases of each property that the target can be asked.

        ``fixed``: also the cases that a property always runs, such as all 45,000 small batches of the metadata.
        """
        began = time.monotonic()
        chosen = [
            p for p in self.properties.values() if p.kind != "canary" and (names is None or p.name in names)
        ]
        for prop in chosen:
            if self.needs[prop.name] is not None:
                self.survey.not_asked[prop.name] = self.needs[prop.name]
                continue
            started, before = time.monotonic(), len(self.survey.events)
            with contextlib.suppress(Enough):
                if prop.name == "values":
                    self._witnesses(prop)
                for case in prop.fixed(self.target) if fixed else ():
                    self._ask(prop, case)
                self._examples(prop, examples, seed)
            made = [e["event"] for e in self.survey.events[before:]]
            self.on_property(
                prop.name,
                made.count("example"),
                len(made) - made.count("example"),
                time.monotonic() - started,
            )
        for kind in self.survey.kinds:
            self._shrink(kind)
        self.survey.seconds = time.monotonic() - began
        return self.survey

    def _witnesses(self, prop: Property) -> None:
        from gdn_apc.fuzz import witnesses

        for name, event in ledger.EVENTS.items():
            if event.missing(self.target.claims) is None:
                self._ask(prop, witnesses.witness(name, self.target), witness=name)

    def _examples(self, prop: Property, examples: int, seed: int) -> None:
        """Rounds of Hypothesis until so many distinct cases were asked, or three rounds brought none."""
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import seed as seeded

        from gdn_apc.fuzz.profiles import round_seed

        strategy, goal, number, barren = prop.strategy(self.target), len(self.seen) + examples, 0, 0
        while len(self.seen) < goal and barren < 3:
            before = len(self.seen)

            @settings(
                max_examples=min(ROUND, goal - before + (number > 0)),
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @seeded(round_seed(seed, prop.name, 0, number))
            @given(case=strategy)
            def ask(case: Case) -> None:
                self._ask(prop, case)

            ask()
            number, barren = number + 1, barren + 1 if len(self.seen) == before else 0

    def _ask(self, prop: Property, case: Case, witness: str = "") -> None:
        """One case: an example if it held, else one more of its kind."""
        key = prop.name + case.to_json()
        if key in self.seen:
            return
        if time.monotonic() > self.until:
            raise Enough
        self.seen.add(key)
        outcome = self._check(prop, case)
        if isinstance(outcome, Checked):
            if outcome.comparisons:
                self.survey.events.append(_event("example", prop, case, comparisons=outcome.comparisons))
            return
        message = str(outcome)
        entry = self.known.find(prop.name, case, message)
        pattern = entry.name if entry else signature(message)
        kind = next((k for k in self.survey.kinds if (k.property, k.pattern) == (prop.name, pattern)), None)
        if kind is None:
            kind = Kind(
                prop.name,
                pattern,
                case,
                message,
                entry=entry.name if entry else "",
                reason=entry.reason if entry else "",
            )
            self.survey.kinds.append(kind)
        elif _size(case) < _size(kind.case):
            kind.case, kind.message = case, message
        kind.count += 1
        event = {**_event("failure", prop, case), "message": message}
        kind.shown = claims.common([kind.shown, event] if kind.shown else [event])
        kind.witnesses += [witness] if witness else []
        self.survey.events.append({"event": "passed over", "property": prop.name})

    def _check(self, prop: Property, case: Case) -> Checked | Violation:
        try:
            return expectations.judge(prop, self.target, case)
        except Violation as e:
            return e

    def _shrink(self, kind: Kind) -> None:
        """A smaller case of the same kind."""
        from gdn_apc.fuzz.shrink import minimise

        prop = self.properties[kind.property]

        def fails(case: Case) -> bool:
            try:
                outcome = self._check(prop, case)
            except ValueError:  # the property cannot judge this case
                return False
            if isinstance(outcome, Checked):
                return False
            entry = self.known.find(prop.name, case, str(outcome))
            if kind.pattern != (entry.name if entry else signature(str(outcome))):
                return False
            kind.case, kind.message = case, str(outcome)
            return True

        minimise(kind.case, fails, self.target.claims, self.shrink_seconds)


def _event(kind: str, prop: Property, case: Case, **more: Any) -> dict[str, Any]:
    return {
        "event": kind,
        "property": prop.name,
        **ledger.shown(case),
        **more,
    }


def _size(case: Case) -> tuple[int, int, int]:
    from gdn_apc.fuzz.campaign import size_key

    return size_key(case)


def merge(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of several surveys of one target, each of other properties: run side by side, judged together."""
    found = {**records[0], "compared": {}, "not_asked": {}, "counts": Counter(), "kinds": []}
    for record in records:
        found["compared"] |= record["compared"]
        found["not_asked"] |= record["not_asked"]
        found["counts"].update(record["counts"])
        found["kinds"] += record["kinds"]
    return found


def matrix(record: dict[str, Any]) -> list[claims.Row]:
    """The matrix of claims of a survey's record."""
    failures = [
        {
            "event": "failure",
            "property": k["property"],
            "message": k["message"],
            **k["shown"],
            "smallest": ledger.events_of(Case.from_json(json.dumps(k["case"]))),
        }
        for k in record["kinds"]
    ]
    return claims.judge(record["clauses"], record["counts"], failures)


# ---- the page ---------------------------------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    """A survey's record (:meth:`Survey.to_json`) as Markdown."""
    from gdn_apc.fuzz.page import table

    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    compared = record["compared"]
    asked = ", ".join(f"{name} {count:,}" for name, count in compared.items())
    lines = [f"{versions}; {record['device']}. Examples that compared something: {asked}.", ""]
    lines += [table(*claims.table(matrix(record))), ""]
    if record["kinds"]:
        lines += [table(["failure", "examples", "smallest case", "why"], [_kind(k) for k in record["kinds"]])]
    else:
        lines += ["Nothing failed."]
    return "\n".join(lines)


def _kind(k: dict[str, Any]) -> list[str]:
    case, message = k["case"], k["message"]
    tokens = sum(r["m"] for s in case["steps"] for r in s["rows"])
    events = len(case["choice"].get("events", ()))
    size = f"{len(case['requests'])} requests, " + (f"{tokens} tokens" if tokens else f"{events} events")
    where = f"{case['level']} {case['dtypes']['input']}/{case['dtypes']['state']}"
    cut = message if len(message) <= 200 else message[:200] + " …"
    return [f"`{k['property']}`: {cut}", str(k["count"]), f"{size}, {where}", k["reason"] or "**new**"]


def _say(name: str, held: int, failed: int, seconds: float) -> None:
    print(f"  {name:18} {held:5} held {failed:5} failed {seconds:6.1f} s", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Survey targets and print their pages. Returns 1 if a kind is new, else 0; 4 if a target cannot run."""
    from gdn_apc.fuzz import targets
    from gdn_apc.fuzz.runs import digest

    parser = argparse.ArgumentParser(
        prog="python -m gdn_apc.fuzz.verdicts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument(
        "--examples", type=int, default=40, help="distinct cases of each property (default: 40)"
    )
    parser.add_argument("--property", action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--expect", action="append", default=[], metavar="FILE", help="known failures, with reasons"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the record of the last target")
    parser.add_argument("--cases", metavar="DIR", help="also write the smallest case of each kind")
    parser.add_argument(
        "--shrink", type=float, default=SHRINK_SECONDS, help="seconds for each kind of failure"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="ask no longer than this (default: until all is asked)",
    )
    parser.add_argument(
        "--no-tuning",
        action="store_true",
        help="autotuned kernels take their first configuration; on a GPU every new shape is else timed in all of them",
    )
    parser.add_argument(
        "--merge", action="store_true", help="TARGETs are records of --json: print them as one page"
    )
    given = parser.parse_args(arguments)
    status = 0
    if given.merge:
        record = merge([json.loads(Path(name).read_text()) for name in given.targets])
        print(f"## {record['target']}\n\n{page(record)}\n")
        return 1 if any(not k["entry"] for k in record["kinds"]) else 0
    for name in given.targets:
        try:
            target = targets.load(name)
        except targets.TargetUnavailable as e:
            print(e, file=sys.stderr)
            return 4
        targets.threads(1)
        if given.no_tuning:
            from gdn_apc.fuzz.interpreter._autotune import first_configurations

            first_configurations()
        known = expectations.load(given.expect)
        survey = Surveyor(
            target, known, shrink_seconds=given.shrink, seconds=given.seconds, on_property=_say
        ).run(given.examples, given.property, given.seed)
        print(f"## {name}\n\n{page(json.loads(survey.to_json()))}\n\n{survey.seconds:.0f} s\n", flush=True)
        if given.json:
            Path(given.json).write_text(survey.to_json() + "\n")
        for kind in survey.kinds if given.cases else ():
            Path(given.cases).mkdir(parents=True, exist_ok=True)
            path = Path(given.cases) / f"{name}-{kind.property}-{digest(kind.case)}.json"
            path.write_text(kind.case.to_json(target=name, versions=survey.versions) + "\n")
        status = max(status, 1 if survey.new else 0)
    return status


if __name__ == "__main__":
    sys.exit(main())
