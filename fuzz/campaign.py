"""The campaign of one property: rounds of Hypothesis with fresh seeds, until a budget or a time is used up.

An outer loop runs small rounds of ``@given`` and looks at the clock and the count between rounds only, never
inside an example. What it hands on: events for the run folder, cases, and an :class:`Outcome`.

Imports hypothesis and ``fuzz``; a target and its kernels come in as arguments. Exercise it with
``pytest tests/fuzz/test_campaign.py``.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from hypothesis import Phase, given, seed, strategies
from hypothesis.errors import Flaky, HypothesisException, Unsatisfiable

from gdn_apc.fuzz import profiles
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.ratios import Histogram
from gdn_apc.fuzz.runs import RunFolder, compact, digest
from gdn_apc.fuzz.shrink import minimise

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from gdn_apc.fuzz.targets.base import Target

DEFAULT_BUDGET = 100
"""Examples of a kernel property. Its floor is 40; a few draws repeat an earlier case and are not counted."""

SHRINK_SECONDS = 120.0
ROUND, SMOKE_ROUND = 11, 4
"""Examples of a round. Hypothesis derives new examples from earlier ones from the eleventh on, and those are like one
another: short rounds draw more widely. (``fuzz/floors.py`` measures with the same length.)"""

BARREN_ROUNDS = 3
"""A property whose rounds bring no new case this often in a row has nothing left to draw."""


class Broken(BaseException):
    """Our own code failed while drawing or checking. Not an ``Exception``, so that Hypothesis lets it through."""


class ShrinkCap(BaseException):
    """Shrinking used up its time; the smallest case so far is kept."""


@dataclass(frozen=True)
class Plan:
    """What a campaign was asked for. ``budget`` counts examples of a kernel property; None: until time is up."""

    target: str
    seed: int
    root: Path
    budget: int | None = DEFAULT_BUDGET
    minutes: float | None = None
    smoke: bool = False
    profile: str = "fuzz"
    shards: int = 1
    shrink_seconds: float = SHRINK_SECONDS

    def goal(self, prop: Property) -> float:
        """Units that one shard of ``prop`` should compare: examples for kernels, comparisons for the other kinds."""
        if self.budget is None:
            return math.inf
        if prop.kind == "kernel":
            return math.ceil(self.budget / self.shards)
        share = min(1.0, self.budget / DEFAULT_BUDGET)
        return max(1, math.ceil(prop.floor * share / self.shards))

    @property
    def round_size(self) -> int:
        """Examples of one round. Never changed by the clock, so that a seed means the same cases."""
        return SMOKE_ROUND if self.smoke else ROUND


@dataclass
class Failure:
    """What a property rejects: the first failing case, then the smallest one seen, and the last one tried.

    When shrinking ends by itself, the last one is Hypothesis's answer; when it is stopped, the smallest is ours.
    """

    first: Path  # the unshrunk case, saved before anything else
    number: int  # of the round
    phase: str  # "generate" or "reuse"
    started: float
    until: float  # when shrinking must stop; Hypothesis gets the first half of the time, editing the case what is left
    smallest: tuple[Case, Violation]
    last: tuple[Case, Violation]
    attempts: int = 0
    shrunk: str = ""  # why shrinking stopped early; empty when it came to its end

    def answer(self) -> tuple[Case, Violation]:
        """The case to report."""
        return self.smallest if self.shrunk else self.last


@dataclass
class Outcome:
    """What one shard of a property did. ``status``: held, failed, broken or interrupted."""

    status: str = "held"
    examples: int = 0  # distinct cases that passed after at least one comparison
    comparisons: int = 0
    rounds: int = 0
    replayed: int = 0  # cases of the example database, counted nowhere else
    seconds: float = 0.0
    message: str = ""
    case: str = ""
    ledger: Counter[str] = field(default_factory=Counter)

    def units(self, prop: Property) -> int:
        """What ``Plan.goal`` counts."""
        return self.examples if prop.kind == "kernel" else self.comparisons


def size_key(case: Case) -> tuple[int, int, int]:
    """How hard a case is to read: tokens, rows, length of its text."""
    return case.num_tokens, sum(len(s.rows) for s in case.steps), len(case.to_json())


def raised_by_target(error: BaseException, target: Any) -> bool:
    """Whether ``error`` passed through a method of the target: then the target broke, not the suite."""
    return any(
        "self" in frame.f_locals and frame.f_locals["self"] is target
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def check(prop: Property, target: Any, case: Case) -> Checked:
    """``prop.check`` with every exception sorted: ``Violation`` if the target is at fault, ``Broken`` if we are."""
    try:
        return prop.check(target, case)
    except (Violation, HypothesisException):
        raise
    except Exception as e:
        if raised_by_target(e, target):
            raise Violation(f"the target raised {type(e).__name__}: {e}", raised=type(e).__name__) from e
        raise Broken(f"{prop.name}: {type(e).__name__}: {e}") from e


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
    ):
        self.prop, self.target, self.plan, self.run_folder = prop, target, plan, run
        self.shard, self.worker, self.on_round = shard, worker, on_round
        self.provenance = provenance or {"target": plan.target, "seed": plan.seed}
        self.database = profiles.database(plan.profile, plan.root, plan.target, prop.name)
        self.outcome = Outcome()
        self.failure: Failure | None = None
        self.seen: set[str] = set()
        self.histograms: dict[str, Histogram] = {}
        self.number, self.phase = 0, "generate"

    def run(self, seconds: float = math.inf) -> Outcome:
        """All rounds: up to ``plan.goal`` units or ``seconds``, whichever is first; at least one round."""
        started = time.monotonic()
        try:
            self.strategy = _guarded(self.prop, self.target)
            self._rounds(started + seconds)
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

    def _rounds(self, deadline: float) -> None:
        goal, size, barren = self.plan.goal(self.prop), self.plan.round_size, 0
        if self.database is not None:
            self._round("reuse", profiles.REPLAY, size)
        if self.failure is None:
            self._run_fixed(deadline)
        while self.failure is None and barren < BARREN_ROUNDS:
            before, began = self.outcome.examples, time.monotonic()
            # A round's first example is always the simplest one: from the second round on it has been seen.
            missing = goal - self._units() + (self.outcome.rounds > 0) if self.prop.kind == "kernel" else size
            self._round("generate", profiles.SEARCH, int(min(size, missing)))
            barren = barren + 1 if self.outcome.examples == before else 0
            now = time.monotonic()
            if self._units() >= goal or now + (now - began) > deadline:
                break
        if self.failure is not None and self.failure.shrunk in ("", self._capped) and self.target is not None:
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

    def _edit(self) -> None:
        """Go on shrinking by editing the case itself, in the time that is left: it loses what its strategy always makes."""
        failure, end = self.failure, self.failure.started + self.plan.shrink_seconds
        failure.last = min(failure.last, failure.smallest, key=lambda found: size_key(found[0]))
        failure.until, before, broke = end, failure.last, ""

        def fails(case: Case) -> bool:
            try:
                self._attempt(case)  # which takes note of a failure
            except (Violation, Broken) as e:  # broken: no case for this property
                return isinstance(e, Violation)
            return False

        try:
            minimise(failure.last[0], fails, self.target.claims, end - time.monotonic())
        except ShrinkCap:
            pass
        except Exception as e:  # must not cost the failure that was found
            broke = f"editing the case broke: {type(e).__name__}: {e}"
        failure.smallest = failure.last
        if broke or time.monotonic() >= end:
            failure.shrunk = broke or self._capped
        elif failure.last is not before:
            failure.shrunk = ""

    @property
    def _capped(self) -> str:
        return f"stopped at its cap of {self.plan.shrink_seconds:g} s"

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
            self.failure.shrunk = self._capped
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
        self._flush_ratios()
        self.on_round(self.outcome)

    def _attempt(self, case: Case) -> None:
        """One example: journalled, checked, counted."""
        if self.failure is not None:
            self.failure.attempts += 1
            if time.monotonic() > self.failure.until:
                raise ShrinkCap
        self.run_folder.journal(self.worker, compact(case, **self._provenance(self.number)))
        started = time.monotonic()
        try:
            checked = check(self.prop, self.target, case)
        except Violation as e:
            self._note_failure(case, e)
            raise
        if self.failure is None:
            self._count(case, checked, time.monotonic() - started)

    def _note_failure(self, case: Case, error: Violation) -> None:
        """A failing case: the first is saved as it is, before Hypothesis starts to shrink it."""
        if self.failure is not None:
            self.failure.last = (case, error)
            if size_key(case) < size_key(self.failure.smallest[0]):
                self.failure.smallest = (case, error)
            return
        path = self.run_folder.save_case(case, self._provenance(self.number), suffix="-unshrunk")
        now, found = time.monotonic(), (case, error)
        half = now + self.plan.shrink_seconds / 2
        self.failure = Failure(path, self.number, self.phase, now, half, found, found)
        self.run_folder.append("found", **self._where(), message=str(error), case=path.name)

    def _count(self, case: Case, checked: Checked, seconds: float) -> None:
        """A passed example. The ledger's *discovered* tier hears of it in the random phase only."""
        if self.phase == "reuse":
            self.outcome.replayed += 1
            return
        name = digest(case)
        if checked.comparisons == 0 or name in self.seen:
            return
        self.seen.add(name)
        self.outcome.examples += 1
        self.outcome.comparisons += checked.comparisons
        events = {} if self.phase == "fixed" else checked.events
        self.outcome.ledger.update(events)
        for kind, values in checked.ratios.items():
            self.histograms.setdefault(kind, Histogram()).add(values)
        self.run_folder.append(
            "example",
            **self._where(),
            digest=name,
            comparisons=checked.comparisons,
            ledger=dict(events),
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
        )
        outcome.case, outcome.message = str(path), str(error)

    def _finish(self) -> None:
        outcome = self.outcome
        self._flush_ratios()
        if outcome.status != "interrupted":
            self.run_folder.clear_journal(self.worker)
        self.run_folder.append(
            "item",
            **self._where(),
            status=outcome.status,
            examples=outcome.examples,
            comparisons=outcome.comparisons,
            rounds=outcome.rounds,
            replayed=outcome.replayed,
            seconds=round(outcome.seconds, 2),
            message=outcome.message,
        )

    def _flush_ratios(self) -> None:
        if self.histograms:
            record = {kind: histogram.to_json() for kind, histogram in self.histograms.items()}
            self.run_folder.append("ratios", **self._where(), ratios=record)
            self.histograms = {}

    def _where(self) -> dict[str, Any]:
        return {"property": self.prop.name, "shard": self.shard, "round": self.number, "phase": self.phase}

    def _provenance(self, number: int) -> dict[str, Any]:
        return {**self.provenance, "shard": self.shard, "round": number}


def _guarded(prop: Property, target: Any) -> SearchStrategy[Case]:
    """The property's cases. A strategy that raises is our fault, and nothing to shrink."""

    @contextmanager
    def ours() -> Iterator[None]:
        try:
            yield
        except HypothesisException:
            raise
        except Exception as e:
            raise Broken(f"{prop.name}: drawing a case raised {type(e).__name__}: {e}") from e

    @strategies.composite
    def cases(draw: Callable[..., Any]) -> Case:
        with ours():
            return draw(strategy)

    with ours():
        strategy = prop.strategy(target)
    return cases()
