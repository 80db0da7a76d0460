"""Argument checks: each error names the argument, its value, what was expected and what to do.

Imports torch only. Checks look at shapes, dtypes, devices and strides, never at values on the device, so they
cost no synchronisation; ``check_slots`` does look, and is for debugging. Exercise it with
``pytest tests/impl/test_errors.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gdn_apc.impl.metadata import BlockIndexMetadata

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_positive(name: str, value: int) -> None:
    """``value`` is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected a positive integer, got {value!r}; pass the number of tokens")


def check_index_tensor(
    name: str, t: torch.Tensor, shape: tuple[int | None, ...], device: torch.device | None = None
) -> None:
    """``t`` is an int32 tensor of this shape (None: any size) on this device."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(
            f"{name}: expected an int32 tensor, got {type(t).__name__}; convert it with torch.tensor"
        )
    if t.dtype != torch.int32:
        raise TypeError(f"{name}: expected dtype torch.int32, got {t.dtype}; convert it with .int()")
    check_shape(name, t, shape)
    if device is not None and t.device != device:
        raise ValueError(f"{name}: on {t.device}, but seq_lens is on {device}; move it there")


def check_shape(name: str, t: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    """``t`` has this shape; None stands for any size."""
    found = t.shape
    fits = len(found) == len(shape)
    if fits:  # a loop, because every layer of every step comes by
        for have, want in zip(found, shape):
            if have != want and want is not None:
                fits = False
    if not fits:
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        raise ValueError(
            f"{name}: expected shape [{wanted}], got {list(t.shape)}; check it against the other arguments"
        )


def check_tensor(
    name: str,
    t: torch.Tensor,
    shape: tuple[int | None, ...],
    device: torch.device,
    dtypes: tuple[torch.dtype, ...] = INPUT_DTYPES,
    last_dim_contiguous: bool = True,
) -> None:
    """``t`` is a tensor of this shape, one of these dtypes, on this device, with a last dimension of stride 1."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(t).__name__}; convert it with torch.tensor")
    check_shape(name, t, shape)
    if t.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{name}: expected one of {names}, got {t.dtype}; convert it with .to(...)")
    if t.device != device:
        raise ValueError(f"{name}: on {t.device}, but the metadata is on {device}; move one of them")
    if last_dim_contiguous and shape and t.stride(-1) != 1 and t.shape[-1] > 1:
        raise ValueError(
            f"{name}: strides {t.stride()}, expected a last dimension of stride 1; call .contiguous()"
        )


def check_exact_window(x: torch.Tensor, conv_state: torch.Tensor) -> None:
    """The window's dtype holds every input exactly: it is the input's dtype, or fp32."""
    if conv_state.dtype not in (x.dtype, torch.float32):
        raise TypeError(
            f"conv_state: {conv_state.dtype} cannot hold {x.dtype} inputs exactly; allocate it in {x.dtype} or torch.float32"
        )


def check_page_alignment(name: str, t: torch.Tensor) -> None:
    """A cache tensor starts on 16 bytes and its slots are a multiple of 16 elements apart.

    The compiler chooses how lanes share a tile by what it knows of addresses, and the order of sums with it; so
    with any other alignment, a row's last bits would depend on the pool's layout (DESIGN.md, section 4.1).
    """
    if t.data_ptr() % 16 or t.stride(0) % 16:
        raise ValueError(
            f"{name}: address {t.data_ptr() % 16} modulo 16 and a slot stride of {t.stride(0)} elements, expected "
            "multiples of 16 of both; pad the page"
        )


def check_slots(meta: BlockIndexMetadata, num_slots: int) -> None:
    """Debug check of the slots' values: inside the pool, and no slot written by two rows or columns. Synchronises.

    Raises:
        IndexError: a used slot or column lies outside the pool or the table.
        ValueError: two write columns of the batch name one slot.
    """
    table = meta.block_table.tolist()
    n, m = meta.num_computed_tokens.tolist(), meta.num_scheduled_tokens.tolist()
    B = meta.block_size
    writer: dict[int, tuple[int, int]] = {}
    for row in range(meta.num_rows):
        if m[row] <= 0:
            continue
        last = (n[row] + m[row] - 1) // B
        if last >= len(table[row]):
            raise IndexError(
                f"block_table: row {row} needs column {last} for {n[row] + m[row]} tokens at block_size {B}, "
                f"the table has {len(table[row])} columns; allocate a block a column"
            )
        used = [(n[row] - 1) // B] if n[row] > 0 else []
        used += range(n[row] // B, last + 1)
        for column in used:
            if not 0 <= table[row][column] < num_slots:
                raise IndexError(
                    f"block_table: row {row}, column {column} names slot {table[row][column]}, "
                    f"the pool has {num_slots}; slots are 0 (null) to {num_slots - 1}"
                )
        for column in range(n[row] // B, last + 1):
            slot = table[row][column]
            if slot and slot in writer:
                other = writer[slot]
                raise ValueError(
                    f"block_table: slot {slot} is written by row {other[0]}, column {other[1]} and by row {row}, "
                    f"column {column}; give each write column a slot of its own"
                )
            writer[slot] = (row, column)
