"""Schedules made on purpose: the triggers of public bug reports that a uniform draw almost never makes.

Each scenario takes Hypothesis's ``draw`` and an empty planner and leaves a schedule; its docstring names the reports
(shared catalogue of recurrent-state bugs) whose trigger it is. Lengths that do not matter are drawn.
Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.strategies.schedules import AIMS, STALE, ensure_work, length, random_schedule

SCENARIOS: dict[str, Callable] = {}


def scenario(f: Callable) -> Callable:
    """Register a scenario under its function's name."""
    SCENARIOS[f.__name__] = f
    return f


RARE = (
    *("uniform_rows", "tiny_chunk_after_hit", "prompt_in_pieces", "many_boundaries") * 2,
    "fresh_token_among_decodes",
)
"""Scenarios whose events nothing else makes are drawn more often."""


def draw_schedule(draw, plan: Planner, names: tuple[str, ...] | None = None) -> str:
    """A random schedule or a scenario, of ``names`` if given; returns which."""
    name = draw(st.sampled_from(names or SCHEDULES))
    if name == "random":
        random_schedule(draw, plan)
    else:
        SCENARIOS[name](draw, plan)
        ensure_work(plan)
    return name


def some(draw, plan: Planner, n: int = 0) -> int:
    """Any number of tokens for a step that starts at ``n``."""
    return length(plan.sizes, n, draw(st.sampled_from(AIMS)), draw(st.integers(0, 24)))


def blocks(draw, plan: Planner, most: int = 2) -> int:
    """A number of whole blocks, so many that their tokens are a prefill (two tokens or more)."""
    least = 2 if plan.sizes.B == 1 else 1
    return draw(st.integers(least, least + most - 1))


def donor(draw, plan: Planner, k: int) -> int:
    """A request that leaves state(kB) in column k − 1, in a finished batch."""
    r = plan.admit(k * plan.sizes.B + draw(st.integers(0, 3)))
    plan.end_step()
    return r


def reader(draw, plan: Planner, r: int, k: int, m: int) -> int | None:
    """A hit on column k − 1 of a request, or on the deepest column before it that there is (the budget may end it)."""
    found = [x for x in plan.hits(r) if x <= k]
    if not found:
        return None
    return plan.hit(r, found[-1], m, extra=draw(st.integers(0, 2)), stale=draw(st.sampled_from(STALE)))


def advance_all(plan: Planner, m: int) -> None:
    """Every running request gets a row of m tokens."""
    for r in plan.running():
        plan.advance(r, m)


@scenario
def tiny_chunk_after_hit(draw, plan: Planner) -> None:
    """A chunk of 1 then 2 tokens after a hit, below the window, and a second reader of the shared block (vllm 56196, fla 546)."""
    k = blocks(draw, plan)
    r = donor(draw, plan, k)
    first = draw(st.sampled_from((2, 1)))
    a = reader(draw, plan, r, k, first)
    if draw(st.booleans()):
        plan.advance(r, 1)
    plan.end_step()
    if a is not None:
        plan.advance(a, 3 - first)
    plan.end_step()
    reader(draw, plan, r, k, some(draw, plan, k * plan.sizes.B))


@scenario
def fresh_token_among_decodes(draw, plan: Planner) -> None:
    """[decode, decode, fresh chunk of 1 on a recycled slot, resumed chunk of 1, zero-length row] (vllm 51562, 51483, 34871)."""
    first, second = plan.admit(some(draw, plan)), plan.admit(1 + draw(st.integers(0, 4)))
    victim = plan.admit(blocks(draw, plan, 1) * plan.sizes.B)
    plan.end_step()
    again = draw(st.booleans())
    plan.preempt(victim, recycle=not again)
    if again:
        plan.preempt(second, recycle=True)
    rows = [
        lambda: plan.advance(first, 1),
        lambda: plan.advance(second, 1),
        lambda: plan.admit(1),
        lambda: plan.resume(victim, max(plan.hits(victim), default=0), 1) if again else plan.zero(victim),
        lambda: plan.pad(draw(st.integers(0, 20)), 1),
    ]
    for row in draw(st.permutations(rows)):
        row()
    plan.end_step()
    advance_all(plan, draw(st.sampled_from((1, 2))))


@scenario
def uniform_rows(draw, plan: Planner) -> None:
    """Every row has the same length, whatever it is: continued, fresh, tail of a prompt, hit (vllm 49918, 55178; ascend 12255)."""
    k = blocks(draw, plan, 1)
    r = donor(draw, plan, k)
    other = plan.admit(some(draw, plan))
    plan.end_step()
    m = draw(st.sampled_from((2, 1, 4, 3)))
    reader(draw, plan, r, k, m)
    plan.advance(r, m)
    plan.admit(m)
    plan.advance(other, m)
    plan.end_step()
    advance_all(plan, 1)


@scenario
def empty_row_between(draw, plan: Planner) -> None:
    """Lengths [a, 0, b], the empty row in the middle or first (ascend 11807, fla 103)."""
    r = plan.admit(some(draw, plan))
    plan.end_step()
    if draw(st.booleans()):
        plan.pad(draw(st.integers(0, 30)), draw(st.integers(0, 3)))
    plan.admit(some(draw, plan))
    plan.zero(r)
    plan.admit(some(draw, plan))
    plan.end_step()
    plan.advance(r, some(draw, plan, plan.lives[r].n))


@scenario
def clipped_chunks(draw, plan: Planner) -> None:
    """Steps that begin and end inside one chunk, then cross its edge (vllm 23279, 38561; TensorRT-LLM 6334)."""
    r = plan.admit(1 + draw(st.integers(0, 6)))
    for _ in range(draw(st.integers(1, 2))):
        plan.end_step()
        plan.advance(r, 2 + draw(st.integers(0, 3)))
    plan.end_step()
    plan.advance(r, length(plan.sizes, plan.lives[r].n, draw(st.sampled_from(("past", "edge", "any"))), 1))


@scenario
def many_boundaries(draw, plan: Planner) -> None:
    """One step crosses two boundaries or more, from anywhere; later readers hit the blocks in between (vllm 57278, 34587)."""
    B = plan.sizes.B
    r = plan.admit(1 + draw(st.integers(0, B)))
    plan.end_step()
    start = plan.lives[r].n
    crossed = 2 + draw(st.integers(0, 2))
    plan.advance(r, crossed * B + draw(st.integers(0, 3)), null_interior=draw(st.booleans()))
    plan.end_step()
    for k in (start // B + 1, start // B + 2):
        reader(draw, plan, r, k, some(draw, plan, k * B))


@scenario
def preempted_and_resumed(draw, plan: Planner) -> None:
    """A request that had decoded loses its slots in the middle of a block, resumes and runs past the place (vllm 33706, 51113)."""
    r = plan.admit(blocks(draw, plan) * plan.sizes.B + draw(st.integers(0, 2)))
    for _ in range(draw(st.integers(1, 2))):
        plan.end_step()
        plan.advance(r, 1)
    plan.end_step()
    plan.preempt(r, recycle=draw(st.booleans()))
    if draw(st.booleans()):
        plan.admit(some(draw, plan))
    k = draw(st.sampled_from([0, *plan.hits(r)][::-1]))
    plan.resume(r, k, some(draw, plan, k * plan.sizes.B), stale=draw(st.sampled_from(STALE)))
    plan.end_step()
    plan.advance(r, some(draw, plan, plan.lives[r].n))


@scenario
def unequal_rows(draw, plan: Planner) -> None:
    """Rows of unequal length whose packed offsets are off the chunk grid (sglang 31833, 33515)."""
    for _ in range(3):
        plan.admit(some(draw, plan))
    plan.end_step()
    for r in plan.running():
        plan.advance(r, draw(st.sampled_from((1, 1, 2, 5))))


@scenario
def as_many_rows_as_tokens(draw, plan: Planner) -> None:
    """The longest row is as long as the batch has rows: lengths 2 and 1 in two rows (fla 1194, 1203)."""
    count = draw(st.integers(2, 4))
    plan.admit(count)
    for _ in range(count - 1):
        plan.admit(draw(st.integers(1, count)))
    plan.end_step()
    advance_all(plan, 1)


@scenario
def decode_over_a_boundary(draw, plan: Planner) -> None:
    """Decode reaches a boundary exactly and goes on; a block that decode wrote is hit (vllm 42792, 53505)."""
    B, k = plan.sizes.B, blocks(draw, plan)
    r = plan.admit(max(1, k * B - draw(st.integers(1, 2))))
    while plan.lives[r].n <= k * B:
        plan.end_step()
        plan.advance(r, 1)
    plan.end_step()
    reader(draw, plan, r, k, some(draw, plan, k * B))


@scenario
def recycled_slots(draw, plan: Planner) -> None:
    """Slots go round: each request starts in what the last one left, with one token or more (vllm 56524, llama.cpp 29092)."""
    for _ in range(draw(st.integers(2, 3))):
        r = plan.admit(some(draw, plan))
        if draw(st.booleans()):
            plan.admit(1)
        plan.end_step()
        plan.preempt(r, recycle=True)
    plan.admit(draw(st.sampled_from((1, 2, 9))))


@scenario
def shared_by_many(draw, plan: Planner) -> None:
    """Several readers of one block in one batch, while its owner goes on (vllm 29387; sglang 39342)."""
    k = blocks(draw, plan)
    r = donor(draw, plan, k)
    for _ in range(draw(st.integers(2, 3))):
        reader(draw, plan, r, k, some(draw, plan, k * plan.sizes.B))
    plan.advance(r, some(draw, plan, plan.lives[r].n))
    plan.end_step()
    advance_all(plan, 1)


@scenario
def long_prefill(draw, plan: Planner) -> None:
    """One prompt as long as the budget allows, in one step, so that drift and decay show (fla 122, cudnn-frontend 1017)."""
    r = plan.admit(
        10 * plan.sizes.C + draw(st.integers(0, 9)), null_interior=draw(st.sampled_from((False, False, True)))
    )
    plan.end_step()
    plan.advance(r, draw(st.sampled_from((1, 3))))


@scenario
def chunks_smaller_than_blocks(draw, plan: Planner) -> None:
    """A prompt in equal steps out of phase with block and chunk, each resuming the last (Qwen 3.x report on 1792-token chunks)."""
    m = 2 + draw(st.integers(0, plan.sizes.B))
    r = plan.admit(m)
    for _ in range(3):
        plan.end_step()
        plan.advance(r, m)


@scenario
def prompt_in_pieces(draw, plan: Planner) -> None:
    """A prompt in steps that end on chunk edges, on boundaries, or one token beside them (sglang 33515; vllm 51113)."""
    r = plan.admit(max(2, length(plan.sizes, 0, draw(st.sampled_from(("edge", "boundary", "past"))), 0)))
    for _ in range(draw(st.integers(1, 3))):
        plan.end_step()
        aim = draw(st.sampled_from(("edge", "boundary", "edge", "before", "past")))
        plan.advance(r, max(2, length(plan.sizes, plan.lives[r].n, aim, draw(st.integers(0, 2)))))


@scenario
def null_last_column(draw, plan: Planner) -> None:
    """A decode and a prefill whose last columns are null: nothing of them is kept (flashinfer 2810, vllm 39064)."""
    other, r = plan.admit(plan.sizes.B), plan.admit(blocks(draw, plan, 1) * plan.sizes.B)
    plan.end_step()
    plan.advance(other, 1, forget=True)
    plan.advance(r, draw(st.sampled_from((2, plan.sizes.B + 1, 1))), forget=draw(st.booleans()))
    plan.admit(draw(st.sampled_from((1, 3))), forget=draw(st.booleans()))


SCHEDULES = ("random",) * 8 + tuple(SCENARIOS) + RARE
"""What a schedule is drawn from, unless a property asks for others."""
