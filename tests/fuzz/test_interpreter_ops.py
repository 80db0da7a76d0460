"""The short cuts agree with the stock operations: same bits, same types, same refusals.

Exercise it with ``pytest tests/fuzz/test_interpreter_ops.py``.
"""

import itertools
import operator

import numpy as np
import pytest

from gdn_apc.fuzz import interpreter

interpreter.activate()

import triton.language as tl  # noqa: E402

from gdn_apc.fuzz.interpreter._bf16 import np_dtype  # noqa: E402
from gdn_apc.fuzz.interpreter._settings import SETTINGS  # noqa: E402
from gdn_apc.fuzz.interpreter._types import scalar, tile  # noqa: E402

DTYPES = [tl.float32, tl.bfloat16, tl.float16, tl.int32, tl.int64, tl.int1]
SHAPES = [None, (1,), (4,), (4, 1), (1, 4), (4, 4)]
NUMBERS = [2, -3, 0.5, True, tl.constexpr(3), tl.constexpr(1.5), 2**40]


def value(dtype, shape, seed: int = 0, finite: bool = False):
    """A tensor of small values: exact zeros, negatives, and infinities and NaN in floats unless ``finite``."""
    data = np.random.default_rng(seed).integers(-3, 4, shape or (1,)).astype(np.float64)
    if dtype.is_floating():
        data = data + np.random.default_rng(seed + 1).normal(size=data.shape).round(2)
        if data.size > 4 and not finite:
            data.reshape(-1)[:3] = [np.inf, -np.inf, np.nan]
    data = data.astype(np_dtype(dtype))
    return scalar(data, dtype) if shape is None else tile(data, dtype)


def outcome(f, *args):
    """What ``f`` gives: its type, shape and bits, or the kind of error."""
    try:
        with np.errstate(all="ignore"):
            out = f(*args)
    except Exception as e:
        return type(e).__name__
    if not isinstance(out, tl.tensor):
        return out
    data = np.ascontiguousarray(out.handle.data)
    return (
        str(out.type),
        str(out.dtype),
        tuple(int(n) for n in out.shape),
        int(out.numel),
        data.dtype.name,
        data.tobytes(),
    )


def agree(f, *args):
    """``f`` with and without the short cuts."""
    fast = outcome(f, *args)
    SETTINGS.fast = False
    try:
        slow = outcome(f, *args)
    finally:
        SETTINGS.fast = True
    return fast == slow, (fast, slow)


BINARY = {
    name: getattr(operator, name)
    for name in "add sub mul truediv floordiv mod lt le gt ge eq ne and_ or_ xor".split()
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators(name):
    """Every operator on every pair of types and shapes, and with numbers on either side."""
    op, wrong, tried = BINARY[name], [], 0
    for (a, b), (s, t) in itertools.product(
        itertools.product(DTYPES, DTYPES), itertools.product(SHAPES, SHAPES)
    ):
        x, y = value(a, s), value(b, t, seed=5)
        if name in ("floordiv", "mod") and b in (tl.int32, tl.int64):
            y.handle.data[y.handle.data == 0] = 2
        same, both = agree(op, x, y)
        tried += 1
        if not same:
            wrong.append((str(a), str(b), s, t, both))
    for a, s, n, left in itertools.product(DTYPES, SHAPES, NUMBERS, (False, True)):
        x = value(a, s)
        if name in ("floordiv", "mod") and left and a in (tl.int32, tl.int64):
            x.handle.data[x.handle.data == 0] = 2
        same, both = agree(op, *((n, x) if left else (x, n)))
        tried += 1
        if not same:
            wrong.append((str(a), s, n, left, both))
    assert wrong[:3] == []
    assert tried > 1000


@pytest.mark.parametrize("dtype, shape", list(itertools.product(DTYPES, SHAPES)))
def test_unary_operators_casts_and_indices(dtype, shape):
    """Negation, inversion, functions, casts to every type, new axes."""
    x = value(dtype, shape)
    functions = [operator.neg, operator.invert, tl.exp, tl.exp2, tl.log, tl.sqrt, tl.rsqrt, tl.trans, tl.sum]
    functions += [lambda x, d=d: x.to(d) for d in DTYPES if d.is_floating()]
    functions += [
        lambda x: x.to(tl.float32, fp_downcast_rounding="rtne"),
        lambda x: x.to(tl.int32, bitcast=True),
    ]
    functions += [lambda x: x[:, None], lambda x: x[None, :], lambda x: x[None, :, None], lambda x: x[0:2]]
    functions += [lambda x, a=a, k=k: tl.sum(x, a, k) for a in (0, 1, -1, None) for k in (False, True)]
    functions += [lambda x, a=a, r=r: tl.cumsum(x, a, r) for a in (0, 1) for r in (False, True)]
    for i, f in enumerate(functions):
        same, both = agree(f, x)
        assert same, (i, both)
    finite = value(dtype, shape, finite=True)  # as an integer, infinity and NaN are undefined, and vary
    for d in DTYPES:
        if not d.is_floating():
            same, both = agree(lambda x, d=d: x.to(d), finite)
            assert same, (d, both)


@pytest.mark.parametrize("name", ["minimum", "maximum", "where"])
def test_selections(name):
    """``tl.minimum``, ``tl.maximum`` and ``tl.where`` on all pairs, and numbers."""
    wrong = []
    conditions = [value(tl.int1, s, seed=9) for s in (None, (4,), (4, 1), (4, 4))]
    operands = [value(d, s, seed=3) for d in DTYPES[:5] for s in (None, (4,), (4, 4))] + [
        0.0,
        1,
        -2.5,
        tl.constexpr(0.0),
    ]
    for a, b in itertools.product(operands, operands):
        for condition in conditions if name == "where" else [None]:
            args = (condition, a, b) if name == "where" else (a, b)
            same, both = agree(getattr(tl, name), *args)
            if not same:
                wrong.append((args, both))
    assert wrong[:2] == []


@pytest.mark.parametrize("dtype", [tl.float32, tl.bfloat16, tl.float16])
@pytest.mark.parametrize("precision", [None, "ieee", "tf32", "bf16x9"])
def test_products(dtype, precision):
    """``tl.dot`` with and without an accumulator, fitting and not; an unknown precision is refused both ways."""
    a, b = value(dtype, (16, 32)), value(dtype, (32, 16), seed=4)
    short = value(dtype, (16, 8))
    acc = value(tl.float32, (16, 16), seed=6)
    for args in ((a, b), (a, b, acc), (a, a), (short, tl.trans(short)), (a, b, tl.trans(acc))):
        same, both = agree(lambda *args: tl.dot(*args, input_precision=precision), *args)
        assert same, both


def test_ranges():
    """``tl.arange`` of good and bad bounds."""
    for bounds in ((0, 16), (4, 8), (0, 3), (8, 4), (0, 0)):
        same, both = agree(tl.arange, *bounds)
        assert same, (bounds, both)


def test_the_comparison_can_fail():
    """A short cut that differs in one bit, one type or one refusal is seen."""
    x = value(tl.float32, (4,))

    def wrong_bits(x):
        return x + (1.0 if SETTINGS.fast else 2.0)

    def wrong_type(x):
        return x if SETTINGS.fast else x.to(tl.float16)

    def wrong_refusal(x):
        return x if SETTINGS.fast else x & x

    assert [agree(f, x)[0] for f in (wrong_bits, wrong_type, wrong_refusal)] == [False] * 3
