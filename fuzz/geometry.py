"""Where blocks, chunks and shared prefixes lie: the arithmetic of DESIGN.md sections 3 and 4.2, in plain integers.

Shared by the planner, validity, the runner and the ledger. Imports the standard library and ``fuzz.case``.
Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdn_apc.fuzz.case import Case, Request, Row


def read_column(n: int, B: int) -> int:
    """The column that a row with ``n > 0`` computed tokens reads."""
    return -(-n // B) - 1


def write_columns(n: int, m: int, B: int) -> range:
    """The columns that a row writes; none for ``m = 0``."""
    return range(n // B, -(-(n + m) // B)) if m else range(0)


def state_end(column: int, n: int, m: int, B: int) -> int:
    """How many tokens the state holds that a row leaves in this column."""
    return min((column + 1) * B, n + m)


def chunks(n: int, m: int, B: int, C: int) -> list[tuple[int, int]]:
    """A row's chunks ``(start, end)``: the absolute grid (boundaries, and every C tokens after one) clipped to the row."""
    edges, p = [], n
    while p < n + m:
        end = min(p - p % B % C + C, p - p % B + B, n + m)
        edges.append((p, end))
        p = end
    return edges


def on_grid(p: int, B: int, C: int) -> bool:
    """Whether position ``p`` is an edge of the chunk grid."""
    return p % B % C == 0


def is_free_cut(p: int, B: int, C: int, state_dtype: str) -> bool:
    """Whether a prefill step that ends at ``p`` leaves the bits of the one-step prefill (section 4.4)."""
    return p % B == 0 or (state_dtype == "fp32" and on_grid(p, B, C))


def owner(requests: Sequence[Request], r: int, n: int) -> int:
    """The request that the first ``n`` tokens of request ``r`` come from, through any number of shared prefixes."""
    while requests[r].parent is not None and n <= requests[r].shared:
        r = requests[r].parent
    return r


def read_slot(row: Row, B: int) -> int | None:
    """The slot that a live row reads, or None."""
    return row.table[read_column(row.n, B)] if row.m and row.n else None


def write_slots(row: Row, B: int) -> list[tuple[int, int]]:
    """``(column, slot)`` of every column that a row writes, null columns left out."""
    return [(j, row.table[j]) for j in write_columns(row.n, row.m, B) if row.table[j]]


def rows(case: Case) -> Iterator[tuple[int, int, Row]]:
    """``(step, index in its batch, row)`` of every row of a case, in order."""
    for i, step in enumerate(case.steps):
        for j, row in enumerate(step.rows):
            yield i, j, row
