"""``batch_invariance`` and ``program_order``: what is around a row, or runs beside it, changes no bit of it.

Imports ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py -k "invariance or order"``.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from hypothesis import strategies as st

from gdn_apc.fuzz import interpreter
from gdn_apc.fuzz.case import Case, Row, Step
from gdn_apc.fuzz.properties._shared import live_rows, needs, passed, run, same_rows
from gdn_apc.fuzz.properties.base import Checked, Property, Violation, register
from gdn_apc.fuzz.runner import How, Ran, RanRow
from gdn_apc.fuzz.strategies import cases
from gdn_apc.fuzz.targets.base import Target

VARIANTS: dict[str, Callable[[Case, random.Random], Case]] = {}


def variant(f: Callable) -> Callable:
    """Register another case whose rows must come out the same."""
    VARIANTS[f.__name__] = f
    return f


@variant
def alone(case: Case, rng: random.Random) -> Case:
    """Every row in a batch of its own."""
    return dataclasses.replace(case, steps=tuple(Step((row,)) for step in case.steps for row in step.rows))


@variant
def permuted(case: Case, rng: random.Random) -> Case:
    """The rows of each batch in another order."""
    return dataclasses.replace(
        case, steps=tuple(Step(tuple(rng.sample(s.rows, len(s.rows)))) for s in case.steps)
    )


@variant
def other_slots(case: Case, rng: random.Random) -> Case:
    """Other slot numbers, in a larger pool."""
    total = case.pool.num_slots + 3
    new = [0, *rng.sample(range(1, total), total - 1)]
    return dataclasses.replace(
        case,
        pool=dataclasses.replace(case.pool, num_slots=total),
        steps=tuple(
            Step(
                tuple(
                    dataclasses.replace(row, table=tuple(new[slot] for slot in row.table))
                    for row in step.rows
                )
            )
            for step in case.steps
        ),
    )


@variant
def other_layout(case: Case, rng: random.Random) -> Case:
    """Other padding between slots, and windows laid out the other way."""
    padding = case.pool.page_padding + rng.choice((64, 128, 448))
    pool = dataclasses.replace(case.pool, page_padding=padding, channel_major=not case.pool.channel_major)
    return dataclasses.replace(case, pool=pool)


@variant
def padded(case: Case, rng: random.Random) -> Case:
    """Padding rows with stale lengths and tables, anywhere in each batch."""

    def pad(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        stale = rows[0].table
        rows = list(rows)
        for _ in range(rng.randint(1, 3)):
            rows.insert(rng.randint(0, len(rows)), Row(None, rng.randint(0, 40), 0, stale))
        return tuple(rows)

    return dataclasses.replace(case, steps=tuple(Step(pad(step.rows)) for step in case.steps))


@variant
def unrelated(case: Case, rng: random.Random) -> Case:
    """All of it at once, except that rows stay together."""
    for change in (other_slots, other_layout, padded, permuted):
        case = change(case, rng)
    return case


def check_batch(target: Target, case: Case) -> Checked:
    """The case and its variant: every row has the same bits."""
    checked = Checked()
    name = case.choice["variant"]
    other_case = VARIANTS[name](case, random.Random(case.choice["seed"]))
    world, ran = run(target, case)
    _, other = run(target, other_case, How(tail=case.choice["tail"] if target.claims.packed_tail else 0))
    compare_runs(ran, other, checked, f"the batch around it or where it lies ({name})")
    return passed(world, checked)


def compare_runs(ran: list[Ran], other: list[Ran], checked: Checked, why: str) -> None:
    """The same rows in both runs, matched by request and order."""
    theirs = _by_request(other)
    same_rows([(r, theirs[key]) for key, r in _by_request(ran).items()], checked, why)


def _by_request(ran: list[Ran]) -> dict[tuple[int, int], RanRow]:
    found: dict[tuple[int, int], RanRow] = {}
    count: dict[int, int] = {}
    for r in live_rows(ran):
        request = r.row.request
        found[request, count.setdefault(request, 0)] = r
        count[request] += 1
    return found


register(
    Property(
        name="batch_invariance",
        doc="A row alone, in another order, in other slots, pages and padding, or beside padding rows has the same bits.",
        kind="kernel",
        strategy=lambda target: cases(
            target,
            "batch_invariance",
            share=0.5,
            choice={
                "variant": st.sampled_from(tuple(VARIANTS)),
                "seed": st.integers(0, 999),
                "tail": st.sampled_from((0, 5)),
            },
        ),
        check=check_batch,
        needs=needs("batch_invariant"),
    )
)


def check_order(target: Target, case: Case) -> Checked:
    """In the interpreter: programs in other orders, and no two that meet in memory. On a GPU: twice more, as they come."""
    checked = Checked()
    world, ran = run(target, case)
    order = case.choice["order"]
    if target.device().type == "cuda":
        for _ in range(2):
            compare_runs(ran, run(target, case)[1], checked, "when it runs")
        return passed(world, checked)
    if case.choice["races"]:
        try:
            with interpreter.races():
                run(target, case)
        except interpreter.Race as e:
            raise Violation(f"two programs of one launch meet in memory: {e}", race=str(e)) from e
    with interpreter.program_order(order or "reversed"):
        compare_runs(ran, run(target, case)[1], checked, f"the order of programs ({order or 'reversed'})")
    return passed(world, checked)


def _order_matters(target: Target) -> str | None:
    """Why there is nothing to reorder."""
    if target.device().type == "cuda":
        return None
    if not target.runs_triton:
        return "no Triton kernels whose programs could run in another order"
    return None if interpreter.is_active() else "Triton's interpreter is not active"


register(
    Property(
        name="program_order",
        doc="Programs of a launch in any order give the same bits and never meet in memory; on a GPU, runs repeat bit for bit.",
        kind="kernel",
        strategy=lambda target: cases(
            target,
            "program_order",
            share=0.4,
            choice={"order": st.integers(0, 99), "races": st.booleans()},
        ),
        check=check_order,
        needs=lambda target: needs("batch_invariant")(target) or _order_matters(target),
    )
)
