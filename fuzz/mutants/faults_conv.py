"""Faults of the convolution and its windows: ``impl/kernels/conv.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import BOUNDARY, INDEX, NEUTRAL, NULL, SHARED, UNSEEN, WINDOW, plant

CONV = "kernels/conv.py"

FIRST_COLUMN = "column = n // B + (W - 2 - back)"
LATER = "mine = ((end % B == 0) | (end == n + m)) & (column > n // B) & (end >= own) & (column < num_columns)"

FAULTS = (
    plant(
        "window_through_the_read_slot",
        CONV,
        "slot = tl.load(table + column, mask=mine, other=0)",
        "slot = tl.where(boundary < n + W - 1, read_slot, tl.load(table + column, mask=mine, other=0))",
        "conv-state",
        "A chunk shorter than the window stores it through the read slot, a shared one at a hit (vllm 56196).",
        kind=SHARED,
    ),
    plant(
        "window_in_the_read_column",
        CONV,
        FIRST_COLUMN,
        "column = (n - 1) // B + (W - 2 - back)",
        "conv-state",
        "The first column that the convolution writes is the one that it read.",
        kind=INDEX,
    ),
    plant(
        "boundary_window_dropped",
        CONV,
        LATER,
        LATER.replace("((end % B == 0) | (end == n + m))", "(end == n + m)"),
        "conv-state",
        "Later chunks leave a window at the end of the step only.",
        kind=BOUNDARY,
    ),
    plant(
        "window_of_the_start",
        CONV,
        "conv_state, boundary - (W - 1) + tail, channel,",
        "conv_state, n - (W - 1) + tail, channel,",
        "conv-state",
        "Every column gets the window with which the step began.",
        kind=WINDOW,
    ),
    plant(
        "short_step_keeps_the_window",
        CONV,
        "mine = (column * B < n + m) & ((back == W - 2)",
        "mine = (m >= W - 1) & (column * B < n + m) & ((back == W - 2)",
        "conv-state",
        "A step shorter than the window does not store one (fla 546).",
        kind=WINDOW,
    ),
    plant(
        "old_window_shifted",
        CONV,
        "back = position - (n - (W - 1))",
        "back = position - (n - W)",
        "conv-state",
        "The old window is read one input too late.",
        kind=WINDOW,
    ),
    plant(
        "window_from_the_padded_end",
        CONV,
        "conv_state, table, column, end, mine, channel,",
        "conv_state, table, column, start + BT, mine, channel,",
        "conv-state",
        "The window is taken before the end of the tile, beyond the chunk's last token (transformers 48256).",
    ),
    plant(
        "null_window_written",
        CONV,
        "mask=(wanted & (slot > 0))[:, None] & inside[None, :],",
        "mask=(wanted & (slot >= 0))[:, None] & inside[None, :],",
        "kernel-indexing",
        "The window of a null column is stored in slot 0 (vllm 39064).",
        kind=NULL,
    ),
    plant(
        "later_chunk_forgets_the_past",
        CONV,
        LATER,
        LATER.replace(" & (end >= own)", ""),
        "conv-state",
        "A later chunk writes a window that reaches back before the step, with zeros for what it cannot see.",
    ),
    plant(
        "later_chunk_writes_the_first_column",
        CONV,
        LATER,
        LATER.replace("column > n // B", "column >= n // B"),
        "kernel-indexing",
        "A later chunk writes the column that chunk 0 reads: right in one order of the programs only.",
    ),
    plant(
        "first_tokens_dropped",
        CONV,
        "end = tl.maximum(end, tl.minimum(own, n + m))",
        "end = tl.minimum(end, n + m)",
        "conv-state",
        "Tokens of chunk 1 that reach into the old window are computed by nobody.",
    ),
    plant(
        "tile_from_the_first_used_token",
        CONV,
        "token = tl.cast(q0 + start - n, tl.int64)",
        "token = tl.cast(q0 + first - n, tl.int64)",
        "conv-state",
        "A tile begins at its first used token, and is counted from the chunk's start: wrong where chunk 0 took some.",
    ),
    plant(
        "tile_tail_written",
        CONV,
        "mask=used[:, None] & inside[None, :],",
        "mask=(position >= first)[:, None] & inside[None, :],",
        "kernel-indexing",
        "Lanes beyond a chunk's end write outputs, which belong to the next row or to nobody.",
    ),
    plant(
        "first_column_written_first",
        CONV,
        FIRST_COLUMN,
        "column = n // B + back",
        "kernel-indexing",
        "The column that is read in place is written before other windows are made from it.",
        also=(("((back == W - 2) | (boundary < own))", "((back == 0) | (boundary < own))"),),
    ),
    plant(
        "window_by_chunk_number",
        CONV,
        "read_slot = tl.load(read_slots + row)",
        "read_slot = tl.load(read_slots + tl.program_id(0))",
        "metadata",
        "The slot is looked up by the number of the chunk, not of its row (sglang 31833).",
    ),
    plant(
        "window_offset_int32",
        CONV,
        "+ slot.to(tl.int64) * stride_slot",
        "+ slot * stride_slot",
        "kernel-indexing",
        "The offset of a window's slot is computed in 32 bits (dynamo 10552).",
    ),
    plant(
        "sign_of_zero_lost",
        CONV,
        "tile = tl.where(ahead[:, None], tile, past)",
        "tile = tile + past",
        "conv-state",
        "Old and new inputs are joined by a sum, in which -0 becomes 0: a window is no copy any more.",
    ),
    plant(
        "old_window_without_guard",
        CONV,
        "& used & (n > 0) & (read_slot > 0)",
        "& used & (read_slot > 0)",
        "conv-state",
        "No fault: the read slot is 0 wherever n is.",
        fate=NEUTRAL,
    ),
    plant(
        "no_barrier_before_the_window",
        CONV,
        "        tl.debug_barrier()\n",
        "        pass\n",
        "kernel-numerics",
        "Warps of one program may write the slot that others still read: needs a GPU, and luck.",
        fate=UNSEEN,
    ),
)
