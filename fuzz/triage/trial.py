"""One trial of a bisection: replay a case in a process of its own, and say what ``git bisect run`` must hear.

    status 0 good: the case holds; 1 bad: it fails, or its process died or hung; 125 untestable: the target cannot run

    python -m gdn_apc.fuzz.triage.trial CASE.json [TARGET]

Imports the standard library; the replay happens in a child. Exercise it with ``pytest tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GOOD, BAD, UNTESTABLE = "good", "bad", "untestable"
STATUS = {GOOD: 0, BAD: 1, UNTESTABLE: 125}
SECONDS = 600.0
"""A trial that takes longer is a hang, and a hang is bad."""


@dataclass(frozen=True)
class Verdict:
    """What a trial said: ``word`` is good, bad or untestable, ``says`` one line, ``digest`` of the target's answers."""

    word: str
    says: str
    digest: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """For ``git bisect run``."""
        return STATUS[self.word]

    def record(self) -> dict[str, Any]:
        """As plain data; ``Verdict(**record)`` is its inverse."""
        return asdict(self)


def attempt(
    case: Path,
    target: str | None,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    seconds: float = SECONDS,
    times: int = 1,
) -> Verdict:
    """Replay ``case`` in a child with this environment and current folder."""
    command = [sys.executable, "-m", "gdn_apc.fuzz.replay", str(case.absolute()), target or "", str(times)]
    began = time.monotonic()
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(environment),
        cwd=folder,
    )
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Verdict(BAD, f"hangs: no answer within {seconds:g} s", seconds=seconds)
    except BaseException:
        child.kill()
        child.communicate()
        raise
    return judge(child.returncode, said, time.monotonic() - began)


def judge(status: int, said: str, seconds: float = 0.0) -> Verdict:
    """A replay's exit status and output as a verdict."""
    found = re.search(r"digest of \d+ answers: ([0-9a-f]{12})", said)
    digest, took = found.group(1) if found else "", round(seconds, 1)
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing was said"]
    if status < 0:
        return Verdict(BAD, f"crashes: the process died of {signal.Signals(-status).name}", digest, took)
    if status == 1 and any(
        line.startswith("FAILS: ") or line.startswith("not deterministic") for line in lines
    ):
        fails = next((x for x in lines if x.startswith("FAILS: ")), "FAILS: not deterministic")
        return Verdict(BAD, fails.removeprefix("FAILS: "), digest, took)
    if status == 0:
        return Verdict(GOOD, next((x for x in lines if x.startswith("HOLDS: ")), lines[0]), digest, took)
    return Verdict(UNTESTABLE, f"status {status}: {lines[-1]}", digest, took)


if __name__ == "__main__":
    verdict = attempt(Path(sys.argv[1]), (sys.argv[2:3] or [None])[0])
    print(f"{verdict.word}: {verdict.says}")
    sys.exit(verdict.status)
