"""What a campaign was asked for, and what one shard of a property did.

Imports the standard library and ``fuzz.case``. Exercise it with ``pytest tests/fuzz/test_campaign.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gdn_apc.fuzz.case import Case

if TYPE_CHECKING:
    from gdn_apc.fuzz.properties.base import Property, Violation

DEFAULT_BUDGET = 100
"""Examples of a kernel property. Its floor is 40; a few draws repeat an earlier case and are not counted."""

SHRINK_SECONDS = 120.0
SHRINK_GRACE = 15.0
"""So long may shrinking take beyond the end of a campaign's time; within it, ``SHRINK_SECONDS``."""

ROUND, SMOKE_ROUND = 11, 4
"""Examples of a round. Hypothesis derives new examples from earlier ones from the eleventh on, and those are like one
another: short rounds draw more widely. (``fuzz/floors.py`` measures with the same length.)"""


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
    database: str | None = None  # URL of a shared one

    def goal(self, prop: Property) -> float:
        """Units that one shard of ``prop`` should compare: examples for kernels, comparisons for the other kinds."""
        if self.budget is None:
            return math.inf if prop.most is None else math.ceil(prop.most / self.shards)
        if prop.kind == "kernel":
            return math.ceil(self.budget / self.shards)
        share = min(1.0, self.budget / DEFAULT_BUDGET)
        return max(1, math.ceil(prop.floor * share / self.shards))

    @property
    def round_size(self) -> int:
        """Examples of one round. Never changed by the clock, so that a seed means the same cases."""
        return SMOKE_ROUND if self.smoke else ROUND


@dataclass
class Past:
    """What earlier runs of a campaign that was stopped did of one shard of a property (``fuzz/resume.py``)."""

    seen: set[str] = field(default_factory=set)  # digests of the examples that were counted
    comparisons: int = 0
    replayed: int = 0
    rounds: int = 0  # so many rounds came to their end
    fixed: bool = False  # all fixed cases ran
    status: str = ""  # how it ended; empty if it did not
    failure: dict[str, str] | None = None  # the event that recorded it


@dataclass
class Failure:
    """What a property rejects: the first failing case, then the smallest one seen, and the last one tried.

    When shrinking ends by itself, the last one is Hypothesis's answer; when it is stopped, the smallest is ours.
    """

    first: Path  # the unshrunk case, saved before anything else
    number: int  # of the round
    phase: str  # "generate", "fixed" or "reuse"
    started: float
    seconds: float  # that shrinking may take
    smallest: tuple[Case, Violation]
    last: tuple[Case, Violation]
    until: float = 0.0  # when the part of shrinking that runs now must stop; Hypothesis's at half, or at once
    attempts: int = 0
    shrunk: str = ""  # why shrinking stopped early; empty when it came to its end

    def __post_init__(self):
        self.until = self.started + self.seconds / 2

    @property
    def capped(self) -> str:
        """Why it stopped, if time was up."""
        return f"stopped at its cap of {self.seconds:.3g} s"

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
    finding: str = ""  # the first line of what failed, from then on
    ledger: Counter[str] = field(default_factory=Counter)

    def units(self, prop: Property) -> int:
        """What ``Plan.goal`` counts."""
        return self.examples if prop.kind == "kernel" else self.comparisons


def size_key(case: Case) -> tuple[int, int, int]:
    """How hard a case is to read: tokens, rows, length of its text."""
    return case.num_tokens, sum(len(s.rows) for s in case.steps), len(case.to_json())
