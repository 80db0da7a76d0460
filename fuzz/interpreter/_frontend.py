"""Mends of what the front end does to a kernel's source: loop variables are tensors.

Stock, ``for i in range(n)`` gives a Python int: ``i.to(tl.int64)`` fails, and ``i * stride`` never overflows
although the GPU's int32 would. Here ``range`` and ``tl.range`` yield int32 (or int64) scalars, of the type
that the compiler gives the loop variable: the promoted type of the bounds. ``tl.static_range`` stays Python ints.

Imports triton. Exercise it with ``pytest tests/fuzz/test_interpreter.py``.
"""

from __future__ import annotations

import ast
import builtins

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as stock

from gdn_apc.fuzz.interpreter._types import scalar

_stock_range = tl.range  # the class; `tl.range` itself is replaced by the interpreter once patched
_NAME = "_interpreter_loop"


def _bound(value) -> tuple[int, bool]:
    """A loop bound as an int, and whether it is 64 bits wide."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.tensor):
        return int(value.handle.data.item()), value.dtype.int_bitwidth == 64
    return int(value), not -(2**31) <= int(value) < 2**31


def loop(source, *args, **kwargs):
    """What ``source(*args)`` yields in a kernel: scalars if ``source`` is a run-time range, else what it yields."""
    if source is not builtins.range and source is not tl.range and source is not _stock_range:
        yield from source(*args, **kwargs)
        return
    if "step" in kwargs:  # tl.range(a, b, step=s)
        args = (*(args if len(args) > 1 else (0, *args)), kwargs["step"])
    bounds = [_bound(a) for a in args]
    wide = any(is_wide for _, is_wide in bounds)
    dtype, np_dtype = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for i in range(*(value for value, _ in bounds)):
        yield scalar(np.array([i], np_dtype), dtype)


class _LoopVariables(stock.ASTTransformer):
    """Turns ``for i in range(…)`` into ``for i in _interpreter_loop(range, …)``."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        call = node.iter
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
            if name == "range":
                call.args.insert(0, call.func)
                call.func = ast.copy_location(ast.Name(_NAME, ast.Load()), call)
        return node


def install() -> None:
    """Use the new source transformation; the rewriter copies the interpreter's globals into the kernel's."""
    stock.FunctionRewriter.ast_transformer = _LoopVariables()
    setattr(stock, _NAME, loop)
