"""The block indices and the chunk grid of a batch, in one launch.

Maths, for row r from n to n + m (``impl/metadata.py`` says what each index means)::

    m = query_start_loc[r + 1] - query_start_loc[r],    n = seq_lens[r] - m, 0 on a padding row
    chunks(r) = ordinal(n + m - 1) - ordinal(n) + 1,     chunk_offsets[r] = chunks(0) + … + chunks(r - 1)

Picture, two rows a program, rows of 3, 2, 0 and 4 chunks, a bound of 12::

    program 0   rows 0 1   chunk_offsets 0 3      chunk_row[0:5]  = 0 0 0 1 1
    program 1   rows 2 3   chunk_offsets 5 5 | 9  chunk_row[5:9]  = 3 3 3 3, and as the last, [9:12] = -1 -1 -1

No program waits for another: each adds up the chunks of all rows before its own, which are a few loads from the L2.
Nothing is specialised on a value or an alignment, so one compiled kernel serves every batch (``metadata_launch.py``).

Imports triton only. Exercise it with ``pytest tests/impl/test_metadata_kernel.py``.
"""

import triton
import triton.language as tl


@triton.jit
def _lengths(seq_lens, query_start_loc, r, inside):
    """n and m of rows r, 0 outside."""
    m = tl.load(query_start_loc + r + 1, mask=inside, other=0) - tl.load(
        query_start_loc + r, mask=inside, other=0
    )
    end = tl.load(seq_lens + r, mask=inside, other=0)
    return tl.where(m > 0, end - m, 0), m


@triton.jit
def _chunks(n, m, B, C, per_block):
    """Chunks of rows from n to n + m."""
    last = n + m - 1
    ordinals = (last // B - n // B) * per_block + (last % B) // C - (n % B) // C
    return tl.where(m > 0, ordinals + 1, 0)


@triton.jit
def _slot(block_table, r, column, used, num_columns, stride_row, stride_column):
    """The slot of one column a row, 0 where it is not used or lies outside the table."""
    column = tl.maximum(column, 0)
    at = r.to(tl.int64) * stride_row + column.to(tl.int64) * stride_column
    return tl.load(block_table + at, mask=used & (column < num_columns), other=0)


INTEGERS = ["N", "num_columns", "stride_row", "stride_column", "B", "C", "per_block", "bound"]
POINTERS = [
    "seq_lens", "query_start_loc", "block_table", "num_computed_tokens", "num_scheduled_tokens", "has_initial_state",
    "read_column", "first_column", "last_column", "read_slot", "write_slot", "starts",
    "chunk_offsets", "chunk_row",
]  # fmt: skip


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=POINTERS)
def metadata_kernel(
    seq_lens, query_start_loc, block_table,
    num_computed_tokens, num_scheduled_tokens, has_initial_state,
    read_column, first_column, last_column, read_slot, write_slot, starts, chunk_offsets, chunk_row,
    N, num_columns, stride_row, stride_column, B, C, per_block, bound,
    COLUMNS: tl.constexpr, FIXED: tl.constexpr, CHUNKS: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Every index of N rows; int32, but ``has_initial_state`` bool. Grid (tiles of BR rows,).

    COLUMNS: write the columns and ``has_initial_state``. FIXED: write ``starts: [N + 1]``, a copy of ``query_start_loc``.
    CHUNKS: write ``chunk_offsets: [N + 1]`` and ``chunk_row: [bound]``.
    """
    program = tl.program_id(0)
    r = program * BR + tl.arange(0, BR)
    inside = r < N
    n, m = _lengths(seq_lens, query_start_loc, r, inside)
    live, has_state = m > 0, n > 0
    read = tl.where(has_state, (n - 1) // B, 0)
    last = tl.where(live, (n + m - 1) // B, 0)
    tl.store(num_computed_tokens + r, n, mask=inside)
    tl.store(num_scheduled_tokens + r, m, mask=inside)
    from_slot = _slot(block_table, r, read, has_state, num_columns, stride_row, stride_column)
    to_slot = _slot(block_table, r, last, live, num_columns, stride_row, stride_column)
    tl.store(read_slot + r, from_slot, mask=inside)
    tl.store(write_slot + r, to_slot, mask=inside)
    if COLUMNS:
        tl.store(has_initial_state + r, has_state, mask=inside)
        tl.store(read_column + r, read, mask=inside)
        tl.store(first_column + r, n // B, mask=inside)
        tl.store(last_column + r, last, mask=inside)
    if FIXED:
        tl.store(starts + r, tl.load(query_start_loc + r, mask=r <= N, other=0), mask=r <= N)
    if CHUNKS:
        before = 0
        for first in range(0, program * BR, BN):
            s = first + tl.arange(0, BN)
            n_before, m_before = _lengths(seq_lens, query_start_loc, s, (s < program * BR) & (s < N))
            before += tl.sum(_chunks(n_before, m_before, B, C, per_block), axis=0)
        count = _chunks(n, m, B, C, per_block)
        ends = before + tl.cumsum(count, axis=0)
        after = before + tl.sum(count, axis=0)
        tl.store(chunk_offsets + r, ends - count, mask=inside)
        for first in range(before, after, BC):
            chunk = first + tl.arange(0, BC)
            passed = tl.sum((ends[None, :] <= chunk[:, None]).to(tl.int32), axis=1)
            tl.store(chunk_row + chunk, program * BR + passed, mask=(chunk < after) & (chunk < bound))
        if program == tl.num_programs(0) - 1:
            tl.store(chunk_offsets + N, after)
            for first in range(after, bound, BC):
                chunk = first + tl.arange(0, BC)
                tl.store(chunk_row + chunk, tl.full([BC], -1, tl.int32), mask=chunk < bound)


SLOT_INTEGERS = ["N", "num_columns", "stride_row", "stride_column"]
SLOT_POINTERS = [
    "block_table", "num_computed_tokens", "num_scheduled_tokens", "read_column", "last_column", "read_slot",
    "write_slot",
]  # fmt: skip


@triton.jit(do_not_specialize=SLOT_INTEGERS, do_not_specialize_on_alignment=SLOT_POINTERS)
def slots_kernel(
    block_table, num_computed_tokens, num_scheduled_tokens, read_column, last_column, read_slot, write_slot,
    N, num_columns, stride_row, stride_column,
    BR: tl.constexpr,
):  # fmt: skip
    """The slots of another block table for rows whose columns are known. Grid (tiles of BR rows,)."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = r < N
    n = tl.load(num_computed_tokens + r, mask=inside, other=0)
    m = tl.load(num_scheduled_tokens + r, mask=inside, other=0)
    read = tl.load(read_column + r, mask=inside, other=0)
    last = tl.load(last_column + r, mask=inside, other=0)
    from_slot = _slot(block_table, r, read, n > 0, num_columns, stride_row, stride_column)
    to_slot = _slot(block_table, r, last, m > 0, num_columns, stride_row, stride_column)
    tl.store(read_slot + r, from_slot, mask=inside)
    tl.store(write_slot + r, to_slot, mask=inside)
