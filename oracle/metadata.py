"""Block-index metadata by brute force: every index is looked up in an explicit list of tokens.

No ceiling division, no cumulative sums, no tensors: a row is the list of its tokens' positions, a token's column
is the block its position lies in, and a chunk starts where the walk over the tokens says so. The fields have the
names of ``impl.build_metadata``'s, and DESIGN.md section 3 says what they mean.

Imports the standard library only. Exercise it with ``pytest tests/oracle/test_indices.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NULL_SLOT = 0


def column_of(position: int, B: int) -> int:
    """The column (block of the request) that a position lies in: block j covers positions jB to (j+1)B − 1."""
    return position // B


def starts_chunk(position: int, B: int, C: int) -> bool:
    """Whether the absolute grid has a chunk edge before this position: a boundary, or C tokens after the last edge."""
    offset_in_block = position % B
    return offset_in_block % C == 0


def block_indices(
    rows: Sequence[tuple[int, int, Sequence[int]]],
    B: int,
    C: int,
    *,
    chunk_row_length: int | None = None,
) -> dict[str, Any]:
    """The metadata of a batch.

    Args:
        rows: (n, m, block table) of each row: n computed tokens, then m scheduled ones. With m = 0 the row is
            padding: its n and table may be anything and are not looked at.
        B: block size; C: chunk size, both in tokens.
        chunk_row_length: pad ``chunk_row`` with −1 to this length; None leaves it at the number of chunks.

    Returns:
        Lists of N integers, 0 where undefined: ``num_computed_tokens``, ``num_scheduled_tokens``,
        ``block_idx_last_computed_token``, ``block_idx_first_scheduled_token``, ``block_idx_last_scheduled_token``,
        ``read_slot``, ``write_slot``; ``has_initial_state``: N booleans; ``query_start_loc``: N + 1 packed offsets;
        ``chunk_offsets``: N + 1, chunks before each row; ``chunk_row``: the row of each chunk; ``block_table``;
        and, for readers, ``chunks``: (row, first position, position after the last) of each chunk, and
        ``write_columns``: the columns that each row writes.

    Raises:
        ValueError: a size below 1, a negative count, a table too short for its row, more chunks than fit.
    """
    if B < 1 or C < 1:
        raise ValueError(f"B, C: are {B}, {C}; expected block and chunk sizes of at least 1 token")
    out: dict[str, Any] = {
        "block_size": B,
        "chunk_size": C,
        "num_rows": len(rows),
        "block_table": [list(table) for _, _, table in rows],
        "query_start_loc": [0],
        "chunk_offsets": [0],
        "chunk_row": [],
        "chunks": [],
    }
    for row, (n, m, table) in enumerate(rows):
        for name, value in _one_row(row, n, m, table, B).items():
            out.setdefault(name, []).append(value)
        scheduled = range(n, n + m)
        for position in scheduled:
            if position == scheduled[0] or starts_chunk(position, B, C):
                out["chunks"].append((row, position, position + 1))
                out["chunk_row"].append(row)
            else:
                _, first, _ = out["chunks"].pop()
                out["chunks"].append((row, first, position + 1))
        out["query_start_loc"].append(out["query_start_loc"][-1] + len(scheduled))
        out["chunk_offsets"].append(len(out["chunks"]))
    out["num_tokens"] = out["query_start_loc"][-1]
    out["max_query_len"] = max((m for _, m, _ in rows), default=0)
    if chunk_row_length is not None:
        missing = chunk_row_length - len(out["chunk_row"])
        if missing < 0:
            raise ValueError(
                f"chunk_row_length: is {chunk_row_length}; the batch has {len(out['chunk_row'])} chunks"
            )
        out["chunk_row"] += [-1] * missing
    return out


def _one_row(row: int, n: int, m: int, table: Sequence[int], B: int) -> dict[str, Any]:
    """The per-row fields of ``block_indices``."""
    if m < 0 or (m > 0 and n < 0):
        raise ValueError(f"rows[{row}]: n, m are {n}, {m}; expected counts of tokens, 0 or more")
    nothing = {
        "num_computed_tokens": 0,
        "num_scheduled_tokens": 0,
        "block_idx_last_computed_token": 0,
        "block_idx_first_scheduled_token": 0,
        "block_idx_last_scheduled_token": 0,
        "has_initial_state": False,
        "read_slot": NULL_SLOT,
        "write_slot": NULL_SLOT,
        "write_columns": [],
    }
    if m == 0:
        return nothing
    computed = list(range(0, n))
    scheduled = list(range(n, n + m))
    columns = [column_of(position, B) for position in scheduled]
    if columns[-1] >= len(table):
        raise ValueError(
            f"rows[{row}]: its block table has {len(table)} columns; its last token is in column {columns[-1]}"
        )
    found = dict(
        nothing,
        num_computed_tokens=len(computed),
        num_scheduled_tokens=len(scheduled),
        block_idx_first_scheduled_token=columns[0],
        block_idx_last_scheduled_token=columns[-1],
        has_initial_state=bool(computed),
        write_slot=table[columns[-1]],
        write_columns=sorted(set(columns)),
    )
    if computed:
        last_computed = column_of(computed[-1], B)
        found.update(block_idx_last_computed_token=last_computed, read_slot=table[last_computed])
    return found
