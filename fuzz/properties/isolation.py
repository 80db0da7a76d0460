"""``write_set`` and ``read_set``: a step changes what its rows write and nothing else, and depends on what they read and nothing else.

Imports ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py -k set``.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties._shared import any_of, live_rows, needs, passed, run, same_bits, same_rows
from gdn_apc.fuzz.properties.base import Checked, Property, Violation, register
from gdn_apc.fuzz.runner import How, Ran, World, check_write_set
from gdn_apc.fuzz.strategies import SCHEDULES, cases
from gdn_apc.fuzz.targets.base import Target


def check_writes(target: Target, case: Case) -> Checked:
    """All bytes of the pool: null slot, foreign slots, page padding and red zones do not change; written blocks do."""
    checked = Checked()
    world = World(target, case)
    for i in range(len(case.steps)):
        ran = world.run(i)
        check_write_set(world, ran)
        checked.comparisons += 1
    return passed(world, checked)


WRITING = SCHEDULES + ("null_last_column", "many_boundaries") * 5
"""Any schedule; rather those that pass through null columns or end in one."""

register(
    Property(
        name="write_set",
        doc="A step changes the blocks that its rows write, and no other byte of the pool.",
        kind="kernel",
        strategy=lambda target: cases(target, "write_set", names=WRITING),
        check=check_writes,
        needs=needs(),
    )
)


def check_reads(target: Target, case: Case) -> Checked:
    """The same bits with NaN and with zeros in everything that must not be read, and with another row's inputs NaN."""
    checked = Checked()
    tail = case.choice["tail"] if target.claims.packed_tail else 0
    poisoned = World(target, case, How(fill="nan", tail=tail, hide=True, widen=case.choice["widen"]))
    ran = []
    for i in range(len(case.steps)):
        before = poisoned.pages.snapshot()
        ran.append(poisoned.run(i))
        _finite(ran[-1])
        if len(ran[-1].rows) > 1:
            _spoil(target, case, i, before, ran[-1], checked)
    _, plain = run(target, case, How(fill="zero", hide=True))
    same_rows(list(zip(live_rows(ran), live_rows(plain))), checked, "bytes that it must not read")
    return passed(poisoned, checked)


def _finite(ran: Ran) -> None:
    """NaN that was read by mistake shows here first, with its place."""
    if not any_of(~torch.isfinite(t).all() for r in ran.rows for t in r.all_bits()):
        return
    for r in ran.rows:
        for name, t in r.bits().items():
            bad = (~torch.isfinite(t)).nonzero()
            if len(bad):
                at = [int(i) for i in bad[0]]
                raise Violation(
                    f"{name} of request {r.row.request} is {float(t[tuple(at)])} at {at} (step {r.step}, row {r.index}): "
                    "something was read that must not be (all of it holds NaN)",
                    **r.place(what=name, at=at),
                )


def _spoil(target: Target, case: Case, i: int, before: tuple, ran: Ran, checked: Checked) -> None:
    """The step again, with NaN in the inputs of one row: the others do not change."""
    spoiled = case.choice["spoil"] % len(ran.rows)
    other = World(target, case, How(fill="nan", hide=True, spoil=spoiled))
    other.pages.restore(before)
    for j, (a, b) in enumerate(zip(ran.rows, other.run(i).rows)):
        if j != spoiled:
            same_bits(a, b, checked, f"the inputs of request {ran.rows[spoiled].row.request}")


register(
    Property(
        name="read_set",
        doc="Results do not depend on tails, padding, null, foreign and fresh slots, stale columns, or other rows' inputs.",
        kind="kernel",
        strategy=lambda target: cases(
            target,
            "read_set",
            share=0.4,
            choice={
                "tail": st.sampled_from((0, 1, 7, 40)),
                "spoil": st.integers(0, 5),
                "widen": st.sampled_from((0, 1, 5)),
            },
        ),
        check=check_reads,
        needs=needs(),
    )
)
