"""The canary: a property that must fail, run in every campaign through the whole pipeline.

A suite whose reporting is broken is green for ever. So each campaign also drives a property that is false (it
rejects every case of three tokens or more), into a folder of its own, and looks at what came out: the unshrunk
and the shrunk case, the replay, the script, the events, the verdict and the page. Anything missing raises
:class:`Silent`, and the campaign ends with status 3 whatever else it found.

Imports ``fuzz`` and hypothesis. Exercise it with ``pytest tests/fuzz/test_campaign.py -k canary``.
"""

from __future__ import annotations

import copy
import dataclasses
import shutil
import time
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz import page, summary
from gdn_apc.fuzz.campaign import Drive, Outcome, Plan, check
from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Request, Row, Sizes, Step
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.runs import RunFolder

SMALLEST = 3


class Silent(Exception):
    """The canary did not fail, or its failure got lost on the way to the report."""


def case_of(tokens: int) -> Case:
    """One request prefilled in one step of ``tokens`` tokens."""
    return Case(
        property="canary",
        level="delta",
        sizes=Sizes(H=1, HV=1, K=4, V=4, W=4, B=64, C=16),
        dtypes=Dtypes("fp32", "fp32", "fp32"),
        inputs=Inputs(seed=0),
        requests=(Request(length=tokens),),
        steps=(Step((Row(0, 0, tokens, (1,)),)),),
        pool=Pool(num_slots=2),
    )


def _check(target: Any, case: Case) -> Checked:
    if case.num_tokens >= SMALLEST:
        raise Violation(f"the canary rejects {case.num_tokens} tokens, as it must", tokens=case.num_tokens)
    return Checked(comparisons=1)


CANARY = Property(
    name="canary",
    doc="Must fail: rejects every case of three tokens or more.",
    kind="canary",
    strategy=lambda target: st.integers(1, 60).map(case_of),
    check=_check,
)


def run(plan: Plan, into: RunFolder, prop: Property = CANARY) -> str:
    """Drive the canary and inspect the reports. Returns one line for the summary; raises :class:`Silent`."""
    started = time.monotonic()
    folder = RunFolder(into.path / "canary").create()
    plan = dataclasses.replace(plan, seed=0, budget=20, minutes=None, shards=1, profile="gate")
    folder.append("start", target=plan.target, seed=0, properties=[], selected=["canary"])
    outcome = Drive(prop, None, plan, folder).run()
    unshrunk, shrunk = _inspect(prop, folder, outcome)
    shutil.rmtree(folder.path)
    return f"failed as it must, shrunk from {unshrunk} to {shrunk} tokens and reported in {time.monotonic() - started:.1f} s"


def sabotage(prop: Property, target: Any, case: Case) -> str:
    """``prop`` on a case that it accepts, while one element of the target's outputs is made wrong: must be seen.

    Returns a few words for the summary; raises :class:`Silent` if the wrong element passes.
    """
    saboteur = copy.copy(target)
    for seam in ("conv", "delta", "core"):
        setattr(saboteur, seam, _wrong(getattr(target, seam)))
    try:
        check(prop, saboteur, case)
    except Violation:
        return "; a wrong element planted in the target's output was seen"
    raise Silent(
        f"the canary's wrong element passed {prop.name}: nothing that the campaign compared means anything"
    )


def _wrong(seam: Callable[..., Any]) -> Callable[..., Any]:
    """``seam`` with 1 added to the first element of its output."""

    def run(*arguments: Any, **named: Any) -> Any:
        output = seam(*arguments, **named)
        output[(0,) * output.ndim] += 1
        return output

    return run


def _inspect(prop: Property, folder: RunFolder, outcome: Outcome) -> tuple[int, int]:
    """Tokens of the unshrunk and of the shrunk case, once every artefact was found to be right."""

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise Silent(
                f"the canary {what}: a failure of a real property could go unreported; see {folder.path}"
            )

    expect(outcome.status == "failed", f"property ended as {outcome.status!r} instead of failing")
    failures = [e for e in folder.events() if e["event"] == "failure"]
    expect(len(failures) == 1, f"left {len(failures)} failure events, expected one")
    shrunk = Case.from_json((folder.cases / failures[0]["case"]).read_text())
    unshrunk = Case.from_json((folder.cases / failures[0]["unshrunk"]).read_text())
    expect(shrunk.num_tokens == SMALLEST, f"was shrunk to {shrunk.num_tokens} tokens, expected {SMALLEST}")
    try:
        check(prop, None, shrunk)
    except Violation:
        pass
    else:
        expect(False, "case passes when it is replayed")
    scripts = list((folder.path / "repro").glob("*.py"))
    expect(len(scripts) == 1, f"left {len(scripts)} scripts, expected one")
    compile(scripts[0].read_text(), str(scripts[0]), "exec")
    totals = summary.Totals.of([*folder.events(), {"event": "end", "time": 0.0, "reason": "finished"}])
    expect(summary.verdict(totals).status == summary.FAILED, "failure does not turn the verdict red")
    text = page.render(totals, folder)
    expect("gdn-apc replay" in text and failures[0]["case"] in text, "case is not on the summary page")
    return unshrunk.num_tokens, shrunk.num_tokens
