"""Random schedules: a flat list of abstract events, resolved by the planner into rows.

A flat list shrinks well: Hypothesis drops events one by one, and lowers their numbers. Imports hypothesis and
``fuzz``. Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Sizes
from gdn_apc.fuzz.strategies.planner import Planner

KINDS = (
    *("step",) * 5,
    *("advance",) * 4,
    *("admit",) * 3,
    *("hit",) * 4,
    *("decode",) * 3,
    *("finish", "preempt", "resume", "zero", "pad"),
)
AIMS = ("one", "two", "any", "boundary", "edge", "past", "before", "short", "boundary", "around")
STALE = ("null", "real", "stale")


@dataclass(frozen=True)
class Event:
    """One abstract event. ``who`` and ``amount`` are taken modulo what exists; ``flag`` is the event's own switch."""

    kind: str
    who: int
    aim: str
    amount: int
    flag: bool


EVENTS = st.builds(
    Event,
    st.sampled_from(KINDS),
    st.integers(0, 5),
    st.sampled_from(AIMS),
    st.integers(0, 40),
    st.booleans(),
)


def length(sizes: Sizes, n: int, aim: str, amount: int) -> int:
    """How many tokens a step that starts at ``n`` should have. ``aim`` names a place, ``amount`` varies it."""
    B, C = sizes.B, sizes.C
    boundary = n - n % B + B * (1 + amount % 3) - n
    edge = min(n - n % B % C + C * (1 + amount % 2), n - n % B + B) - n
    return {
        "one": 1,
        "two": 2,
        "short": 3 + amount % sizes.W,
        "any": 2 + amount * C // 16,
        "boundary": boundary,
        "before": max(1, boundary - 1),
        "past": boundary + 1 + amount % 4,
        "edge": edge,
        "around": max(1, edge + amount % 3 - 1),
    }[aim]


def apply(plan: Planner, event: Event) -> None:
    """Make the event happen, or the nearest one that can."""
    kind, m = event.kind, lambda n: length(plan.sizes, n, event.aim, event.amount)
    running, paused = plan.running(), plan.paused()
    null = dict(
        null_interior=event.flag and event.amount % 4 == 0, forget=event.flag and event.amount % 8 == 2
    )
    if kind == "step":
        plan.end_step()
    elif kind == "pad":
        plan.pad(event.amount, event.who)
    elif kind == "zero" and (running or paused):
        plan.zero(_pick(running + paused, event.who))
    elif kind in ("finish", "preempt") and running:
        plan.preempt(_pick(running, event.who), recycle=event.flag)
    elif kind == "resume" and paused:
        r = _pick(paused, event.who)
        k = _pick([0, *plan.hits(r)], -1 if event.flag else event.amount)
        plan.resume(r, k, m(k * plan.sizes.B), stale=STALE[event.amount % 3])
    elif kind == "hit" and any(plan.hits(r) for r in range(len(plan.lives))):
        donor = _pick([r for r in range(len(plan.lives)) if plan.hits(r)], event.who)
        k = _pick(plan.hits(donor), -1 if event.flag else event.amount)
        plan.hit(donor, k, m(k * plan.sizes.B), extra=event.amount % 5, stale=STALE[event.amount % 3])
    elif kind in ("advance", "decode", "hit", "resume") and running:
        r = _pick(running, event.who)
        plan.advance(r, 1 if kind == "decode" else m(plan.lives[r].n), **null)
    else:
        plan.admit(m(0), **null)


def random_schedule(draw, plan: Planner) -> None:
    """Up to 18 events, any of them; at least one row that computes something."""
    for event in draw(st.lists(EVENTS, min_size=1, max_size=18)):
        apply(plan, event)
    ensure_work(plan)


def ensure_work(plan: Planner) -> None:
    """A schedule of padding alone would compare nothing."""
    if not any(life.reach for life in plan.lives):
        plan.admit(2)


def _pick(options: list[int], which: int) -> int:
    return options[which % len(options)] if which >= 0 else options[-1]
