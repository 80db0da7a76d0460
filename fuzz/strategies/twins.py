"""Schedules in which two requests with the same tokens take different ways: warm and cold, one step and several.

The property compares the twins; ``choice`` says which requests they are. Imports hypothesis and ``fuzz``.
Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.geometry import is_free_cut
from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.strategies.scenarios import blocks, some
from gdn_apc.fuzz.strategies.schedules import STALE
from gdn_apc.fuzz.strategies.settings import Setting, draw_setting
from gdn_apc.fuzz.targets.base import Target


def free_ends(setting: Setting, start: int, end: int) -> list[int]:
    """Free cuts inside a prefill from ``start`` to ``end`` that leave two tokens or more on both sides."""
    s = setting.sizes
    return [p for p in range(start + 2, end - 1) if is_free_cut(p, s.B, s.C, setting.dtypes.state)]


def draw_cuts(draw: Any, ends: list[int], least: int = 0, most: int = 2) -> list[int]:
    """Some of the places, in order, two tokens or more apart."""
    least = min(least, len(ends))
    chosen = (
        sorted(draw(st.lists(st.sampled_from(ends), min_size=least, max_size=most, unique=True)))
        if ends
        else []
    )
    return [p for i, p in enumerate(chosen) if i == 0 or p - chosen[i - 1] > 1]


def prefill(plan: Planner, r: int | None, ends: list[int], **admit: Any) -> int:
    """Run request ``r`` (None: a new one) through steps that end at ``ends``, each in a batch of its own."""
    for end in ends:
        if r is None:
            r = plan.admit(end, **admit)
        else:
            plan.advance(r, end - plan.lives[r].n)
        plan.end_step()
    return r


@st.composite
def warm_and_cold(draw: Any, target: Target) -> Case:
    """A publisher with free cuts, a request that hits its block, and a cold one with the same tokens.

    ``choice``: ``warm`` and ``cold`` (requests), ``start`` = kB. After kB both take the same steps; before it the
    cold one takes free cuts of its own, or runs through kB in one step if the warm one's first step is a prefill.
    """
    setting = draw_setting(draw, target, levels=("delta", "core", "conv", "core"), share=4.0, blocks=3)
    plan, B = setting.planner(), setting.sizes.B
    plan.budget = plan.tokens = 1 << 30  # twins must not be cut short; lengths are bounded here
    start = blocks(draw, plan) * B
    beyond = draw(st.sampled_from((0, 1, 3)))
    publisher = prefill(plan, None, [*draw_cuts(draw, free_ends(setting, 0, start)), start + beyond])

    first = some(draw, plan, start)
    later = draw(st.lists(st.sampled_from((1, 2, 1, 5)), max_size=2))
    k = start // B
    warm = plan.hit(publisher, k, first, extra=draw(st.integers(0, 2)), stale=draw(st.sampled_from(STALE)))
    if draw(st.booleans()):
        plan.advance(publisher, 1)
    plan.end_step()
    ends = [start + first]
    for m in later:
        ends.append(ends[-1] + m)
    prefill(plan, warm, ends[1:])

    through = first > 1 and draw(st.booleans())
    cold_ends = draw_cuts(draw, free_ends(setting, 0, start), least=draw(st.integers(0, 1))) + (
        [] if through else [start]
    )
    cold = prefill(plan, None, cold_ends + ends, twin_of=warm)
    return setting.case("warm_equals_cold", plan, warm=warm, cold=cold, start=start)


@st.composite
def one_step_and_several(draw: Any, target: Target) -> Case:
    """Two requests from one place: one prefills a range in one step, its twin in several.

    ``choice``: ``one`` and ``cut`` (requests), ``start``, ``end`` of the range. The place may be the start, a hit, or
    the middle of a block. Half the cases have free cuts only.
    """
    setting = draw_setting(draw, target, levels=("delta", "core", "conv", "core"), share=4.0, blocks=3)
    plan, B, C = setting.planner(), setting.sizes.B, setting.sizes.C
    plan.budget = plan.tokens = 1 << 30
    lead = draw(st.sampled_from(("cold", "hit", "inside") if setting.claims.any_start else ("cold", "hit")))
    k = 0 if lead == "cold" else blocks(draw, plan)
    donor = prefill(plan, None, [k * B + 1]) if k else None
    before = [k * B + 1 + B // 3] if lead == "inside" else []  # a step of its own, the same for both
    start = before[0] if before else k * B
    end = start + draw(st.integers(4, 3 * C + 8))
    free = not setting.claims.any_start or draw(st.sampled_from((True, True, False)))
    cuts = draw_cuts(draw, free_ends(setting, start, end) if free else list(range(start + 1, end)), 1, 3)

    def run(ends: list[int], twin_of: int | None = None) -> int:
        if donor is None:
            return prefill(plan, None, ends, twin_of=twin_of)
        r = plan.hit(donor, k, ends[0] - k * B, twin_of=twin_of)
        plan.end_step()
        return prefill(plan, r, ends[1:])

    one = run([*before, end])
    cut = run([*before, *cuts, end], twin_of=one)
    return setting.case("free_cuts", plan, one=one, cut=cut, start=start, end=end)
