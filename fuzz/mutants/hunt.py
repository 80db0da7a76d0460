"""Drives the campaign's properties at one planted fault until one of them kills it.

The cases are those of ``gdn-apc fuzz --seed S``: the same strategies, rounds and seeds, the same shrinking with a
shorter cap. Properties come cheapest first. A property that runs none of the edited code is not asked.

Imports hypothesis and ``fuzz``; kernels through the mutant. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import session
from gdn_apc.fuzz.campaign import Drive, Plan
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.mutants import load
from gdn_apc.fuzz.mutants.model import Mutant
from gdn_apc.fuzz.properties.base import Property
from gdn_apc.fuzz.runs import RunFolder

CHEAPEST = ("metadata", "index_movement", "values", "write_set", "batch_invariance", "free_cuts")
"""Properties by their price and by what they find, the rest behind them in a campaign's order."""

SEES = {"metadata": {"metadata.py", "kernels/metadata.py"}, "machine_symbolic": {"metadata.py"}}
"""Properties that run these files of ``impl`` only."""

KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"


@dataclass
class Result:
    """What became of one mutant. Sizes are those of the shrunk case, ``where`` is the first wrong place."""

    mutant: str
    status: str = SURVIVED
    by: str = ""  # the property that killed it
    examples: int = (
        0  # kernel examples drawn before it was killed, the killing one included; all, if it survived
    )
    comparisons: int = 0
    seconds: float = 0.0  # until it was killed, without shrinking
    requests: int = 0
    steps: int = 0
    tokens: int = 0
    first_tokens: int = 0  # of the case as it was drawn
    where: dict[str, str] = dataclasses.field(default_factory=dict)
    message: str = ""
    case: str = ""  # in the mutant's folder
    shrunk: str = ""  # why shrinking stopped early

    def measure(self, folder: RunFolder, failure: dict[str, Any]) -> None:
        """Take sizes and the first wrong place from a failure that a folder recorded."""
        case = Case.from_json((folder.cases / failure["case"]).read_text())
        self.requests, self.steps, self.tokens = len(case.requests), len(case.steps), case.num_tokens
        if failure.get("unshrunk"):
            self.first_tokens = Case.from_json((folder.cases / failure["unshrunk"]).read_text()).num_tokens
        self.by, self.where, self.case = failure["property"], failure.get("where", {}), failure["case"]
        self.message, self.shrunk = failure["message"], failure.get("shrunk", "")


def asked(mutant: Mutant, target: Any, names: Iterable[str] | None = None) -> list[Property]:
    """The properties that may see the mutant, in the order in which they are tried."""
    chosen = [
        p
        for p in session.select(list(names) if names else None)
        if p.needs(target) is None and mutant.files & SEES.get(p.name, mutant.files)
    ]
    return sorted(chosen, key=lambda p: CHEAPEST.index(p.name) if p.name in CHEAPEST else len(CHEAPEST))


def hunt(
    mutant: Mutant,
    folder: RunFolder,
    *,
    seed: int,
    budget: int | None,
    shrink_seconds: float,
    names: Iterable[str] | None = None,
) -> Result:
    """Ask one property after the other until one rejects the mutant. ``names``: only these properties.

    Raises :class:`~gdn_apc.fuzz.mutants.load.Stale` if the mutant cannot be planted any more.
    """
    target = load.target(mutant)
    properties = asked(mutant, target, names)
    plan = Plan(
        target=load.target_name(mutant),
        seed=seed,
        root=Path.cwd(),
        budget=budget or session.default_budget(target, properties),
        profile="gate",  # no example database: a kill must be drawn, not remembered
        shrink_seconds=shrink_seconds,
    )
    result = Result(mutant.name)
    folder.create()
    provenance = {"target": plan.target, "versions": target.versions(), "seed": seed}
    for prop in properties:
        outcome = Drive(prop, target, plan, folder, provenance=provenance).run()
        result.comparisons += outcome.comparisons
        result.examples += outcome.examples if prop.kind == "kernel" else 0
        result.seconds += outcome.seconds
        if outcome.status == "failed":
            failure = next(e for e in reversed(folder.events()) if e["event"] == "failure")
            result.status = KILLED
            result.examples += prop.kind == "kernel"
            result.seconds = max(0.0, result.seconds - failure["seconds"])
            result.measure(folder, failure)
            return result
        if outcome.status == "broken":
            result.status, result.by, result.message = BROKEN, prop.name, outcome.message
            return result
    return result
