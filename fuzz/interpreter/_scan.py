"""Mend: reductions and scans with a function of one's own run over whole slices, not element by element.

Stock, ``tl.associative_scan`` and ``tl.reduce`` call the combining function once for every element: 64 × 64
elements take a second. The function is elementwise, so it combines slices as well: one call for each position
along the axis, in the same order, with the same results. Negative axes count from the end.

Prefix sums of floats are added up as lanes of a GPU do, in doubling steps: the stock interpreter goes from the first
to the last, so that a sum repeats bit for bit where zeros follow. On a GPU it need not, and a kernel may not rely on it.

Imports triton and numpy. Exercise it with ``pytest tests/fuzz/test_interpreter_mends.py``.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from gdn_apc.fuzz.interpreter._types import scalar, tile


def _slice(data: np.ndarray, axis: int, i: int, dtype) -> tl.tensor:
    part = data.take(i, axis=axis)
    return tile(part, dtype) if part.ndim else scalar(part.reshape(1), dtype)


def _combine(fn, left: tuple, right: tuple) -> tuple:
    out = fn.fn(*left, *right)
    return out if isinstance(out, tuple) else (out,)


def _steps(input: tuple, axis: int, fn):
    """Yields the running combination after each position along ``axis``, a tuple of tensors."""
    data = [x.handle.data for x in input]
    dtypes = [x.dtype for x in input]
    running = None
    for i in range(data[0].shape[axis]):
        here = tuple(_slice(d, axis, i, t) for d, t in zip(data, dtypes))
        running = (
            here
            if running is None
            else tuple(
                x.to(t) if isinstance(x, tl.tensor) else x
                for x, t in zip(_combine(fn, running, here), dtypes)
            )
        )
        yield running


def _values(x, like: np.ndarray) -> np.ndarray:
    return x.handle.data.reshape(like.shape) if isinstance(x, tl.tensor) else np.full(like.shape, x)


def _scan(self, input):
    axis = self.axis % input[0].handle.data.ndim
    out = [np.empty(x.handle.data.shape, x.handle.data.dtype) for x in input]
    for i, running in enumerate(_steps(input, axis, self.combine_fn)):
        for array, value in zip(out, running):
            part = np.moveaxis(array, axis, 0)[i : i + 1]
            part[0] = _values(value, part[0])
    return [self.to_tensor(array, x.dtype) for array, x in zip(out, input)]


def _reduce(self, input):
    original = self.axis
    if original is not None:
        self.axis = original % input[0].handle.data.ndim
    rank = input[0].handle.data.ndim
    input, axis = self.unravel(input, self.axis)
    *_, running = _steps(input, axis, self.combine_fn)
    out = []
    for value, x in zip(running, input):
        like = x.handle.data.take(0, axis=axis)
        data = _values(value, like).astype(like.dtype)
        if self.keep_dims:
            data = data.reshape((1,) * rank) if original is None else np.expand_dims(data, axis)
        elif original is None:
            data = data.item()
        out.append(self.to_tensor(data, x.dtype))
    return out


def prefix_sums(data: np.ndarray, axis: int) -> np.ndarray:
    """Running sums along ``axis`` in the data's own dtype: in step s each place adds what lies 2^s before it."""
    if data.dtype.kind != "f":
        return np.cumsum(data, axis=axis).astype(data.dtype)
    sums = np.moveaxis(data.copy(), axis, -1)
    reach = 1
    while reach < sums.shape[-1]:
        sums[..., reach:] = sums[..., reach:] + sums[..., :-reach]
        reach *= 2
    return np.moveaxis(sums, -1, axis)


def _cumsum(self, input):
    data = input.handle.data
    return [self.to_tensor(prefix_sums(data, self.axis % data.ndim), input.dtype)]


def install() -> None:
    """Replace the element-wise fallbacks of reductions and scans."""
    stock.ScanOps.generic_scan = _scan
    stock.ScanOps.cumsum = _cumsum
    stock.ReduceOps.generic_reduce = _reduce
