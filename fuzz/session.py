"""A campaign inside one process: its target, its properties, its share of the time, and its run folder.

The pytest plugin opens one :class:`Session` when tests of ours are about to run (in each worker, under
pytest-xdist); the tests of ``fuzz/test_campaign.py`` are thin calls of its methods.

Imports ``fuzz`` and torch; kernels only through the target. Exercise it with ``pytest tests/fuzz/test_exit_status.py``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import configuration

from gdn_apc.fuzz import (
    canary,
    claims,
    clock,
    expectations,
    floors,
    kept,
    ledger,
    properties,
    resume,
    targets,
    witnesses,
)
from gdn_apc.fuzz.campaign import DEFAULT_BUDGET, Broken, Drive, Outcome, Plan, check
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.engine.events import EVENTS
from gdn_apc.fuzz.options import SMOKE_SECONDS
from gdn_apc.fuzz.plan import Past
from gdn_apc.fuzz.profiles import GATE_SEED, keeps_examples
from gdn_apc.fuzz.properties.base import Property, Violation
from gdn_apc.fuzz.runs import HOME, RunFolder, compact, environment, revision
from gdn_apc.fuzz.summary import HELD, INCOMPLETE, KERNEL_FLOOR, PAIR_FLOOR, Totals, verdict
from gdn_apc.fuzz.triage.after import after_failure

WITNESSED_BY = "values"
"""The property that checks the witnesses: every output and every written block."""

REPORT_SECONDS = 3.0
"""Of a limited time, so much is kept for the reports."""

KINDS = ("metadata", "kernel", "machine")
"""The order of a campaign: the cheapest first."""


def ordered() -> list[Property]:
    """Every property of a campaign, in the order in which they run."""
    found = [p for p in properties.load_all().values() if p.kind != "canary"]
    return sorted(found, key=lambda p: KINDS.index(p.kind))


def select(names: list[str] | None) -> list[Property]:
    """The properties called ``names``, or all. Raises ``ValueError`` for a name that does not exist."""
    every = ordered()
    unknown = sorted(set(names or ()) - {p.name for p in every})
    if unknown:
        known = ", ".join(p.name for p in every)
        raise ValueError(f"property: {unknown[0]!r} does not exist; choose from {known}")
    return [p for p in every if not names or p.name in names]


def events() -> list[str]:
    """The must-happen events; each has a witness."""
    return list(ledger.EVENTS)


class Session:
    """One process's part of a campaign."""

    def __init__(
        self,
        options: dict[str, Any],
        *,
        root: Path,
        run: RunFolder,
        seed: int,
        worker: str = "main",
        shards: int = 1,
        workers: int = 1,
    ):
        self.run, self.worker, self.shards, self.workers = run, worker, shards, workers
        self.options, self.root, self.seed = options, root, seed
        self.name = options.get("gdn_target") or targets.DEFAULT
        self.target: Any = None
        self.needs: dict[str, str | None] = {}
        self.unavailable = ""
        self.old_threads = 1
        self.done, self.items = 0, 1
        self.deadline = math.inf
        self.pasts: dict[tuple[str, int], Past] = {}
        self.witnessed: dict[str, dict[str, Any] | None] = {}
        self.resumed = bool(options.get("gdn_resume"))
        self.known = expectations.Expectations()

    def open(self, selected: list[str], items: int) -> None:
        """Load the target and record the start. Raises ``TargetUnavailable`` after recording that too.

        ``selected`` names the properties to run and ``items`` counts the (property, shard) pairs of all workers.
        Raises ``NoDatabase`` or ``Mismatch`` where the campaign may not begin or go on like this.
        """
        self.run.create()
        configuration.set_hypothesis_home_dir(
            self.root / HOME / "hypothesis"
        )  # its caches, else ./.hypothesis
        self.old_threads = targets.threads(1)
        every = ordered()
        try:
            self.known = expectations.of_options(self.options)
            self.target = targets.load(self.name)
        except targets.TargetUnavailable as e:
            self.unavailable = str(e)
            self.run.append("start", target=self.name, seed=self.seed, versions=environment())
            self.run.append("usage", message=str(e))
            raise
        self.provenance = self._provenance()
        earlier = self._earlier()
        self.needs = {p.name: p.needs(self.target) for p in every}
        self.plan = self._plan(every)
        if self.plan.database is not None:
            kept.connect(self.plan.database)
        self.items = math.ceil(items / self.workers)
        self._set_deadline(earlier)
        self.run.append("start", **self._start(every, selected))

    def _earlier(self) -> float:
        """What the folder's events say of earlier legs; seconds that they took. Raises ``Mismatch``."""
        if not self.resumed:
            return 0.0
        events = self.run.events()
        resume.same(resume.start_of(self.run), {**self.provenance, **self._code()})
        self.pasts, self.witnessed = resume.pasts(events), resume.witnessed(events)
        return Totals.of(events).earlier

    def _set_deadline(self, earlier: float) -> None:
        """The moment at which the search must end; a limited time counts from the command's start."""
        if not (self.plan.smoke or self.plan.minutes):
            return
        seconds = SMOKE_SECONDS if self.plan.smoke else 60 * self.plan.minutes
        if self.options.get("gdn_more_time"):  # how long to go on was given anew
            earlier = 0.0
        reports = REPORT_SECONDS + floors.measuring_seconds(self.target, self.root)
        left = seconds - earlier - clock.elapsed()
        self.deadline = time.monotonic() + left - min(reports, 0.1 * seconds if left > 0 else 0)

    def _plan(self, every: list[Property]) -> Plan:
        get = self.options.get
        smoke, minutes = bool(get("gdn_smoke")), get("gdn_minutes")
        budget = (
            None if smoke or minutes else get("gdn_budget") or default_budget(self.target, self._asked(every))
        )
        return Plan(
            target=self.name,
            seed=self.seed,
            root=self.root,
            budget=budget,
            minutes=minutes,
            smoke=smoke,
            profile=get("gdn_profile") or "fuzz",
            shards=self.shards,
            database=kept.url_of(self.options),
        )

    def _asked(self, every: list[Property]) -> list[Property]:
        return [p for p in every if self.needs[p.name] is None]

    def _provenance(self) -> dict[str, Any]:
        return {
            "target": self.name,
            "versions": {**environment(), **self.target.versions()},
            "device": device_name(self.target),
            "revision": revision(Path(__file__).parent),
            "seed": self.seed,
            "profile": self.options.get("gdn_profile") or "fuzz",
        }

    def _code(self) -> dict[str, str]:
        return {"code": resume.code(Path(__file__).parents[1], resume.sources(type(self.target).__module__))}

    def _start(self, every: list[Property], selected: list[str]) -> dict[str, Any]:
        claimed, left_out = pairs(self.target)
        return {
            **self.provenance,
            **self._code(),
            "budget": self.plan.budget,
            "budget_asked": self.options.get("gdn_budget"),
            "minutes": self.plan.minutes,
            "smoke": self.plan.smoke,
            "shards": self.shards,
            "workers": self.workers,
            **{name: self.options.get(f"gdn_{name}") for name in resume.KNOWN},
            "worker": self.worker,
            "database": kept.masked(self.plan.database) if self.plan.database else None,
            "command": [_without_secrets(word) for word in sys.argv],
            "selected": selected,
            "selection": self.options.get("gdn_property"),
            "claims": floors.claims_record(self.target.claims),
            "clauses": claims.record(self.target.claims),
            "known": expectations.record(self.known, self.needs),
            "properties": [
                {"name": p.name, "kind": p.kind, "floor": p.floor, "doc": p.doc, "needs": self.needs[p.name]}
                for p in every
            ],
            "pairs": claimed,
            "pairs_left_out": left_out,
            "kernel_floor": kernel_floor(self._asked(every)),
            "lives": EVENTS if any(p.kind == "machine" for p in self._asked(every)) else {},
            "examples_kept": keeps_examples(self.plan.profile),
            "ledger": [
                {"name": e.name, "doc": e.doc, "needs": self.needs_of(e.name)} for e in ledger.EVENTS.values()
            ],
        }

    def close(self) -> None:
        """Give Hypothesis's folder back to the adopter's own tests."""
        configuration.set_hypothesis_home_dir(None)
        targets.threads(self.old_threads)

    def share(self) -> float:
        """Seconds for the next (property, shard): what is left, divided by what is left to run here."""
        return max(0.0, self.deadline - time.monotonic()) / max(1, self.items - self.done)

    def needs_of(self, event: str) -> str | None:
        """Why the target cannot reach a must-happen event, or None."""
        return self.needs.get(WITNESSED_BY) or ledger.EVENTS[event].missing(self.target.claims)

    def past(self, prop: Property, shard: int) -> Past:
        """What earlier legs did of a shard; nothing, if it is the first."""
        return self.pasts.get((prop.name, shard), Past())

    def is_over(self, prop: Property, shard: int) -> bool:
        """Whether an earlier leg finished a shard: it failed, or compared all that it should."""
        past = self.past(prop, shard)
        units = len(past.seen) if prop.kind == "kernel" else past.comparisons
        return past.status == "failed" or (past.status == "held" and units >= self.plan.goal(prop))

    def canary(self) -> str:
        """Run the canary. Raises :class:`~gdn_apc.fuzz.canary.Silent`; records either way."""
        try:
            message = canary.run(self.plan, self.run)
            if self.needs.get(WITNESSED_BY, "no such property") is None:
                case = witnesses.witness("cold_prefill", self.target)
                message += canary.sabotage(properties.load_all()[WITNESSED_BY], self.target, case)
        except canary.Silent as e:
            self.run.append("canary", ok=False, message=str(e))
            raise
        self.run.append("canary", ok=True, message=message)
        for entry, said in self.known.mended(properties.load_all(), self.target):
            self.run.append("mended", entry=entry, message=said)
        return message

    def _guarded(self, prop: Property) -> Property:
        """The property, which passes over known failures and records them."""

        def met(entry: expectations.Entry, case: Case, message: str) -> None:
            shown = ledger.shown(case)
            self.run.append("expected", property=prop.name, entry=entry.name, message=message, **shown)

        return self.known.guard(prop, met)

    def witness(self, event: str) -> tuple[Path, Violation] | None:
        """Run the witness of a must-happen event. A failure is recorded and returned with its case; may raise ``Broken``."""
        case = witnesses.witness(event, self.target)
        provenance = {**self.provenance, "shard": 0, "round": 0}
        self.run.journal(self.worker, compact(case, **provenance))
        failed = None
        try:
            checked = check(self._guarded(properties.load_all()[WITNESSED_BY]), self.target, case)
            reached = checked.events[event] > 0 or bool(checked.expected)
            self.run.append("witness", name=event, reached=reached)
        except Violation as e:
            more = {"shard": 0, "round": 0, "phase": "witness", "witness": event, **ledger.shown(case)}
            failed = self.run.save_failure(case, str(e), provenance, e.where, **more), e
            self._triage(failed[0], properties.load_all()[WITNESSED_BY], e)
        except Broken as e:
            self.run.append("broken", message=f"witness of {event}: {e}")
            raise
        self.run.clear_journal(self.worker)
        return failed

    def drive(self, prop: Property, shard: int, on_round: Callable[[Outcome], None]) -> Outcome:
        """Run one shard of a property within its share of the time."""
        drive = Drive(
            self._guarded(prop),
            self.target,
            self.plan,
            self.run,
            shard=shard,
            worker=self.worker,
            provenance=self.provenance,
            on_round=on_round,
            past=self.past(prop, shard),
        )
        seconds = self.share()
        self.done += 1
        outcome = drive.run(seconds, self.deadline)
        if outcome.status == "failed" and outcome.case:
            self._triage(Path(outcome.case), prop, Violation(outcome.message))
        return outcome

    def _triage(self, case: Path, prop: Property, error: Violation) -> None:
        """Triage a failing case, unless the campaign's time is up: it takes dozens of runs."""
        if time.monotonic() > self.deadline:
            self.run.append("triage", case=case.name, left_out=f"no time was left; gdn-apc triage {case}")
        else:
            after_failure(self.run, case, prop, self.target, error)


def default_budget(target: Any, asked: list[Property]) -> int:
    """Examples of a kernel property when none is given: more than the usual where few properties apply.

    The floors over all kernel properties together (300 examples, 20 of each pair of dtypes) hold for a target
    that can be asked little as well; twice the floor of a pair makes falling below it by chance unlikely.
    """
    kernels = sum(p.kind == "kernel" for p in asked)
    if kernels == 0:
        return DEFAULT_BUDGET
    in_all = max(kernel_floor(asked), 2 * PAIR_FLOOR * len(pairs(target)[0]))
    return max(DEFAULT_BUDGET, math.ceil(in_all / kernels))


def kernel_floor(asked: list[Property]) -> int:
    """Examples of all kernel properties together in a complete campaign; less for a target that can be asked little."""
    return min(KERNEL_FLOOR, sum(p.floor for p in asked if p.kind == "kernel"))


def pairs(target: Any) -> tuple[list[str], list[str]]:
    """Pairs "input/cache" of dtypes that the target claims, and those of the contract that it does not."""
    every = [(i, s) for i in ("bf16", "fp16", "fp32") for s in ("bf16", "fp16", "fp32")]
    claims = target.claims
    claimed = [f"{i}/{s}" for i, s in every if i in claims.input_dtypes and s in claims.state_dtypes]
    return claimed, [f"{i}/{s}" for i, s in every if f"{i}/{s}" not in claimed]


def device_name(target: Any) -> str:
    """``cpu``, or ``cuda`` with the GPU's name."""
    import torch

    device = target.device()
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def seed_of(options: dict[str, Any], fresh: int) -> int:
    """The campaign's seed: the one given; else a fixed one for ``gate`` and ``smoke``, else ``fresh``."""
    given = options.get("gdn_seed")
    if given is not None:
        return given
    return GATE_SEED if options.get("gdn_profile") == "gate" or options.get("gdn_smoke") else fresh


def record_floors(run: RunFolder, root: Path) -> None:
    """Record the floors of the ledger's *discovered* tier for what this campaign compared, once it has ended.

    They depend on how many examples each property was compared on, so no earlier moment would do. The target itself is
    not needed, only what its start recorded: another machine may have run it.
    """
    totals = Totals.of([*run.events(), {"event": "end", "reason": "finished"}])
    if verdict(totals).status not in (HELD, INCOMPLETE) or not totals.start.get("ledger"):
        return
    kernels = {name: count for name, count in totals.examples.items() if totals.kinds.get(name) == "kernel"}
    try:
        found = floors.recorded(totals.start, kernels, root)
    except Exception as e:
        run.append("broken", message=f"the ledger's floors: {type(e).__name__}: {e}")
    else:
        run.append("floors", floors=found)


def _without_secrets(word: str) -> str:
    """An argument of the command line, without the password of a database's URL."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{kept.masked(value)}" if "://" in value else word
