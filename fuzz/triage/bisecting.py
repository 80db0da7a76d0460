"""``gdn-apc bisect``: from its options to a search over releases or revisions, and its summary.

Imports the standard library and ``fuzz.triage``. Exercise it with ``pytest tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.runs import HOME, digest
from gdn_apc.fuzz.triage import revisions
from gdn_apc.fuzz.triage.bisect import Found, NoBisection, Record, search
from gdn_apc.fuzz.triage.releases import NoRelease, Releases, ordered
from gdn_apc.fuzz.triage.trial import BAD, GOOD, UNTESTABLE, Verdict, attempt

FOUND, NOT_FOUND, USAGE = 0, 1, 4


def main(given: argparse.Namespace, say: Callable[[str], None], errors: TextIO) -> int:
    """Run the command; returns the exit status."""
    path = Path(given.case)
    try:
        text = path.read_text()
        case, provenance = Case.from_json(text), json.loads(text).get("provenance", {})
    except (OSError, ValueError) as e:
        print(f"case: {path} cannot be read: {e}", file=errors)
        return USAGE
    target = given.target or provenance.get("target")
    if given.step:
        verdict = attempt(path, target, seconds=given.timeout)
        say(f"{verdict.word}: {verdict.says}")
        return verdict.status
    if bool(given.package) == bool(given.repo):
        print(
            "package, repo: expected one of --package NAME (releases) and --repo DIR (revisions)", file=errors
        )
        return USAGE
    about = {"case": digest(case), "target": target, "suite": suite_digest()}
    try:
        lines = _releases(given, path, about, say) if given.package else _revisions(given, path, about, say)
    except (NoBisection, NoRelease) as e:
        say(str(e))
        return NOT_FOUND
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where this one stopped")
        return 2
    say("\n".join(["", *lines]))
    return FOUND


def suite_digest() -> str:
    """12 hex digits of everything of ours that a verdict depends on: the oracle, the runner, properties, targets."""
    fuzz = Path(__file__).parents[1]
    oracle = Path(importlib.util.find_spec("gdn_apc.oracle").origin).parent
    found = hashlib.sha256()
    for folder in (oracle, fuzz / "properties", fuzz / "targets", fuzz / "interpreter"):
        for file in sorted(folder.glob("*.py")):
            found.update(file.read_bytes())
    for name in ("runner", "tensors", "pool", "case"):
        found.update((fuzz / f"{name}.py").read_bytes())
    return found.hexdigest()[:12]


def _releases(
    given: argparse.Namespace, path: Path, about: dict[str, Any], say: Callable[[str], None]
) -> list[str]:
    home = Path.cwd() / HOME
    releases = Releases(given.package, home / "releases", tuple(Path(w) for w in given.wheels), given.offline)
    names = ordered({v.strip() for v in given.versions.split(",")}) if given.versions else releases.versions()
    ends = [v for v in (given.good, given.bad) if v]
    unknown = [v for v in ends if v not in names]
    if unknown:
        raise NoRelease(
            f"good, bad: {unknown[0]} is no release of {given.package}; there are {', '.join(names)}"
        )
    expected = None
    if len(ends) == 2:
        low, high = sorted(names.index(v) for v in ends)
        names = names[low : high + 1]
        expected = (GOOD, BAD) if names[0] == given.good else (BAD, GOOD)
    record = Record(
        home / "bisect" / f"{path.stem}-{given.package}.json", {**about, "package": given.package}
    )
    say(
        f"{path.stem} on {about['target']}: {len(names)} releases of {given.package}, {names[0]} to {names[-1]}"
    )

    def trial(version: str) -> Verdict:
        try:
            environment = releases.environment(version, say)
        except NoRelease as e:
            return Verdict(UNTESTABLE, str(e))
        return attempt(path, about["target"], environment, seconds=given.timeout)

    found = search(names, trial, record, say, given.every, expected)
    return _summary(found, about, f"{given.package} release")


def _revisions(
    given: argparse.Namespace, path: Path, about: dict[str, Any], say: Callable[[str], None]
) -> list[str]:
    if not given.good:
        raise NoBisection("good: is not given; expected --good REVISION, one on which the case holds")
    repo, bad = Path(given.repo), given.bad or "HEAD"
    about = {**about, "setup": given.setup}
    record = Record(Path.cwd() / HOME / "bisect" / f"{path.stem}-{repo.resolve().name}.json", about)
    settings = {
        "case": str(path.absolute()), "target": about["target"], "setup": given.setup, "seconds": given.timeout,
    }  # fmt: skip
    say(f"{path.stem} on {about['target']}: revisions of {repo}, {given.good} to {bad}")
    found = revisions.search(repo, given.good, bad, settings, record, say)
    return _summary(found, about, "revision")


def _summary(found: Found, about: dict[str, Any], kind: str) -> list[str]:
    return [f"case {about['case']} on {about['target']}", *found.text(kind)]
