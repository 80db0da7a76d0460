"""``warm_equals_cold`` and ``hit_is_used``: a hit changes no bit, and what a hit reads is what counts.

Imports ``fuzz`` and ``oracle``. Exercise it with ``pytest tests/fuzz/test_properties.py -k hit``.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.geometry import read_slot
from gdn_apc.fuzz.properties._shared import compare_pairs, live_rows, needs, passed, run
from gdn_apc.fuzz.properties.base import Checked, Property, register
from gdn_apc.fuzz.runner import NAMES, RanRow, World, compare, truth
from gdn_apc.fuzz.strategies import cases
from gdn_apc.fuzz.strategies.twins import check_warm_and_cold, warm_and_cold
from gdn_apc.fuzz.targets.base import Target


def check_warm(target: Target, case: Case) -> Checked:
    """Outputs after kB, and every block that both write after it, bit for bit."""
    check_warm_and_cold(case)
    checked = Checked()
    world, ran = run(target, case)
    by_end = {r.row.n + r.row.m: r for r in live_rows(ran) if r.row.request == case.choice["cold"]}
    warm = [r for r in live_rows(ran) if r.row.request == case.choice["warm"]]
    for r in warm:
        compare_tail(r, by_end[r.row.n + r.row.m], case.sizes.B, checked, "whether its prefix was a hit")
    return passed(world, checked)


def compare_tail(r: RanRow, other: RanRow, B: int, checked: Checked, why: str) -> None:
    """Two rows that end at one position: what both computed from the later start on has the same bits."""
    start, end = max(r.row.n, other.row.n), r.row.n + r.row.m
    who = f"of request {r.row.request}, positions {start} to {end}"
    place = r.place(start=start)
    pairs = [
        (
            t,
            other.writes[column][part],
            f"the {NAMES[part]} of column {column} {who}",
            {**place, "column": column},
        )
        for column in sorted(set(r.writes) & set(other.writes), key=lambda j: min((j + 1) * B, end))
        for part, t in r.writes[column].items()
    ]
    a, b = r.out[start - r.row.n :], other.out[start - other.row.n :]
    compare_pairs([*pairs, (a, b, f"the output {who}", place)], checked, why)


register(
    Property(
        name="warm_equals_cold",
        doc="A request that starts from a hit leaves the bits of one that computes its prefix, for every state dtype.",
        kind="kernel",
        strategy=lambda target: warm_and_cold(target),
        check=check_warm,
        needs=needs("boundary_grid", "persisted_carry"),
    )
)


def check_used(target: Target, case: Case) -> Checked:
    """With the slot of one row changed, that row and all after it follow the oracle from the changed bits."""
    checked = Checked()
    reading = [(i, row) for i, step in enumerate(case.steps) for row in step.rows if row.m and row.n]
    if not reading:
        return checked
    at, changed = reading[case.choice["reader"] % len(reading)]
    original: list[RanRow] = []

    def edit(i: int, world: World) -> None:
        if i == at:
            row = next(j for j, r in enumerate(case.steps[i].rows) if r is changed)
            original.append(world.before(i, row, changed))
            disturb(world, read_slot(changed, case.sizes.B), case.choice["noise"])

    world = World(target, case, edit=edit)
    moved = False
    for i in range(len(case.steps)):
        ran = world.run(i)
        compare(world, ran, checked)
        if i == at:
            r = next(r for r in ran.rows if r.row is changed)
            moved = visibly_different(world, original[0], r)
    if not moved:
        checked.comparisons = 0  # the changed state decayed at once: a target that ignores it would pass
    return passed(world, checked)


def disturb(world: World, slot: int, seed: int) -> None:
    """Other finite numbers of the same size in a slot's state and window."""
    generator = torch.Generator().manual_seed(seed)
    for part in world.parts:
        held = getattr(world.pages, part)[slot]
        size = max(float(held.double().square().mean().sqrt()), 0.1)
        noise = torch.randn(held.shape, generator=generator, dtype=torch.float64) * size
        # Through the input dtype: a window holds inputs.
        held.copy_(noise.to(world.streams[0][next(iter(world.streams[0]))].dtype).to(held.device))


def visibly_different(world: World, original: RanRow, changed: RanRow) -> bool:
    """Whether the oracle's answers from the two slots differ by more than tolerances."""
    before, after = truth(world, original), truth(world, changed)
    pairs = [(before.o, after.o, after.o_tol)]
    pairs += [
        (w.state, after.writes[j].state, after.state_tol[j])
        for j, w in before.writes.items()
        if w.state is not None
    ]
    return any(((a - b).abs() > 4 * tol).any() for a, b, tol in pairs)


READING = (
    "tiny_chunk_after_hit",
    "decode_over_a_boundary",
    "shared_by_many",
    "preempted_and_resumed",
    "many_boundaries",
    "clipped_chunks",
    "uniform_rows",
    "prompt_in_pieces",
)
"""Scenarios in which rows read a state."""

register(
    Property(
        name="hit_is_used",
        doc="Change what a row's slot holds, and its results move as the oracle says: nothing is ignored or recomputed.",
        kind="kernel",
        strategy=lambda target: cases(
            target,
            "hit_is_used",
            lively=True,
            names=READING,
            choice={"reader": st.integers(0, 5), "noise": st.integers(0, 999)},
        ),
        check=check_used,
        needs=needs(),
    )
)
