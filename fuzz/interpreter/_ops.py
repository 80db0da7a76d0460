"""Speed: the operations that kernels are made of, without the compiler's type machinery.

Triton's interpreter runs each ``a + b`` through the semantic analysis of the compiler: type objects, broadcasts
as new tensors, some 40 to 120 µs around 1 µs of numpy. Here the common cases (same type, tiles and scalars of
fp32, integers and booleans; casts; loads and stores; products) call numpy at once, and every other case falls
through to the stock function. ``tests/fuzz/test_interpreter_ops.py`` compares both ways bit by bit and type by type.

Imports triton and numpy. Exercise it with ``pytest tests/fuzz/test_interpreter_ops.py``.
"""

from __future__ import annotations

import functools

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from gdn_apc.fuzz.interpreter import _memory
from gdn_apc.fuzz.interpreter._bf16 import widen
from gdn_apc.fuzz.interpreter._settings import SETTINGS
from gdn_apc.fuzz.interpreter._types import scalar, tile

tensor = tl.tensor
_F32, _I32, _BOOL = tl.float32, tl.int32, tl.int1


def _ids(*dtypes) -> frozenset:
    """Triton's dtypes are singletons but hash slowly: sets of their identities."""
    return frozenset(map(id, dtypes))


_INTEGERS = _ids(tl.int32, tl.int64)
_PLAIN = _ids(tl.float32) | _INTEGERS
_OPERANDS = _ids(tl.float32, tl.bfloat16, tl.float16)
_CASTS = _OPERANDS | _INTEGERS
_LOADS = _CASTS | _ids(tl.uint8, tl.int8, tl.int16)
_ROUNDED = np.uint32(0xFFFFE000)


def _like(x, y, out: np.ndarray, dtype) -> tl.tensor:
    """``out`` as a tile if either operand is one, else as a scalar."""
    return tile(out, dtype) if x.shape or (y is not None and y.shape) else scalar(out, dtype)


def _operand(x, other):
    """``other`` as a numpy operand for ``x`` with the type rules of Triton, or None for the long way."""
    kind = type(other)
    if kind is tensor:
        return other.handle.data if other.dtype is x.dtype else None
    if kind is tl.constexpr:
        other = other.value
        kind = type(other)
    if kind is int or (kind is float and x.dtype is _F32):
        return other
    return None


def _binary(name: str, op, reverse: bool = False, overflows: bool = False, result=None, only=_PLAIN) -> None:
    """A fast ``tensor.name`` for the types in ``only``; ``result`` is the dtype it gives if not the operands'."""
    slow = getattr(tensor, name)

    @functools.wraps(slow)
    def fast(self, other):
        dtype = self.dtype
        if id(dtype) in only and SETTINGS.fast and not (overflows and SETTINGS.overflow_check):
            y = _operand(self, other)
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
                return _like(self, other if type(other) is tensor else None, out, result or dtype)
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
    return _like(pointer, offset if type(offset) is tensor else None, out, pointer.dtype)


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
                return _like(self, other, op(x, y), self.dtype)
        return slow(self, other)

    setattr(tensor, name, fast)


def _invert() -> None:
    slow = tensor.__invert__

    def fast(self):
        data = self.handle.data
        if SETTINGS.fast and (data.dtype == bool or id(self.dtype) in _INTEGERS):
            return _like(self, None, np.invert(data), self.dtype)
        return slow(self)

    tensor.__invert__ = fast


def _negate() -> None:
    slow = tensor.__neg__

    def fast(self):
        if id(self.dtype) in _PLAIN and SETTINGS.fast and not SETTINGS.overflow_check:
            # 0 - x as the compiler has it: -0.0 does not come out of +0.0
            return _like(self, None, np.subtract(self.dtype.np.type(0), self.handle.data), self.dtype)
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
            if id(dtype) in _CASTS and id(self.dtype) in _CASTS:
                return _like(self, None, self.handle.data.astype(dtype.np), dtype)
        return slow(self, dtype, fp_downcast_rounding, bitcast, **kwargs)

    tensor.to = fast


def _everywhere(name: str, make, modules=(tl, tl.core, tl.math)) -> None:
    """Replace function ``name`` in every language module that has it by ``make(slow)``."""
    slow = getattr(tl, name)
    fast = functools.wraps(slow)(make(slow))
    for module in modules:
        if hasattr(module, name):
            setattr(module, name, fast)


def _unary(op):
    def make(slow):
        def fast(x):
            if type(x) is tensor and x.dtype is _F32 and SETTINGS.fast:
                return _like(x, None, op(x.handle.data), _F32)
            return slow(x)

        return fast

    return make


def _extremum(float_op, integer_op):
    """``tl.maximum``/``tl.minimum``: of a number and NaN the number, as the GPU's default has it."""

    def make(slow):
        def fast(x, y, propagate_nan=tl.PropagateNan.NONE):
            if type(x) is tensor and id(x.dtype) in _PLAIN and SETTINGS.fast:
                other = _operand(x, y)
                if other is not None and propagate_nan == tl.PropagateNan.NONE:
                    op = float_op if x.dtype is _F32 else integer_op
                    return _like(x, y if type(y) is tensor else None, op(x.handle.data, other), x.dtype)
            return slow(x, y, propagate_nan)

        return fast

    return make


def _where(slow):
    def fast(condition, x, y):
        if type(condition) is tensor and condition.handle.data.dtype == bool and SETTINGS.fast:
            first = x if type(x) is tensor else y
            if type(x) is float and type(y) is float and condition.shape:
                return tile(np.where(condition.handle.data, np.float32(x), np.float32(y)), _F32)
            if type(first) is tensor and id(first.dtype) in _PLAIN:
                a, b = _operand(first, x), _operand(first, y)
                if a is not None and b is not None:
                    out = np.where(condition.handle.data, a, b)
                    if out.dtype == first.dtype.np:
                        block = condition.shape or first.shape or (type(y) is tensor and y.shape)
                        return tile(out, first.dtype) if block else scalar(out, first.dtype)
        return slow(condition, x, y)

    return fast


def _load(slow):
    def fast(pointer, mask=None, other=None, *args, **kwargs):
        dtype = pointer.dtype if type(pointer) is tensor else None
        if type(dtype) is tl.pointer_type and id(dtype.element_ty) in _LOADS and not args and SETTINGS.fast:
            if "boundary_check" not in kwargs and "padding_option" not in kwargs:
                element, mask_data, filler = dtype.element_ty, None, other
                ok = other is None or mask is not None
                if type(mask) is tensor and mask.handle.data.dtype == bool:
                    mask_data = mask.handle.data
                elif mask is not None:
                    ok = False
                if type(filler) is tl.constexpr:
                    filler = filler.value
                if type(filler) is tensor:
                    ok, filler = ok and filler.dtype is element, filler.handle.data
                elif filler is not None and type(filler) not in (int, float):
                    ok = False
                pointers = pointer.handle.data
                if ok and (mask is None or pointer.shape or not mask.shape):
                    if mask_data is not None and mask_data.ndim > pointers.ndim:
                        pointers = np.broadcast_to(pointers, mask_data.shape)
                    elif mask_data is not None and mask_data.shape != pointers.shape:
                        shape = np.broadcast_shapes(mask_data.shape, pointers.shape)
                        pointers = np.broadcast_to(pointers, shape)
                    out = _memory.load(pointers, mask_data, filler, element.np)
                    return tile(out, element) if pointer.shape else scalar(out, element)
        return slow(pointer, mask, other, *args, **kwargs)

    return fast


def _store(slow):
    def fast(pointer, value, mask=None, *args, **kwargs):
        dtype = pointer.dtype if type(pointer) is tensor else None
        if type(dtype) is tl.pointer_type and id(dtype.element_ty) in _LOADS and not args and SETTINGS.fast:
            element = dtype.element_ty
            ok = "boundary_check" not in kwargs and type(value) is tensor and id(value.dtype) in _CASTS
            ok = ok and id(element) in _CASTS and (bool(pointer.shape) or not value.shape)
            mask_data = None
            if type(mask) is tensor and mask.handle.data.dtype == bool:
                mask_data = mask.handle.data
                ok = ok and (bool(pointer.shape) or not mask.shape)
            elif mask is not None:
                ok = False
            if ok:
                pointers, data = pointer.handle.data, value.handle.data
                shape = pointers.shape
                shapes = [shape, data.shape] + ([mask_data.shape] if mask_data is not None else [])
                if np.broadcast_shapes(*shapes) == shape:
                    _memory.store(pointers, data.astype(element.np, copy=False), mask_data)
                    return None
        return slow(pointer, value, mask, *args, **kwargs)

    return fast


def truncate_tf32(data: np.ndarray) -> np.ndarray:
    """fp32 without its low 13 bits: what the tensor core sees of an operand in tf32."""
    return (np.ascontiguousarray(data).view(np.uint32) & _ROUNDED).view(np.float32)


def _dot(slow):
    allowed = stock.interpreter_builder.options.allowed_dot_input_precisions

    def fast(
        input,
        other,
        acc=None,
        input_precision=None,
        allow_tf32=None,
        max_num_imprecise_acc=None,
        out_dtype=_F32,
    ):
        precision = input_precision.value if type(input_precision) is tl.constexpr else input_precision
        plain = allow_tf32 is None and max_num_imprecise_acc is None and out_dtype is _F32
        if plain and SETTINGS.fast and input.dtype is other.dtype and id(input.dtype) in _OPERANDS:
            a, b = input.handle.data, other.handle.data
            known = precision is None or precision in allowed
            shapes = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and a.shape[1] >= MIN_DOT_K
            if known and shapes and (acc is None or (acc.dtype is _F32 and acc.handle.data.ndim == 2)):
                if SETTINGS.tf32 and input.dtype is _F32 and precision in (None, "tf32"):
                    a, b = truncate_tf32(a), truncate_tf32(b)
                out = np.matmul(widen(a), widen(b))
                return tile(out if acc is None else out + acc.handle.data, _F32)
        return slow(input, other, acc, input_precision, allow_tf32, max_num_imprecise_acc, out_dtype)

    return fast


MIN_DOT_K = 16
"""NVIDIA's compiler refuses products with a smaller inner dimension; stock, the interpreter takes any."""


def _min_dot_size(lhs, rhs) -> tuple[int, int, int]:
    return 1, 1, 32 if lhs.scalar.primitive_bitwidth == 8 else MIN_DOT_K


def _axis_fits(x, axis) -> bool:
    return type(x) is tensor and x.dtype is _F32 and type(axis) is int and 0 <= axis < len(x.shape)


def _sum(slow):
    def fast(input, axis=None, keep_dims=False, dtype=None):
        axis = axis.value if type(axis) is tl.constexpr else axis
        if dtype is None and SETTINGS.fast and _axis_fits(input, axis):
            out = np.sum(input.handle.data, axis=axis, keepdims=bool(keep_dims))
            return tile(out, _F32) if out.ndim else scalar(out.reshape(1), _F32)
        return slow(input, axis, keep_dims, dtype)

    return fast


def _cumsum(slow):
    def fast(input, axis=0, reverse=False, dtype=None):
        axis = axis.value if type(axis) is tl.constexpr else axis
        if dtype is None and not reverse and SETTINGS.fast and _axis_fits(input, axis):
            return tile(np.cumsum(input.handle.data, axis=axis), _F32)
        return slow(input, axis, reverse, dtype)

    return fast


def _trans(slow):
    def fast(input, *dims):
        if not dims and input.handle.data.ndim == 2 and SETTINGS.fast:
            return tile(input.handle.data.T, input.dtype)
        return slow(input, *dims)

    return fast


@functools.lru_cache(maxsize=256)
def _range(start: int, end: int) -> np.ndarray:
    out = np.arange(start, end, dtype=np.int32)
    out.flags.writeable = False
    return out


def _arange(slow):
    def fast(start, end):
        if (
            type(start) is int
            and type(end) is int
            and SETTINGS.fast
            and (end - start) & (end - start - 1) == 0
        ):
            if end > start:
                return tile(_range(start, end), _I32)
        return slow(start, end)

    return fast


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
        ("truediv", np.divide, _ids(_F32)),
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
    for name, op in (
        ("exp", np.exp),
        ("exp2", np.exp2),
        ("log", np.log),
        ("log2", np.log2),
        ("sqrt", np.sqrt),
    ):
        _everywhere(name, _unary(op))
    _everywhere("rsqrt", _unary(lambda x: 1 / np.sqrt(x)))
    _everywhere("maximum", _extremum(np.fmax, np.maximum))
    _everywhere("minimum", _extremum(np.fmin, np.minimum))
    for name, make in (
        ("where", _where),
        ("load", _load),
        ("store", _store),
        ("dot", _dot),
        ("sum", _sum),
        ("cumsum", _cumsum),
        ("trans", _trans),
        ("arange", _arange),
    ):
        _everywhere(name, make)
    stock.interpreter_builder.codegen_fns["min_dot_size"] = _min_dot_size
    stock.InterpreterBuilder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
    stock.InterpreterBuilder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
