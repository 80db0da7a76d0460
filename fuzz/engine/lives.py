"""Hypothesis strategies for lives: an engine, requests that share prefixes, and events, as a ``Case``.

Requests are resent, share whole or partial prefixes, and mostly arrive early; pools hold one to three of the
largest request, so that eviction and preemption are common. Sizes and choices are drawn here, no tensors.

Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Sizes
from gdn_apc.fuzz.strategies.settings import draw_setting
from gdn_apc.fuzz.targets.base import Target

ALL = 1000  # a cut or a budget that no life reaches
_NAMES = (
    ("submit",) * 3
    + ("pass",) * 6
    + ("rows",) * 3
    + ("dispatch",) * 2
    + ("execute",) * 3
    + ("abort", "preempt")
)


@dataclass(frozen=True)
class Scale:
    """How large lives may be: the most requests and events; of the longest request blocks, tokens and decoded
    tokens; and the largest block size."""

    requests: int
    events: int
    blocks: int
    tokens: int
    decoded: int
    block_size: int


SYMBOLIC = Scale(requests=16, events=50, blocks=5, tokens=ALL, decoded=ALL, block_size=5)
"""About 8 steps a life, in a few milliseconds."""

KERNELS = Scale(requests=8, events=20, blocks=4, tokens=90, decoded=6, block_size=64)
"""About 30 steps a life: a quarter of a second on the interpreter."""


_MORE = st.integers(0, 127)
_PADDING = ([], [], [0], [1], [3], [0, 2])


def events_by_name(block_size: int) -> dict[str, st.SearchStrategy[list[Any]]]:
    """A strategy for the events of each form of ``fuzz.engine.EVENT_FORMS``. Few draws each: drawing is what costs."""
    pick = st.integers(0, 5)
    cut = st.sampled_from([*range(1, 2 * block_size + 2), ALL, ALL])
    budget = st.sampled_from([ALL, ALL, 3 * block_size + 1])
    padding = st.sampled_from(_PADDING).map(list)
    rows = st.lists(st.tuples(pick, cut).map(list), min_size=1, max_size=3)
    arguments = {
        "submit": (pick,),
        "pass": (budget, cut, padding, st.integers(1, 4)),
        "rows": (rows, st.integers(0, 2)),
        "dispatch": (padding,),
        "execute": (),
        "abort": (pick,),
        "preempt": (pick,),
    }
    return {name: st.tuples(st.just(name), *args).map(list) for name, args in arguments.items()}


@st.composite
def event_lists(draw: st.DrawFn, block_size: int, scale: Scale) -> list[list[Any]]:
    """A life's events: scheduling passes as vLLM makes them, single rows in any order, and what disturbs them.

    Drawn one by one until a zero comes: so lives are long on average, and yet every event can be shrunk away
    (a list with a least size cannot shrink below it, and one without is short on average).
    """
    by_name = events_by_name(block_size)
    one = st.sampled_from(_NAMES).flatmap(by_name.__getitem__)
    events: list[list[Any]] = []
    while len(events) < scale.events and draw(_MORE):
        events.append(draw(one))
    return events


@st.composite
def request_sets(draw: st.DrawFn, block_size: int, scale: Scale) -> tuple[list[Request], list[int]]:
    """Requests and the length of their prompts; each after the first may share a prefix of an earlier one."""
    longest = min(scale.blocks * block_size + 1, max(scale.tokens, 2 * block_size + 1))
    tokens = st.integers(1, longest)
    whole_or = st.one_of(st.just(ALL), st.integers(0, longest))
    one = st.tuples(tokens, st.integers(0, scale.requests), whole_or, whole_or)
    requests: list[Request] = []
    prompts: list[int] = []
    for i, (length, pick, shared, prompt) in enumerate(
        draw(st.lists(one, min_size=1, max_size=scale.requests))
    ):
        parent = pick % i if i else None
        requests.append(Request(length, parent, min(shared, length, requests[parent].length) if i else 0))
        # What is not prompt is decoded, a token a step.
        prompts.append(min(length, max(1, prompt, length - scale.decoded)))
    return requests, prompts


def _life(draw: st.DrawFn, block_size: int, scale: Scale) -> tuple[tuple[Request, ...], int, dict[str, Any]]:
    """Requests, number of slots, and the ``choice`` that ``fuzz.engine.life`` reads: prompts, habits, events."""
    requests, prompts = draw(request_sets(block_size, scale))
    attention = draw(st.booleans())
    most = max(-(-r.length // block_size) for r in requests) * (2 if attention else 1)
    choice = {
        "prompts": prompts,
        "depth": draw(st.integers(1, 3)),
        "attention": attention,
        "skip": draw(st.booleans()),
        "stale": draw(st.booleans()),
        # Some have arrived before anything happens, or half of the lives would hardly start.
        "events": [["submit", 0]] * draw(st.integers(1, len(requests)))
        + draw(event_lists(block_size, scale)),
    }
    return tuple(requests), 1 + most + draw(st.integers(0, 2 * most)), choice


@st.composite
def symbolic_lives(draw: st.DrawFn, name: str, scale: Scale = SYMBOLIC) -> Case:
    """A life on labels, as a case of property ``name``. Its sizes are the smallest there are, except B."""
    sizes = Sizes(H=1, HV=1, K=1, V=1, W=2, B=draw(st.integers(1, scale.block_size)), C=16)
    requests, num_slots, choice = _life(draw, sizes.B, scale)
    dtypes, inputs = Dtypes("fp32", "fp32", "fp32"), Inputs(seed=0)
    return Case(name, "core", sizes, dtypes, inputs, requests, (), Pool(num_slots), choice=choice)


@st.composite
def kernel_lives(draw: st.DrawFn, name: str, target: Target, scale: Scale = KERNELS) -> Case:
    """A life for a target's kernels, of sizes, dtypes and regimes that it claims and its device affords."""
    setting = draw_setting(draw, target, share=0.5, blocks=6, lively=True)
    if setting.sizes.B > scale.block_size:
        # A life computes many blocks, and the oracle goes token by token.
        small = [b for b in setting.scale.blocks if b <= scale.block_size] or [min(setting.scale.blocks)]
        setting = replace(setting, sizes=replace(setting.sizes, B=draw(st.sampled_from(small))))
    requests, num_slots, choice = _life(draw, setting.sizes.B, scale)
    if not setting.claims.any_start:
        choice["chunk_size"] = setting.sizes.C
    return setting.complete(name, requests, (), num_slots, **choice)
