"""``values``: every output and every written block is what the oracle computes from what the row read.

Imports ``fuzz`` and ``oracle``. Exercise it with ``pytest tests/fuzz/test_properties.py -k values``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.pool import allocate
from gdn_apc.fuzz.properties._shared import needs, passed
from gdn_apc.fuzz.properties.base import Checked, Property, register
from gdn_apc.fuzz.runner import World, compare
from gdn_apc.fuzz.strategies import cases
from gdn_apc.fuzz.targets.base import Target

FAR = 1 << 32
"""Bytes between neighbouring slots of a far pool: from slot 2 on, the offsets of elements are beyond int32."""

FAR_SLOTS = 12
"""At most so many slots are ``FAR`` apart; more of them lie closer, in the same 48 GiB of address space."""

FAR_SCENARIOS = (
    "tiny_chunk_after_hit",
    "decode_over_a_boundary",
    "preempted_and_resumed",
    "as_many_rows_as_tokens",
)


def check_values(target: Target, case: Case) -> Checked:
    """Each row against the oracle, locally."""
    checked = Checked()
    world = World(target, case)
    for i in range(len(case.steps)):
        compare(world, world.run(i), checked)
    return passed(world, checked)


register(
    Property(
        name="values",
        doc="Outputs and every written block agree with the oracle, within its tolerance, the window bit for bit.",
        kind="kernel",
        strategy=lambda target: cases(target, "values"),
        check=check_values,
        needs=needs(),
    )
)


@contextlib.contextmanager
def _far_memory(device: torch.device) -> Iterator[None]:
    """On a GPU, one process at a time has a far pool, and gives its memory back: workers share the device."""
    if device.type != "cuda":
        yield
        return
    with open(
        Path(tempfile.gettempdir()) / f"gdn-apc-far-{os.getuid()}-{device.index or 0}.lock", "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            torch.cuda.empty_cache()


def check_far(target: Target, case: Case) -> Checked:
    """``check_values``, alone with the device's memory."""
    with _far_memory(target.device()):
        return check_values(target, case)


def _no_far_memory(target: Target) -> str | None:
    """Why slots cannot lie gigabytes apart here."""
    try:
        with _far_memory(target.device()):
            allocate(FAR_SLOTS * FAR, target.device())
    except (OSError, RuntimeError, AssertionError) as e:  # torch without CUDA asserts
        return f"cannot reserve {FAR_SLOTS * FAR >> 30} GiB for a pool: {e}"
    return None


@st.composite
def _far_cases(draw, target: Target) -> Case:
    """A few slots, gigabytes apart: what a large pool's last slots look like."""
    case = draw(cases(target, "far_slots", share=0.3, names=FAR_SCENARIOS, blocks=2))
    padding = FAR // -(-case.pool.num_slots // FAR_SLOTS)
    return dataclasses.replace(case, pool=dataclasses.replace(case.pool, page_padding=padding))


register(
    Property(
        name="far_slots",
        doc="The same when slots lie gigabytes apart, as in a large pool, where 32-bit offsets wrap.",
        kind="kernel",
        strategy=lambda target: _far_cases(target),
        check=check_far,
        needs=lambda target: needs()(target) or _no_far_memory(target),
        floor=10,
        most=28,  # on a GPU they wait for each other
    )
)
