"""Launches the metadata kernels: one launch a batch, a handful of microseconds on the host.

A step builds metadata for every group of GDN layers, so what the host does is what counts. A first launch goes
through Triton, which looks at every argument; the compiled kernel it returns is then launched directly. That is safe
because the kernels specialise on no value and no alignment (``kernels/metadata.py``): dtypes are checked, and all
else is in the key. Under Triton's interpreter nothing is compiled, and each launch takes the ordinary way.

Imports torch and triton. Exercise it with ``pytest tests/impl/test_metadata_kernel.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from gdn_apc.impl.kernels.metadata import metadata_kernel, slots_kernel

ROWS, ROWS_BEFORE, CHUNKS = 32, 1024, 128
"""BR, BN and BC of the kernels: rows of a program, rows that it adds up at once, chunks that it lists at once."""

OPTIONS = dict(num_warps=4, num_stages=1)
ALIGNMENT = 4
"""Parts of a shared buffer start at multiples of this many int32, 16 bytes: what kernels know of addresses stays the same."""

_compiled: dict[tuple[Any, ...], Any] = {}


def constants(columns: bool, fixed: bool, chunks: bool) -> dict[str, Any]:
    """Compile-time arguments of ``metadata_kernel``."""
    return dict(COLUMNS=columns, FIXED=fixed, CHUNKS=chunks, BR=ROWS, BN=ROWS_BEFORE, BC=CHUNKS)


def carve(device: torch.device, count: int, size: int) -> tuple[torch.Tensor, ...]:
    """``count`` int32 tensors of ``size`` elements in one allocation, each aligned to 16 bytes."""
    padded = -(-size // ALIGNMENT) * ALIGNMENT or ALIGNMENT
    return torch.empty_strided((count, size), (padded, 1), dtype=torch.int32, device=device).unbind(0)


def launch_metadata(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, ...],
    columns: tuple[torch.Tensor, ...] | None,
    starts: torch.Tensor | None,
    grid: tuple[torch.Tensor, torch.Tensor] | None,
    block_size: int,
    chunk_size: int,
) -> None:
    """Fill the given tensors with a batch's metadata; nothing else is written.

    Args:
        inputs: seq_lens [N], query_start_loc [N + 1], both contiguous, and block_table [N, columns], any strides.
        rows: n, m, read slot and write slot, [N] each.
        columns: has_initial_state, read, first and last column, [N] each; or None.
        starts: takes a copy of query_start_loc; or None.
        grid: chunk_offsets [N + 1] and chunk_row [bound]; or None.
    """
    seq_lens, query_start_loc, block_table = inputs
    N, num_columns = block_table.shape
    n, m, read_slot, write_slot = rows
    unused = seq_lens
    has_state, read, first, last = columns or (unused,) * 4
    chunk_offsets, chunk_row = grid or (unused, unused)
    fixed = starts is not None
    arguments = (
        seq_lens, query_start_loc, block_table,
        n, m, has_state, read, first, last, read_slot, write_slot, starts if fixed else unused, chunk_offsets, chunk_row,
        N, num_columns, *block_table.stride(), block_size, chunk_size, -(-block_size // chunk_size),
        chunk_row.shape[0],
    )  # fmt: skip
    _launch(
        metadata_kernel,
        -(-(N + fixed) // ROWS) or 1,
        arguments,
        constants(columns is not None, fixed, grid is not None),
    )


def launch_slots(
    block_table: torch.Tensor, known: tuple[torch.Tensor, ...], slots: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Read and write slot of each row from another table. ``known``: n, m, read and last column, [N] each."""
    N, num_columns = block_table.shape
    arguments = (block_table, *known, *slots, N, num_columns, *block_table.stride())
    _launch(slots_kernel, -(-N // ROWS) or 1, arguments, dict(BR=ROWS))


def _launch(kernel: Any, programs: int, arguments: tuple[Any, ...], constexprs: dict[str, Any]) -> None:
    key = (kernel, arguments[0].device, *constexprs.values())
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[(programs,)](*arguments, **constexprs, **OPTIONS)
    else:
        compiled[(programs, 1, 1)](*arguments, *constexprs.values())
