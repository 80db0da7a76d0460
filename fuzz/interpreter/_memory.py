"""Mends of loads and stores: whole tiles at once, and every active lane inside a tensor of the launch.

Stock, each lane goes through a C++ loop, an out-of-bounds read returns garbage and an out-of-bounds write
corrupts the process (or kills it). Here a launch registers the span of each tensor it was passed; a tile whose
pointers lie in one span is one numpy gather, and a lane outside all spans is an :class:`OutOfBounds` error.
A span runs from a tensor's first element to its last, so gaps of a strided view count as inside.

Imports triton, numpy and torch. Exercise it with ``pytest tests/fuzz/test_interpreter_memory.py``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
import triton.runtime.interpreter as stock

from gdn_apc.fuzz.interpreter import _races
from gdn_apc.fuzz.interpreter._bf16 import BF16, np_dtype
from gdn_apc.fuzz.interpreter._settings import SETTINGS, OutOfBounds

_U16 = np.dtype(np.uint16)
_min, _max = np.minimum.reduce, np.maximum.reduce


@dataclass
class Span:
    """The bytes ``[lo, hi)`` of one tensor argument, and numpy views of them by element type."""

    name: str
    lo: int
    hi: int
    views: dict = field(default_factory=dict)

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The span as a flat array of ``dtype`` (its tail may not fill an element)."""
        try:
            return self.views[dtype]
        except KeyError:
            count = (self.hi - self.lo) // dtype.itemsize
            raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self.lo)
            self.views[dtype] = np.frombuffer(raw, dtype=np.uint8).view(dtype)
            return self.views[dtype]


@dataclass
class Launch:
    """What is running: the kernel's name, its program, and the memory it was given."""

    kernel: str = "?"
    program: tuple[int, int, int] = (0, 0, 0)
    spans: list[Span] = field(default_factory=list)


CURRENT = Launch()


def span_of(name: str, tensor) -> Span | None:
    """The span of a torch tensor on the CPU, or None if it has no elements."""
    if tensor.numel() == 0:
        return None
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    lo = tensor.data_ptr()
    return Span(name, lo, lo + (last + 1) * tensor.element_size())


def _find(lo: int, hi: int) -> Span | None:
    """A span that contains ``[lo, hi)``. The last hit comes first: kernels stay in one tensor for a while."""
    spans = CURRENT.spans
    for i, span in enumerate(spans):
        if span.lo <= lo and hi <= span.hi:
            if i:
                spans.insert(0, spans.pop(i))
            return span
    return None


def _complain(pointers: np.ndarray, size: int, what: str) -> None:
    """Raise :class:`OutOfBounds` for the lanes of ``pointers`` (active ones, flat) that lie in no span."""
    outside = np.ones(pointers.shape, bool)
    for span in CURRENT.spans:
        outside &= ~((pointers >= np.uint64(span.lo)) & (pointers + np.uint64(size) <= np.uint64(span.hi)))
    if not outside.any():
        return
    first = int(pointers[outside][0])

    def distance(span: Span) -> int:
        return max(span.lo - first, first + size - span.hi, 0)

    near = "no tensor was passed"
    if CURRENT.spans:
        span = min(CURRENT.spans, key=distance)
        side = "before the start" if first < span.lo else "after the end"
        gap = span.lo - first if first < span.lo else first - span.hi
        near = f"nearest is argument {span.name!r}: {gap} bytes {side} of its {span.hi - span.lo}"
    raise OutOfBounds(
        f"kernel {CURRENT.kernel!r}, program {CURRENT.program}: {what} of {int(outside.sum())} of "
        f"{pointers.size} active lanes lies in no tensor passed to the launch; first at 0x{first:x}, {near}. "
        "Mask these lanes off, or correct their offsets"
    )


def _locate(pointers: np.ndarray, size: int) -> tuple[Span, np.ndarray] | None:
    """The one span that holds all of ``pointers``, and their element indices in it; None if there is no such span."""
    lo, hi = int(_min(pointers, axis=None)), int(_max(pointers, axis=None))
    span = _find(lo, hi + size)
    if span is None:
        return None
    offset = pointers - np.uint64(span.lo)
    if size > 1:
        if (offset & np.uint64(size - 1)).any():
            return None
        offset >>= np.uint64(size.bit_length() - 1)
    return span, offset.view(np.int64)


def _poison(dtype: np.dtype):
    """A value that shows if it is used: NaN, or a large number."""
    if dtype.kind in "fV" or dtype == BF16:
        return np.nan
    return np.iinfo(dtype).max // 2 if dtype.kind in "iu" else True


def _default(dtype: np.dtype):
    return _poison(dtype) if SETTINGS.undefined == "poison" else 0


def _raw(dtype: np.dtype) -> np.dtype:
    return _U16 if dtype == BF16 else dtype


def _load_by_lane(pointers, mask, other, dtype) -> np.ndarray:
    """The C++ loop of the stock interpreter, for tiles that span tensors or when the bounds are not checked."""
    raw = _raw(dtype)
    if other is None:
        other = _default(dtype)
    filler = np.broadcast_to(np.asarray(other, dtype), pointers.shape)
    filler = np.ascontiguousarray(filler).view(raw)
    return stock._interpreter.load(pointers, np.ascontiguousarray(mask), filler, raw).view(dtype)


def load(pointers: np.ndarray, mask: np.ndarray | None, other, dtype: np.dtype) -> np.ndarray:
    """Gather ``dtype`` elements at ``pointers``; where ``mask`` is false, ``other`` (an array, a number or None)."""
    size = dtype.itemsize
    if mask is not None:
        if mask.all():
            mask = None
        elif not mask.any():
            return (
                np.full(pointers.shape, _default(dtype), dtype)
                if other is None
                else _filled(other, pointers, dtype)
            )
    if mask is None:
        found = _locate(pointers, size)
        if found is not None:
            span, index = found
            if SETTINGS.races:
                _races.read(span, index, size)
            return span.view(dtype).take(index)
        active, full = pointers.reshape(-1), np.ones(pointers.shape, bool)
    else:
        full = np.broadcast_to(mask, pointers.shape)
        active = pointers[full]
        found = _locate(active, size)
        if found is not None:
            span, index = found
            if SETTINGS.races:
                _races.read(span, index, size)
            out = _filled(_default(dtype) if other is None else other, pointers, dtype)
            out[full] = span.view(dtype).take(index)
            return out
    if SETTINGS.bounds:
        _complain(active, size, "a load")
    return _load_by_lane(pointers, full, other, dtype)


def _filled(other, pointers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A fresh array of ``pointers``' shape that holds ``other``."""
    out = np.empty(pointers.shape, dtype)
    out[...] = other
    return out


def store(pointers: np.ndarray, value: np.ndarray, mask: np.ndarray | None) -> None:
    """Scatter ``value`` (broadcastable, of the element's dtype) to the active ``pointers``."""
    size = value.dtype.itemsize
    value = np.broadcast_to(value, pointers.shape)
    active = pointers
    if mask is not None and not mask.all():
        full = np.broadcast_to(mask, pointers.shape)
        active, value = pointers[full], value[full]
        if active.size == 0:
            return
    found = _locate(active, size)
    if found is not None:
        span, index = found
        if SETTINGS.races:
            _races.write(span, index, size)
        span.view(value.dtype)[index] = value
        return
    if SETTINGS.bounds:
        _complain(active.reshape(-1), size, "a store")
    value = np.ascontiguousarray(value).view(_raw(value.dtype))
    stock._interpreter.store(active, value, np.ones(active.shape, bool))


def _mask_of(mask) -> np.ndarray:
    return mask.data if isinstance(mask, stock.TensorHandle) else mask


def _masked_load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile):
    dtype = ptrs.get_element_ty()
    filler = None if other is None else other.data
    return stock.TensorHandle(load(ptrs.data, _mask_of(mask), filler, np_dtype(dtype)), dtype)


def _masked_store(self, ptrs, value, mask, cache_modifier, eviction_policy):
    store(ptrs.data, value.data.astype(np_dtype(ptrs.get_element_ty()), copy=False), _mask_of(mask))


def _plain_load(self, ptr, _0, _1, is_volatile):
    return _masked_load(self, ptr, None, None, _0, _1, is_volatile)


def _plain_store(self, ptr, val, _0, _1):
    return _masked_store(self, ptr, val, None, _0, _1)


_stock_rmw = stock.InterpreterBuilder.create_atomic_rmw
_stock_cas = stock.InterpreterBuilder.create_atomic_cas


def _atomic_rmw(self, op, ptr, val, mask, sem, scope):
    """Atomics keep the C++ loop (no bf16), inside the bounds."""
    if SETTINGS.bounds:
        _complain(ptr.data[np.broadcast_to(mask.data, ptr.data.shape)], val.data.dtype.itemsize, "an atomic")
    if val.data.dtype == BF16:
        raise NotImplementedError(f"kernel {CURRENT.kernel!r}: atomics on bf16 are not interpreted; use fp32")
    return _stock_rmw(self, op, ptr, val, mask, sem, scope)


def _atomic_cas(self, ptr, cmp, val, sem, scope):
    if SETTINGS.bounds:
        _complain(ptr.data.reshape(-1), val.data.dtype.itemsize, "an atomic")
    return _stock_cas(self, ptr, cmp, val, sem, scope)


def install() -> None:
    """Replace the interpreter's loads, stores and atomics."""
    builder = stock.InterpreterBuilder
    builder.create_masked_load = _masked_load
    builder.create_masked_store = _masked_store
    builder.create_load = _plain_load
    builder.create_store = _plain_store
    builder.create_atomic_rmw = _atomic_rmw
    builder.create_atomic_cas = _atomic_cas
