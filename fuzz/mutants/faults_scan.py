"""Faults of the chunk kernels' second half, the ``scan`` over a row's chunks: ``impl/kernels/chunked.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import BOUNDARY, CARRY, INDEX, NEUTRAL, NULL, TRANSPOSED, Edit, Mutant, plant

CHUNKED, LAUNCH = "kernels/chunked.py", "triton_path.py"
ROUNDED = ".to(tl.bfloat16).to(tl.float32)"

EDGE = "if (end == (column + 1) * B) | (end == n + m):"
UPDATE = "S = tl.dot((fresh * to_end[None, :]).to(OPERAND), key, S * decay, input_precision=PRECISION)"
SLOT = "slot = tl.load(table + column, mask=column < num_columns, other=0).to(tl.int64)"

BOUNDARIES = (
    plant(
        "boundary_state_dropped",
        CHUNKED,
        EDGE,
        "if end == n + m:",
        "kernel-indexing",
        "A prefill stores its last state only.",
        kind=BOUNDARY,
    ),
    plant(
        "boundary_one_token_early",
        CHUNKED,
        EDGE,
        EDGE.replace("(end == (column + 1) * B)", "(end + 1 == (column + 1) * B)"),
        "kernel-indexing",
        "The test for a boundary is off by one.",
    ),
    plant(
        "carry_not_persisted",
        CHUNKED,
        "S = stored.to(tl.float32)",
        "S = S.to(tl.float32)",
        "dtype",
        "After a boundary a prefill goes on from the unrounded state, a hit from the stored one (sglang 33515).",
        kind=CARRY,
    ),
    plant(
        "carry_rounded_at_every_edge",
        CHUNKED,
        UPDATE,
        UPDATE.replace("S = ", "S = (") + ").to(state.dtype.element_ty).to(tl.float32)",
        "dtype",
        "A prefill rounds its state to the cache's dtype after every chunk, also inside a block.",
    ),
    plant(
        "null_state_written",
        CHUNKED,
        "mask=tile & (slot > 0)",
        "mask=tile & (slot >= 0)",
        "kernel-indexing",
        "The state of a null column is stored in slot 0 (vllm 39064).",
        kind=NULL,
    ),
    plant(
        "prefill_state_transposed",
        CHUNKED,
        "vv[:, None] * stride_row + kk[None, :]",
        "kk[None, :] * stride_row + vv[:, None]",
        "kernel-indexing",
        "The chunk kernel lays the state out as [K, V].",
        kind=TRANSPOSED,
    ),
    plant(
        "last_column_next",
        CHUNKED,
        SLOT,
        SLOT.replace("column", "end // B").replace("num_end // Bs", "num_columns"),
        "kernel-indexing",
        "A state that is complete at a boundary goes into the next column.",
        kind=INDEX,
    ),
    plant(
        "column_by_chunk_number",
        CHUNKED,
        SLOT,
        SLOT.replace("table + column", "table + tl.minimum(n // B + i, num_columns - 1)"),
        "kernel-indexing",
        "The write column is counted in chunks, as if each block had one.",
    ),
    plant(
        "boundary_before_the_update",
        CHUNKED,
        UPDATE,
        "before = S\n        " + UPDATE,
        "kernel-numerics",
        "What is stored at a boundary is the state from before its last chunk.",
        also=(("stored = S.to(state.dtype.element_ty)", "stored = before.to(state.dtype.element_ty)"),),
    ),
    plant(
        "prefill_offset_int32",
        CHUNKED,
        "read_slot = tl.where(n > 0, tl.load(read_slots + row), 0).to(tl.int64)",
        "read_slot = tl.where(n > 0, tl.load(read_slots + row), 0)",
        "kernel-indexing",
        "The offset of the slot that a prefill reads is computed in 32 bits (flashinfer 3230).",
    ),
    plant(
        "comment_only",
        CHUNKED,
        "# the persisted carry: go on from what was stored",
        "# what was stored is what the row continues from",
        "kernel-numerics",
        "No fault: a comment.",
        fate=NEUTRAL,
    ),
)

SCAN = (
    plant(
        "prefill_decays_last",
        CHUNKED,
        UPDATE,
        UPDATE.replace("S * decay", "S").replace("PRECISION)", "PRECISION) * decay"),
        "kernel-numerics",
        "The decay of a chunk is applied after its update.",
    ),
    plant(
        "decay_of_the_first_token",
        CHUNKED,
        "decay = tl.load(at + 3 * BT + (end - start - 1))",
        "decay = tl.load(at + 3 * BT)",
        "kernel-indexing",
        "The incoming state decays by a chunk's first gate, not by all of them.",
    ),
    plant(
        "decay_of_the_chunk_before",
        CHUNKED,
        "decay = tl.load(at + 3 * BT + (end - start - 1))",
        "decay = tl.load(factors + tl.maximum(past - 1, 0) * HV * (4 * BT) + 4 * BT - 1)",
        "kernel-indexing",
        "The incoming state decays by the gates of the chunk before.",
    ),
    plant(
        "packed_from_the_first_row",
        CHUNKED,
        "chunk = tl.cast(tl.load(chunk_offsets + row), tl.int64)",
        "chunk = tl.cast(tl.load(chunk_offsets), tl.int64)",
        "kernel-indexing",
        "Every row takes the packed chunks of the first one.",
    ),
    plant(
        "packed_keys_one_chunk_late",
        CHUNKED,
        "key = tl.load(keys + past * H * (BT * BK) + of_key)",
        "key = tl.load(keys + tl.maximum(past - 1, 0) * H * (BT * BK) + of_key)",
        "kernel-indexing",
        "A chunk is written with the packed keys of the one before.",
    ),
    plant(
        "packed_by_key_heads",
        CHUNKED,
        "inverse = tl.load(T + past * HV * (BT * BT) + of_pair)",
        "inverse = tl.load(T + past * H * (BT * BT) + of_pair)",
        "kernel-indexing",
        "The packed inverses are walked as if there were one for each key head.",
    ),
    plant(
        "ordinal_of_the_block",
        CHUNKED,
        "ordinal = (n // B) * per_block + (n % B) // C",
        "ordinal = (n // B) * per_block",
        "kernel-indexing",
        "The scan counts its chunks from the block's start, also where the step starts chunks later.",
    ),
    plant(
        "whole_chunks_of_a_block",
        CHUNKED,
        "per_block = (B + C - 1) // C",
        "per_block = tl.maximum(B // C, 1)",
        "kernel-indexing",
        "The scan forgets a block's last chunk where C does not divide B.",
    ),
    plant(
        "prefill_wrong_head",
        CHUNKED,
        "h = hv // (HV // H)\n    kk",
        "h = hv % H\n    kk",
        "kernel-indexing",
        "In the scan, value heads take key heads in turn, not in groups.",
    ),
    plant(
        "value_tail_read",
        CHUNKED,
        "inside = (t < end - start)[:, None] & v_in[None, :]",
        "inside = (t >= 0)[:, None] & v_in[None, :]",
        "kernel-indexing",
        "Lanes beyond a chunk's end read v of other rows, or of nobody.",
    ),
    plant(
        "values_one_chunk_late",
        CHUNKED,
        "value = coming",
        "value = value",
        "kernel-indexing",
        "Every chunk of a row writes the first one's values.",
    ),
    plant(
        "output_tail_written",
        CHUNKED,
        "mask=in_values,",
        "mask=(t >= 0)[:, None] & v_in[None, :],",
        "kernel-indexing",
        "Lanes beyond a chunk's end write outputs, which belong to the next row or to nobody.",
    ),
    plant(
        "one_token_twice",
        CHUNKED,
        "    if m <= 1:\n        return\n    n = tl.load",
        "    if m <= 0:\n        return\n    n = tl.load",
        "metadata",
        "A row of one token beside longer ones is run by both kernels (vllm 34871).",
        also=(
            (
                "    if (m <= 1) | (start < 0):",
                "    if (m <= 0) | (start < 0):",
            ),
        ),
    ),
    plant(
        "carry_in_bf16",
        CHUNKED,
        UPDATE,
        f"{UPDATE}{ROUNDED}",
        "dtype",
        "The state between chunks is kept in bf16.",
    ),
    plant(
        "decay_in_bf16",
        CHUNKED,
        "decay = tl.load(at + 3 * BT + (end - start - 1))",
        f"decay = tl.load(at + 3 * BT + (end - start - 1)){ROUNDED}",
        "dtype",
        "The decay of a chunk is rounded to bf16.",
    ),
    plant(
        "carry_in_operand_dtype",
        CHUNKED,
        UPDATE,
        f"{UPDATE}.to(OPERAND).to(tl.float32)",
        "dtype",
        "The state between chunks is rounded as operands are: wrong for bf16 inputs with a finer cache.",
    ),
    plant(
        "decay_in_operand_dtype",
        CHUNKED,
        "decay = tl.load(at + 3 * BT + (end - start - 1))",
        "decay = tl.load(at + 3 * BT + (end - start - 1)).to(OPERAND).to(tl.float32)",
        "dtype",
        "The decay of a chunk is rounded as operands are: wrong for bf16 inputs only.",
    ),
    Mutant(
        "rounded_before_the_scale",
        "dtype",
        "The read-out is rounded, or overflows, before it is scaled (vllm 54308).",
        (
            Edit(CHUNKED, "    of_q *= scale\n", ""),
            Edit(
                CHUNKED, "    num_columns, B, C,\n    stride_v", "    num_columns, B, C, scale,\n    stride_v"
            ),
            Edit(
                CHUNKED,
                "tl.trans(out).to(o.dtype.element_ty),",
                "(tl.trans(out).to(o.dtype.element_ty) * scale).to(o.dtype.element_ty),",
            ),
            Edit(
                LAUNCH,
                "meta.chunk_size,\n            v.stride(0)",
                "meta.chunk_size, scale,\n            v.stride(0)",
            ),
        ),
    ),
)

FAULTS = BOUNDARIES + SCAN
