"""Faults of what launches the kernels and of the PyTorch path: ``impl/{triton_path,ops,torch_path}.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import BOUNDARY, CARRY, GRID, NEUTRAL, NULL, WINDOW, plant

LAUNCH, OPS, TORCH = "triton_path.py", "ops.py", "torch_path.py"

LAUNCHES = (
    plant(
        "slot_stride_assumed",
        LAUNCH,
        "o.stride(0), *ssm_state.stride()[:3], table",
        "o.stride(0), ssm_state[0].numel(), *ssm_state.stride()[1:3], table",
        "kernel-indexing",
        "Slots are taken to lie side by side, as if a page held the state alone (vllm 25743).",
        also=(
            (
                "o.stride(0), *ssm_state.stride()[:3], H",
                "o.stride(0), ssm_state[0].numel(), *ssm_state.stride()[1:3], H",
            ),
        ),
    ),
    plant(
        "window_layout_assumed",
        LAUNCH,
        "*conv_state.stride(), table",
        "conv_state.stride(0), D, 1, table",
        "conv-state",
        "Windows are taken to be stored input by input, whatever the pool's layout (Arcaine 10).",
    ),
    plant(
        "output_in_fp32",
        LAUNCH,
        "    return o\n\n\ndef _chunked",
        "    return o.float()\n\n\ndef _chunked",
        "dtype",
        "The output has the dtype of the accumulator, not of the inputs.",
    ),
    plant(
        "operands_in_fp16",
        LAUNCH,
        "torch.float16: (tl.float32, torch.float32,",
        "torch.float16: (tl.float16, torch.float16,",
        "dtype",
        "Products of fp16 inputs have fp16 operands: small ones vanish, large ones overflow (fla 736).",
    ),
    plant(
        "scale_zero_is_default",
        OPS,
        "return K**-0.5 if scale is None else float(scale)",
        "return float(scale or K**-0.5)",
        "kernel-numerics",
        "A scale of 0 means the default (flashinfer 3165).",
    ),
)

PYTORCH = (
    plant(
        "torch_carry_not_persisted",
        TORCH,
        "return stored.float()",
        "return S",
        "dtype",
        "After a boundary a prefill goes on from the unrounded state.",
        kind=CARRY,
    ),
    plant(
        "torch_grid_from_the_step",
        TORCH,
        "start, position = chunk_bounds(n, m, i, meta.block_size, meta.chunk_size)",
        "start, position = position, min(position + meta.chunk_size, (position // meta.block_size + 1) * meta.block_size, n + m)",
        "kernel-numerics",
        "Chunks are counted from where the step starts.",
        kind=GRID,
    ),
    plant(
        "torch_boundary_dropped",
        TORCH,
        "if position % meta.block_size == 0 or position == n + m:",
        "if position == n + m:",
        "kernel-indexing",
        "A prefill stores its last state only.",
        kind=BOUNDARY,
    ),
    plant(
        "torch_null_written",
        TORCH,
        "    if slot > 0:\n        ssm_state",
        "    if slot >= 0:\n        ssm_state",
        "kernel-indexing",
        "The state of a null column is stored in slot 0.",
        kind=NULL,
    ),
    plant(
        "torch_window_of_the_end",
        TORCH,
        "history[boundary - n : boundary - n + W - 1]",
        "history[m : m + W - 1]",
        "conv-state",
        "Every column gets the window with which the step ends.",
        kind=WINDOW,
    ),
    plant(
        "torch_tile_fits_the_chunk",
        TORCH,
        "tile = min(meta.block_size, meta.chunk_size)",
        "tile = position - start",
        "kernel-numerics",
        "No fault: no two ways to compute a token that must agree bit for bit give its chunk another length.",
        fate=NEUTRAL,
    ),
)

FAULTS = LAUNCHES + PYTORCH
