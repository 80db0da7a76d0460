"""Tolerances and the comparison: the only place that says how wrong is wrong.

A tolerance belongs to one element of one quantity. It is what a correct kernel may be off before it stores the
value (from the spread of the disturbed copies of ``oracle.perturb``), plus half an ulp of the stored dtype at the
exact value. An element passes if |actual − exact| ≤ tolerance, with the *unrounded* exact value; so a value that
was rounded the wrong way is found even where the kernel's own error is far below the ulp.

Imports torch and ``oracle``. Exercise it with ``pytest tests/oracle/test_compare.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gdn_apc.oracle.dtypes import half_ulp

COVERAGE = 8.0
"""Tolerance over the root mean square of the copies' spread: the largest of 10⁸ normal errors is 5.7 of them."""

FLOOR = 2.0**-126
"""Absolute floor, times the magnitude at hand: kernels may flush subnormal intermediate values to zero."""


def output_tolerance(
    deviation: torch.Tensor, gross: torch.Tensor, roundoff: float, magnitude: torch.Tensor
) -> torch.Tensor:
    """Tolerance before storing of outputs: ``deviation: [R, m, HV, V]`` of the copies → [m, HV, V].

    ``gross: [m, HV, V]``: sum of squares of the products that make up each output, its natural measure. Relative to
    it the copies and value rows of a head are pooled, since they see the same operands, and half the average
    over the step's tokens is added, since a few copies may be close to exact by chance. A single large deviation
    also counts for its own element. ``magnitude``: [1, HV, 1], largest value at hand, for the floor.
    """
    square = deviation.square()
    measure = torch.maximum(gross, 1e-2 * gross.mean(-1, keepdim=True)).clamp(min=1e-300)
    relative = (square / measure).mean((0, 3), keepdim=True)[0]  # [m, HV, 1]
    relative = relative + relative.mean(0, keepdim=True) / 2 + roundoff**2 / 3
    own = square.amax(0) / 9
    return COVERAGE * (measure * relative + own).sqrt() + FLOOR * (1 + magnitude)


def state_tolerance(
    deviation: torch.Tensor, written: torch.Tensor, roundoff: float, magnitude: torch.Tensor
) -> torch.Tensor:
    """Tolerance before storing of a state: ``deviation: [R, HV, V, K]`` of the copies → [HV, V, K].

    ``written: [HV, V, K]``: sum of squares of the step's writes u kᵀ, which are products of rounded operands.
    Errors are sums of (error of u) kᵀ, so copies are pooled along rows and along columns; those that round
    at random also by the product of the two. A single large deviation counts for its own element.
    """
    square = deviation.square()
    rows, columns = square.mean((0, 3), keepdim=True)[0], square.mean((0, 2), keepdim=True)[0]
    random = square[1:].mean(0)
    product = random.mean(2, keepdim=True) * random.mean(1, keepdim=True)
    product = product / random.mean((1, 2), keepdim=True).clamp(min=1e-300)
    own = square.amax(0) / 9
    pooled = torch.maximum((rows + columns) / 2, product)
    return COVERAGE * (pooled + own + written * (roundoff**2 / 3)).sqrt() + FLOOR * (1 + magnitude)


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
        return self.wrong == 0


def ratios(expected: torch.Tensor, actual: torch.Tensor, tol: torch.Tensor) -> torch.Tensor:
    """Error / tolerance of each element, float64; inf where actual is NaN, or finite where expected is inf."""
    expected, actual = expected.double(), actual.to(expected.device).double()
    ratio = (actual - expected).abs() / tol
    return torch.where(actual.isnan(), torch.inf, ratio)


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
    """Compare ``actual`` with ``expected`` under ``tol`` (broadcast to expected's shape).

    ``axes`` names the axes ("position", "head", "row", "element"); a "position" axis counts from ``first`` and
    adds the block if ``block_size`` is given. ``place`` (request=…, column=…) is repeated in the message.
    """
    if expected.shape != actual.shape:
        return Comparison(
            float("inf"),
            1,
            dict(place),
            f"{what}: has shape {list(actual.shape)}; expected {list(expected.shape)}",
        )
    if expected.numel() == 0:
        return Comparison(0.0)
    ratio = ratios(expected, actual, tol)
    bad = ratio > 1
    wrong = int(bad.sum())
    worst = float(ratio.max())
    if not wrong:
        return Comparison(worst)
    index = [int(i) for i in bad.nonzero()[0]]
    where = dict(place)
    for name, i in zip(axes or [f"axis {a}" for a in range(len(index))], index):
        if name == "position":
            where["position"] = first + i
            if block_size:
                where["block"] = (first + i) // block_size
        else:
            where[name] = i
    at = tuple(index)
    e, a, t = float(expected[at]), float(actual[at]), float(tol.expand(expected.shape)[at])
    text = ", ".join(f"{k} {v}" for k, v in where.items())
    message = (
        f"{what} is wrong at {text}: expected {e:.9g}, actual {a:.9g}, error {abs(a - e):.3g}, tolerance {t:.3g}, "
        f"ratio {float(ratio[at]):.3g}; {wrong} of {expected.numel()} elements are wrong, worst ratio {worst:.3g}"
    )
    return Comparison(worst, wrong, where, message)
