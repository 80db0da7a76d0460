"""Floors of the *discovered* tier: how often an event must have been seen for a campaign to be complete.

A floor must not make a green campaign flaky: with the strategies as they are, a campaign falls below it with
probability under 10⁻⁶. The chance of each event in one drawn case was measured, with the strategies only and no
kernels, and stands in ``fuzz/floor_table.py``; from it and the number of examples of each property the floor follows
from the exact distribution. A narrower target than the table's (fewer dtypes, one head size, …) is measured when
it is asked for, on fewer draws.

    python -m gdn_apc.fuzz.floors [PROPERTY ...]     measure again, all or some, and rewrite the table (minutes)

Imports hypothesis, numpy and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_ledger.py``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import Phase, given, seed
from hypothesis.strategies import SearchStrategy

from gdn_apc.fuzz import ledger, profiles
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.resume import code
from gdn_apc.fuzz.runs import HOME, digest, write_whole
from gdn_apc.fuzz.targets.base import Claims, Target

ALPHA = 1e-6
"""Chance that a campaign with working strategies falls below one floor."""

CONFIDENCE = 1e-2
"""Each measured chance is taken at the lower end of its confidence interval at this level: for every property at
once, which is far less likely still."""

ROUND, ROUNDS = 11, 4
"""Examples of a round and rounds of a campaign, as ``fuzz/campaign.py`` has them about. Hypothesis mutates earlier
examples from the eleventh on; those are like one another, so fewer of them count as independent."""

DRAWS, FEW_DRAWS = 4000, 300

MEASURING = 20.0
"""Seconds that ``FEW_DRAWS`` of every property take on a slow core."""


class Drawn(Target):
    """A target that is only drawn for, never run: every seam, on a CPU or (for sizes) a GPU."""

    name = "drawn"
    runs_triton = True

    def __init__(self, device: str, claims: Claims = Claims()):  # noqa: B008 (frozen)
        self._device, self.claims = torch.device(device), claims

    def device(self) -> torch.device:
        return self._device


def measure(target: Target, prop: str, draws: int) -> tuple[int, Counter[str]]:
    """Distinct cases drawn for a property, and how many of them show each event; as a campaign draws them."""
    strategy, found, total, group = load_all()[prop].strategy(target), Counter(), 0, 0
    while total < draws:
        distinct = {
            digest(case): case
            for number in range(ROUNDS)
            for case in draw_round(prop, strategy, group, number)
        }
        for case in distinct.values():
            found.update(ledger.events_of(case))
        total, group = total + len(distinct), group + 1
    return total, found


def draw_round(prop: str, strategy: SearchStrategy[Case], group: int, number: int) -> list[Case]:
    """The cases of one round, as a campaign draws them; nothing is run."""
    cases = []

    @seed(profiles.round_seed(group, prop, 0, number))
    @profiles.settings_for("fuzz", (Phase.generate,), ROUND, None)
    @given(case=strategy)
    def draw(case):
        cases.append(case)

    draw()
    return cases


def chances(target: Target, asked: list[str], root: Path | None = None) -> dict[str, dict[str, float]]:
    """For each kernel property, the chance of each event in one case, at the lower end of its confidence interval.

    ``asked``: the properties that the target can be asked. What is measured here is kept under ``root``.
    """
    from gdn_apc.fuzz.floor_table import TABLE

    scale = "large" if target.device().type == "cuda" else "small"
    if target.claims == Claims():
        measured = TABLE[scale]
    else:
        kept = _kept(target, root)
        if kept is not None and kept.exists():
            measured = json.loads(kept.read_text())
        else:
            narrow = Drawn(target.device().type, target.claims)
            measured = {name: measure(narrow, name, FEW_DRAWS) for name in asked}
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, json.dumps(measured))
    return {
        name: {e: lower(k, draws) for e, k in counts.items()} for name, (draws, counts) in measured.items()
    }


def _kept(target: Target, root: Path | None) -> Path | None:
    """Where the chances that were measured for a narrow target are kept: until its claims or our sources change."""
    if root is None:
        return None
    record = json.dumps([claims_record(target.claims), target.device().type], sort_keys=True)
    name = hashlib.sha256(f"{record}{code(Path(__file__).parents[1])}".encode()).hexdigest()[:16]
    return root / HOME / "chances" / f"{name}.json"


def measuring_seconds(target: Target, root: Path) -> float:
    """About how long ``floors`` will take at the end of a campaign of this target."""
    kept = None if target.claims == Claims() else _kept(target, root)
    return MEASURING if kept is not None and not kept.exists() else 0.0


def claims_record(claims: Claims) -> dict[str, Any]:
    """Claims as plain data."""
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in vars(claims).items()}


def recorded(start: Mapping[str, Any], examples: Mapping[str, int], root: Path) -> dict[str, int]:
    """``floors`` of the target that a campaign's first event describes."""
    claims = Claims(**{k: frozenset(v) if isinstance(v, list) else v for k, v in start["claims"].items()})
    device = "cuda" if str(start["device"]).startswith("cuda") else "cpu"
    asked = [p["name"] for p in start["properties"] if p["kind"] == "kernel" and p["needs"] is None]
    return floors(Drawn(device, claims), examples, asked, root)


def floors(
    target: Target, examples: Mapping[str, int], asked: list[str] | None = None, root: Path | None = None
) -> dict[str, int]:
    """The floor of each event that the target can reach, given how many examples each property was compared on."""
    if asked is None:
        asked = [p.name for p in _kernel_properties() if p.needs(target) is None]
    table = chances(target, asked, root)
    found = {}
    for name, event in ledger.EVENTS.items():
        if event.missing(target.claims) is None:
            trials = [(n, table.get(prop, {}).get(name, 0.0)) for prop, n in examples.items()]
            found[name] = floor([(n, p) for n, p in trials if n and p])
    return found


def floor(trials: list[tuple[int, float]]) -> int:
    """The largest f such that P(successes < f) < ALPHA, for so many independent trials at each chance."""
    pmf = np.ones(1)
    for n, p in trials:
        pmf = np.convolve(pmf, binomial(n, p))
    return int(np.searchsorted(np.cumsum(pmf), ALPHA))


def binomial(n: int, p: float) -> np.ndarray:
    """P(k successes in n trials) for k = 0..n."""
    if p in (0.0, 1.0):
        return np.eye(1, n + 1, n if p else 0)[0]
    k = np.arange(n + 1)
    logs = _log_choose(n) + k * math.log(p) + (n - k) * math.log1p(-p)
    return np.exp(logs)


@functools.lru_cache(maxsize=64)
def _log_choose(n: int) -> np.ndarray:
    """log of n over k, for k = 0..n."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    return log_factorial[n] - log_factorial - log_factorial[::-1]


def lower(successes: int, trials: int) -> float:
    """The smallest chance under which so many successes are not too many (Clopper and Pearson's lower limit)."""
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / trials
    for _ in range(30):
        middle = (low + high) / 2
        if binomial(trials, middle)[successes:].sum() < CONFIDENCE:
            low = middle
        else:
            high = middle
    return low


def _kernel_properties() -> list:
    return [p for p in load_all().values() if p.kind == "kernel"]


def write_table(path: Path, names: list[str], draws: int = DRAWS) -> None:
    """Measure the named properties (none: all) for both scales, keep what the table says of the others, and write it."""
    from gdn_apc.fuzz.floor_table import TABLE

    lines = [
        '"""How often the strategies draw each event of the ledger. Measured; do not edit.',
        "",
        "    python -m gdn_apc.fuzz.floors [PROPERTY ...]",
        "",
        "TABLE[scale][property] = (distinct cases drawn, {event: cases that show it}); scale is ``small`` for a CPU, ``large``",
        'for a GPU. Imports nothing. ``tests/fuzz/test_ledger.py`` fails when it is stale."""',
        "",
        "TABLE: dict[str, dict[str, tuple[int, dict[str, int]]]] = {",
    ]
    for scale, device in (("small", "cpu"), ("large", "cuda")):
        lines.append(f'    "{scale}": {{')
        for name in (p.name for p in _kernel_properties()):
            known = TABLE.get(scale, {}).get(name)
            remeasured = known is None or not names or name in names
            total, counts = measure(Drawn(device), name, draws) if remeasured else known
            lines.append(f'        "{name}": ({total}, {{')
            lines += [
                f'            "{event}": {counts[event]},' for event in ledger.EVENTS if counts.get(event)
            ]
            lines.append("        }),")
        lines.append("    },")
    path.write_text("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    asked = sys.argv[1:]
    unknown = sorted(set(asked) - {p.name for p in _kernel_properties()})
    if unknown:
        sys.exit(f"property: {unknown[0]!r} is no kernel property; its floors cannot be measured")
    write_table(Path(__file__).with_name("floor_table.py"), asked)
