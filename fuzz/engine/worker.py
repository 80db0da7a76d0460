"""The symbolic worker: runs batches on labels, without a tensor.

Imports ``fuzz.engine`` and the standard library. Exercise it with ``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdn_apc.fuzz.engine.faults import NONE, Faults
from gdn_apc.fuzz.engine.labels import NULL, POISON, STATE, Label, Streams
from gdn_apc.fuzz.engine.rows import Batch, EngineRow, Touch, contract, move_labels

if TYPE_CHECKING:
    from gdn_apc.fuzz.engine.life import Life
    from gdn_apc.fuzz.engine.scheduler import EngineConfig


class SymbolicWorker:
    """Executes batches on labels. ``contents[slot]`` is what the slot holds; ``faults`` are those of a kernel.

    A batch runs in three parts, so that the invariants can look before anything is written: ``touches`` says
    what every row will read and write, ``start`` poisons the slots given out since the last batch, ``run`` does it.
    """

    def __init__(self, config: EngineConfig, streams: Streams, faults: Faults = NONE):
        self.config, self.streams, self.faults = config, streams, faults
        self.contents: list[Label] = [NULL] + [POISON] * (config.num_slots - 1)

    def touches(self, batch: Batch) -> list[Touch]:
        """What each row touches: the contract, unless a fault is planted."""
        return [self._touch(row) for row in batch.rows]

    def start(self, batch: Batch) -> None:
        """Poison the slots that were given out while the batch was built."""
        for slot in batch.fresh:
            self.contents[slot] = POISON

    def run(self, life: Life, batch: Batch, touched: list[Touch]) -> None:
        """Execute the batch: all reads, then all writes."""
        move_labels(self.contents, batch, touched, self.streams, self.config.block_size)

    def _touch(self, row: EngineRow) -> Touch:
        size, faults = self.config.block_size, self.faults
        if row.m == 0:
            column = max(0, row.n - 1) // size
            slot = 0 if faults.null_written else row.table[min(column, len(row.table) - 1)]
            write = faults.null_written or faults.padding_writes
            return Touch([], [(STATE, column, slot, row.n)] if write else [])
        touch = contract(row, size)
        if faults.wrong_block_size and row.n:
            column = (row.n - 1) // (2 * size)
            touch.reads[0] = (STATE, column, row.table[column], row.n)
        if faults.fresh_by_length and row.n and row.m > 1:
            del touch.reads[0]
        if faults.has_state_by_length and row.n == 0 and row.m == 1:
            touch.reads.insert(0, (STATE, 0, row.table[0], 0))
        return touch
