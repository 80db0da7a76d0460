"""Ask a target a few cases of a property, outside of a campaign. Imported by tests."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from gdn_apc.fuzz.properties import load_all


def ask(target, name: str, examples: int, start: int = 11) -> int:
    """How many of so many cases compared something. Raises ``Violation`` at the first that fails."""
    prop, compared = load_all()[name], []

    @seed(start)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=prop.strategy(target))
    def check(case):
        compared.append(prop.check(target, case).comparisons)

    check()
    return sum(c > 0 for c in compared)
