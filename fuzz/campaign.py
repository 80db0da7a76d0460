"""The campaign of one property: rounds of Hypothesis with fresh seeds, until a budget or a time is used up.

An outer loop runs small rounds of ``@given`` and looks at the count and at its share of the time between rounds; the
end of the whole campaign's time is looked at before each example, never inside one. What it hands on: events for the
run folder, cases, and an ``Outcome``. A drive that is given a ``Past`` goes on where a killed one stopped.

Imports hypothesis and ``fuzz``; a target and its kernels come in as arguments. Exercise it with
``pytest tests/fuzz/test_campaign.py``.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from hypothesis import Phase, given, seed
from hypothesis.errors import Flaky, Unsatisfiable

from gdn_apc.fuzz import clock, database, kept, ledger, profiles
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.judge import Broken, check, guarded, raised_by_target
from gdn_apc.fuzz.plan import (
    DEFAULT_BUDGET,
    ROUND,
    SHRINK_GRACE,
    SHRINK_SECONDS,
    SMOKE_ROUND,
    Failure,
    Outcome,
    Past,
    Plan,
    size_key,
)
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.ratios import Histogram
from gdn_apc.fuzz.runs import RunFolder, compact, digest
from gdn_apc.fuzz.shrink import minimise
from gdn_apc.fuzz.validity import problems

if TYPE_CHECKING:
    from gdn_apc.fuzz.targets.base import Target

__all__ = [
    "BARREN_ROUNDS",
    "DEFAULT_BUDGET",
    "ROUND",
    "SHRINK_SECONDS",
    "SMOKE_ROUND",
    "Broken",
    "Drive",
    "Failure",
    "Outcome",
    "Plan",
    "check",
    "raised_by_target",
    "size_key",
]

BARREN_ROUNDS = 3
"""A property whose rounds bring no new case this often in a row has nothing left to draw."""


class ShrinkCap(BaseException):
    """Shrinking used up its time; the smallest case so far is kept."""


class TimeUp(BaseException):
    """The campaign's time is up: the next example does not start."""


class Drive:
    """Runs one shard of one property on a target."""

    def __init__(
        self,
        prop: Property,
        target: Target | Any,
        plan: Plan,
        run: RunFolder,
        *,
        shard: int = 0,
        worker: str = "main",
        provenance: dict[str, Any] | None = None,
        on_round: Callable[[Outcome], None] = lambda outcome: None,
        past: Past | None = None,
    ):
        self.prop, self.target, self.plan, self.run_folder = prop, target, plan, run
        self.shard, self.worker, self.on_round = shard, worker, on_round
        self.provenance = provenance or {"target": plan.target, "seed": plan.seed}
        self.past = past or Past()
        self.database = None
        self.outcome = Outcome(
            examples=len(self.past.seen),
            comparisons=self.past.comparisons,
            rounds=self.past.rounds,
            replayed=self.past.replayed,
        )
        self.failure: Failure | None = None
        self.seen = set(self.past.seen)
        self.histograms: dict[str, Histogram] = {}
        self.spent: Counter[str] = Counter()
        self.number, self.phase = 0, "generate"
        self.until = math.inf

    def run(self, seconds: float = math.inf, until: float = math.inf) -> Outcome:
        """All rounds: up to ``plan.goal`` units or ``seconds``, whichever is first; at least one round.

        No example starts after ``until``, a moment of ``time.monotonic()``; shrinking ends soon after it.
        """
        started, self.until = time.monotonic(), until
        clock.take()
        try:
            self._open_database()
            self.strategy = guarded(self.prop, self.target)
            self._rounds(started + seconds)
        except TimeUp:
            pass
        except KeyboardInterrupt:
            self.outcome.status = "interrupted"
            raise
        except Broken as e:
            self.outcome.status, self.outcome.message = "broken", str(e)
            if e.__cause__ is not None:
                self.outcome.message += "\n" + "".join(traceback.format_exception(e.__cause__)[-4:])
        finally:
            self.outcome.seconds = time.monotonic() - started
            if self.failure is not None:
                self._report_failure()
            self._finish()
        return self.outcome

    def _open_database(self) -> None:
        """Where failing examples are kept; nowhere under ``gate``, which repeats itself."""
        plan = self.plan
        if plan.profile == "gate":
            return
        try:
            self.database = database.database(
                plan.root,
                plan.target,
                self.prop.name,
                plan.database,
                lambda message: self.run_folder.append("note", message=message),
            )
        except kept.NoDatabase as e:  # it was there when the campaign began
            self.run_folder.append("note", message=f"{e}; examples are kept on disk")
            self.database = database.database(plan.root, plan.target, self.prop.name)

    def _rounds(self, deadline: float) -> None:
        goal, size, barren = self.plan.goal(self.prop), self.plan.round_size, 0
        if self.database is not None and self.shard == 0:
            self._round("reuse", profiles.REPLAY, size)
        if self.failure is None and not self.past.fixed:
            self._run_fixed(deadline)
        while (
            self.failure is None and barren < BARREN_ROUNDS and not (self.past.seen and self._units() >= goal)
        ):
            before, began = self.outcome.examples, time.monotonic()
            # A round's first example is always the simplest one: from the second round on it has been seen.
            missing = goal - self._units() + (self.outcome.rounds > 0) if self.prop.kind == "kernel" else size
            self._round("generate", profiles.SEARCH, int(min(size, missing)))
            barren = barren + 1 if self.outcome.examples == before else 0
            now = time.monotonic()
            if self._units() >= goal or now + (now - began) > deadline:
                break
        if (
            self.failure is not None
            and self.failure.shrunk in ("", self.failure.capped)
            and self.target is not None
        ):
            self._edit()

    def _run_fixed(self, deadline: float) -> None:
        """This shard's part of the cases that the property always runs, until one fails or time is up."""
        self.phase, self.number = "fixed", 0
        for i, case in enumerate(self.prop.fixed(self.target)):
            if time.monotonic() > deadline:
                return
            if i % self.plan.shards == self.shard:
                try:
                    self._attempt(case)
                except Violation:
                    return
        self._flush(complete=True)

    def _edit(self) -> None:
        """Make the case small by editing the case itself, in the time that is left.

        Hypothesis shrinks the draws that made it, which takes several times as long and leaves what its strategy
        always makes (``fuzz/mutants/shrinking.md``). So where a case can be edited, Hypothesis is stopped before it starts.
        """
        failure, end = self.failure, self.failure.started + self.failure.seconds
        failure.last = min(failure.last, failure.smallest, key=lambda found: size_key(found[0]))
        failure.until, broke = end, ""

        def fails(case: Case) -> bool:
            try:
                self._attempt(case)  # which takes note of a failure
            except (Violation, Broken) as e:  # broken: no case for this property
                return isinstance(e, Violation)
            return False

        try:
            if failure.attempts < 2 and not fails(failure.last[0]):
                failure.shrunk = "the case passed when it ran again"
                return
            minimise(failure.last[0], fails, self.target.claims, end - time.monotonic())
        except ShrinkCap:
            pass
        except Exception as e:  # must not cost the failure that was found
            broke = f"editing the case broke: {type(e).__name__}: {e}"
        failure.smallest = failure.last
        if broke or time.monotonic() >= end:
            failure.shrunk = broke or failure.capped
        else:
            failure.shrunk = ""

    def _units(self) -> int:
        return self.outcome.units(self.prop)

    def _round(self, phase: str, phases: tuple[Phase, ...], max_examples: int) -> None:
        """One run of ``@given``. Fails into ``self.failure``; raises ``Broken`` for what is our own fault."""
        self.phase = phase
        number = self.number = self.outcome.rounds

        # The settings come last: `seed` switches the example database off in those that it finds.
        @profiles.settings_for(self.plan.profile, phases, max_examples, self.database)
        @seed(profiles.round_seed(self.plan.seed, self.prop.name, self.shard, number))
        @given(case=self.strategy)
        def holds(case: Case) -> None:
            self._attempt(case)

        try:
            holds()
        except Violation:
            pass
        except ShrinkCap:
            self.failure.shrunk = self.failure.capped
        except (SkipTest, Unsatisfiable) as e:
            if phase != "reuse":
                raise Broken(f"{self.prop.name}: no case can be drawn: {type(e).__name__}: {e}") from e
            # Nothing was kept, or nothing of it is a case any more.
        except Exception as e:  # flaky, a failed health check, an invalid strategy
            if self.failure is None:
                raise Broken(f"{self.prop.name}: drawing cases failed: {type(e).__name__}: {e}") from e
            flaky = isinstance(e, Flaky)
            self.failure.shrunk = "the case passed when it ran again" if flaky else f"{type(e).__name__}: {e}"
        if phase == "generate":
            self.outcome.rounds += 1
        self._flush(
            complete=self.failure is None
        )  # what was found is not over before it is shrunk and reported
        self.on_round(self.outcome)

    def _attempt(self, case: Case) -> None:
        """One example: journalled, checked, counted."""
        now = time.monotonic()
        if self.failure is not None:
            self.failure.attempts += 1
            if now > self.failure.until:
                raise ShrinkCap
        elif now > self.until:
            raise TimeUp
        self._charge()
        self.run_folder.journal(self.worker, compact(case, **self._provenance(self.number)))
        try:
            checked = check(self.prop, self.target, case)
        except Violation as e:
            self._charge()
            self._note_failure(case, e)
            raise
        self._charge()
        if self.failure is None:
            self._count(case, checked, time.monotonic() - now)

    def _charge(self) -> None:
        """The time since the last call, by where it went; all of it goes to shrinking once a case has failed."""
        spent = clock.take()
        self.spent.update({"shrinking": sum(spent.values())} if self.failure is not None else spent)

    def _note_failure(self, case: Case, error: Violation) -> None:
        """A failing case: the first is saved as it is, before Hypothesis starts to shrink it."""
        if self.failure is not None:
            self.failure.last = (case, error)
            if size_key(case) < size_key(self.failure.smallest[0]):
                self.failure.smallest = (case, error)
            return
        path = self.run_folder.save_case(case, self._provenance(self.number), suffix="-unshrunk")
        now, found = time.monotonic(), (case, error)
        seconds = min(self.plan.shrink_seconds, max(SHRINK_GRACE, self.until - now))
        self.failure = Failure(path, self.number, self.phase, now, seconds, found, found)
        if self.target is not None and not problems(case):
            self.failure.until = now  # editing it is faster, see `_edit`
        self.run_folder.append("found", **self._where(), message=str(error), case=path.name)
        self.outcome.finding = str(error).splitlines()[0]
        self.on_round(self.outcome)  # shrinking takes a while: say so now

    def _count(self, case: Case, checked: Checked, seconds: float) -> None:
        """A passed example. The ledger's *discovered* tier hears of it in the random phase only."""
        if self.phase == "reuse":
            self.outcome.replayed += 1
            return
        name = digest(case)
        if checked.comparisons == 0 or (name in self.seen and name not in self.past.seen):
            return
        for kind, values in checked.ratios.items():
            self.histograms.setdefault(kind, Histogram()).add(values)
        if name in self.past.seen:  # in the round that a kill cut short; its ratios were not written yet
            return
        self.seen.add(name)
        self.outcome.examples += 1
        self.outcome.comparisons += checked.comparisons
        events = {} if self.phase == "fixed" else checked.events
        self.outcome.ledger.update(events)
        self.run_folder.append(
            "example",
            **self._where(),
            digest=name,
            comparisons=checked.comparisons,
            ledger=dict(events),
            level=case.level,
            dtypes=f"{case.dtypes.input}/{case.dtypes.state}",
            size=[case.sizes.B, case.num_tokens, len(case.steps)],
            seconds=round(seconds, 4),
        )

    def _report_failure(self) -> None:
        """Save the shrunk case and its script, and say how to replay it."""
        failure, outcome = self.failure, self.outcome
        if outcome.status == "interrupted":
            failure.shrunk = "was interrupted"
        else:
            outcome.status = "failed"
        case, error = failure.answer()
        path = self.run_folder.save_failure(
            case,
            str(error),
            self._provenance(failure.number),
            error.where,
            shard=self.shard,
            round=failure.number,
            phase=failure.phase,
            unshrunk=failure.first.name,
            shrunk=failure.shrunk,
            attempts=failure.attempts,
            seconds=round(time.monotonic() - failure.started, 1),
            **ledger.shown(case),
        )
        outcome.case, outcome.message = str(path), str(error)

    def _finish(self) -> None:
        outcome = self.outcome
        self._flush(complete=False)
        if outcome.status != "interrupted":
            self.run_folder.clear_journal(self.worker)
        self.run_folder.append(
            "item",
            **self._where(),
            status=outcome.status,
            examples=outcome.examples,
            comparisons=outcome.comparisons,
            rounds=outcome.rounds,
            replayed=outcome.replayed - self.past.replayed,
            seconds=round(outcome.seconds, 2),
            message=outcome.message,
        )

    def _flush(self, complete: bool) -> None:
        """Record where the time went, and the ratios; ``complete``: a round that came to its end is not run again."""
        self._charge()
        if self.histograms:
            record = {kind: histogram.to_json() for kind, histogram in self.histograms.items()}
            self.run_folder.append("ratios", **self._where(), ratios=record)
            self.histograms = {}
        spent = {label: round(seconds, 4) for label, seconds in self.spent.items() if seconds >= 5e-5}
        self.run_folder.append("round", **self._where(), spent=spent, complete=complete)
        self.spent.clear()

    def _where(self) -> dict[str, Any]:
        return {"property": self.prop.name, "shard": self.shard, "round": self.number, "phase": self.phase}

    def _provenance(self, number: int) -> dict[str, Any]:
        return {**self.provenance, "shard": self.shard, "round": number}
