"""What a property is, how it reports, and the registry.

A property draws cases and checks one case on one target. It knows nothing of budgets, seeds or reports: the
campaign (``fuzz/campaign.py``) runs it, and ``gdn-apc replay`` calls the same ``check``.

Imports the standard library and ``fuzz.case`` only. Exercise it with ``pytest tests/fuzz``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from gdn_apc.fuzz.case import Case
    from gdn_apc.fuzz.targets.base import Target


class Violation(AssertionError):
    """A property does not hold. ``where`` names the first wrong place (step, row, request, position, block, head…)."""

    def __init__(self, message: str, **where: Any):
        super().__init__(message)
        self.where = where


@dataclass
class Checked:
    """What one passed check did: how much it compared, which ledger events it saw, how near the tolerance it came."""

    comparisons: int = 0
    events: Counter[str] = field(default_factory=Counter)
    ratios: dict[str, list[float]] = field(default_factory=dict)  # class of tolerance → error / tolerance
    expected: str = ""  # name of the known failure that was passed over (fuzz/expectations.py)
    digest: str = ""  # of every observed bit, for `gdn-apc replay`; empty if the property offers none


@dataclass(frozen=True)
class Property:
    """One property. ``strategy(target)`` draws cases; ``check(target, case)`` returns ``Checked`` or raises ``Violation``.

    ``needs(target)`` says why the target cannot be asked (a clause not claimed), or None.
    ``floor`` is the least number of compared cases for a complete default campaign (comparisons, for metadata).
    ``most``: so many compared cases are enough for any campaign, however long.
    ``fixed(target)`` gives cases that a campaign runs before it draws any, such as exhaustive small ones.
    """

    name: str
    doc: str
    kind: str  # "kernel", "metadata", "machine" or "canary"
    strategy: Callable[[Target], SearchStrategy[Case]]
    check: Callable[[Target, Case], Checked]
    needs: Callable[[Target], str | None] = lambda target: None
    floor: int = 40
    most: int | None = None
    fixed: Callable[[Target], Iterable[Case]] = lambda target: ()


REGISTRY: dict[str, Property] = {}


def register(prop: Property) -> Property:
    """Add a property to the registry; its name must be new."""
    if prop.name in REGISTRY:
        raise ValueError(f"property {prop.name!r} is registered twice; choose another name")
    REGISTRY[prop.name] = prop
    return prop
