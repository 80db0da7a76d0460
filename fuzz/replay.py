"""Replays one case: the same check that the campaign ran, on the same tensors, as often as one likes.

    gdn-apc replay .gdn-apc/runs/<time>/cases/<property>-<digest>.json [--target NAME] [--times N]

It ends with a digest of every bit that the target answered: two machines that print the same one saw the same bits. Where
versions differ from those recorded in the case, it says which.

Imports ``fuzz``; kernels only through the target. Exercise it with ``pytest tests/fuzz/test_replay.py``.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.summary import BROKEN, FAILED, HELD, USAGE

Say = Callable[[str], None]


def replay_file(path: str | Path, target: str | None = None, times: int = 1) -> int:
    """Replay the case in a file. Returns the exit status: 0 it holds, 1 it fails, 3 the suite broke, 4 not a case."""
    try:
        text = Path(path).read_text()
    except OSError as e:
        return _refuse(
            f"case: {path} cannot be read: {e.strerror}; give a JSON file of a run's cases/ folder"
        )
    return replay_text(text, target, times)


def replay_text(text: str, target: str | None = None, times: int = 1, say: Say = print) -> int:
    """Replay a case given as JSON text, on ``target`` or on the one that it was found with.

    ``times``: run it so often; runs that differ in verdict or bits count as a failure, and both digests are shown.
    """
    from gdn_apc.fuzz import properties, targets

    try:
        case = Case.from_json(text)
        provenance = json.loads(text).get("provenance", {})
    except ValueError as e:
        return _refuse(str(e))
    targets.threads(1)
    name = target or provenance.get("target") or targets.DEFAULT
    try:
        loaded = targets.load(name)
    except targets.TargetUnavailable as e:
        return _refuse(str(e))
    prop = properties.load_all().get(case.property)
    if prop is None:
        return _refuse(
            f"property: the case belongs to {case.property!r}, which this version of gdn-apc does not have"
        )
    reason = prop.needs(loaded)
    if reason:
        return _refuse(f"target: {name!r} cannot be asked {case.property}: {reason}")
    say(f"{case.property} on {name}: {case.num_tokens} tokens in {len(case.steps)} step(s)")
    for line in differences(provenance.get("versions", {}), loaded):
        say(f"  {line}")
    same_target = name == provenance.get("target")
    return _verdict(prop, loaded, case, provenance if same_target else {}, times, say)


def _verdict(prop: Any, target: Any, case: Case, found: dict[str, Any], times: int, say: Say) -> int:
    from gdn_apc.fuzz.campaign import Broken
    from gdn_apc.fuzz.triage.observe import fickle, observe_often

    try:
        runs = observe_often(prop, target, case, times)
    except Broken as e:
        say(f"BROKEN, our own code and not the target's: {e}")
        traceback.print_exception(e.__cause__)
        return BROKEN
    seen = next((r for r in runs if r.violation is not None), runs[0])
    if seen.violation is not None:
        say(f"FAILS: {seen.violation}")
        for key, value in seen.violation.where.items():
            say(f"  {key}: {value}")
    else:
        say(f"HOLDS: {seen.checked.comparisons} comparisons")
    if seen.calls:
        say(f"  digest of {seen.calls} answers: {seen.digest}{_as_found(seen.digest, found)}")
    if fickle(runs):
        say(f"  {fickle(runs)}")
        return FAILED
    return FAILED if seen.violation is not None else HELD


def _as_found(digest: str, found: dict[str, Any]) -> str:
    """How a digest compares with the one that was recorded with the case."""
    then = found.get("digest")
    if not then:
        return ""
    return ", the same bits as when it was found" if then == digest else f"; it was {then} when it was found"


def differences(then: dict[str, str], target: Any) -> list[str]:
    """What is not as it was when the case was found, a line each."""
    from gdn_apc.fuzz.runs import environment

    now = {**environment(), **target.versions()}
    return [
        f"{name} is {now.get(name, 'absent')} here, it was {then.get(name, 'absent')} when the case was found"
        for name in sorted(then.keys() | (now.keys() if then else set()))
        if then.get(name) != now.get(name)
    ]


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(replay_file(sys.argv[1], (sys.argv[2:3] or [None])[0] or None, int((sys.argv[3:4] or [1])[0])))
