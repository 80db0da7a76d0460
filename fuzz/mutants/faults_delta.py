"""Faults of the recurrent kernel and of the gates: ``impl/kernels/{recurrent,gates}.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import (
    BETA,
    LENGTH,
    NEUTRAL,
    NULL,
    SHARED,
    TRANSPOSED,
    plant,
)

RECURRENT, GATES = "kernels/recurrent.py", "kernels/gates.py"
BF16 = ".to(tl.bfloat16).to(tl.float32)"

ONE_TOKEN = (
    plant(
        "fresh_token_reads_its_slot",
        RECURRENT,
        "tl.where(n > 0, tl.load(read_slots + row), 0)",
        "tl.where(n > 0, tl.load(read_slots + row), tl.load(write_slots + row))",
        "metadata",
        "A fresh row of one token starts from what the slot's last owner left (vllm 51562).",
        kind=LENGTH,
    ),
    plant(
        "decode_writes_the_read_slot",
        RECURRENT,
        "write_slot = tl.load(write_slots + row)",
        "write_slot = tl.load(read_slots + row)",
        "kernel-indexing",
        "A decode writes in place also where it opens a block: over the cached one.",
        kind=SHARED,
    ),
    plant(
        "decode_state_transposed",
        RECURRENT,
        "vv[:, None] * stride_row + kk[None, :]",
        "kk[None, :] * stride_row + vv[:, None]",
        "kernel-indexing",
        "The recurrent kernel lays the state out as [K, V].",
        kind=TRANSPOSED,
    ),
    plant(
        "decode_null_written",
        RECURRENT,
        "mask=tile & (write_slot > 0)",
        "mask=tile & (write_slot >= 0)",
        "kernel-indexing",
        "The state of a null column is stored in slot 0 by the recurrent kernel (vllm 39064, flashinfer 2810).",
        kind=NULL,
    ),
    plant(
        "decode_beta_rounded",
        RECURRENT,
        "delta = strength *",
        f"delta = strength{BF16} *",
        "dtype",
        "A decode rounds beta to bf16 (vllm 53877).",
        kind=BETA,
    ),
    plant(
        "decode_state_in_input_dtype",
        RECURRENT,
        "S.to(state.dtype.element_ty), mask",
        "S.to(q.dtype.element_ty).to(state.dtype.element_ty), mask",
        "dtype",
        "A decode stores the state in the dtype of its inputs (ollama 15865).",
    ),
    plant(
        "decode_offset_int32",
        RECURRENT,
        "read_slot, write_slot = read_slot.to(tl.int64), write_slot.to(tl.int64)",
        "read_slot = read_slot.to(tl.int64)",
        "kernel-indexing",
        "The offset of the slot that a decode writes is computed in 32 bits (flashinfer 3230).",
    ),
    plant(
        "padding_rows_decode",
        RECURRENT,
        "if (m != 1) |",
        "if (m > 1) |",
        "cudagraph",
        "A padding row runs as a decode, and writes an output that belongs to another row (ascend 15510).",
    ),
    plant(
        "decode_gate_clipped",
        RECURRENT,
        "decay = tl.exp(gate)",
        "decay = tl.exp(tl.minimum(gate, -1e-5))",
        "kernel-numerics",
        "A log decay of exactly 0 is clipped to -1e-5 (fla 104).",
    ),
    plant(
        "decode_gate_by_row",
        RECURRENT,
        "tl.load(g + token * stride_g + hv)",
        "tl.load(g + row * stride_g + hv)",
        "metadata",
        "The gate is read at the row's number, not at its token (vllm 51812).",
    ),
    plant(
        "decode_decays_last",
        RECURRENT,
        "S = S * decay",
        "S = S * 1.0",
        "kernel-numerics",
        "The decay is applied after the update.",
        also=(
            (
                "S = S + delta[:, None] * key[None, :]",
                "S = (S + delta[:, None] * key[None, :]) * decay",
            ),
        ),
    ),
    plant(
        "decode_wrong_head",
        RECURRENT,
        "h = hv // (HV // H)",
        "h = hv % H",
        "kernel-indexing",
        "Value heads take key heads in turn, not in groups.",
    ),
    plant(
        "sum_in_the_other_order",
        RECURRENT,
        "S = S + delta[:, None] * key[None, :]",
        "S = delta[:, None] * key[None, :] + S",
        "kernel-numerics",
        "No fault: a sum of two is the same in both orders.",
        fate=NEUTRAL,
    ),
)

GATES_OF = (
    plant(
        "beta_rounded",
        GATES,
        "1.0 / (1.0 + tl.exp(-b))",
        f"(1.0 / (1.0 + tl.exp(-b))){BF16}",
        "dtype",
        "The gates round beta to bf16 (vllm 53877).",
        kind=BETA,
    ),
    plant(
        "softplus_threshold",
        GATES,
        "tl.where(x > 20.0, x,",
        "tl.where(x > 4.0, x,",
        "kernel-numerics",
        "softplus(x) is x from 4 on, which is 0.5 % too little there.",
    ),
)

FAULTS = ONE_TOKEN + GATES_OF
