"""Draws cases and checks them, and sorts what goes wrong: is the target at fault, or are we?

Imports hypothesis and ``fuzz.properties.base``. Exercise it with ``pytest tests/fuzz/test_campaign.py``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies
from hypothesis.errors import HypothesisException

from gdn_apc.fuzz import clock, memory
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Checked, Property, Violation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Broken(BaseException):
    """Our own code failed while drawing or checking. Not an ``Exception``, so that Hypothesis lets it through."""


def raised_by_target(error: BaseException, target: Any) -> bool:
    """Whether ``error`` passed through a method of the target: then the target broke, not the suite."""
    return any(
        "self" in frame.f_locals and frame.f_locals["self"] is target
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def check(prop: Property, target: Any, case: Case) -> Checked:
    """``prop.check`` with every exception sorted: ``Violation`` if the target is at fault, ``Broken`` if we are."""
    try:
        with clock.span("comparison"):
            device = (
                target.device() if target is not None else torch.device("cpu")
            )  # the canary has no target
            return memory.patiently(device, lambda: prop.check(target, case))
    except (Violation, HypothesisException):
        raise
    except Exception as e:
        if raised_by_target(e, target):
            raise Violation(f"the target raised {type(e).__name__}: {e}", raised=type(e).__name__) from e
        raise Broken(f"{prop.name}: {type(e).__name__}: {e}") from e


def guarded(prop: Property, target: Any) -> SearchStrategy[Case]:
    """The property's cases. A strategy that raises is our fault, and nothing to shrink."""

    @contextmanager
    def ours() -> Iterator[None]:
        try:
            yield
        except HypothesisException:
            raise
        except Exception as e:
            raise Broken(f"{prop.name}: drawing a case raised {type(e).__name__}: {e}") from e

    @strategies.composite
    def cases(draw: Callable[..., Any]) -> Case:
        with ours():
            return draw(strategy)

    with ours():
        strategy = prop.strategy(target)
    return cases()
