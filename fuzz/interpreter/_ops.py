"""Speed: the operations that kernels are made of, without the compiler's type machinery.

Triton's interpreter runs each ``a + b`` through the semantic analysis of the compiler: type objects, broadcasts
as new tensors, some 40 to 120 µs around 1 µs of numpy. Here the common cases (same type, tiles and scalars of
fp32, integers and booleans; casts) call numpy at once, and every other case falls through to the stock function.
``_functions.py`` does the same for ``tl.load``, ``tl.dot`` and the like. ``tests/fuzz/test_interpreter_ops.py`` compares both ways bit by bit and type by type.

Imports triton and numpy. Exercise it with ``pytest tests/fuzz/test_interpreter_ops.py``.
"""

from __future__ import annotations

import functools

import numpy as np
import triton.language as tl

from gdn_apc.fuzz.interpreter._settings import SETTINGS
from gdn_apc.fuzz.interpreter._types import scalar, tile

tensor = tl.tensor
F32, I32, _BOOL = tl.float32, tl.int32, tl.int1


def _ids(*dtypes) -> frozenset:
    """Triton's dtypes are singletons but hash slowly: sets of their identities."""
    return frozenset(map(id, dtypes))


_INTEGERS = _ids(tl.int32, tl.int64)
PLAIN = _ids(tl.float32) | _INTEGERS
OPERANDS = _ids(tl.float32, tl.bfloat16, tl.float16)
CASTS = OPERANDS | _INTEGERS
LOADS = CASTS | _ids(tl.uint8, tl.int8, tl.int16)


def like(x, y, out: np.ndarray, dtype) -> tl.tensor:
    """``out`` as a tile if either operand is one, else as a scalar."""
    return tile(out, dtype) if x.shape or (y is not None and y.shape) else scalar(out, dtype)


def operand(x, other):
    """``other`` as a numpy operand for ``x`` with the type rules of Triton, or None for the long way."""
    kind = type(other)
    if kind is tensor:
        return other.handle.data if other.dtype is x.dtype else None
    if kind is tl.constexpr:
        other = other.value
        kind = type(other)
    if kind is int or (kind is float and x.dtype is F32):
        return other
    return None


def _binary(name: str, op, reverse: bool = False, overflows: bool = False, result=None, only=PLAIN) -> None:
    """A fast ``tensor.name`` for the types in ``only``; ``result`` is the dtype it gives if not the operands'."""
    slow = getattr(tensor, name)

    @functools.wraps(slow)
    def fast(self, other):
        dtype = self.dtype
        if id(dtype) in only and SETTINGS.fast and not (overflows and SETTINGS.overflow_check):
            y = operand(self, other)
            if (
                y is None
                and type(other) is tensor
                and id(dtype) in _INTEGERS
                and id(other.dtype) in _INTEGERS
            ):
                y, dtype = other.handle.data, tl.int64  # int32 with int64: numpy widens as Triton does
            if y is not None:
                x = self.handle.data
                try:
                    out = op(y, x) if reverse else op(x, y)
                except (
                    OverflowError,
                    ValueError,
                ):  # out of range, or shapes that do not fit: let Triton complain
                    return slow(self, other)
                return like(self, other if type(other) is tensor else None, out, result or dtype)
        return slow(self, other)

    setattr(tensor, name, fast)


def _add_pointer(pointer, offset):
    """``pointer + offset``, or None for the long way. Offsets are signed."""
    element = pointer.dtype.element_ty
    if type(offset) is tensor and id(offset.dtype) in _INTEGERS:
        step = offset.handle.data
        step = step.view(np.uint64) if step.dtype == np.int64 else step.astype(np.uint64)
    elif type(offset) is int:
        step = np.uint64(offset % 2**64)
    else:
        return None
    out = pointer.handle.data + np.uint64(max(1, element.primitive_bitwidth // 8)) * step
    return like(pointer, offset if type(offset) is tensor else None, out, pointer.dtype)


def _install_pointer_addition() -> None:
    for name in ("__add__", "__radd__"):
        plain = getattr(tensor, name)

        def fast(self, other, plain=plain):
            if SETTINGS.fast:
                out = None
                if type(self.dtype) is tl.pointer_type:
                    out = _add_pointer(self, other)
                elif type(other) is tensor and type(other.dtype) is tl.pointer_type:
                    out = _add_pointer(other, self)
                if out is not None:
                    return out
            return plain(self, other)

        setattr(tensor, name, fast)


def _logic(name: str, op) -> None:
    """``&``, ``|`` and ``^`` of booleans, and of integers of one type."""
    slow = getattr(tensor, name)

    def fast(self, other):
        if type(other) is tensor and other.dtype is self.dtype and SETTINGS.fast:
            x, y = self.handle.data, other.handle.data
            if x.dtype == y.dtype and (id(self.dtype) in _INTEGERS or x.dtype == bool):
                return like(self, other, op(x, y), self.dtype)
        return slow(self, other)

    setattr(tensor, name, fast)


def _invert() -> None:
    slow = tensor.__invert__

    def fast(self):
        data = self.handle.data
        if SETTINGS.fast and (data.dtype == bool or id(self.dtype) in _INTEGERS):
            return like(self, None, np.invert(data), self.dtype)
        return slow(self)

    tensor.__invert__ = fast


def _negate() -> None:
    slow = tensor.__neg__

    def fast(self):
        if id(self.dtype) in PLAIN and SETTINGS.fast and not SETTINGS.overflow_check:
            # 0 - x as the compiler has it: -0.0 does not come out of +0.0
            return like(self, None, np.subtract(self.dtype.np.type(0), self.handle.data), self.dtype)
        return slow(self)

    tensor.__neg__ = fast


def _index() -> None:
    slow = tensor.__getitem__
    everything = slice(None)

    def fast(self, slices):
        if type(slices) is tuple and self.shape and SETTINGS.fast:
            if all(s is None or s == everything for s in slices):
                return tile(self.handle.data[slices], self.dtype)
        return slow(self, slices)

    tensor.__getitem__ = fast


def _cast() -> None:
    slow = tensor.to

    def fast(self, dtype, fp_downcast_rounding=None, bitcast=False, **kwargs):
        if type(dtype) is tl.constexpr:
            dtype = dtype.value
        if fp_downcast_rounding is None and not bitcast and SETTINGS.fast:
            if dtype is self.dtype:
                return self
            if id(dtype) in CASTS and id(self.dtype) in CASTS:
                return like(self, None, self.handle.data.astype(dtype.np), dtype)
        return slow(self, dtype, fp_downcast_rounding, bitcast, **kwargs)

    tensor.to = fast


def _quotient(x, y):
    """Integer division as the GPU has it: rounded towards zero."""
    return (x - np.fmod(x, y)) // y


def install() -> None:
    """Put the short cuts over the patched language."""
    for sign, op in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        _binary(f"__{sign}__", op, overflows=True)
        _binary(f"__r{sign}__", op, reverse=True, overflows=True)
    for sign, op in (
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
        ("eq", np.equal),
        ("ne", np.not_equal),
    ):
        _binary(f"__{sign}__", op, result=_BOOL)
    for sign, op, only in (
        ("truediv", np.divide, _ids(F32)),
        ("floordiv", _quotient, _INTEGERS),
        ("mod", np.fmod, _INTEGERS),
    ):
        _binary(f"__{sign}__", op, only=only)
        _binary(f"__r{sign}__", op, reverse=True, only=only)
    _install_pointer_addition()
    for sign, op in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        _logic(f"__{sign}__", op)
    _invert()
    _negate()
    _index()
    _cast()
