"""Running tasks: each is one run of TLC and its verdict, which is held against what is recorded.

Two checkers run at a time, with one worker each, so that state counts, depths and counterexamples are the same in
every run. Imports the standard library and ``gdn_apc.spec``. Exercise it with ``gdn-apc spec``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.spec import cases, tlc

EXPECTED = Path(__file__).parent / "expected.json"
"""What was measured by ``gdn-apc spec --record``, by task."""

KINDS = {
    "configuration": "configurations in which the design holds",
    "variant": "variants that fail as they must",
    "witness": "witnesses: the case of each invariant comes up",
    "cases": "models whose metadata cases are as stored",
    "traces": "sets of traces",
}
"""What tasks there are, and what it means that all is as it must be."""

STALE = "run gdn-apc spec --record if the design was changed on purpose"
Progress = Callable[[int, int], None]


@dataclass
class Outcome:
    """How one task went. ``complaints`` is empty if all is as it must be; ``story`` tells a counterexample; ``details`` are for who asks (``--explain``)."""

    name: str
    verdict: str
    result: tlc.Result = field(default_factory=lambda: tlc.Result(tlc.OK))
    measured: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    story: str = ""
    fails_as_it_must: bool = False
    made: cases.Cases | None = None
    kind: str = ""
    details: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """``run`` does it; it is given a function that is told (generated, distinct) states. ``kind``: one of ``KINDS``."""

    name: str
    about: str
    run: Callable[[Progress], Outcome]
    kind: str = "configuration"


def expected() -> dict[str, dict[str, Any]]:
    """The recorded measurements; empty before the first record."""
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


def record(outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """Write what was measured; of tasks that were not run the old record stays, if there still is such a task."""
    table = {name: was for name, was in expected().items() if was and name in names}
    table |= {outcome.name: outcome.measured for outcome in outcomes if outcome.measured}
    lines = [f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    made = {outcome.made.name: outcome.made for outcome in outcomes if outcome.made}
    if made:
        old = {found.name: found for found in cases.load()} if cases.STORED.exists() else {}
        cases.store([(old | made)[model.name] for model in cases.MODELS if model.name in old | made])


def against_record(outcome: Outcome, recorded: dict[str, dict[str, Any]]) -> None:
    """Add a complaint if the numbers differ from the recorded ones."""
    was = recorded.get(outcome.name)
    if outcome.measured and was != outcome.measured:
        outcome.complaints.append(f"recorded {was}, found {outcome.measured}; {STALE}")


def run_all(
    tasks: Sequence[Task],
    *,
    workers: int,
    done: Callable[[Outcome], None],
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> None:
    """Run all ``tasks``, ``workers`` at a time, the longest first, and call ``done`` for each as it ends.

    A checker that comes to no verdict raises ``TlcFailed``, and stops the others.
    """
    recorded = expected()

    def one(task: Task) -> Outcome:
        started = time.monotonic()
        outcome = task.run(lambda generated, distinct: progress(task.name, generated, distinct))
        outcome.seconds, outcome.kind = time.monotonic() - started, task.kind
        against_record(outcome, recorded)
        return outcome

    longest_first = sorted(tasks, key=lambda task: -recorded.get(task.name, {}).get("generated", 0))
    with ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(one, task) for task in longest_first}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    done(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            tlc.stop_all()
            raise
