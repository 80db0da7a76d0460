"""Mends of a launch: callable grids, autotuned kernels, float arguments, program order, plain errors.

| stock | here |
|---|---|
| a callable grid gets the interpreter's tensors, so ``grid()`` cannot fill or measure an argument | it gets the arguments as passed |
| an ``@autotune`` of several configurations asks a GPU driver for timings and fails | the first configuration runs |
| a float argument is a Python double | an fp32 scalar, as on a GPU |
| programs run in one fixed order, so one program may come to rely on another | ``program_order`` shuffles them |
| every launch copies arguments to the host and back, and inspects signatures again | CPU tensors are used in place |
| an error becomes ``InterpreterError(repr(e))`` | the error itself, with the kernel and program as a note |

Imports triton, numpy and torch. Exercise it with ``pytest tests/fuzz/test_interpreter_mends.py``.
"""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as stock
from triton.runtime.jit import mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from gdn_apc.fuzz.interpreter import _races
from gdn_apc.fuzz.interpreter._autotune import first_configurations
from gdn_apc.fuzz.interpreter._memory import CURRENT, span_of
from gdn_apc.fuzz.interpreter._settings import SETTINGS
from gdn_apc.fuzz.interpreter._types import scalar

_stock_convert = stock._implicit_cvt
_pointer_types: dict[torch.dtype, tl.dtype] = {}
_signatures: dict = {}
_executors: dict = {}


def _tensors(name: str, value):
    """``(name, torch tensor)`` of an argument: itself, or those in a tuple or descriptor."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)
    elif isinstance(value, TensorDescriptor):
        yield from _tensors(name, value.base)
    elif hasattr(value, "data_ptr") and hasattr(value, "base"):  # a reinterpreted tensor
        yield from _tensors(name, value.base)


def _convert(arg):
    """An argument as the kernel sees it: tensors become pointers, numbers become typed scalars."""
    if isinstance(arg, torch.Tensor):
        dtype = _pointer_types.get(arg.dtype)
        if dtype is None:
            dtype = _pointer_types[arg.dtype] = tl.str_to_ty(mangle_type(arg), None)
        return scalar(np.array([arg.data_ptr()], np.uint64), dtype)
    if type(arg) is int and -(2**31) <= arg < 2**31:
        return scalar(np.array([arg], np.int32), tl.int32)
    if isinstance(arg, float):
        return scalar(np.array([arg], np.float32), tl.float32)
    return _stock_convert(arg)


@dataclass
class _Signature:
    """What a launch needs to know of a kernel, looked up once."""

    names: tuple[str, ...]
    defaults: dict
    constexprs: frozenset[str]

    def bind(self, args: tuple, kwargs: dict) -> dict:
        """Arguments by name, in the order of the parameters; options such as num_warps are dropped."""
        passed = {**self.defaults, **dict(zip(self.names, args)), **kwargs}
        missing = [n for n in self.names if n not in passed]
        if missing or len(args) > len(self.names):
            raise TypeError(
                f"launch: expected the arguments {self.names}; missing {missing}, {len(args)} given by position"
            )
        return {n: passed[n] for n in self.names}


def _signature(executor) -> _Signature:
    try:
        return _signatures[executor.fn]
    except KeyError:
        parameters = inspect.signature(executor.fn).parameters
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        entry = _Signature(tuple(parameters), defaults, frozenset(executor.constexprs))
        _signatures[executor.fn] = entry
        return entry


def _programs(grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """The programs of a launch in the order asked for."""
    order = SETTINGS.order
    programs = list(product(range(grid[0]), range(grid[1]), range(grid[2])))
    if order == "reversed":
        programs.reverse()
    elif isinstance(order, random.Random):
        order.shuffle(programs)
    return programs


def _run(fn, args: dict, grid: tuple[int, int, int]) -> None:
    builder = stock.interpreter_builder
    builder.set_grid_dim(*grid)
    numbers = {p: i for i, p in enumerate(product(*(range(n) for n in grid)))} if SETTINGS.races else {}
    try:
        for program in _programs(grid):
            builder.grid_idx = CURRENT.program = program
            if SETTINGS.races:
                _races.PROGRAM[:] = [numbers[program], CURRENT.kernel, program]
            fn(**args)
    except Exception as e:
        if hasattr(e, "add_note"):  # Python 3.11
            e.add_note(f"in kernel {CURRENT.kernel!r}, program {CURRENT.program} of grid {grid}, interpreted")
        raise


def _launch(self, *args_dev, **kwargs):
    """Replaces ``GridExecutor.__call__``."""
    signature = _signature(self)
    passed = signature.bind(args_dev, kwargs)
    grid = self.grid(passed) if callable(self.grid) else self.grid
    on_host = all(t.device.type == "cpu" for n, v in passed.items() for _, t in _tensors(n, v))
    hosted = passed
    if not on_host:
        hosted = self._init_args_hst([], passed)[1]
    for hook in self.pre_run_hooks:
        hook(**hosted)
    grid = (grid,) if isinstance(grid, int) else tuple(int(n) for n in grid)
    assert len(grid) <= 3, f"grid: {grid} has more than 3 dimensions"
    spans = (span_of(*pair) for name, value in hosted.items() for pair in _tensors(name, value))
    outer = CURRENT.kernel, CURRENT.program, CURRENT.spans
    CURRENT.kernel, CURRENT.spans = self.fn.__name__, [s for s in spans if s is not None]
    if SETTINGS.races:
        _races.start(CURRENT.spans)
    try:
        args = {n: v if n in signature.constexprs else _convert(v) for n, v in hosted.items()}
        with np.errstate(all="ignore"):  # hardware has no floating-point warnings
            _run(self.fn, args, grid + (1,) * (3 - len(grid)))
    finally:
        CURRENT.kernel, CURRENT.program, CURRENT.spans = outer
    if not on_host:
        self._restore_args_dev([], [], passed, hosted)


def _run_kernel(self, *args, grid, warmup, **kwargs):
    """Replaces ``InterpretedFunction.run``: one executor a kernel."""
    if warmup:
        return
    executor = _executors.get(self)
    if executor is None:
        executor = _executors[self] = stock.GridExecutor(
            self.rewrite(), self.arg_names, grid, self.pre_run_hooks
        )
    executor.grid = grid
    executor(*args, **kwargs)


def install() -> None:
    """Replace the interpreter's launch and the autotuner's choice."""
    stock.GridExecutor.__call__ = _launch
    stock.InterpretedFunction.run = _run_kernel
    first_configurations()
