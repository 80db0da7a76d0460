"""Mends of how ``triton.language`` is redirected to the interpreter: once, for good, and for every name.

Stock, every launch and every call of a device function (``tl.sum``, ``tl.cdiv``, …) patches some 300 attributes
and most launches restore them: 0.02 s a launch. And only modules are patched, so a kernel file that says
``exp = tl.exp`` keeps the compiler's function: "`_semantic` argument must be provided". Patched once and for
the life of the process, before any kernel module is imported, both disappear. (A process that has activated
the interpreter can therefore no longer compile kernels.)

Imports triton. Exercise it with ``pytest tests/fuzz/test_interpreter.py``.
"""

from __future__ import annotations

import functools
import inspect

import triton.language as tl
import triton.runtime.interpreter as stock
from triton.language import core

_stock_patch = stock._patch_lang


class _Nothing:
    """What the launch restores afterwards."""

    def restore(self) -> None:
        pass


_NOTHING = _Nothing()


def _shows_both_modules() -> tuple:
    """The stock patch wants a function whose module has ``triton.language`` and its core among its globals."""
    return tl, core


def _direct(member):
    """``member`` with the interpreter's semantics, without the checking wrapper around it."""
    inner = getattr(member, "__wrapped__", member)
    semantic = stock.interpreter_semantic

    @functools.wraps(inner)
    def call(*args, **kwargs):
        kwargs["_semantic"] = semantic
        return inner(*args, **kwargs)

    return call


def _patch_builtin(pkg, builder, scope) -> None:
    for name, member in inspect.getmembers(pkg):
        if tl.core.is_builtin(member):
            setattr(pkg, name, _direct(member))


def _call_device_function(self, *args, **kwargs):
    """A device function's errors pass unwrapped, and its source is rewritten once."""
    try:
        fn = self.rewritten_fn[self.fn]
    except KeyError:
        fn = self.rewrite()
    return fn(*args, **kwargs)


def install() -> None:
    """Patch the language once; later requests to patch it do nothing."""
    stock._patch_builtin = _patch_builtin
    _stock_patch(_shows_both_modules)
    stock._patch_lang = lambda fn: _NOTHING
    tl.tensor.__index__ = lambda self: int(
        self.handle.data.item()
    )  # 3.6 converts the array, which numpy 2.4 refuses
    stock.InterpretedFunction.__call__ = _call_device_function
