"""The absolute chunk grid inside a kernel, and the small pieces that several kernels share.

Imports triton only. ``impl/metadata.py`` derives the closed form. Exercise it with ``pytest tests/impl``.
"""

import triton
import triton.language as tl

NO_SLOT = tl.constexpr(-(1 << 31))
"""A slot that no table holds. To ask whether a slot is this one, beside what a program leaves for, puts its load among those that
are on their way before the first is waited for; else the compiler moves it behind the branch, where it costs half a microsecond."""


@triton.jit
def exp(x):
    """eˣ, and 0 where it would be subnormal: of the six instructions of tl.exp, four are for those."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def clipped_chunk(ordinal, per_block, n, m, B, C):
    """Block, first and one-past-last position of a chunk of the absolute grid, clipped to [n, n + m)."""
    block = ordinal // per_block
    start = block * B + (ordinal - block * per_block) * C
    end = tl.minimum(tl.minimum(start + C, (block + 1) * B), n + m)
    return block, tl.maximum(start, n), end


@triton.jit
def chunk_bounds(n, m, i, B, C):
    """First and one-past-last position of the i-th chunk of a row."""
    per_block = (B + C - 1) // C
    _block, start, end = clipped_chunk((n // B) * per_block + (n % B) // C + i, per_block, n, m, B, C)
    return start, end


@triton.jit
def num_chunks(n, m, B, C):
    """Chunks of a row with m > 0 tokens."""
    per_block = (B + C - 1) // C
    last = n + m - 1
    return (last // B - n // B) * per_block + (last % B) // C - (n % B) // C + 1


@triton.jit
def chunk_of_row(
    program,
    query_start_loc,
    num_computed_tokens,
    chunk_offsets,
    chunk_row,
    B,
    C,
    ONE_TOKEN_ROWS: tl.constexpr,
):
    """(row, index of the chunk in its row, packed offset, n, m, first position, end) of a program; m = 0 beyond the last."""
    if ONE_TOKEN_ROWS:
        row = program
        i = 0
        live = row >= 0
    else:
        row = tl.load(chunk_row + program)
        live = row >= 0
        row = tl.maximum(row, 0)
        i = program - tl.load(chunk_offsets + row)
    q0 = tl.load(query_start_loc + row)
    m = tl.where(live, tl.load(query_start_loc + row + 1) - q0, 0)
    n = tl.load(num_computed_tokens + row)
    if ONE_TOKEN_ROWS:
        start, end = n, n + m
    else:
        start, end = chunk_bounds(n, m, i, B, C)
    return row, i, q0, n, m, start, end
