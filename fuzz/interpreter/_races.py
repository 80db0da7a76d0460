"""A race detector: who read and who wrote every element of a launch.

The interpreter runs programs one after another, so a kernel that reads what another of its programs writes gives
the right answer here and a wrong one on a GPU, now and then. With ``races()`` on, each launch records the
programs that touched each element, and a second program on an element that anyone wrote is a :class:`Race`,
whatever the values. Atomics are not recorded: they are how programs may meet.

Imports numpy. Exercise it with ``pytest tests/fuzz/test_interpreter_order.py``.
"""

from __future__ import annotations

import numpy as np

from gdn_apc.fuzz.interpreter._settings import Race

NOBODY, MANY = -1, -2


class AccessLog:
    """For each byte of a storage: the program that read it (or MANY) and the one that wrote it."""

    def __init__(self, lo: int, hi: int):
        self.lo = lo
        self.readers = np.full(hi - lo, NOBODY, np.int32)
        self.writers = np.full(hi - lo, NOBODY, np.int32)


LOG: list[AccessLog] = []
PROGRAM = [0, "?", (0, 0, 0)]  # number in the grid, kernel, program


def start(spans) -> None:
    """A new launch: one log for all its memory, so that two arguments that overlap are one."""
    LOG.clear()
    merged: list[list[int]] = []
    for lo, hi in sorted((s.lo, s.hi) for s in spans):
        if merged and lo <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], hi)
        else:
            merged.append([lo, hi])
    LOG.extend(AccessLog(lo, hi) for lo, hi in merged)


def _log_of(span) -> AccessLog:
    return next(entry for entry in LOG if entry.lo <= span.lo < entry.lo + entry.readers.size)


def _bytes(span, index: np.ndarray, size: int) -> tuple[AccessLog, np.ndarray]:
    """The log that covers ``span``, and the first byte of every element (elements are logged by it alone)."""
    log = _log_of(span)
    return log, (index * size + (span.lo - log.lo)).reshape(-1)


def _complain(span, where: np.ndarray, others: np.ndarray, now: str, before: str) -> None:
    first = int(np.argmax(others))
    raise Race(
        f"kernel {PROGRAM[1]!r}: program {PROGRAM[2]} {now} {int(others.sum())} elements of argument {span.name!r} "
        f"that another program {before}, first at byte {int(where[first]) - (span.lo - _log_of(span).lo)}; "
        "on a GPU their order is undefined. Let one program own the element, or split the kernel in two"
    )


def read(span, index: np.ndarray, size: int) -> None:
    """Record a load; raise :class:`Race` if another program wrote one of its elements."""
    log, where = _bytes(span, index, size)
    me = PROGRAM[0]
    writers = log.writers[where]
    foreign = (writers != NOBODY) & (writers != me)
    if foreign.any():
        _complain(span, where, foreign, "reads", "has written")
    readers = log.readers[where]
    log.readers[where] = np.where((readers == NOBODY) | (readers == me), me, MANY)


def write(span, index: np.ndarray, size: int) -> None:
    """Record a store; raise :class:`Race` if another program read or wrote one of its elements."""
    log, where = _bytes(span, index, size)
    me = PROGRAM[0]
    for entry, before in ((log.writers[where], "has written"), (log.readers[where], "has read")):
        foreign = (entry != NOBODY) & (entry != me)
        if foreign.any():
            _complain(span, where, foreign, "writes", before)
    log.writers[where] = me
