"""Run the model checker on every configuration and every variant, and hold what it finds against what is recorded.

Two checkers run at a time, with one worker each, so that state counts, depths and counterexamples are the same in
every run. Imports the standard library and ``gdn_apc.spec``. Exercise it with ``gdn-apc spec``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.spec import MODULES, tlc
from gdn_apc.spec.configurations import Configuration
from gdn_apc.spec.variants import Variant

EXPECTED = Path(__file__).parent / "expected.json"
"""What was measured by ``gdn-apc spec --record``, per configuration and variant."""


@dataclass
class Outcome:
    """How one run went. ``complaints`` is empty if all is as it must be; ``broken`` says that the design failed."""

    name: str
    result: tlc.Result | None
    verdict: str
    measured: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    broken: str = ""


def expected() -> dict[str, dict[str, Any]]:
    """The recorded measurements; empty before the first record."""
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


def record(outcomes: Sequence[Outcome]) -> None:
    """Write what was measured. Names that were not run keep their old record."""
    table = expected() | {o.name: o.measured for o in outcomes}
    lines = [f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def check(job: Configuration | Variant, tools: tlc.Tools, **options: Any) -> Outcome:
    """Run one configuration or variant and judge it, without the recorded numbers."""
    if isinstance(job, Variant):
        return _variant(job, tools, **options)
    quick = bool(job.properties) or job.simulate is not None
    result = tlc.run(
        job.module,
        job.text(),
        tools,
        coverage=not quick,
        simulate=job.simulate,
        deadlock=bool(job.properties),
        **options,
    )
    outcome = Outcome(job.name, result, "holds")
    if result.status != tlc.OK:
        outcome.verdict, outcome.broken = "BROKEN", result.broken or " ".join(job.properties)
        outcome.complaints.append(f"{outcome.broken} is broken")
        return outcome
    if job.simulate:
        outcome.verdict = "holds on walks"
        return outcome
    outcome.measured = {"distinct": result.distinct, "generated": result.generated, "depth": result.depth}
    if not quick:
        outcome.complaints += coverage_complaints(job, result.actions)
    return outcome


def coverage_complaints(job: Configuration, actions: dict[str, tuple[int, int]]) -> list[str]:
    """An action of the module is taken, or listed as one that these bounds never reach; not both."""
    if not actions:
        return ["TLC reported no coverage"]
    complaints = [
        f"action {name} is never taken"
        for name, (_, successors) in actions.items()
        if not successors and name not in job.never
    ]
    complaints += [
        f"action {name} is listed as never taken, and it is"
        for name in job.never
        if actions.get(name, (0, 0))[1]
    ]
    complaints += [f"no action {name}, listed as never taken" for name in job.never if name not in actions]
    return complaints


def _variant(variant: Variant, tools: tlc.Tools, **options: Any) -> Outcome:
    job = variant.configuration()
    liveness = variant.liveness
    result = tlc.run(job.module, job.text(), tools, coverage=False, quick=True, deadlock=liveness, **options)
    wanted = (tlc.TEMPORAL, tlc.DEADLOCK) if liveness else (tlc.INVARIANT,)
    if result.status not in wanted:
        return Outcome(variant.name, result, "PASSES", complaints=[f"{variant.breaks} is not broken"])
    states = [step for step in result.trace if step.variables]
    measured = {"breaks": variant.breaks, "length": len(states), "last": states[-1].action}
    return Outcome(variant.name, result, f"breaks {variant.breaks}", measured)


def against_record(outcome: Outcome, recorded: dict[str, dict[str, Any]]) -> None:
    """Add a complaint if the numbers differ from the recorded ones."""
    if not outcome.measured:
        return
    was = recorded.get(outcome.name)
    if was is None:
        outcome.complaints.append("nothing is recorded; run gdn-apc spec --record")
    elif was != outcome.measured:
        outcome.complaints.append(
            f"recorded {was}, found {outcome.measured}; if the design was changed on purpose, run gdn-apc spec --record"
        )


def run_all(
    jobs: Sequence[Configuration | Variant],
    tools: tlc.Tools,
    *,
    workers: int = 2,
    done: Callable[[Configuration | Variant, Outcome], None],
    progress: Callable[[str, int, int], None] | None = None,
    timeout: float = 600.0,
) -> None:
    """Run all ``jobs``, ``workers`` at a time, and call ``done`` for each. A checker that fails to run raises."""
    recorded = expected()

    def one(job: Configuration | Variant) -> Outcome:
        tell = (lambda generated, distinct: progress(job.name, generated, distinct)) if progress else None
        outcome = check(job, tools, timeout=timeout, progress=tell)
        against_record(outcome, recorded)
        return outcome

    with ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(one, job): job for job in _longest_first(jobs, recorded)}
        try:
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    done(pending.pop(future), future.result())
        except BaseException:
            tlc.stop_all()
            pool.shutdown(cancel_futures=True)
            raise


def _longest_first(
    jobs: Sequence[Configuration | Variant], recorded: dict[str, dict[str, Any]]
) -> list[Configuration | Variant]:
    """So that the last one to finish is a short one."""
    return sorted(jobs, key=lambda job: -recorded.get(job.name, {}).get("generated", 0))


def actions_of(module: str) -> set[str]:
    """Every operator that a module of ``spec/tla`` defines, for checks of names."""
    text = (MODULES / f"{module}.tla").read_text()
    found = set(re.findall(r"(?m)^(\w+)(?:\([^)]*\))? ==", text))
    for extended in re.findall(r"(?m)^EXTENDS (.*)$", text):
        for name in extended.replace(",", " ").split():
            if (MODULES / f"{name}.tla").exists():
                found |= actions_of(name)
    return found
