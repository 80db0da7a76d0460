"""Kernels that the stock interpreter runs wrong, as cases that run in either interpreter.

``python tests/fuzz/interpreter_cases.py`` prints what each case gives in the stock interpreter, as JSON;
``test_interpreter_mends.py`` runs it in a process of its own and the same cases, mended, in this one.
Every case returns something JSON can hold, and lets errors through.

Imports triton and torch. Exercise it with ``pytest tests/fuzz/test_interpreter_mends.py``.
"""

from __future__ import annotations

import json
import os
import warnings

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

exp = tl.exp  # a builtin captured by name, as vLLM's kernels do
COMBINED: list[int] = []


@triton.jit
def _elementwise(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * tl.load(y + i) + tl.load(x + i))


@triton.jit
def _product(a, b, out, N: tl.constexpr, M: tl.constexpr):
    i, j, k = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :], tl.arange(0, M)
    left = tl.load(a + i * M + k[None, :])
    right = tl.load(b + k[:, None] * N + j)
    tl.store(out + i * N + j, tl.dot(left, right, input_precision="ieee"))


@triton.jit
def _round(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


@triton.jit
def _constant(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.full([N], 1.5, tl.bfloat16))


@triton.jit
def _loop_cast(out, n: tl.constexpr):
    for i in range(n):
        tl.store(out + i, i.to(tl.int64) * 2)


@triton.jit
def _loop_overflow(out, n: tl.constexpr):
    for i in range(n):
        tl.store(out + i, i * 1073741824)


@triton.jit
def _captured(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, exp(tl.load(x + i)))


@triton.jit
def _copy(x, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.autotune([triton.Config({"N": 8}), triton.Config({"N": 16})], key=["n"])
@triton.jit
def _tuned(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + N)


@triton.jit
def _square(out, a):
    tl.store(out, a * a)


@triton.jit
def _larger(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.maximum(tl.load(x + i), tl.load(y + i)))


@triton.jit
def _affine(a1, b1, a2, b2):
    COMBINED.append(1)
    return a1 * a2, b1 * a2 + b2


@triton.jit
def _scan(a, b, out, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    _, h = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, _affine)
    tl.store(out + at, h)


@triton.jit
def _times(x, y):
    return x * y


@triton.jit
def _prefix_sums(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.cumsum(tl.load(x + i), axis=0))


@triton.jit
def _reduce_last(x, out, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out + tl.arange(0, N), tl.reduce(tl.load(x + at), -1, _times))


def _normal(*shape: int, dtype=torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def bf16_arithmetic() -> float:
    """The largest error of x·y + x against torch, in fp32 (both round twice, so 0 is right)."""
    x, y = _normal(64, seed=1), _normal(64, seed=2)
    out = torch.zeros_like(x)
    _elementwise[(1,)](x, y, out, 64)
    return float((out.float() - (x * y + x).float()).abs().nan_to_num(nan=1e38).max())


def bf16_product() -> float:
    """The largest error of a 16 × 16 product against float64."""
    a, b = _normal(16, 16, seed=1), _normal(16, 16, seed=2)
    out = torch.zeros(16, 16)
    _product[(1,)](a, b, out, 16, 16)
    return float((out.double() - a.double() @ b.double()).abs().nan_to_num(nan=1e38).max())


def bf16_rounding() -> int:
    """How many of 512 fp32 values (ties among them) become another bf16 than torch's."""
    x = _normal(512, dtype=torch.float32)
    x[:4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38])
    out = torch.zeros(512, dtype=torch.bfloat16)
    _round[(1,)](x, out, 512)
    return int((out != x.bfloat16()).sum())


def bf16_constant() -> list[float]:
    """A tile filled with 1.5 in bf16."""
    out = torch.zeros(4, dtype=torch.bfloat16)
    _constant[(1,)](out, 4)
    return out.tolist()


def loop_variable_is_a_tensor() -> list[int]:
    """``i.to(tl.int64)`` of a loop variable."""
    out = torch.zeros(3, dtype=torch.int64)
    _loop_cast[(1,)](out, 3)
    return out.tolist()


def loop_variable_is_32_bits() -> list[int]:
    """``i * 2**30`` in int32, for i up to 3: 2**31 does not fit."""
    out = torch.zeros(4, dtype=torch.int64)
    _loop_overflow[(1,)](out, 4)
    return out.tolist()


def captured_builtin() -> float:
    """``exp = tl.exp`` at module level."""
    out = torch.zeros(8)
    _captured[(1,)](torch.zeros(8), out, 8)
    return float(out.sum())


def callable_grid() -> str:
    """The type of a tensor argument that a callable grid sees."""
    seen = []

    def grid(args):
        seen.append(type(args["x"]).__name__)
        return (1,)

    _copy[grid](torch.ones(8), torch.zeros(8), 8, N=8)
    return seen[0]


def autotuned() -> float:
    """A kernel with two configurations; the first has N = 8."""
    out = torch.zeros(16)
    _tuned[(1,)](torch.zeros(16), out, 16)
    return float(out[0])


def read_out_of_bounds() -> list[float]:
    """A read of 8 elements from a tensor of 4, inside a storage of 8."""
    storage = torch.full((8,), 7.0)
    out = torch.zeros(8)
    _copy[(1,)](storage[:4], out, 8, N=8)
    return out.tolist()


def write_out_of_bounds() -> list[float]:
    """A write of 8 elements to a tensor of 4, inside a storage of 8."""
    storage = torch.zeros(8)
    _copy[(1,)](torch.ones(8), storage[:4], 8, N=8)
    return storage.tolist()


def float_argument() -> float:
    """0.1 · 0.1, where 0.1 is a kernel argument: fp32 on a GPU."""
    out = torch.zeros(1)
    _square[(1,)](out, 0.1)
    return float(out)


def narrow_product() -> float:
    """A product over 8 elements, which a GPU's compiler refuses."""
    out = torch.zeros(16, 16)
    _product[(1,)](torch.ones(16, 8), torch.ones(8, 16), out, 16, 8)
    return float(out[0, 0])


def maximum_of_nan() -> list[float]:
    """``tl.maximum`` of NaN and a number, both ways round: the number, on a GPU."""
    nan = float("nan")
    out = torch.zeros(2)
    _larger[(1,)](torch.tensor([nan, 1.0]), torch.tensor([2.0, nan]), out, 2)
    return out.tolist()


def scan() -> dict:
    """h ← a h + b over 16 positions of 8 columns: error, and how often the combining function ran."""
    a, b = torch.rand(16, 8), torch.randn(16, 8)
    out, h = torch.zeros(16, 8), torch.zeros(8)
    COMBINED.clear()
    _scan[(1,)](a, b, out, 16, 8)
    for t in range(16):
        h = a[t] * h + b[t]
    return {"error": float((out[-1] - h).abs().max()), "calls": len(COMBINED)}


def prefix_sums() -> dict:
    """tl.cumsum of numbers with zeros behind them: its error in ulps, and how often the last sum is not the last but one."""
    differ, error = 0, 0.0
    for seed in range(50):
        x = torch.zeros(16)
        x[:5] = _normal(5, dtype=torch.float32, seed=seed) * 30
        out = torch.zeros(16)
        _prefix_sums[(1,)](x, out, 16)
        differ += int(out[15] != out[4])
        error = max(error, float(((out - x.double().cumsum(0)).abs() / 2.0**-24 / x.abs().sum()).max()))
    return {"differ": differ, "error": error}


def reduce_over_the_last_axis() -> float:
    """The error of a product over axis -1."""
    x = torch.rand(4, 8)
    out = torch.zeros(4)
    _reduce_last[(1,)](x, out, 4, 8)
    return float((out - x.prod(-1)).abs().max())


def warnings_of_overflow() -> list[str]:
    """Warnings of exp(1000): hardware has none."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _captured_as_module[(1,)](torch.full((4,), 1000.0), torch.zeros(4), 4)
    return [str(w.message) for w in seen if issubclass(w.category, RuntimeWarning)]


@triton.jit
def _captured_as_module(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.exp(tl.load(x + i)))


def patches_per_launch() -> int:
    """How many attributes of ``triton.language`` the second launch of a kernel replaces."""
    import triton.runtime.interpreter as stock

    count, plain = [0], stock._LangPatchScope.set_attr

    def counted(self, *args):
        count[0] += 1
        plain(self, *args)

    _copy[(1,)](torch.ones(8), torch.zeros(8), 8, N=8)
    stock._LangPatchScope.set_attr = counted
    try:
        _copy[(1,)](torch.ones(8), torch.zeros(8), 8, N=8)
    finally:
        stock._LangPatchScope.set_attr = plain
    return count[0]


CASES = {
    f.__name__: f
    for f in (
        bf16_arithmetic,
        bf16_product,
        bf16_rounding,
        bf16_constant,
        loop_variable_is_a_tensor,
        loop_variable_is_32_bits,
        captured_builtin,
        callable_grid,
        autotuned,
        read_out_of_bounds,
        write_out_of_bounds,
        float_argument,
        narrow_product,
        maximum_of_nan,
        scan,
        prefix_sums,
        reduce_over_the_last_axis,
        warnings_of_overflow,
        patches_per_launch,
    )
}


def run(name: str) -> dict:
    """``{"value": …}`` of a case, or ``{"error": text}``."""
    try:
        return {"value": CASES[name]()}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({name: run(name) for name in CASES}))
