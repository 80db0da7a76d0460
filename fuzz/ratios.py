"""How near the tolerances come to what was observed: histograms of error / tolerance, small enough to log.

A tolerance that no error ever comes near sees nothing: the summary prints the ratio of the tolerance to the 99th
percentile of the observed errors, and flags it above :data:`LOOSE`.

Imports numpy and the standard library. Exercise it with ``pytest tests/fuzz/test_runs.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LOOSE = 10.0
BINS_PER_OCTAVE = 8  # a quantile is known to 9 %


@dataclass
class Histogram:
    """Counts of ratios in logarithmic bins; bin i holds [2^(i/8), 2^((i+1)/8)). Exact zeros are counted apart."""

    bins: Counter[int] = field(default_factory=Counter)
    zeros: int = 0
    largest: float = 0.0

    def add(self, ratios: Iterable[float]) -> None:
        """Count ratios. Raises ``ValueError`` for a negative one or one that is not a number."""
        values = np.asarray(list(ratios), dtype=np.float64)
        if not (values >= 0).all():
            raise ValueError(
                f"ratios: {values[~(values >= 0)][0]} is not an error / tolerance, expected 0 or more"
            )
        positive = values[values > 0]
        self.zeros += int(values.size - positive.size)
        if positive.size:
            index = np.floor(BINS_PER_OCTAVE * np.log2(positive)).clip(-8192, 8192).astype(int)
            self.bins.update(dict(zip(*(a.tolist() for a in np.unique(index, return_counts=True)))))
            self.largest = max(self.largest, float(positive.max()))

    @property
    def count(self) -> int:
        """How many ratios were counted."""
        return self.zeros + self.bins.total()

    def quantile(self, q: float) -> float:
        """The middle of the bin that holds the ``q`` quantile; 0 if that is an exact zero."""
        rank = max(1, math.ceil(q * self.count)) - self.zeros
        if rank <= 0:
            return 0.0
        for index in sorted(self.bins):
            rank -= self.bins[index]
            if rank <= 0:
                return 2.0 ** ((index + 0.5) / BINS_PER_OCTAVE)
        raise AssertionError("a quantile lies beyond every bin")

    def to_json(self) -> dict[str, Any]:
        """Plain data for the event log."""
        return {
            "zeros": self.zeros,
            "largest": self.largest,
            "bins": {str(k): v for k, v in self.bins.items()},
        }

    def merge(self, record: dict[str, Any]) -> None:
        """Add what :meth:`to_json` wrote."""
        self.zeros += record["zeros"]
        self.largest = max(self.largest, record["largest"])
        self.bins.update({int(k): v for k, v in record["bins"].items()})
