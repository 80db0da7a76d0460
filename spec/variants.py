"""What must fail: one-line variants of the design, each with the one invariant that it must break.

Each replaces operators of the design by operators of ``tla/Variants.tla`` or ``tla/SpeculationVariants.tla``. The
witnesses replace nothing: each claims that the case which an invariant is about never comes up, and must fail too, or
the invariant would hold for want of a case. The length and the last action of the shortest counterexample are measured
(``expected.json``). Imports the standard library and ``gdn_apc.spec``. Exercise it with
``gdn-apc spec --only "no-same witness"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gdn_apc.spec.configurations import Configuration, bounds, numbers, preempt, retention, speculation


@dataclass(frozen=True)
class Variant:
    """A wrong design. ``seen`` names where such a mistake was made, if it is public (see bugs.md)."""

    name: str
    about: str
    breaks: str
    replace: dict[str, str]
    specification: str
    constants: dict[str, Any]
    seen: str = ""
    module: str = "Variants"

    @property
    def liveness(self) -> bool:
        """Whether it breaks Progress, which is no invariant."""
        return self.breaks == "Progress"

    @property
    def is_witness(self) -> bool:
        """Whether it is a claim that some case never comes up, rather than a wrong design."""
        return self.module == "Witnesses"

    def configuration(self) -> Configuration:
        """The run of TLC that must end with a violation of ``breaks``, and checks nothing else."""
        return Configuration(
            self.name,
            "SpeculationVariants" if "K" in self.constants else self.module,
            self.specification,
            self.constants,
            self.about,
            invariants=() if self.liveness else (self.breaks,),
            properties=("Progress",) if self.liveness else (),
            replace=self.replace,
        )


def _all(**more: Any) -> dict[str, Any]:
    """Bounds that suit most: two requests of 5 tokens, which share 4, in blocks of 2."""
    return retention(2, 4, 2, 5, Interval=1) | preempt(2, 4, 2, 5) | more


def _two_slots(**more: Any) -> dict[str, Any]:
    """Two requests that each need the whole pool."""
    few = {
        "Slots": bounds(2, 2, 2, 4)["Slots"],
        "MaxLen": 4,
        "Prompts": numbers(1, 1),
        "Shares": numbers(0, 0),
    }
    return _all(Depth=1, **few) | more


ONE = "SpecCache"
FLY = "SpecPipeline"
EVERY = "SpecAll"
KEEP = "SpecRetention"
SPEC = "SpecSpeculation"

VARIANTS = [
    # The contract: what a row touches.
    Variant("wrong-block-size", "the read column is computed with another block size", "StateTrue",
            {"LastComputed": "DoubleBlock"}, ONE, _all(), "vllm#55600"),
    Variant("state-by-length", "a row of one token is taken for a decode, though it starts from nothing", "FreshStart",
            {"HasState": "OneTokenHasState"}, ONE, _all(), "vllm#51562"),
    Variant("fresh-by-length", "a row of two tokens or more is taken for a fresh prefill", "StateTrue",
            {"HasState": "ManyTokensAreFresh"}, ONE, _all(), "transformers#45513"),
    Variant("write-to-shared-block", "writes start in the column that was read, which others share", "SharedImmutable",
            {"FirstScheduled": "FromReadColumn"}, ONE, _all(), "vllm#56196"),
    Variant("last-column-only", "a row writes its last column only, and publishes the others", "PublishTrue",
            {"WriteColumns": "OnlyLastColumn"}, ONE, _all(), "vllm#34587"),
    Variant("partial-block-not-written", "a row that ends inside a block leaves no state there", "StateTrue",
            {"WriteColumns": "OnlyFullColumns"}, ONE, _all()),
    Variant("padding-writes", "a padding row writes through the stale table that it carries", "NullUntouched",
            {"Touches": "PaddingTouches"}, FLY, _all(Padding=True), "vllm#37728"),
    # The cache: what is published, found, taken and given back.
    Variant("partial-block-published", "the block that a row ends in is published as if it were full", "PublishTrue",
            {"PublishedStates": "PartialToo"}, ONE, _all(), "vllm#54076"),
    Variant("decode-not-published", "a block that decode completes is never published", "HitLongest",
            {"PublishedStates": "ByPrefillOnly"}, ONE, _all(), "vllm#33706"),
    Variant("no-same-step-guard", "a hash that this batch publishes is hit by another row of it", "StateTrue",
            {"MayHit": "SameStepToo"}, FLY, _all(), "vllm#29387"),
    Variant("no-clamp", "a hit of the whole prompt leaves no token to compute", "HitLongest",
            {"HitLimit": "AllTokens"}, ONE, _all(), "vllm#53706"),
    Variant("state-without-attention", "a hit does not ask for the attention blocks before it", "HitLongest",
            {"AttnHeld": "StateAlone"}, ONE, _all(**bounds(2, 6, 3, 5, Attention=True, Prompts=frozenset({1, 5}), MaxRows=1))),
    Variant("recycled-hash-kept", "a slot keeps its hash when it is given out", "PublishTrue",
            {"Forget": "Remembers"}, ONE, _all(Slots=bounds(2, 3, 2, 5)["Slots"])),
    Variant("hit-stays-queued", "a slot that is hit stays in the free list", "CountsExact",
            {"Unqueue": "StaysQueued"}, ONE, _all()),
    Variant("freed-in-use", "a request that ends frees its slots, whoever else refers to them", "CountsExact",
            {"Freed": "WhoeverRefers"}, ONE, _all()),
    Variant("leaked-reference", "a request that ends keeps its reference to its first slot", "CountsExact",
            {"Held": "AllButFirst"}, ONE, _all()),
    # Stopped requests: rows in flight, and hashes of rows that never run.
    Variant("published-row-dropped", "rows in flight of an aborted request never run; their hashes stay", "PublishTrue",
            {"RowsLeft": "DropsRows"}, FLY, _all(), "vllm#56525"),
    Variant("served-before-written", "the same, and another request reads what was never written", "StateTrue",
            {"RowsLeft": "DropsRows"}, FLY, _all(), "vllm#56525"),
    Variant("hash-of-removed-row-kept", "a row is taken out of the open batch; its hashes stay", "PublishTrue",
            {"Undo": "KeepsHash"}, FLY, _all()),
    Variant("out-of-order", "after an abort, the request's rows in flight run with a later batch", "PublishTrue",
            {"RowsLeft": "RunsLate"}, FLY, _all(Slots=bounds(2, 3, 2, 5)["Slots"])),
    Variant("victim-hash-kept", "the victim of a same-step preemption leaves the batch; its hashes stay", "PublishTrue",
            {"Undo": "KeepsHash"}, "SpecPreempt", _all(Slots=bounds(2, 3, 2, 5)["Slots"]), "vllm's priority policy"),
    Variant("victim-row-stays", "the victim of a same-step preemption stays in the batch without its slots",
            "WriteExclusive", {"RowsLeft": "StaysInBatch"}, "SpecPreempt", _all(Slots=bounds(2, 3, 2, 5)["Slots"])),
    Variant("any-victim", "any running request may be the victim: three can take each other's blocks for ever", "Progress",
            {}, "FairPreempt", _all(**preempt(1, 3, 3, 3, Prompts=numbers(1, 1), Shares=numbers(0, 0), Depth=1))),
    Variant("cap-over-pool", "a request may keep more states than the pool has, so it gets stuck", "Progress",
            {}, "FairRetention", _all(**retention(1, 4, 1, 8, Prompts=numbers(1, 4), Cap=3))),
    Variant("waiting-first", "who waits is served before who runs: the victim takes the blocks back", "Progress",
            {"Served": "WaitingToo"}, "FairPreempt", _two_slots(Policy="priority")),
    # Retention.
    Variant("read-column-let-go", "a running request lets go of the state that it reads next", "StateTrue",
            {"Behind": "ReadColumnToo"}, KEEP, _all(B=1, Interval=2)),
    Variant("no-cap", "all retained states stay, however many", "CapHolds",
            {"Stays": "OverTheCap"}, KEEP, _all(B=1)),
    Variant("shared-state-let-go", "a slot that is let go is free, whoever else refers to it", "CountsExact",
            {"FreedFirst": "FreesShared"}, KEEP, _all(B=1)),
    # Speculation.
    Variant("drafts-published", "boundaries of drafts are published when the row is scheduled", "PublishTrue",
            {"PublishedAhead": "DraftsToo"}, SPEC, speculation(2)),
    Variant("published-block-rolled-back", "the same: after a rejection, a published slot is written", "SharedImmutable",
            {"PublishedAhead": "DraftsToo"}, SPEC, speculation(2)),
    Variant("all-drafts-counted", "the scheduler counts all drafts as accepted when it publishes", "PublishTrue",
            {"Certain": "AsIfAllAccepted"}, SPEC, speculation(2), "vllm#43559"),
    Variant("scheduler-start", "columns are computed from the scheduler's count, not from the device's", "StateTrue",
            {"StartOf": "SchedulersCount"}, SPEC, speculation(2)),
    Variant("no-lookahead", "the table covers the known token only", "NullUntouched",
            {"Lookahead": "NoLookahead"}, SPEC, speculation(2), "vllm#57605"),
    Variant("first-candidate", "the next row starts from the first candidate, whatever was accepted", "StateTrue",
            {"Kept": "FirstCandidate"}, SPEC, speculation(2), "vllm#39273"),
    Variant("last-candidate", "the next row starts after all drafts: nothing is rolled back", "StateTrue",
            {"Kept": "LastCandidate"}, SPEC, speculation(2), "mlx-lm#1109"),
    Variant("boundary-in-scratch", "a boundary inside the drafts stays in scratch", "PublishTrue",
            {"Home": "BoundaryInScratch"}, SPEC, speculation(2)),
    Variant("report-not-published", "boundaries that are reported as accepted are not published", "HitLongest",
            {"Reported": "BoundariesForgotten"}, SPEC, speculation(2)),
    Variant("starts-afresh", "the row after a prefill is taken for one that starts from nothing", "FreshStart",
            {"Start": "StartsAfresh"}, SPEC, speculation(2), "transformers#45513"),
    Variant("room-for-all-drafts", "a request is not scheduled unless all drafts fit: it never gets its last tokens",
            "Progress", {"Room": "RoomForAllDrafts"}, "FairSpeculation", speculation(2)),
    Variant("first-in-column", "the first candidate goes to its column too, where a boundary may follow it",
            "WriteExclusive", {"Home": "FirstInColumn"}, SPEC, speculation(2)),
    Variant("written-where-read", "the first candidate goes to the column that was read, also past a boundary",
            "SharedImmutable", {"Home": "InReadColumn"}, SPEC, speculation(2), "vllm#42792"),
]  # fmt: skip
"""Wrong designs."""


def _witness(of: str, about: str, claim: str, specification: str = EVERY, **bounds: Any) -> Variant:
    """The claim that the case of invariant ``of`` never comes up."""
    return Variant(f"witness-{of}", about, claim, {}, specification, _all(**bounds), module="Witnesses")


THREE_SLOTS = {"Slots": bounds(2, 3, 2, 5)["Slots"]}
WITNESSES = [
    _witness("StateTrue", "a row that reads a state runs next, and another request is in flight", "NothingRead"),
    _witness("FreshStart", "a fresh row of one token gets a slot that a request that is gone still writes",
             "NothingFresh", **THREE_SLOTS),
    _witness("SharedImmutable", "a published slot has two referents, and one of them has a row in the open batch",
             "NothingShared"),
    _witness("WriteExclusive", "of two rows in the open batch one writes what a row of a request that is gone writes",
             "NothingExclusive", B=1, **THREE_SLOTS),
    _witness("NullUntouched", "a row reads and writes beside a hole in its table", "NothingNull", KEEP, B=1),
    _witness("PublishTrue", "a published slot has still to be written, by a request that is gone", "NothingPublished"),
    _witness("CountsExact", "one slot has two referents, another is published and has none", "NothingCounted"),
    _witness("HitLongest", "a waiting request would hit a block that is still in flight", "NothingHit"),
    _witness("CapHolds", "a request keeps one state behind it, and has let another go", "NothingKept", KEEP, B=1, Interval=2),
]  # fmt: skip
"""The case that each invariant is about; ``Progress`` has no case, its variants show that it can be broken."""
