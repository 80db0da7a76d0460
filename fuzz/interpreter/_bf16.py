"""Mend: bf16 is a number. The stock interpreter keeps it as uint16 and multiplies the bit patterns.

Stock, ``tl.dot`` of two bf16 tiles is off by 1e10, ``a + b`` adds bit patterns, and fp32 → bf16 truncates.
Here ``tl.bfloat16`` maps to ``ml_dtypes.bfloat16``, a numpy dtype whose arithmetic rounds each result to
nearest even, as hardware does; loads, stores, casts, constants and products then follow.

Imports triton, numpy and ml_dtypes. Exercise it with ``pytest tests/fuzz/test_interpreter_mends.py``.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

BF16 = np.dtype(ml_dtypes.bfloat16)

_NUMPY = {
    tl.int1: np.dtype(bool),
    tl.int8: np.dtype(np.int8),
    tl.uint8: np.dtype(np.uint8),
    tl.int16: np.dtype(np.int16),
    tl.uint16: np.dtype(np.uint16),
    tl.int32: np.dtype(np.int32),
    tl.uint32: np.dtype(np.uint32),
    tl.int64: np.dtype(np.int64),
    tl.uint64: np.dtype(np.uint64),
    tl.float16: np.dtype(np.float16),
    tl.bfloat16: BF16,
    tl.float32: np.dtype(np.float32),
    tl.float64: np.dtype(np.float64),
}
for _dtype, _np_dtype in _NUMPY.items():
    _dtype.np = _np_dtype  # an attribute look-up is 20 times cheaper than hashing a triton dtype

_stock_np_dtype = stock._get_np_dtype
_stock_cast = stock.InterpreterBuilder.cast_impl
_stock_fp_to_fp = stock.InterpreterBuilder.create_fp_to_fp
_stock_dot = stock.InterpreterBuilder.create_dot
_TRUNCATING = stock._ir.ROUNDING_MODE.RTZ


def np_dtype(dtype) -> np.dtype:
    """The numpy dtype of a triton scalar, pointer or block type."""
    element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
    return getattr(element, "np", None) or _stock_np_dtype(element)


def _cast(self, src, dst_type):
    if tl.bfloat16 in (src.dtype.scalar, dst_type.scalar):
        return stock.TensorHandle(src.data.astype(np_dtype(dst_type)), dst_type.scalar)
    return _stock_cast(self, src, dst_type)


def _fp_to_fp(self, src, dst_type, rounding_mode):
    source, target = src.dtype.scalar, dst_type.scalar
    if min(source.primitive_bitwidth, target.primitive_bitwidth) < 16:  # fp8 keeps the stock conversion
        return _stock_fp_to_fp(self, src, dst_type, rounding_mode)
    if rounding_mode != _TRUNCATING:
        return stock.TensorHandle(src.data.astype(np_dtype(target)), target)
    if target == tl.bfloat16:
        bits = src.data.astype(np.float32).view(np.uint32) >> 16
        return stock.TensorHandle(bits.astype(np.uint16).view(BF16), target)
    return _stock_fp_to_fp(self, src, dst_type, rounding_mode)


def widen(data: np.ndarray) -> np.ndarray:
    """Half-precision operands as fp32, exactly: tensor cores multiply them exactly and add in fp32."""
    return data.astype(np.float32) if data.dtype == BF16 or data.dtype == np.float16 else data


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    def wide(handle):
        return (
            stock.TensorHandle(widen(handle.data), tl.float32)
            if handle.dtype.primitive_bitwidth == 16
            else handle
        )

    return _stock_dot(self, wide(a), wide(b), d, input_precision, max_num_imprecise_acc)


def _constant(self, value):
    return stock.TensorHandle(np.array([value], dtype=BF16), tl.bfloat16)


def install() -> None:
    """Replace the interpreter's dtype map, casts, products and constants."""
    stock._get_np_dtype = np_dtype
    builder = stock.InterpreterBuilder
    builder.cast_impl = _cast
    builder.create_fp_to_fp = _fp_to_fp
    builder.create_dot = _dot
    builder.get_bf16 = _constant
