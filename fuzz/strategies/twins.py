"""Schedules in which two requests with the same tokens take different ways: warm and cold, one step and several.

The property compares the twins; ``choice`` says which requests they are. ``check_…`` says whether a case, drawn, edited
or shrunk, is one on which they must agree. Imports hypothesis and ``fuzz``.
Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case, Row
from gdn_apc.fuzz.geometry import is_free_cut, owner, read_slot, rows, write_slots
from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.strategies.scenarios import blocks, some
from gdn_apc.fuzz.strategies.schedules import STALE
from gdn_apc.fuzz.strategies.settings import Setting, draw_setting
from gdn_apc.fuzz.targets.base import Target


def free_ends(setting: Setting, start: int, end: int) -> list[int]:
    """Free cuts inside a prefill from ``start`` to ``end`` that leave two tokens or more on both sides.

    Chunk edges inside a block, which only an fp32 state allows, stand there three times.
    """
    s = setting.sizes
    free = [p for p in range(start + 2, end - 1) if is_free_cut(p, s.B, s.C, setting.dtypes.state)]
    return free + [p for p in free if p % s.B] * 2


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


def computed_purely(case: Case, step: int, row: Row) -> bool:
    """Whether what a row reads has the bits of a one-step prefill: prefill steps only, cut at free cuts only."""
    s = case.sizes
    if row.n == 0:
        return True
    if not is_free_cut(row.n, s.B, s.C, case.dtypes.state):
        return False
    slot = read_slot(row, s.B)
    writers = [
        (i, r)
        for i, _, r in rows(case)
        if i < step and r.request is not None and slot in (w for _, w in write_slots(r, s.B))
    ]
    return bool(writers) and writers[-1][1].m > 1 and computed_purely(case, *writers[-1])


def live(case: Case, request: int) -> list[tuple[int, Row]]:
    """``(step, row)`` of a request's rows that compute something."""
    return [(i, row) for i, _, row in rows(case) if row.request == request and row.m]


def check_warm_and_cold(case: Case) -> None:
    """Raises ``ValueError`` unless section 4.4 promises that the twins of ``warm_and_cold`` agree bit for bit."""
    start = case.choice["start"]
    warm, cold = live(case, case.choice["warm"]), live(case, case.choice["cold"])
    by_end = {row.n + row.m: (i, row) for i, row in cold}
    _check_tokens(case, "warm", "cold", end=max((row.n + row.m for _, row in warm), default=0))
    if not warm or warm[0][1].n != start or not computed_purely(case, *warm[0]):
        raise ValueError(
            f"case: request {case.choice['warm']} does not hit a purely computed block at {start}"
        )
    for _, row in warm:
        i, other = by_end.get(row.n + row.m, (0, None))
        if other is None:
            raise ValueError(f"case: the cold request has no step that ends at {row.n + row.m}")
        spans = other.n < start == row.n and min(row.m, other.m) > 1 and computed_purely(case, i, other)
        begins = row.n == other.n == start and computed_purely(case, i, other)
        if not (spans or begins or (row.n == other.n > start)):
            raise ValueError(f"case: the steps that end at {row.n + row.m} need not agree")


def _check_tokens(case: Case, *twins: str, end: int) -> None:
    """Raises ``ValueError`` unless the twins have the same first ``end`` tokens: an editor of cases may take them away."""
    one, other = (case.choice[twin] for twin in twins)
    if owner(case.requests, one, end) != owner(case.requests, other, end):
        raise ValueError(f"case: requests {one} and {other} differ in their first {end} tokens")


def check_one_and_several(case: Case) -> list[tuple[int, Row]]:
    """The steps of the twin that is cut. Raises ``ValueError`` unless both cover the range from the same bits."""
    start, end = case.choice["start"], case.choice["end"]
    _check_tokens(case, "one", "cut", end=end)
    one = [(i, r) for i, r in live(case, case.choice["one"]) if r.n >= start]
    cut = [(i, r) for i, r in live(case, case.choice["cut"]) if start <= r.n < end]
    if not one or (one[0][1].n, one[0][1].m) != (start, end - start) or one[0][1].m < 2:
        raise ValueError(f"case: request {case.choice['one']} does not prefill {start} to {end} in one step")
    ends = [start] + [r.n + r.m for _, r in cut]
    if ends[-1] != end or [r.n for _, r in cut] != ends[:-1]:
        raise ValueError(f"case: request {case.choice['cut']} does not cover {start} to {end}")
    before = [[(r.n, r.m) for _, r in live(case, case.choice[x]) if r.n < start] for x in ("one", "cut")]
    if before[0] != before[1] or (
        start and not before[0] and read_slot(one[0][1], case.sizes.B) != read_slot(cut[0][1], case.sizes.B)
    ):
        raise ValueError(f"case: the requests reach {start} in different ways")
    return cut


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


def several_chunks(draw: Any, setting: Setting) -> Setting:
    """The setting with an fp32 state and blocks of two chunks or more, where the target and its device allow that.

    Only there may a prefill be cut inside a block, and only there does it show where chunks are counted from.
    """
    larger = [b for b in setting.scale.blocks if setting.sizes.C < b <= 4 * setting.sizes.C]
    if not larger or "fp32" not in setting.claims.state_dtypes:
        return setting
    sizes = dataclasses.replace(setting.sizes, B=draw(st.sampled_from(larger)))
    return dataclasses.replace(setting, sizes=sizes, dtypes=dataclasses.replace(setting.dtypes, state="fp32"))


@st.composite
def one_step_and_several(draw: Any, target: Target) -> Case:
    """Two requests from one place: one prefills a range in one step, its twin in several.

    ``choice``: ``one`` and ``cut`` (requests), ``start``, ``end`` of the range. The place may be the start, a hit, or
    the middle of a block; "phase" is the middle of a chunk, with a cut at its end. Most cases have free cuts only.
    """
    lead = draw(
        st.sampled_from(("cold", "hit", "inside", "phase") if target.claims.any_start else ("cold", "hit"))
    )
    levels = ("delta", "core", "conv", "core")
    if lead == "phase" and target.claims.seams & {"delta", "core"}:  # a convolution has no chunks
        levels = ("delta", "core")
    setting = draw_setting(draw, target, levels=levels, share=4.0, blocks=3)
    if lead == "phase":
        setting = several_chunks(draw, setting)
    plan, B, C = setting.planner(), setting.sizes.B, setting.sizes.C
    plan.budget = plan.tokens = 1 << 30
    k = 0 if lead == "cold" or (lead == "phase" and draw(st.booleans())) else blocks(draw, plan)
    donor = prefill(plan, None, [k * B + 1]) if k else None
    inside = 0
    if lead == "phase":
        inside = draw(st.integers(1, max(1, C - 2)))
    elif lead == "inside":
        inside = 1 + B // 3
    before = [k * B + inside] if inside else []  # a step of its own, the same for both
    start = k * B + inside
    end = start + draw(st.integers(4, min(3 * C + 8, max(8, setting.scale.tokens // 3))))
    if lead == "phase" and C < B:
        edge = k * B + C
        end = max(end, edge + 2)
        cuts = [edge, *draw_cuts(draw, [p for p in free_ends(setting, start, end) if p > edge + 1])]
    else:
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
