"""The live rows of a case, each with what its request did before it: what the ledger's events are read from.

Imports the standard library, ``fuzz.case`` and ``fuzz.geometry``. Exercise it with ``pytest tests/fuzz/test_ledger.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gdn_apc.fuzz import geometry
from gdn_apc.fuzz.case import Case, Row


@dataclass(frozen=True)
class Fact:
    """A live row, and what its request did before it."""

    step: int
    row: Row
    before: Row | None  # the request's row before this one
    reach: int  # how far the request had ever got
    recycled: bool  # one of its write slots held another request's state

    @property
    def n(self) -> int:
        return self.row.n

    @property
    def m(self) -> int:
        return self.row.m

    @property
    def end(self) -> int:
        return self.row.n + self.row.m

    @property
    def hit(self) -> bool:
        """The request starts from a state that another one left."""
        return self.before is None and self.n > 0

    @property
    def resumed(self) -> bool:
        """The request starts again, from a state of its own or from nothing."""
        return self.before is not None and self.n < self.reach


def facts(case: Case) -> list[Fact]:
    """The live rows of a case, in order."""
    found, last, reach, writer = [], {}, Counter(), {}
    for step, _, row in geometry.rows(case):
        if row.request is None or not row.m:
            continue
        slots = [slot for _, slot in geometry.write_slots(row, case.sizes.B)]
        recycled = any(writer.get(slot, row.request) != row.request for slot in slots)
        found.append(Fact(step, row, last.get(row.request), reach[row.request], recycled))
        last[row.request] = row
        reach[row.request] = max(reach[row.request], row.n + row.m)
        writer |= dict.fromkeys(slots, row.request)
    return found
