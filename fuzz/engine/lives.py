"""Hypothesis strategies for lives: an engine, requests that share prefixes, and events, as a ``Case``.

Requests are resent, share whole or partial prefixes, and mostly arrive early; pools hold one to three of the
largest request, so that eviction and preemption are common. Sizes and choices are drawn here, no tensors.

Imports hypothesis, ``fuzz.case`` and ``fuzz.engine``. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Sizes

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
    """How large lives may be: requests, blocks of the longest request, events, and the largest block size."""

    requests: tuple[int, int]
    blocks: int
    events: tuple[int, int]
    block_size: int


SYMBOLIC = Scale(requests=(3, 12), blocks=5, events=(40, 80), block_size=5)
"""About 15 steps a life, in a few milliseconds."""


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


def event_lists(block_size: int, scale: Scale) -> st.SearchStrategy[list[list[Any]]]:
    """A life's events: scheduling passes as vLLM makes them, single rows in any order, and what disturbs them."""
    by_name = events_by_name(block_size)
    one = st.sampled_from(_NAMES).flatmap(by_name.__getitem__)
    return st.lists(one, min_size=scale.events[0], max_size=scale.events[1])


@st.composite
def request_sets(draw: st.DrawFn, block_size: int, scale: Scale) -> tuple[list[Request], list[int]]:
    """Requests and the length of their prompts; each after the first may share a prefix of an earlier one."""
    requests: list[Request] = []
    prompts: list[int] = []
    for i in range(draw(st.integers(*scale.requests))):
        length = draw(st.integers(1, scale.blocks * block_size + 1))
        parent, shared = None, 0
        if i:
            parent = draw(st.integers(0, i - 1))
            most = min(length, requests[parent].length)
            shared = draw(st.one_of(st.just(most), st.integers(0, most)))
        requests.append(Request(length, parent, shared))
        prompts.append(draw(st.one_of(st.just(length), st.integers(1, length))))
    return requests, prompts


@st.composite
def lives(
    draw: st.DrawFn,
    name: str,
    scale: Scale = SYMBOLIC,
    sizes: st.SearchStrategy[Sizes] | None = None,
    dtypes: st.SearchStrategy[Dtypes] | None = None,
    level: str = "core",
) -> Case:
    """A case of property ``name`` whose ``choice`` holds the life: prompts, habits of the engine, and events.

    ``sizes`` and ``dtypes`` are drawn for the kernels; without them they are the smallest there are.
    """
    if sizes is None:
        drawn = Sizes(H=1, HV=1, K=1, V=1, W=2, B=draw(st.integers(1, scale.block_size)), C=16)
    else:
        drawn = draw(sizes)
    requests, prompts = draw(request_sets(drawn.B, scale))
    attention = draw(st.booleans())
    most = max(-(-r.length // drawn.B) for r in requests) * (2 if attention else 1)
    pool = Pool(1 + most + draw(st.integers(0, 2 * most)))
    choice = {
        "prompts": prompts,
        "depth": draw(st.integers(1, 3)),
        "attention": attention,
        "skip": draw(st.booleans()),
        "stale": draw(st.booleans()),
        "events": draw(event_lists(drawn.B, scale)),
    }
    return Case(
        property=name,
        level=level,
        sizes=drawn,
        dtypes=Dtypes("fp32", "fp32", "fp32") if dtypes is None else draw(dtypes),
        inputs=Inputs(seed=0),
        requests=tuple(requests),
        steps=(),
        pool=pool,
        choice=choice,
    )
