"""Triage where failures happen: at the end of a campaign's property, and of a case in a file.

``after_failure`` is what a campaign calls when it has saved a failing case; it may never cost the failure. ``triage_file`` is
``gdn-apc triage``. Imports ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Property, Violation
from gdn_apc.fuzz.runs import RunFolder, write_whole
from gdn_apc.fuzz.summary import BROKEN, FAILED, HELD, USAGE

MOST = 8
"""Failures that one process triages in a campaign: more of them are mostly one fault, and each takes some seconds."""

_triaged: Counter[str] = Counter()


def after_failure(run: RunFolder, path: Path, prop: Property, target: Any, error: Violation) -> None:
    """Triage a failing case that was just saved at ``path``. What breaks is an event, and not raised."""
    from gdn_apc.fuzz.targets.base import Target
    from gdn_apc.fuzz.triage import report
    from gdn_apc.fuzz.triage.standalone import save

    if prop.kind == "canary" or not isinstance(target, Target):
        return
    _triaged[str(run.path)] += 1
    if _triaged[str(run.path)] > MOST:
        run.append("triage", case=path.name, left_out=f"{MOST} were triaged before; gdn-apc triage {path}")
        return
    try:
        text = path.read_text()
        case, provenance = Case.from_json(text), json.loads(text).get("provenance", {})
        began = time.monotonic()
        found = report.triage(prop, target, case, error)
        found.target = provenance.get("target", found.target)
        provenance["digest"] = found.runs[0].digest
        write_whole(path, case.to_json(**provenance))  # a kill must not cost the case
        report.write(found, path)
        needs = save(found, run.path / "repro" / f"{path.stem}.py", provenance)
        took = round(time.monotonic() - began, 2)
        run.append("triage", case=path.name, seconds=took, needs_suite=needs, **_short(found))
    except (Exception, KeyboardInterrupt) as e:
        run.append("triage", case=path.name, broke=f"{type(e).__name__}: {e}")
        if isinstance(e, KeyboardInterrupt):
            raise


def _short(found: Any) -> dict[str, Any]:
    record = found.record()
    named = {"fault": record["class"], "diagnosis": record["kind"]}
    return {key: record[key] for key in ("layer", "kernel", "seam", "verdict")} | named


def triage_file(
    path: Path, name: str | None, shrink: float, say: Callable[[str], None], errors: TextIO
) -> int:
    """Triage a case in a file, its files beside it. Returns the exit status."""
    from gdn_apc.fuzz import properties, targets
    from gdn_apc.fuzz.campaign import Broken
    from gdn_apc.fuzz.triage import report
    from gdn_apc.fuzz.triage.standalone import save

    try:
        text = path.read_text()
        case, provenance = Case.from_json(text), json.loads(text).get("provenance", {})
        name = name or provenance.get("target") or targets.DEFAULT
        targets.threads(1)
        target = targets.load(name)
        prop = properties.load_all()[case.property]
    except (OSError, ValueError, KeyError, targets.TargetUnavailable) as e:
        print(f"case: {path} cannot be triaged: {e}", file=errors)
        return USAGE
    try:
        if shrink:
            case, path = _smaller(case, path, prop, target, shrink, {**provenance, "target": name}, say)
        found = report.triage(prop, target, case)
    except Broken as e:
        print(f"BROKEN, our own code and not the target's: {e}", file=errors)
        return BROKEN
    found.target = name
    if shrink:
        path.write_text(case.to_json(**{**provenance, "target": name, "digest": found.runs[0].digest}))
    written = report.write(found, path)
    say("\n".join(found.text()))
    say(f"\nwritten: {written}")
    if found.runs[0].violation is not None:
        script = path.parent / "triage" / f"{path.stem}.py"
        needs = save(found, script, {**provenance, "target": name})
        say(f"no script without the suite: {needs}" if needs else f"a script that needs no suite: {script}")
    return FAILED if found.fickle or found.runs[0].violation is not None else HELD


def sort_of(error: Violation) -> str:
    """A coarse sort of failure: what must not change while a case is made small, or another fault takes its place."""
    if "raised" in error.where:
        return f"raised {error.where['raised']}"
    if "race" in error.where:
        return "race"
    line = str(error).split(";")[0]
    return "not finite" if re.search(r"\b(nan|inf)\b", line) else "finite"


def _smaller(
    case: Case,
    path: Path,
    prop: Property,
    target: Any,
    seconds: float,
    provenance: dict[str, Any],
    say: Callable,
) -> tuple[Case, Path]:
    """The case made smaller, and the file that it is saved in."""
    from gdn_apc.fuzz.runs import digest
    from gdn_apc.fuzz.shrink import minimise, violation

    began, first = time.monotonic(), violation(prop, target, case)
    if first is None:
        return case, path

    def fails(candidate: Case) -> bool:
        found = violation(prop, target, candidate)
        return found is not None and sort_of(found) == sort_of(first)

    small = minimise(case, fails, target.claims, seconds)
    if small == case:
        say("nothing smaller fails")
        return case, path
    say(f"shrunk from {case.num_tokens} to {small.num_tokens} tokens in {time.monotonic() - began:.1f} s")
    smaller = path.with_name(f"{small.property}-{digest(small)}.json")
    smaller.write_text(small.to_json(**provenance))
    return small, smaller


if __name__ == "__main__":
    path, name, seconds = sys.argv[1:4]
    sys.exit(
        triage_file(
            Path(path), name or None, float(seconds), lambda text: print(text, flush=True), sys.stderr
        )
    )
