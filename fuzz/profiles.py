"""Hypothesis settings of a campaign, and the seeds of its rounds.

Hypothesis loads a profile of its own when ``CI`` is set, which derandomises every test and switches the example
database off: a campaign that inherited it would repeat itself and keep nothing. So every setting is given here,
none is inherited, and no profile is made the session's default (an adopter's own tests keep theirs).

Imports hypothesis and the standard library. Exercise it with ``pytest tests/fuzz/test_campaign.py``.
"""

from __future__ import annotations

import hashlib

from hypothesis import HealthCheck, Phase, Verbosity, core, settings
from hypothesis.database import ExampleDatabase

PROFILES = ("fuzz", "gate")
"""``fuzz``: a new seed each time, examples kept. ``gate``: the same cases every time, nothing replayed or kept."""

GATE_SEED = 0
REPLAY = (Phase.reuse, Phase.shrink)
SEARCH = (Phase.generate, Phase.shrink)


def round_seed(seed: int, name: str, shard: int, number: int) -> int:
    """The seed of one round: a hash, so that neighbouring seeds, shards and rounds have nothing in common."""
    text = f"{seed}/{name}/{shard}/{number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def keeps_examples(profile: str) -> bool:
    """Whether failing examples are kept and replayed. ``--hypothesis-seed`` makes Hypothesis forget its database."""
    return profile != "gate" and core.global_force_seed is None


def settings_for(
    profile: str, phases: tuple[Phase, ...], max_examples: int, kept: ExampleDatabase | None
) -> settings:
    """The settings of one round. Raises ``ValueError`` for an unknown profile.

    No deadline: an example is a whole schedule. Health checks for filtering and for data size stay on; only
    ``too_slow`` is off, because it measures wall time while drawing and a loaded machine would trip it.
    Both profiles seed each round explicitly, so ``derandomize`` (one seed for all rounds) stays off.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile: {profile!r} is unknown, expected one of {', '.join(PROFILES)}")
    return settings(
        max_examples=max_examples,
        derandomize=False,
        database=kept,
        verbosity=Verbosity.normal,
        phases=phases,
        stateful_step_count=50,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
        deadline=None,
        print_blob=False,
        backend="hypothesis",
    )
