"""What ``gdn-apc spec`` runs: configurations that hold, variants that fail, cases for the code, traces of an engine.

Imports the standard library and ``gdn_apc.spec``. Exercise it with ``gdn-apc spec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdn_apc.spec import cases, explain, lies, tlc, traces
from gdn_apc.spec.configurations import PAIRS, Configuration
from gdn_apc.spec.run import STALE, Outcome, Progress, Task
from gdn_apc.spec.variants import Variant

TRACES = 20
"""Traces of random lives that a run checks, and as many with a lie in them."""


def holds(job: Configuration, tools: tlc.Tools, timeout: float) -> Task:
    """The design must hold within the bounds of ``job``, and every action be taken."""

    def run(progress: Progress) -> Outcome:
        quick = bool(job.properties) or job.simulate is not None
        result = tlc.run(
            job.module,
            job.text(),
            tools,
            coverage=not quick,
            simulate=job.simulate,
            deadlock=bool(job.properties),
            timeout=timeout,
            progress=progress,
        )
        outcome = Outcome(job.name, "holds", result)
        if result.status != tlc.OK:
            broken = result.broken or " ".join(job.properties)
            outcome.verdict, outcome.complaints = "BROKEN", [f"{broken} is broken"]
            outcome.story = explain.explain(broken, result.trace)
        elif job.simulate:
            outcome.verdict = f"holds on {job.simulate[0]:,} random walks, {result.generated:,} states"
            outcome.complaints = [] if result.generated > job.simulate[0] else ["the walks go nowhere"]
        else:
            outcome.measured = {
                "distinct": result.distinct,
                "generated": result.generated,
                "depth": result.depth,
            }
            outcome.complaints = [] if quick else coverage_complaints(job, result.actions)
        return outcome

    return Task(job.name, f"{job.about} ({job.bounds()})", run)


def coverage_complaints(job: Configuration, actions: Mapping[str, tuple[int, int]]) -> list[str]:
    """An action of the module is taken, or listed as one that these bounds never reach; not both."""
    if not actions:
        return ["TLC reported no coverage"]
    taken = {name for name, (_, successors) in actions.items() if successors}
    complaints = [f"action {name} is never taken" for name in actions if name not in taken | set(job.never)]
    complaints += [
        f"action {name} is listed as never taken, but it is" for name in job.never if name in taken
    ]
    complaints += [f"no action {name}, listed as never taken" for name in job.never if name not in actions]
    complaints += [f"not covered: {PAIRS[name]} ({name})" for name in job.covers if name not in taken]
    return complaints


def fails(variant: Variant, tools: tlc.Tools, timeout: float) -> Task:
    """The variant must break the one property that it names."""

    def run(progress: Progress) -> Outcome:
        job, liveness = variant.configuration(), variant.liveness
        result = tlc.run(
            job.module,
            job.text(),
            tools,
            coverage=False,
            quick=True,
            deadlock=liveness,
            timeout=timeout,
            progress=progress,
        )
        if result.status not in ((tlc.TEMPORAL, tlc.DEADLOCK) if liveness else (tlc.INVARIANT,)):
            return Outcome(variant.name, "PASSES", result, complaints=[f"{variant.breaks} is not broken"])
        states = [step for step in result.trace if step.variables]
        measured = {"breaks": variant.breaks, "length": len(states), "last": states[-1].action}
        last = f"after {len(states)} states, by {states[-1].action}"
        verdict = f"its case comes up {last}" if variant.is_witness else f"breaks {variant.breaks} {last}"
        story = explain.explain(variant.breaks, result.trace)
        return Outcome(variant.name, verdict, result, measured, story=story, fails_as_it_must=True)

    kind = "witness" if variant.is_witness else "variant"
    return Task(variant.name, f"{variant.about}{f' ({variant.seen})' if variant.seen else ''}", run, kind)


def model_cases(
    model: Configuration, tools: tlc.Tools, builders: Mapping[str, cases.Builder], timeout: float
) -> Task:
    """The stored cases must be those that the model makes, and every builder must agree with all of them."""
    name = f"cases-{model.name}"

    def run(progress: Progress) -> Outcome:
        made, result = cases.generate(model, tools, timeout, progress)
        outcome = Outcome(name, f"{len(made.batches):,} cases", result, made=made)
        for who, build in builders.items():
            try:
                outcome.verdict += f", {who} agrees with {cases.check([made], build):,}"
            except AssertionError as wrong:
                outcome.complaints.append(f"{who} disagrees: {wrong}")
        stored = {found.name: found for found in cases.load()} if cases.STORED.exists() else {}
        if stored.get(model.name) != made:
            outcome.complaints.append(f"recorded cases are not those that the model makes; {STALE}")
        outcome.measured = {"cases": len(made.batches), "generated": result.generated}
        return outcome

    return Task(name, f"metadata cases: {model.about}", run, "cases")


def random_traces(life: Callable[[int], list[traces.Event]], tools: tlc.Tools, timeout: float) -> Task:
    """The design must accept the traces of random lives, and reject each with a lie in it. ``life``: seed → trace."""

    def run(progress: Progress) -> Outcome:
        honest = [life(seed) for seed in range(TRACES)]
        lying = [lies.lie(events, seed) for seed, events in enumerate(honest)]
        verdicts = traces.check(honest + lying, tools, timeout)
        outcome = Outcome("traces", "")
        told = []
        for seed, (true, lie) in enumerate(zip(verdicts[:TRACES], verdicts[TRACES:])):
            if not true.accepted:
                outcome.complaints.append(f"the trace of life {seed} is rejected")
                outcome.story += traces.explained(honest[seed], true, tools) + "\n"
            if lie.accepted:
                outcome.complaints.append(f"the trace of life {seed} with a lie in it is accepted")
            else:
                told.append(f"life {seed}: {lies.told(honest[seed], lying[seed])};\n  {lie.at(lying[seed])}")
        accepted = sum(verdict.accepted for verdict in verdicts[:TRACES])
        events = sum(map(len, honest))
        outcome.details = "\n".join(told)
        outcome.verdict = f"{accepted} traces accepted ({events:,} events), {len(told)} of {TRACES} lies rejected at a named event"
        return outcome

    return Task("traces", "traces of random lives of the fuzzer's engine, and lies", run, "traces")
