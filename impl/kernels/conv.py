"""The causal depthwise convolution, and the window of every boundary, in one pass.

Maths, for channel d and position p of one request, with inputs x and zeros before the start::

    y[p, d] = act(bias[d] + sum over w of weight[d, w] · x[p - (W - 1) + w, d])
    window(P) = x[P - (W - 1) : P]                   written for every column's P = min((j + 1)·B, n + m)

Picture, W = 4, a step from n = 5 to 12 with B = 4: columns 1 and 2 get window(8) and window(12)::

    position   2 3 4 | 5 6 7   8 9 10 11
               old   | chunk 0 chunk 1            old = window(5), in the slot of column 1
    column 1 is read (old) and written (window(8)): only chunk 0's program does either.

A program owns one chunk and one tile of channels. Whatever needs the old window (the outputs of the first W - 1
tokens, and every window that reaches back before n) belongs to the program of chunk 0, together with the write
of the first column: that slot may be the one that is read, and no other program may touch it.

Imports triton only. Exercise it with ``pytest tests/impl/test_kernels.py``.
"""

import triton
import triton.language as tl

from gdn_apc.impl.kernels.grid import chunk_of_row


@triton.jit
def _rows_before(
    x_start, start, conv_state, position, channel, inside, used, n, read_slot,
    stride_x, stride_slot, stride_window, stride_channel, W: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """Inputs at these positions, a tile [positions, channels]: from this step, from the old window, or zero.

    ``x_start`` points to the input at position ``start``: the offsets of a tile fit into 32 bits, its place does not.
    """
    ahead = (position >= n) & used
    tile = tl.load(
        x_start + ((position - start)[:, None] * stride_x + channel[None, :]),
        mask=ahead[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    if REACHES_BACK:
        back = position - (n - (W - 1))
        old = (position < n) & (back >= 0) & used & (n > 0) & (read_slot > 0)
        past = tl.load(
            conv_state
            + read_slot.to(tl.int64) * stride_slot
            + back[:, None].to(tl.int64) * stride_window
            + channel[None, :].to(tl.int64) * stride_channel,
            mask=old[:, None] & inside[None, :],
            other=0.0,
        ).to(tl.float32)
        tile = tl.where(ahead[:, None], tile, past)  # not a sum: -0 + 0 is 0, and a window is a copy
    return tile


@triton.jit
def _write_window(
    x_start, start, conv_state, table, column, boundary, mine, channel, inside, n, read_slot,
    stride_x, stride_slot, stride_window, stride_channel,
    W: tl.constexpr, WP: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """window(boundary) into the column's slot, if it is ours to write and the slot is not null."""
    tail = tl.arange(0, WP)
    wanted = (tail < W - 1) & mine
    tile = _rows_before(
        x_start, start, conv_state, boundary - (W - 1) + tail, channel, inside, wanted, n, read_slot,
        stride_x, stride_slot, stride_window, stride_channel, W, REACHES_BACK,
    )  # fmt: skip
    slot = tl.load(table + column, mask=mine, other=0)
    if REACHES_BACK:
        # Every lane has read before any lane writes the slot that all of them read.
        tl.debug_barrier()
    tl.store(
        conv_state
        + slot.to(tl.int64) * stride_slot
        + tail[:, None].to(tl.int64) * stride_window
        + channel[None, :].to(tl.int64) * stride_channel,
        tile.to(conv_state.dtype.element_ty),
        mask=(wanted & (slot > 0))[:, None] & inside[None, :],
    )


@triton.jit(do_not_specialize=["num_columns", "stride_table", "B", "C"])
def causal_conv1d_kernel(
    x, weight, bias, conv_state, y,
    query_start_loc, num_computed_tokens, read_slots, block_table, chunk_offsets, chunk_row,
    dim, num_columns, B, C,
    stride_x, stride_y, stride_slot, stride_window, stride_channel, stride_table,
    W: tl.constexpr, WP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
    HAS_BIAS: tl.constexpr, SILU: tl.constexpr, ONE_TOKEN_ROWS: tl.constexpr,
):  # fmt: skip
    """y: [T, D] input dtype; conv_state: [num_slots, W - 1, D] any strides, changed in place. Grid (chunks, channel tiles)."""
    row, i, q0, n, m, start, end = chunk_of_row(
        tl.program_id(0), query_start_loc, num_computed_tokens, chunk_offsets, chunk_row, B, C, ONE_TOKEN_ROWS
    )
    if m <= 0:
        return
    read_slot = tl.load(read_slots + row)
    channel = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = channel < dim
    # Chunk 0 also takes the tokens of later chunks that reach into the old window.
    own = n + W - 1
    if i == 0:
        end = tl.maximum(end, tl.minimum(own, n + m))
    first = tl.where(i == 0, start, tl.maximum(start, own))

    token = tl.cast(q0 + start - n, tl.int64)
    x_start = x + token * stride_x
    position = start + tl.arange(0, BT)
    used = (position >= first) & (position < end)
    acc = tl.zeros([BT, BD], dtype=tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    for w in tl.static_range(W):
        tap = tl.load(weight + channel * W + w, mask=inside, other=0.0).to(tl.float32)
        at = position - (W - 1) + w
        if i == 0:
            tile = _rows_before(
                x_start, start, conv_state, at, channel, inside, used, n, read_slot,
                stride_x, stride_slot, stride_window, stride_channel, W, True,
            )  # fmt: skip
        else:
            tile = _rows_before(
                x_start, start, conv_state, at, channel, inside, used, n, read_slot,
                stride_x, stride_slot, stride_window, stride_channel, W, False,
            )  # fmt: skip
        acc += tile * tap[None, :]
    if SILU:
        acc = acc / (1.0 + tl.exp(-acc))
    tl.store(
        y + token * stride_y + ((position - start)[:, None] * stride_y + channel[None, :]),
        acc.to(y.dtype.element_ty),
        mask=used[:, None] & inside[None, :],
    )

    # Windows. Chunk 0 writes every column whose window reaches before n, the first column last: its slot may
    # be the one that is read. Any other chunk writes the column that ends with it, if chunk 0 did not.
    table = block_table + row.to(tl.int64) * stride_table
    if i == 0:
        for back in tl.static_range(W - 1):
            column = n // B + (W - 2 - back)
            boundary = tl.minimum((column + 1) * B, n + m)
            mine = (column * B < n + m) & ((back == W - 2) | (boundary < own)) & (column < num_columns)
            _write_window(
                x_start, start, conv_state, table, column, boundary, mine, channel, inside, n, read_slot,
                stride_x, stride_slot, stride_window, stride_channel, W, WP, True,
            )  # fmt: skip
    else:
        column = (end - 1) // B
        mine = ((end % B == 0) | (end == n + m)) & (column > n // B) & (end >= own) & (column < num_columns)
        _write_window(
            x_start, start, conv_state, table, column, end, mine, channel, inside, n, read_slot,
            stride_x, stride_slot, stride_window, stride_channel, W, WP, False,
        )  # fmt: skip
