"""What time it is in a campaign, and where its time goes.

``elapsed()`` counts from the start of the command that a person typed, by a clock that nobody can set. ``span(label)``
charges the seconds inside it to a label, and to no other: a span inside a span stops the outer one's count.

    with span("target"):
        out = target.core(...)
    take()                      # {"target": 0.012, ...}, and starts again from nothing

A GPU answers later than it is asked: what it still computes when a span ends is charged to who waits for it.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_clock.py``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

BEGAN = "GDN_APC_BEGAN"
"""The variable by which ``gdn-apc`` tells its own children when the command started, by ``time.monotonic()``."""

LABELS = ("generation", "target", "oracle", "comparison", "shrinking")
"""Where a campaign's seconds can go. Generation is everything outside of a check, Hypothesis's own work included;
comparison everything inside it that is neither target nor oracle."""

_began = time.monotonic()
_label, _since = "generation", time.perf_counter()
_spent: Counter[str] = Counter()


def start(began: float | None = None) -> float:
    """Count from ``began``, or from what the parent command said, or from now; returns it.

    A moment in the future (another machine's clock, a variable that outlived a reboot) is not believed.
    """
    global _began
    now = time.monotonic()
    try:
        said = float(os.environ.get(BEGAN, "")) if began is None else began
    except ValueError:
        said = now
    _began = said if 0 <= said <= now else now
    return _began


def elapsed() -> float:
    """Seconds since the command started."""
    return time.monotonic() - _began


def switch(label: str) -> str:
    """Charge the time since the last switch to the label that it had, and return that; from now on to ``label``."""
    global _label, _since
    now = time.perf_counter()
    _spent[_label] += now - _since
    before, _label, _since = _label, label, now
    return before


@contextmanager
def span(label: str) -> Iterator[None]:
    """Charge what happens inside to ``label``. Also a decorator."""
    before = switch(label)
    try:
        yield
    finally:
        switch(before)


def take() -> dict[str, float]:
    """The seconds of each label since the last call."""
    switch(_label)
    found = dict(_spent)
    _spent.clear()
    return found
