"""``python -m gdn_apc.fuzz.interpreter`` — what interpreting costs here: µs an operation, ms a chunk.

Imports torch and triton. Nothing asserts on these figures; notes and budgets quote them.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

from gdn_apc.fuzz import interpreter

interpreter.activate()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gdn_apc.fuzz.interpreter._settings import SETTINGS  # noqa: E402


@triton.jit
def _operations(x, out, n, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tile = tl.load(x + i * N + j)
    for _ in range(n):
        tile = tile + 1.0
    tl.store(out + i * N + j, tile)


@triton.jit
def _moves(x, out, n, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    for step in range(n):
        tl.store(out + i * N + j, tl.load(x + i * N + j, mask=i < N - step % 2, other=0.0))


@triton.jit
def _products(x, out, n, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tile = tl.load(x + i * N + j)
    for _ in range(n):
        tile = tl.dot(tile, tile, input_precision="ieee")
    tl.store(out + i * N + j, tile)


@triton.jit
def _nothing(x, out, n, N: tl.constexpr):
    pass


def _microseconds(kernel, dtype: torch.dtype, size: int, count: int) -> float:
    """The best of five launches, by operation."""
    x = torch.zeros(size, size, dtype=dtype)
    out = torch.zeros_like(x)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        kernel[(1,)](x, out, count, size)
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def main() -> None:
    """Print the table."""
    print(f"triton {triton.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    print(f"a launch of one empty program: {_microseconds(_nothing, torch.float32, 16, 1):.0f} µs")
    modes = {"fast": nullcontext, "fast, races": interpreter.races}
    for size in (16, 64, 128):
        for name, kernel in (("add", _operations), ("load, mask and store", _moves), ("dot", _products)):
            figures = []
            for mode, context in modes.items():
                with context():
                    figures.append(f"{mode} {_microseconds(kernel, torch.float32, size, 200):.1f}")
            SETTINGS.fast = False
            figures.append(f"stock operations {_microseconds(kernel, torch.float32, size, 200):.1f}")
            SETTINGS.fast = True
            print(f"{name}, {size} × {size}: {', '.join(figures)} µs")


if __name__ == "__main__":
    main()
