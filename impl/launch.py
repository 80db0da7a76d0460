"""Launches of the kernels of a layer: a handful of microseconds each on the host.

An engine that runs a prefill eagerly launches every kernel of every layer, and looking at each of thirty arguments takes Triton
longer than a short kernel runs. So a first launch goes through Triton, and the compiled kernel that it returns is launched
directly from then on, for arguments that Triton would compile alike:

- pointers: dtypes are constants of the ``Launcher`` (its key holds them), and all addresses are multiples of 16; if one is not,
  the launch takes the ordinary way;
- numbers on which the kernel is specialised (strides): the very same values;
- the others (``do_not_specialize``): any value below 2³¹, which is the width they were compiled for.

Under Triton's interpreter nothing is compiled, and each launch takes the ordinary way. Imports torch and the standard library.
Exercise it with ``pytest tests/impl/test_launch.py``.
"""

from __future__ import annotations

from typing import Any

import torch

INT32_END = 1 << 31
ALIGNMENT = 16
"""Bytes: what Triton knows of an address, or does not."""


class Launcher:
    """One kernel with its compile-time arguments and options, for pointers of given dtypes: make one for each combination."""

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, int]) -> None:
        """``kernel`` takes its pointers first, then numbers, then ``constants``, in any order here."""
        self.kernel = kernel
        self.keywords = constants | options
        self.tail = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.split: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __call__(
        self, grid: tuple[int, int, int], tensors: tuple[torch.Tensor, ...], numbers: tuple[float, ...]
    ) -> None:
        """Launch on the current stream of the current device, which must be the tensors'."""
        addresses = [t.data_ptr() for t in tensors]
        if self.split is None:
            self.split = _split(self.kernel, len(tensors), len(numbers))
        same, free = self.split
        low = 0
        for address in addresses:
            low |= address
        plain = low % ALIGNMENT == 0 and all(numbers[i] < INT32_END for i in free)
        key = (tensors[0].get_device(), *[numbers[i] for i in same])
        compiled = self.compiled.get(key) if plain else None
        if compiled is not None:
            compiled[grid](*addresses, *numbers, *self.tail)
            return
        compiled = self.kernel[grid](*tensors, *numbers, **self.keywords)
        if plain and compiled is not None:
            self.compiled[key] = compiled


def _split(kernel: Any, pointers: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the numbers on whose values Triton specialises, and of the others."""
    # Triton's interpreter knows no specialisation, and compiles nothing that could be found again.
    free = set(getattr(kernel, "do_not_specialize", ()) or ())
    names = kernel.arg_names[pointers : pointers + numbers]
    same = tuple(i for i, name in enumerate(names) if name not in free)
    return same, tuple(i for i, name in enumerate(names) if name in free)
