"""Triage of a case that kills its process: which step does it, found by running the case's beginnings in processes of their own.

Imports the standard library and ``fuzz``; the target runs in children only. Exercise it with
``pytest tests/fuzz/test_triage.py -k kills``.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.summary import FAILED
from gdn_apc.fuzz.triage.files import beside, text_of
from gdn_apc.fuzz.triage.trial import BAD, attempt


def first_step(case: Case, provenance: dict, target: str | None) -> int | None:
    """The first step that kills the process; None if no beginning of the case does."""
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(len(case.steps)):
            path = Path(scratch) / "case.json"
            path.write_text(dataclasses.replace(case, steps=case.steps[: i + 1]).to_json(**provenance))
            verdict = attempt(path, target)
            if verdict.word == BAD and verdict.says.startswith(("crashes", "hangs")):
                return i
    return None


def triage_crash(path: Path, target: str | None, number: int, say: Callable[[str], None]) -> int:
    """Write ``triage/<case>.json`` and ``.txt`` of a case whose process died of a signal. Returns the exit status."""
    text = path.read_text()
    case, provenance = Case.from_json(text), json.loads(text).get("provenance", {})
    name = signal.Signals(number).name
    step = first_step(case, provenance, target)
    rows = case.steps[step].rows if step is not None else ()
    live = ", ".join(f"(n {r.n}, m {r.m}, table {list(r.table)})" for r in rows)
    record = {
        "schema": 1,
        "property": case.property,
        "target": target or provenance.get("target", "native"),
        "size": {"requests": len(case.requests), "steps": len(case.steps), "tokens": case.num_tokens},
        "verdict": "fails",
        "runs": [{"verdict": "fails", "digest": "", "answers": 0}],
        "fickle": "",
        "layer": "",
        "kernel": "",
        "seam": "",
        "where": {} if step is None else {"step": step},
        "says": f"the process dies of {name}"
        + (f" in step {step}, which runs the rows {live}" if live else ""),
        "class": "resource",
        "kind": "crash",
        "like": ["fla 103", "vllm 41617"],
        "also": [],
        "evidence": [f"step {step} is the first whose beginning of the case kills the process"]
        if step is not None
        else [],
        "message": f"the process died of {name}",
        "picture": "",
        "broke": [],
        "seconds": 0.0,
    }
    beside(path, ".json").parent.mkdir(exist_ok=True)
    beside(path, ".json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    beside(path, ".txt").write_text("\n".join(text_of(record)) + "\n")
    say("\n".join(text_of(record)))
    say(f"\nwritten: {beside(path, '.json')}")
    return FAILED
