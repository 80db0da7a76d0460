"""Workers that run a life on a target: on labels by its metadata, and on real pages by its kernels.

``MetadataWorker`` moves labels through the columns and slots that the target's own metadata names. ``KernelWorker``
also runs every batch on the target with real pages, recycled slots poisoned, and compares each row with the oracle,
locally (``fuzz/runner.py``): from the bits that its slot held. What differs is told by the invariant it breaks.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gdn_apc.fuzz import clock
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.engine.invariants import fail
from gdn_apc.fuzz.engine.labels import STATE, Streams
from gdn_apc.fuzz.engine.life import config_of
from gdn_apc.fuzz.engine.rows import Batch, Touch, contract
from gdn_apc.fuzz.engine.worker import SymbolicWorker
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.runner import PARTS_OF, World, check_write_set, compare, make_batch
from gdn_apc.fuzz.targets.base import Target

if TYPE_CHECKING:
    from gdn_apc.fuzz.engine.life import Life

_INDICES = (
    "block_idx_last_computed_token",
    "block_idx_first_scheduled_token",
    "block_idx_last_scheduled_token",
)


class MetadataWorker(SymbolicWorker):
    """Moves labels where ``target.metadata`` says: read and write columns, and the slots that it resolves itself."""

    def __init__(self, target: Target, case: Case):
        super().__init__(config_of(case), Streams(case.requests))
        self.target, self.chunk_size = target, case.sizes.C

    def touches(self, batch: Batch) -> list[Touch]:
        """What each row touches by the target's metadata; attention blocks are the engine's affair."""
        rows = batch.as_step().rows
        request = make_batch(rows, self.config.block_size, self.chunk_size, self.target.device())
        with clock.span("target"):
            answer = self.target.metadata(request)
            found = {name: t.tolist() for name, t in answer.items() if isinstance(t, torch.Tensor)}
        return [self._row(batch, i, found) for i in range(len(rows))]

    def _row(self, batch: Batch, i: int, found: dict[str, Any]) -> Touch:
        row, size = batch.rows[i], self.config.block_size
        read, first, last = (found[name][i] for name in _INDICES)
        own = contract(row, size)
        reads = [t for t in own.reads if t[0] != STATE]
        writes = [t for t in own.writes if t[0] != STATE]
        if found["has_initial_state"][i]:
            slot = found["read_slot"][i] if "read_slot" in found else row.table[read]
            reads.insert(0, (STATE, read, slot, row.n))
        if row.m:
            ends = {j: min((j + 1) * size, row.end) for j in range(first, last + 1)}
            if last >= len(row.table):
                raise Violation(
                    f"block_idx_last_scheduled_token of row {i} is {last}, but its block table has {len(row.table)} columns",
                    row=i,
                    column=last,
                )
            writes[:0] = [(STATE, j, row.table[j], end) for j, end in ends.items()]
        slot = found["write_slot"][i] if "write_slot" in found else 0
        if slot and (not row.m or slot != row.table[last]):
            writes.append((STATE, last, slot, row.end))
        return Touch(reads, writes)


class KernelWorker(SymbolicWorker):
    """Runs every batch on the target's kernels too. ``checked`` collects how near the tolerances they came.

    ``fresh`` slots are poisoned in both parts when their batch starts; slots of attention blocks stay poisoned, so
    that a kernel that touches one is seen.
    """

    def __init__(self, target: Target, case: Case, checked: Checked):
        super().__init__(config_of(case), Streams(case.requests))
        self.world, self.checked = World(target, case), checked
        pages, parts = self.world.pages, PARTS_OF[case.level]
        self._poison = {
            (s, part): pages.part(s, part).clone() for s in range(pages.num_slots) for part in parts
        }

    def start(self, batch: Batch) -> None:
        """Poison the slots that were given out while the batch was built, label and bytes."""
        super().start(batch)
        for slot in batch.fresh:
            for part in self.world.parts:
                self.world.pages.part(slot, part).copy_(self._poison[slot, part])

    def run(self, life: Life, batch: Batch, touched: list[Touch]) -> None:
        """Execute the batch on labels, then on the target, and compare."""
        super().run(life, batch, touched)
        world = self.world
        world.case = replace(world.case, steps=(*world.case.steps, batch.as_step()))
        ran = world.run(len(world.case.steps) - 1)
        try:
            check_write_set(world, ran)
        except Violation as violation:
            self._stray_write(life, violation)
        for row in ran.rows:
            try:
                compare(world, replace(ran, rows=[row]), self.checked)
            except Violation as violation:
                self._wrong_row(life, row, violation)

    def _stray_write(self, life: Life, violation: Violation) -> None:
        """A kernel wrote where no row of the batch may."""
        slot = violation.where.get("slot")
        published = slot in life.engine.pool.key_of
        name = "NullUntouched" if slot == 0 else "SharedImmutable" if published else "WriteExclusive"
        request = next((r for r, _, _ in life.referents(slot)), None) if slot else None
        label = self.contents[slot] if slot is not None else "nobody's bytes"
        fail(life, name, str(violation), label, "other bytes", request=request, slot=slot)

    def _wrong_row(self, life: Life, row: Any, violation: Violation) -> None:
        """A row computed, or left in a block, something else than the oracle does from what it read."""
        n, request = row.row.n, row.row.request
        # A fresh row that starts from poison passes it on to its output.
        name = "FreshStart" if n == 0 and bool(row.out.isnan().any()) else "StateTrue"
        column, position = violation.where.get("column"), violation.where.get("position")
        block = column if column is not None else (position or n) // self.config.block_size
        slot = row.row.table[block] if block < len(row.row.table) else None
        label = self.contents[slot] if slot is not None else "an output"
        fail(life, name, str(violation), label, "another value", request=request, block=block, slot=slot)
