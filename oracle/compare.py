"""Tolerances and the comparison: the only place that says how wrong is wrong.

A tolerance belongs to one element of one quantity. It is what a correct kernel may be off before it stores the
value (from the spread of the disturbed copies of ``oracle.perturb``), plus half an ulp of the stored dtype at the
exact value. An element passes if |actual − exact| ≤ tolerance, with the *unrounded* exact value; so a value that
was rounded the wrong way is found even where the kernel's own error is far below the ulp. Where rounding to the
stored dtype dominates, ratios near 1 are therefore usual and no sign of danger: half an ulp is a hard bound.

Domain: g finite, beta‖k‖² ≤ 1, stored values well below the overflow of the state's dtype. An output that overflows
its dtype is compared as infinity. A state that overflows when it is stored makes later values of its row undefined.

Imports torch and ``oracle``. Exercise it with ``pytest tests/oracle/test_compare.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gdn_apc.oracle.dtypes import DTYPES, dtype_name, half_ulp, torch_dtype

COVERAGE = 8.0
"""Tolerance over the root mean square of the copies' spread: the largest of 10⁸ normal errors is 5.7 of them."""

FLOOR = 2.0**-126
"""Absolute floor, times the magnitude at hand: kernels may flush subnormal intermediate values to zero."""


TURNS = 2.0
"""Tolerance over the root of the squares of turned roundings: a few turn the same way, or many either way."""


def output_tolerance(
    deviation: torch.Tensor,
    gross: torch.Tensor,
    turned: torch.Tensor,
    roundoff: float,
    magnitude: torch.Tensor,
) -> torch.Tensor:
    """Tolerance before storing of outputs: ``deviation: [R, m, HV, V]`` of the copies → [m, HV, V].

    ``gross: [m, HV, V]``: sum of squares of the products that make up each output, its natural measure. Relative to
    it the copies and value rows of a head are pooled, since they see the same operands, and half the average
    over the step's tokens is added, since a few copies may be close to exact by chance. A single large deviation
    also counts for its own element. ``turned: [m, HV, V]``: squares of what single elements of a stored state add if
    they are rounded the other way; copies that turn all of them at once may see them cancel. ``magnitude``: [1, HV, 1], largest value at hand, for the floor.
    """
    square = deviation.square()
    measure = torch.maximum(gross, 1e-8 * gross.mean(-1, keepdim=True)).clamp(min=1e-300)
    relative = (square / measure).mean((0, 3), keepdim=True)[0]  # [m, HV, 1]
    relative = relative + relative.mean(0, keepdim=True) / 2 + roundoff**2 / 3
    own = square.amax(0) / 9
    return COVERAGE * (measure * relative + own).sqrt() + TURNS * turned.sqrt() + FLOOR * (1 + magnitude)


def state_tolerance(
    deviation: torch.Tensor, written: torch.Tensor, roundoff: float, magnitude: torch.Tensor
) -> torch.Tensor:
    """Tolerance before storing of a state: ``deviation: [R, HV, V, K]`` of the copies → [HV, V, K].

    ``written: [HV, V, K]``: sum of squares of all parts of what is added up to each element, its natural measure. As
    for outputs, the copies and elements of a head are pooled relative to it, and a large deviation counts for itself.
    """
    square = deviation.square()
    measure = torch.maximum(written, 1e-8 * written.mean((1, 2), keepdim=True)).clamp(min=1e-300)
    relative = (square / measure).mean((0, 2, 3))[:, None, None] + roundoff**2 / 3
    own = square.amax(0) / 9
    return COVERAGE * (measure * relative + own).sqrt() + FLOOR * (1 + magnitude)


def stored(tolerance: torch.Tensor, exact: torch.Tensor, dtype: str) -> torch.Tensor:
    """``tolerance`` plus the half ulp that storing a value near ``exact`` in ``dtype`` may add."""
    return tolerance + half_ulp(exact.abs() + tolerance, dtype)


@dataclass(frozen=True)
class Comparison:
    """The outcome of ``check``: ``ratio`` is the largest error / tolerance (inf for NaN); above 1 is wrong.

    ``where`` names the first wrong element, ``wrong`` counts them, ``message`` says it all in one paragraph.
    """

    ratio: float
    wrong: int = 0
    where: dict[str, Any] = field(default_factory=dict)
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether every element is within its tolerance."""
        return self.wrong == 0


def overflow_limit(dtype: str) -> float:
    """From this magnitude on, rounding to ``dtype`` gives infinity: half an ulp above its largest number."""
    largest = torch.finfo(torch_dtype(dtype)).max
    return largest + float(half_ulp(torch.tensor(largest, dtype=torch.float64), dtype))


def ratios(
    expected: torch.Tensor, actual: torch.Tensor, tol: torch.Tensor, dtype: str | None = None
) -> torch.Tensor:
    """Error / tolerance of each element, float64, on expected's device.

    NaN or infinity where a finite value is expected is infinitely wrong. Infinity of the right sign is right
    where the exact value, give or take its tolerance, overflows ``dtype`` (actual's own by default). Where the
    exact value is not defined (NaN: a stored state overflowed earlier) anything is accepted.
    """
    if dtype is None and actual.dtype in DTYPES.values():
        dtype = dtype_name(actual.dtype)
    expected, actual = expected.double(), actual.to(expected.device).double()
    tol = tol.to(expected.device).expand(expected.shape)
    no_tolerance = ((tol.isnan() | (tol < 0)) & ~expected.isnan()).any()
    undefined, infinite = torch.stack([no_tolerance, actual.isinf().any()]).tolist()  # a GPU is asked once
    if undefined:
        raise ValueError("tol: has a NaN or a negative number where a value is expected; expected tolerances")
    ratio = torch.where(actual == expected, 0.0, (actual - expected).abs() / tol)
    ratio = torch.where(ratio.isnan() | ~actual.isfinite(), torch.inf, ratio)
    if infinite:
        limit = float("inf") if dtype is None else overflow_limit(dtype)
        right = actual.isinf() & (actual.sign() == expected.sign()) & (expected.abs() + tol >= limit)
        ratio = torch.where(right, 0.0, ratio)
    return torch.where(expected.isnan(), 0.0, ratio)


def check(
    expected: torch.Tensor,
    actual: torch.Tensor,
    tol: torch.Tensor,
    *,
    what: str = "value",
    axes: Sequence[str] = (),
    first: int = 0,
    block_size: int | None = None,
    dtype: str | None = None,
    **place: Any,
) -> Comparison:
    """Compare ``actual`` with the unrounded ``expected`` under ``tol``, which broadcasts to expected's shape.

    ``axes`` names the axes ("position", "head", "row", "element"); a "position" axis counts from ``first`` and
    adds the block if ``block_size`` is given. ``place`` (request=…, column=…) is repeated in the message.
    ``dtype``: in which actual was stored, actual's own by default.
    """
    if expected.shape != actual.shape:
        text = f"{what}: has shape {list(actual.shape)}; expected {list(expected.shape)}"
        return Comparison(float("inf"), 1, dict(place), text + _at(place))
    if expected.numel() == 0:
        return Comparison(0.0)
    ratio = ratios(expected, actual, tol, dtype)
    bad = ratio > 1
    wrong, worst = int(bad.sum()), float(ratio.max())
    if not wrong:
        return Comparison(worst)
    index = tuple(int(i) for i in bad.nonzero()[0])
    where = dict(place) | _named(index, axes, first, block_size)
    e, a = float(expected[index]), float(actual[index])
    t = float(tol.expand(expected.shape)[index])
    if math.isfinite(a):
        text = f"expected {e:.9g}, actual {a:.9g}, error {abs(a - e):.3g}, tolerance {t:.3g}, "
        text += f"ratio {float(ratio[index]):.3g}"
    else:
        text = f"actual is {a}, expected {e:.9g}, which is finite"
    message = f"{what} is wrong{_at(where)}: {text}; {wrong} of {expected.numel()} elements are wrong, "
    return Comparison(worst, wrong, where, message + f"worst ratio {worst:.3g}")


def _named(index: tuple[int, ...], axes: Sequence[str], first: int, block_size: int | None) -> dict[str, int]:
    """An element's index by the names of its axes."""
    named = {}
    for axis, i in enumerate(index):
        name = axes[axis] if axis < len(axes) else f"axis {axis}"
        named[name] = first + i if name == "position" else i
        if name == "position" and block_size:
            named["block"] = named[name] // block_size
    return named


def _at(where: dict[str, Any]) -> str:
    return " at " + ", ".join(f"{name} {value}" for name, value in where.items()) if where else ""
