"""Speed: ``tl.load``, ``tl.store``, ``tl.dot``, ``tl.where``, ``tl.exp``, … without the compiler's type machinery.

The companion of ``_ops.py``, which says why. What a short cut does not cover falls through to the stock function.
Two mends live here as well: products that a GPU's compiler refuses are refused, and the larger of NaN and a
number is the number.

Imports triton and numpy. Exercise it with ``pytest tests/fuzz/test_interpreter_ops.py``.
"""

from __future__ import annotations

import functools

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from gdn_apc.fuzz.interpreter import _memory
from gdn_apc.fuzz.interpreter._bf16 import widen
from gdn_apc.fuzz.interpreter._ops import CASTS, F32, I32, LOADS, OPERANDS, PLAIN, like, operand
from gdn_apc.fuzz.interpreter._scan import prefix_sums
from gdn_apc.fuzz.interpreter._settings import SETTINGS
from gdn_apc.fuzz.interpreter._types import scalar, tile

tensor = tl.tensor
_TF32_BITS = np.uint32(0xFFFFE000)


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
            if type(x) is tensor and x.dtype is F32 and SETTINGS.fast:
                return like(x, None, op(x.handle.data), F32)
            return slow(x)

        return fast

    return make


def _extremum(float_op, integer_op):
    """``tl.maximum``/``tl.minimum``: of a number and NaN the number, as the GPU's default has it."""

    def make(slow):
        def fast(x, y, propagate_nan=tl.PropagateNan.NONE):
            if type(x) is tensor and id(x.dtype) in PLAIN and SETTINGS.fast:
                other = operand(x, y)
                if other is not None and propagate_nan == tl.PropagateNan.NONE:
                    op = float_op if x.dtype is F32 else integer_op
                    return like(x, y if type(y) is tensor else None, op(x.handle.data, other), x.dtype)
            return slow(x, y, propagate_nan)

        return fast

    return make


def _where(slow):
    def fast(condition, x, y):
        if type(condition) is tensor and condition.handle.data.dtype == bool and SETTINGS.fast:
            first = x if type(x) is tensor else y
            if type(x) is float and type(y) is float and condition.shape:
                return tile(np.where(condition.handle.data, np.float32(x), np.float32(y)), F32)
            if type(first) is tensor and id(first.dtype) in PLAIN:
                a, b = operand(first, x), operand(first, y)
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
        if type(dtype) is tl.pointer_type and id(dtype.element_ty) in LOADS and not args and SETTINGS.fast:
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
        if type(dtype) is tl.pointer_type and id(dtype.element_ty) in LOADS and not args and SETTINGS.fast:
            element = dtype.element_ty
            ok = "boundary_check" not in kwargs and type(value) is tensor and id(value.dtype) in CASTS
            ok = ok and id(element) in CASTS and (bool(pointer.shape) or not value.shape)
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
    return (np.ascontiguousarray(data).view(np.uint32) & _TF32_BITS).view(np.float32)


def _dot(slow):
    allowed = stock.interpreter_builder.options.allowed_dot_input_precisions

    def fast(
        input,
        other,
        acc=None,
        input_precision=None,
        allow_tf32=None,
        max_num_imprecise_acc=None,
        out_dtype=F32,
    ):
        precision = input_precision.value if type(input_precision) is tl.constexpr else input_precision
        plain = allow_tf32 is None and max_num_imprecise_acc is None and out_dtype is F32
        if plain and SETTINGS.fast and input.dtype is other.dtype and id(input.dtype) in OPERANDS:
            a, b = input.handle.data, other.handle.data
            known = precision is None or precision in allowed
            shapes = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and a.shape[1] >= MIN_DOT_K
            if known and shapes and (acc is None or (acc.dtype is F32 and acc.handle.data.ndim == 2)):
                if SETTINGS.tf32 and input.dtype is F32 and precision in (None, "tf32"):
                    a, b = truncate_tf32(a), truncate_tf32(b)
                out = np.matmul(widen(a), widen(b))
                return tile(out if acc is None else out + acc.handle.data, F32)
        return slow(input, other, acc, input_precision, allow_tf32, max_num_imprecise_acc, out_dtype)

    return fast


MIN_DOT_K = 16
"""NVIDIA's compiler refuses products with a smaller inner dimension; stock, the interpreter takes any."""


def _min_dot_size(lhs, rhs) -> tuple[int, int, int]:
    return 1, 1, 32 if lhs.scalar.primitive_bitwidth == 8 else MIN_DOT_K


def _axis_fits(x, axis) -> bool:
    return type(x) is tensor and x.dtype is F32 and type(axis) is int and 0 <= axis < len(x.shape)


def _sum(slow):
    def fast(input, axis=None, keep_dims=False, dtype=None):
        axis = axis.value if type(axis) is tl.constexpr else axis
        if dtype is None and SETTINGS.fast and _axis_fits(input, axis):
            out = np.sum(input.handle.data, axis=axis, keepdims=bool(keep_dims))
            return tile(out, F32) if out.ndim else scalar(out.reshape(1), F32)
        return slow(input, axis, keep_dims, dtype)

    return fast


def _cumsum(slow):
    def fast(input, axis=0, reverse=False, dtype=None):
        axis = axis.value if type(axis) is tl.constexpr else axis
        if dtype is None and not reverse and SETTINGS.fast and _axis_fits(input, axis):
            return tile(prefix_sums(input.handle.data, axis), F32)
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
                return tile(_range(start, end), I32)
        return slow(start, end)

    return fast


def install() -> None:
    """Put the short cuts over the functions of the patched language."""
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
