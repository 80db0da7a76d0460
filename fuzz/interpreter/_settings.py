"""What is switched on in the mended interpreter, the triton versions it knows, and its errors.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_interpreter.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

KNOWN_TRITON = ("3.6.0", "3.7.1")
"""Versions whose interpreter was read and tested with every mend; the mends replace private functions of it."""


class UnsupportedTriton(RuntimeError):
    """The installed triton's interpreter is not one that the mends were written for."""


class OutOfBounds(IndexError):
    """A kernel touched memory outside every tensor that was passed to the launch."""


class Race(RuntimeError):
    """Two programs of one launch touched one element, and at least one of them wrote it."""


@dataclass
class Settings:
    """Switches that kernels' behaviour depends on; one instance, :data:`SETTINGS`, for the process."""

    active: bool = False
    bounds: bool = True  # every active lane must lie in a tensor passed to the launch
    overflow_check: bool = False  # integer +, -, * are checked for overflow (slow)
    fast: bool = True  # the short cuts of _ops.py; off only to compare with the long way
    tf32: bool = False  # products that allow tf32 drop their operands' low 13 bits
    undefined: str = "zero"  # what a masked-off lane of a load without `other` yields: "zero" or "poison"
    order: object = None  # program order: None, "reversed" or a random.Random
    races: bool = False  # record who reads and writes every element, and refuse races


SETTINGS = Settings()


def check_version(version: str) -> None:
    """Raise :class:`UnsupportedTriton` unless ``version`` (local suffixes ignored) is known."""
    if version.split("+")[0] not in KNOWN_TRITON:
        raise UnsupportedTriton(
            f"triton: version {version} is installed, and its interpreter is not known to the mends; "
            f"expected one of {', '.join(KNOWN_TRITON)}. Install triton=={KNOWN_TRITON[-1]}, or test on a GPU"
        )
