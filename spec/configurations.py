"""Which models are checked, within which bounds, and what each must show.

The numbers that TLC finds (states, depth) are not written here: ``gdn-apc spec --record`` measures them into
``expected.json``, and every run compares. Imports the standard library and ``gdn_apc.spec``. Exercise it with
``gdn-apc spec``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gdn_apc.spec.values import Name, as_tla

SAFETY = (
    "StateTrue",
    "FreshStart",
    "SharedImmutable",
    "WriteExclusive",
    "NullUntouched",
    "PublishTrue",
    "CountsExact",
    "HitLongest",
)
"""The invariants of DESIGN.md section 3; ``Progress`` is the ninth, a liveness property."""

PAIRS = {
    "AdmitHitInFlight": "a hit, and the write of that block is still in flight",
    "AdmitHitOrphaned": "a hit, and the writer of that block, still in flight, was aborted or preempted",
    "AdvanceInFlight": "a request goes on, and its last row has not run",
    "AbortInFlight": "an abort, and rows of the request in flight",
    "AbortBeforeDispatch": "an abort, and a row of the request in the open batch",
    "PreemptInFlight": "a preemption, and rows of the victim in flight",
    "PreemptSameStep": "a preemption, and a row of the victim in the batch that needs its blocks",
    "LetsGoInFlight": "a state is let go, and a row in flight reads or writes it",
    "VerifyBeforeReport": "drafts are scheduled, and the count of the last ones is not known",
    "RollBack": "drafts are rejected",
    "RollBackPastBoundary": "drafts are rejected, and a boundary is among them",
}
"""Pairs of concurrent actions, as the actions that the design names for them."""

_HITS = ("AdmitHitInFlight", "AdmitHitOrphaned")
_ABORTS = ("AbortInFlight", "AbortBeforeDispatch")
_VICTIMS = ("PreemptInFlight", "PreemptSameStep")
COVERS = {
    "SpecCache": (),
    "SpecPipeline": (*_HITS, "AdvanceInFlight", *_ABORTS),
    "SpecPreempt": (*_HITS, "AdvanceInFlight", *_VICTIMS),
    "SpecAll": (*_HITS, "AdvanceInFlight", *_VICTIMS, *_ABORTS),
    "SpecRetention": (*_HITS, "LetsGoInFlight", *_ABORTS),
    "SpecSpeculation": ("VerifyBeforeReport", "RollBack", "RollBackPastBoundary"),
}
"""The pairs that a configuration must cover, by its specification: also if an action were lost from the module."""


@dataclass(frozen=True)
class Configuration:
    """One run of TLC.

    ``never``: actions of the module that these bounds cannot reach, with the reason; any other action that is not
    taken is an error, and so is one of these that is. ``replace``: operators of the design that a must-fail variant
    replaces. ``simulate``: (behaviours, depth, seed) of random walks instead of an exhaustive search.
    """

    name: str
    module: str
    specification: str
    constants: dict[str, Any]
    about: str
    invariants: tuple[str, ...] = SAFETY
    properties: tuple[str, ...] = ()
    symmetry: bool = False
    never: dict[str, str] = field(default_factory=dict)
    replace: dict[str, str] = field(default_factory=dict)
    simulate: tuple[int, int, int] | None = None

    @property
    def covers(self) -> tuple[str, ...]:
        """The pairs of concurrent actions (``PAIRS``) that the run must take, if it is one that measures coverage."""
        return tuple(pair for pair in COVERS.get(self.specification, ()) if pair not in self.never)

    def text(self) -> str:
        """The configuration file."""
        lines = [f"SPECIFICATION {self.specification}", "CONSTANTS"]
        lines += [f"  {name} = {as_tla(value)}" for name, value in self.constants.items()]
        lines += [f"  {right} <- {wrong}" for right, wrong in self.replace.items()]
        lines += [f"INVARIANT {name}" for name in self.invariants]
        lines += [f"PROPERTY {name}" for name in self.properties]
        lines += ["SYMMETRY Symmetry"] if self.symmetry else []
        return "\n".join(lines) + "\n"

    def bounds(self) -> str:
        """The bounds in one line."""
        shown = {"Slots": "slots", "Reqs": "requests", "MaxLen": "tokens", "Depth": "in flight"}
        parts = [f"B = {self.constants['B']}"]
        for key, word in shown.items():
            if key in self.constants:
                value = self.constants[key]
                parts.append(f"{len(value) if isinstance(value, frozenset) else value} {word}")
        return ", ".join(parts)


def numbers(first: int, last: int) -> frozenset[int]:
    """The set first .. last."""
    return frozenset(range(first, last + 1))


def bounds(B: int, slots: int, requests: int, tokens: int, **more: Any) -> dict[str, Any]:
    """The constants of Cache and of what extends it. Prompts may have any length unless ``more`` says otherwise."""
    constants = {
        "B": B,
        "Null": Name("Null"),
        "Slots": frozenset(Name(f"s{i}") for i in range(1, slots + 1)),
        "Reqs": numbers(1, requests),
        "MaxLen": tokens,
        "Prompts": numbers(1, tokens),
        "Shares": frozenset({tokens - 1}),
        "MaxRows": requests,
        "Interval": 1,
        "Attention": False,
    }
    return constants | more


def pipeline(B: int, slots: int, requests: int, tokens: int, **more: Any) -> dict[str, Any]:
    """The constants of Pipeline."""
    return bounds(B, slots, requests, tokens, Depth=2, Padding=False) | more


def preempt(B: int, slots: int, requests: int, tokens: int, **more: Any) -> dict[str, Any]:
    """The constants of Preempt."""
    return pipeline(B, slots, requests, tokens, Policy="any") | more


def retention(B: int, slots: int, requests: int, tokens: int, **more: Any) -> dict[str, Any]:
    """The constants of Retention."""
    return pipeline(B, slots, requests, tokens, Interval=2, Cap=1) | more


def speculation(B: int, K: int = 2, tokens: int = 8, Depth: int = 2) -> dict[str, Any]:
    """The constants of Speculation."""
    return {"B": B, "Null": Name("Null"), "K": K, "MaxLen": tokens, "Prompts": numbers(1, 3), "Depth": Depth}


def of(*values: int) -> frozenset[int]:
    """A set of numbers."""
    return frozenset(values)


VLLM_ORDER = {"StateFirst": "Yes", "Join": "UnpublishedFirst"}
"""States before attention blocks, and slots without a hash to the head of the free list."""

ONE_REQUEST = tuple(name for name in SAFETY if name != "CountsExact")
"""Speculation has one request, without reference counts."""

CONFIGURATIONS = [
    # Cache: one batch at a time.
    Configuration("cache-tiny", "Cache", "SpecCache", bounds(1, 4, 2, 4, Shares=of(1, 3)), "every token a boundary"),
    Configuration("cache", "Cache", "SpecCache", bounds(2, 4, 3, 5, Prompts=of(1, 5), Shares=of(2, 4)),
                  "three requests, eviction"),
    Configuration("cache-blocks", "Cache", "SpecCache", bounds(3, 3, 2, 7), "blocks of three tokens"),
    Configuration("cache-attention", "Cache", "SpecCache",
                  bounds(2, 6, 3, 5, Prompts=of(1, 5), Attention=True, MaxRows=1),
                  "attention blocks in the same pool"),
    Configuration("cache-vllm-order", "Cache", "SpecCache",
                  bounds(2, 6, 2, 5, Prompts=of(1, 3, 5), Shares=of(2, 4), Attention=True),
                  "slots taken and given back as in vLLM", replace=VLLM_ORDER),
    # Pipeline: batches in flight, aborts.
    Configuration("pipeline", "Pipeline", "SpecPipeline", pipeline(2, 4, 2, 5, Shares=of(2, 4)), "aborts at any time"),
    Configuration("pipeline-deep", "Pipeline", "SpecPipeline", pipeline(2, 3, 2, 4, Shares=of(2), Depth=3),
                  "three batches in flight"),
    Configuration("pipeline-three", "Pipeline", "SpecPipeline",
                  pipeline(1, 4, 3, 2, Shares=of(1), Prompts=of(1, 2)), "three requests"),
    Configuration("pipeline-padding", "Pipeline", "SpecPipeline", pipeline(2, 3, 2, 4, Padding=True),
                  "a padding row with a stale table in every batch"),
    # Preempt.
    Configuration("preempt", "Preempt", "SpecPreempt", preempt(2, 3, 2, 5, Shares=of(4), Prompts=of(1, 5)),
                  "any victim"),
    Configuration("preempt-abort", "Preempt", "SpecAll", preempt(2, 2, 2, 4, Shares=of(2, 3)), "any victim, and aborts"),
    Configuration("preempt-three", "Preempt", "SpecPreempt",
                  preempt(2, 2, 3, 3, Shares=of(2), Prompts=of(1, 3)), "three requests",
                  never={"AdmitHitOrphaned": "a block is full at 2 of 3 tokens, so no orphan's block is left in 2 slots"}),
    Configuration("preempt-vllm-order", "Preempt", "SpecAll", preempt(1, 3, 2, 3, Shares=of(2), Prompts=of(1, 3)),
                  "slots taken and given back as in vLLM", replace=VLLM_ORDER),
    # Retention.
    Configuration("retention", "Retention", "SpecRetention",
                  retention(1, 4, 2, 5, Shares=of(4), Prompts=of(1, 4, 5)),
                  "every second boundary, one kept", (*SAFETY, "CapHolds")),
    Configuration("retention-cap", "Retention", "SpecRetention",
                  retention(2, 4, 2, 6, Interval=1, Shares=of(4), Prompts=of(1, 5)),
                  "every boundary, one kept", (*SAFETY, "CapHolds")),
    # Speculation.
    *(
        Configuration(f"speculation-b{B}-k{K}", "Speculation", "SpecSpeculation", speculation(B, K, 10),
                      f"{K} drafts", ONE_REQUEST, never=never)
        for B, K, never in (
            (1, 2, {"RollBack": "with B = 1 every rejected token is a boundary"}),
            (2, 2, {}),
            (3, 2, {}),
            (2, 3, {}),
        )
    ),
    # Liveness.
    Configuration("progress", "Preempt", "FairPreempt",
                  preempt(2, 3, 2, 5, Shares=of(4), Prompts=of(1, 3, 5), Policy="priority"),
                  "two requests, one pool", (), ("Progress",)),
    Configuration("progress-three", "Preempt", "FairPreempt",
                  preempt(1, 3, 3, 2, Shares=of(1), Prompts=of(1, 2), Policy="priority"),
                  "three requests", (), ("Progress",)),
    Configuration("progress-retention", "Retention", "FairRetention",
                  retention(1, 4, 1, 8, Prompts=of(1, 4, 7)), "a pool smaller than the table", (), ("Progress",)),
    Configuration("progress-speculation", "Speculation", "FairSpeculation", speculation(2), "drafts", (), ("Progress",)),
    # Random walks beyond exhaustive bounds.
    Configuration("walks", "Preempt", "SpecPreempt", preempt(2, 6, 3, 8, Shares=of(3, 6), Prompts=of(2, 5, 8), Depth=3),
                  "three requests of eight tokens", simulate=(1_500, 150, 1)),
    Configuration("walks-abort", "Preempt", "SpecAll", preempt(2, 6, 3, 8, Shares=of(3, 6), Prompts=of(2, 5, 8), Depth=3),
                  "the same with aborts, which make walks short", simulate=(5_000, 150, 2)),
]  # fmt: skip
"""The default run."""

NIGHTLY = [
    Configuration("nightly-cache", "Cache", "SpecCache", bounds(2, 5, 3, 6, Shares=of(2, 4)), "three requests", symmetry=True),
    Configuration("nightly-pipeline", "Pipeline", "SpecPipeline",
                  pipeline(2, 4, 3, 3, Shares=of(2), Prompts=of(1, 3)), "three requests", symmetry=True),
    Configuration("nightly-preempt", "Preempt", "SpecAll", preempt(2, 3, 2, 5, Shares=of(2, 4)), "with aborts", symmetry=True),
    Configuration("nightly-retention", "Retention", "SpecRetention", retention(1, 5, 2, 6, Shares=of(2, 4), Cap=2),
                  "a larger pool", (*SAFETY, "CapHolds"), symmetry=True),
    Configuration("nightly-speculation", "Speculation", "SpecSpeculation", speculation(3, 3, 14, 3), "3 in flight", ONE_REQUEST),
    Configuration("nightly-walks", "Preempt", "SpecAll",
                  preempt(3, 8, 4, 14, Shares=of(4, 9), Prompts=of(3, 7, 12), Depth=4),
                  "four requests of fourteen tokens", simulate=(50_000, 150, 2)),
]  # fmt: skip
"""Larger ones, for a night: ``gdn-apc spec --nightly``."""
