"""Triton's CPU interpreter, mended: right on bf16, fast, and strict about memory and program order.

    from gdn_apc.fuzz import interpreter
    interpreter.activate()                    # before any module with kernels is imported
    with interpreter.program_order(7):        # a seeded shuffle of every launch's programs
        kernel[grid](...)
    with interpreter.races():                 # refuse programs that meet in memory
        kernel[grid](...)

One module a mend: ``_bf16`` (bf16 is a number), ``_frontend`` (loop variables are tensors), ``_language`` (patched
once, for every name), ``_launch`` (grids, autotune, order), ``_memory`` (bounds), ``_races``, ``_scan``, ``_ops`` and
``_functions`` (speed). ``python -m gdn_apc.fuzz.interpreter`` measures it. What it still does not show: tensor-core rounding,
num_warps and num_stages, true concurrency within a program.

Importing this package imports neither torch nor triton. Exercise it with ``pytest tests/fuzz -k interpreter``.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager

from gdn_apc.fuzz.interpreter._settings import SETTINGS, OutOfBounds, Race, UnsupportedTriton, check_version

__all__ = ["OutOfBounds", "Race", "UnsupportedTriton", "activate", "is_active", "program_order", "races"]


def activate(
    bounds: bool = True, overflow_check: bool = False, tf32: bool = False, undefined: str = "zero"
) -> None:
    """Make this process interpret every Triton kernel decorated from now on. Calling it again changes the switches.

    ``bounds``: a load or store outside every tensor of the launch raises :class:`OutOfBounds`.
    ``overflow_check``: integer overflow and a failed ``tl.device_assert`` raise (slow). ``tf32``: products that allow tf32 lose 13 bits of their
    fp32 operands. ``undefined``: masked-off lanes of a load without ``other`` yield "zero", or "poison" (NaN).

    Raises ``UnsupportedTriton`` for a triton version that is not known, ``RuntimeError`` if triton or kernels
    were imported in compiling mode before, ``ValueError`` for an unknown ``undefined``.
    """
    if undefined not in ("zero", "poison"):
        raise ValueError(f"undefined: {undefined!r} is not known; expected 'zero' or 'poison'")
    if not SETTINGS.active:
        _install()
    SETTINGS.bounds, SETTINGS.overflow_check, SETTINGS.tf32 = bounds, overflow_check, tf32
    SETTINGS.undefined = undefined
    import triton.runtime.interpreter as stock

    # Without debug, the stock interpreter computes every overflow check and then ignores it.
    options = stock.InterpreterOptions(debug=overflow_check, sanitize_overflow=overflow_check)
    stock.interpreter_builder.options = options


def is_active() -> bool:
    """Whether this process interprets its kernels with the mends."""
    return SETTINGS.active


def _install() -> None:
    """Set the mode, check that it is not too late, and apply every mend."""
    _refuse_compiled_kernels()
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language as tl

    check_version(triton.__version__)
    if type(tl.sum).__name__ != "InterpretedFunction":
        raise RuntimeError(
            "triton was imported in compiling mode before interpreter.activate(); call activate() first, "
            "or start the process with TRITON_INTERPRET=1"
        )
    from gdn_apc.fuzz.interpreter import (
        _bf16,
        _frontend,
        _functions,
        _language,
        _launch,
        _memory,
        _ops,
        _scan,
    )

    # The short cuts come last: they cover the functions that the patched language has by then.
    for mend in (_bf16, _frontend, _memory, _scan, _launch, _language, _ops, _functions):
        mend.install()
    SETTINGS.active = True


def _refuse_compiled_kernels() -> None:
    """Raise if modules with kernels were imported already: ``@triton.jit`` decides at decoration."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("gdn_apc."):
            kernels = [n for n, v in vars(module).items() if isinstance(v, jit.JITFunction)]
            if kernels:
                raise RuntimeError(
                    f"module {name} was imported before interpreter.activate(), so its kernels "
                    f"({', '.join(kernels[:3])}) are compiled ones; call activate() before importing gdn_apc.impl"
                )


@contextmanager
def program_order(order: int | str | None):
    """Run the programs of every launch inside in another order: a seed, ``"reversed"``, or None for the usual one.

    A seed shuffles each launch anew, and the same launches in the same sequence get the same orders.
    Results must not depend on it. Raises ``ValueError`` for anything else.
    """
    if order is not None and order != "reversed" and (isinstance(order, bool) or not isinstance(order, int)):
        raise ValueError(f"order: {order!r} is not known; expected a seed, 'reversed' or None")
    before = SETTINGS.order
    SETTINGS.order = random.Random(order) if isinstance(order, int) else order
    try:
        yield
    finally:
        SETTINGS.order = before


@contextmanager
def races(check: bool = True):
    """Refuse launches inside whose programs touch one element, at least one of them writing it (:class:`Race`)."""
    before = SETTINGS.races
    SETTINGS.races = check
    try:
        yield
    finally:
        SETTINGS.races = before
