"""Cheap construction of the interpreter's tensors: interned block types, no validation.

Triton builds a type object, its name and a tuple of constexprs for every intermediate value, which costs far
more than numpy's arithmetic on it. Here each (element type, shape) is built once.

Imports triton. Exercise it with ``pytest tests/fuzz/test_interpreter_ops.py``.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

_new = object.__new__
_ONE = tl.constexpr(1)
_NO_SHAPE: tuple = ()


def block_type(dtype: tl.dtype, shape: tuple[int, ...]):
    """``(block type, shape as constexprs, number of elements)`` of a tile, built once for each element type."""
    try:
        return dtype._tiles[shape]
    except AttributeError:
        dtype._tiles = {}
    except KeyError:
        pass
    block = tl.block_type(dtype, list(shape))
    numel = int(np.prod(shape))
    entry = (block, tuple(tl.constexpr(n) for n in shape), tl.constexpr(numel))
    dtype._tiles[shape] = entry
    return entry


def tile(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    """A tile of ``data``'s shape; ``dtype`` is a scalar or pointer type."""
    handle = _new(TensorHandle)
    handle.data = data
    handle.dtype = dtype
    handle.attr = {}
    t = _new(tl.tensor)
    t.handle = handle
    t.dtype = dtype
    try:
        t.type, t.shape, t.numel = dtype._tiles[data.shape]
    except (AttributeError, KeyError):
        t.type, t.shape, t.numel = block_type(dtype, data.shape)
    return t


def scalar(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    """A scalar tensor; ``data`` has shape (1,), as the interpreter keeps scalars."""
    handle = _new(TensorHandle)
    handle.data = data
    handle.dtype = dtype
    handle.attr = {}
    t = _new(tl.tensor)
    t.handle = handle
    t.dtype = t.type = dtype
    t.shape = _NO_SHAPE
    t.numel = _ONE
    return t
