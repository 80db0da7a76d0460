"""Strategies: whole cases, drawn as structure only (sizes, dtypes, regimes, a seed, events), never as elements.

No kernel runs while drawing. Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.strategies.scenarios import SCENARIOS, SCHEDULES, draw_schedule
from gdn_apc.fuzz.strategies.settings import Setting, draw_setting, left_out, pairs, scale_of
from gdn_apc.fuzz.targets.base import Target

__all__ = [
    "SCENARIOS",
    "SCHEDULES",
    "Setting",
    "cases",
    "draw_schedule",
    "draw_setting",
    "left_out",
    "pairs",
    "scale_of",
]


@st.composite
def cases(
    draw: Any,
    target: Target,
    prop: str,
    *,
    names: tuple[str, ...] | None = None,
    choice: dict[str, st.SearchStrategy[Any]] | None = None,
    **setting: Any,
) -> Case:
    """A setting and a schedule: random, or one of the scenarios (``names``: only these).

    ``choice`` draws what only the property needs; ``setting`` goes to ``draw_setting``.
    """
    chosen = draw_setting(draw, target, **setting)
    plan = chosen.planner()
    name = draw_schedule(draw, plan, names)
    extra = {key: draw(strategy) for key, strategy in (choice or {}).items()}
    return chosen.case(prop, plan, note=name, **extra)
