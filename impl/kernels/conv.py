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

from gdn_apc.impl.kernels.grid import NO_SLOT, chunk_of_row, exp


@triton.jit
def _load_rows(
    x_start, start, conv_state, position, channel, inside, used, n, read_slot,
    stride_x, stride_slot, stride_window, stride_channel, W: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """What this step and what the old window hold at these positions, as stored: two tiles [positions, channels].

    Nothing here uses what it loads, so one call's loads do not wait for another's.
    ``x_start`` points to the input at position ``start``: the offsets of a tile fit into 32 bits, its place does not.
    """
    ahead = used
    if REACHES_BACK:
        ahead = (position >= n) & used
    tile = tl.load(
        x_start + ((position - start)[:, None] * stride_x + channel[None, :]),
        mask=ahead[:, None] & inside[None, :],
        other=0.0,
    )
    past = tile
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
        )
    return tile, past


@triton.jit
def _joined(tile, past, position, n, REACHES_BACK: tl.constexpr):
    """Inputs at these positions in fp32: from this step, from the old window, or zero."""
    tile = tile.to(tl.float32)
    if REACHES_BACK:
        past = past.to(tl.float32)
        ahead = position >= n
        tile = tl.where(ahead[:, None], tile, past)  # not a sum: -0 + 0 is 0, and a window is a copy
    return tile


@triton.jit
def _taps(weight, channel, inside, W: tl.constexpr, WT: tl.constexpr):
    """The W weights of each channel, fp32, one by one: they lie side by side, and are loaded so."""
    w = tl.arange(0, WT)
    wide = tl.load(
        weight + channel[:, None] * W + w[None, :], mask=inside[:, None] & (w < W)[None, :], other=0.0
    ).to(tl.float32)
    taps = ()
    for number in tl.static_range(W):
        taps += (tl.sum(tl.where((w == number)[None, :], wide, 0.0), axis=1),)
    return taps


@triton.jit
def _outputs(
    y_start, acc, taps, x_start, start, conv_state, position, channel, inside, used, n, read_slot,
    stride_x, stride_y, stride_slot, stride_window, stride_channel,
    W: tl.constexpr, SILU: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """Stores y at these positions, from ``acc``, the bias, and W inputs each, the oldest first."""
    # The newest inputs first, which are the farthest; used when all are on their way, and then the oldest first.
    tiles = ()
    for back in tl.static_range(W):
        tiles += _load_rows(
            x_start, start, conv_state, position - back, channel, inside, used, n, read_slot,
            stride_x, stride_slot, stride_window, stride_channel, W, REACHES_BACK,
        )  # fmt: skip
    for back in tl.static_range(W - 1, -1, -1):
        tile = _joined(tiles[2 * back], tiles[2 * back + 1], position - back, n, REACHES_BACK)
        acc += tile * taps[W - 1 - back][None, :]
    if SILU:
        acc = acc / (1.0 + exp(-acc))
    tl.store(
        y_start + ((position - start)[:, None] * stride_y + channel[None, :]),
        acc.to(y_start.dtype.element_ty),
        mask=used[:, None] & inside[None, :],
    )


@triton.jit
def _load_window(
    x_start, start, conv_state, table, column, boundary, mine, channel, inside, n, read_slot,
    stride_x, stride_slot, stride_window, stride_channel,
    W: tl.constexpr, WP: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """The two tiles of window(boundary) and the column's slot, if it is ours to write."""
    tail = tl.arange(0, WP)
    tile, past = _load_rows(
        x_start, start, conv_state, boundary - (W - 1) + tail, channel, inside, (tail < W - 1) & mine, n, read_slot,
        stride_x, stride_slot, stride_window, stride_channel, W, REACHES_BACK,
    )  # fmt: skip
    return tile, past, tl.load(table + column, mask=mine, other=0)


@triton.jit
def _store_window(
    tile, past, slot, conv_state, boundary, channel, inside, n, stride_slot, stride_window, stride_channel,
    W: tl.constexpr, WP: tl.constexpr, REACHES_BACK: tl.constexpr,
):  # fmt: skip
    """What ``_load_window`` found goes into its slot, if the slot is not null: that of a column not ours is."""
    tail = tl.arange(0, WP)
    tile = _joined(tile, past, boundary - (W - 1) + tail, n, REACHES_BACK)
    if REACHES_BACK:
        # Every lane has read before any lane writes the slot that all of them read.
        tl.debug_barrier()
    tl.store(
        conv_state
        + slot.to(tl.int64) * stride_slot
        + tail[:, None].to(tl.int64) * stride_window
        + channel[None, :].to(tl.int64) * stride_channel,
        tile.to(conv_state.dtype.element_ty),
        mask=((tail < W - 1) & (slot > 0))[:, None] & inside[None, :],
    )


@triton.jit(do_not_specialize=["num_columns", "stride_table", "B", "C"])
def causal_conv1d_kernel(
    x, weight, bias, conv_state, y,
    query_start_loc, num_computed_tokens, read_slots, block_table, chunk_offsets, chunk_row,
    dim, num_columns, B, C,
    stride_x, stride_y, stride_slot, stride_window, stride_channel, stride_table,
    W: tl.constexpr, WP: tl.constexpr, WT: tl.constexpr, BT: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr,
    HAS_BIAS: tl.constexpr, SILU: tl.constexpr, ONE_TOKEN_ROWS: tl.constexpr,
):  # fmt: skip
    """y: [T, D] input dtype; conv_state: [num_slots, W - 1, D] any strides, changed in place. Grid (chunks, channel tiles).

    A program walks its chunk ROWS tokens at a time: a wide tile of channels takes indices and weights once for all of them.
    """
    row, i, q0, n, m, start, end = chunk_of_row(
        tl.program_id(0), query_start_loc, num_computed_tokens, chunk_offsets, chunk_row, B, C, ONE_TOKEN_ROWS
    )
    read_slot = tl.load(read_slots + row)
    if (m <= 0) | (n == NO_SLOT) | (read_slot == NO_SLOT):
        return
    channel = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = channel < dim
    own = n + W - 1  # tokens before this one reach into the old window
    first = tl.maximum(start, own)

    token = tl.cast(q0 + start - n, tl.int64)
    x_start, y_start = x + token * stride_x, y + token * stride_y
    at_rest = tl.zeros([BD], dtype=tl.float32)
    if HAS_BIAS:
        at_rest = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    taps = _taps(weight, channel, inside, W, WT)
    table = block_table + row.to(tl.int64) * stride_table
    if ONE_TOKEN_ROWS:
        # One column, and loads before anything that stores.
        column = n // B
        tile, past, slot = _load_window(
            x_start, start, conv_state, table, column, n + m, column < num_columns, channel, inside, n, read_slot,
            stride_x, stride_slot, stride_window, stride_channel, W, WP, True,
        )  # fmt: skip
        only = n + tl.arange(0, 1)
        acc = tl.zeros([1, BD], dtype=tl.float32) + at_rest[None, :]
        _outputs(
            y_start, acc, taps, x_start, start, conv_state, only, channel, inside, only == n, n, read_slot,
            stride_x, stride_y, stride_slot, stride_window, stride_channel, W, SILU, True,
        )  # fmt: skip
        _store_window(
            tile, past, slot, conv_state, n + m, channel, inside, n, stride_slot, stride_window, stride_channel,
            W, WP, True,
        )  # fmt: skip
    else:
        for row_of_tile in tl.range(0, BT, ROWS):
            position = start + row_of_tile + tl.arange(0, ROWS)
            used = (position >= first) & (position < end)
            acc = tl.zeros([ROWS, BD], dtype=tl.float32) + at_rest[None, :]
            _outputs(
                y_start, acc, taps, x_start, start, conv_state, position, channel, inside, used, n, read_slot,
                stride_x, stride_y, stride_slot, stride_window, stride_channel, W, SILU, False,
            )  # fmt: skip
        # Chunk 0 also takes the tokens of later chunks that reach into the old window, and writes every column whose window
        # reaches before n, the first column last: its slot may be the one that is read. Any other chunk writes the column
        # that ends with it, if chunk 0 did not.
        if i == 0:
            position = n + tl.arange(0, WP)
            used = position < tl.minimum(own, n + m)
            acc = tl.zeros([WP, BD], dtype=tl.float32) + at_rest[None, :]
            _outputs(
                y_start, acc, taps, x_start, start, conv_state, position, channel, inside, used, n, read_slot,
                stride_x, stride_y, stride_slot, stride_window, stride_channel, W, SILU, True,
            )  # fmt: skip
            for back in tl.static_range(W - 1):
                column = n // B + (W - 2 - back)
                boundary = tl.minimum((column + 1) * B, n + m)
                mine = (column * B < n + m) & ((back == W - 2) | (boundary < own)) & (column < num_columns)
                tile, past, slot = _load_window(
                    x_start, start, conv_state, table, column, boundary, mine, channel, inside, n, read_slot,
                    stride_x, stride_slot, stride_window, stride_channel, W, WP, True,
                )  # fmt: skip
                _store_window(
                    tile, past, slot, conv_state, boundary, channel, inside, n, stride_slot, stride_window,
                    stride_channel, W, WP, True,
                )  # fmt: skip
        else:
            column = (end - 1) // B
            ends = (end % B == 0) | (end == n + m)
            mine = ends & (column > n // B) & (end >= own) & (column < num_columns)
            tile, past, slot = _load_window(
                x_start, start, conv_state, table, column, end, mine, channel, inside, n, read_slot,
                stride_x, stride_slot, stride_window, stride_channel, W, WP, False,
            )  # fmt: skip
            _store_window(
                tile, past, slot, conv_state, end, channel, inside, n, stride_slot, stride_window, stride_channel,
                W, WP, False,
            )  # fmt: skip
