"""Rows, batches, and what the contract lets a row touch, derived token by token.

The engine computes columns with DESIGN.md's formulas; this module derives them from the positions of the
tokens, so that the two can disagree.

Imports ``fuzz.case``, ``fuzz.engine.labels`` and the standard library. Exercise it with
``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gdn_apc.fuzz.case import Row, Step
from gdn_apc.fuzz.engine.labels import ATTENTION, POISON, STATE, Label, Streams


@dataclass(eq=False)
class EngineRow:
    """A row as scheduled. ``epoch`` tells a request's life before a preemption from the one after it.

    ``table`` and ``attention`` are the block tables at that moment (the attention table is empty in an engine
    without attention). ``request is None`` is a padding row: m is 0, n and the tables are stale.
    """

    request: int | None
    epoch: int
    n: int
    m: int
    table: tuple[int, ...]
    attention: tuple[int, ...] = ()
    published: list[int] = field(default_factory=list)  # the slots whose hash this row published
    sampled: bool = False  # this row reached the last known token, so its step samples the next

    @property
    def end(self) -> int:
        """Tokens computed after the row: n + m."""
        return self.n + self.m

    def __str__(self) -> str:
        who = "padding row" if self.request is None else f"request {self.request}"
        return f"{who}, {self.n} → {self.end}, table {list(self.table)}"


@dataclass(eq=False)
class Batch:
    """A step: its rows, and the slots given out while it was built, which hold poison when it starts."""

    rows: list[EngineRow] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)

    def as_step(self) -> Step:
        """The batch as a case has it, so that a life can be replayed by any property of the kernels."""
        return Step(tuple(Row(r.request, r.n, r.m, r.table) for r in self.rows))


class Touch(NamedTuple):
    """What a row touches: (kind, column, slot, tokens of the prefix that is read or left there)."""

    reads: list[tuple[str, int, int, int]]
    writes: list[tuple[str, int, int, int]]


def contract(row: EngineRow, block_size: int) -> Touch:
    """What DESIGN.md section 3 lets ``row`` touch, from the positions of its tokens."""
    reads: list[tuple[str, int, int, int]] = []
    writes: list[tuple[str, int, int, int]] = []
    if row.m == 0:
        return Touch(reads, writes)
    last_written = {position // block_size: position + 1 for position in range(row.n, row.end)}
    if row.n > 0:
        column = (row.n - 1) // block_size
        reads.append((STATE, column, row.table[column], row.n))
    writes += [(STATE, column, row.table[column], end) for column, end in last_written.items()]
    if row.attention:
        held = {position // block_size: position + 1 for position in range(row.n)}
        reads += [(ATTENTION, column, row.attention[column], end) for column, end in held.items()]
        writes += [(ATTENTION, column, row.attention[column], end) for column, end in last_written.items()]
    return Touch(reads, writes)


def move_labels(
    contents: list[Label], batch: Batch, touched: list[Touch], streams: Streams, block_size: int
) -> None:
    """Execute ``batch`` on ``contents``, in place: every row reads before any row writes.

    A row that reads anything but its own prefix (or reads the wrong places) leaves ``wrong`` labels.
    """
    for slot in batch.fresh:
        contents[slot] = POISON
    written: list[tuple[int, Label]] = []
    for row, touch in zip(batch.rows, touched):
        if not touch.writes:
            continue
        owner = -2 if row.request is None else row.request
        right = row.request is not None and touch.reads == contract(row, block_size).reads
        right = right and all(contents[s] == streams.label(kind, owner, n) for kind, _, s, n in touch.reads)
        for kind, _, slot, end in touch.writes:
            written.append((slot, streams.label(kind, owner, end) if right else Label("wrong", owner, end)))
    for slot, label in written:
        contents[slot] = label
