"""The run folder: everything that a campaign leaves behind, and nothing anywhere else.

    .gdn-apc/runs/<time>/events.jsonl   source of truth, one line an event, appended as it happens
                         cases/         failing cases, and the case that each worker is running now
                         repro/         one script for each failing case
                         summary.md     report.html   junit.xml: made from the events, by ``gdn-apc report`` again
    .gdn-apc/examples/                  Hypothesis's example database

A process may be killed at any moment. So an event is one write, cases and pages appear whole or not at all, and a line
that was cut short costs nothing but itself.

Imports the standard library, ``fuzz.case`` and ``fuzz.clock`` only. Exercise it with ``pytest tests/fuzz/test_runs.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gdn_apc.fuzz import clock
from gdn_apc.fuzz.case import Case

HOME = ".gdn-apc"

REPRO = '''"""Replays one failing case: {headline}

Needs the gdn_apc package and the target {target!r}. Run it with ``python {name}``; it exits with 1 while the
case fails and with 0 once it holds.
"""

import sys

from gdn_apc.fuzz.replay import replay_text

CASE = r"""
{text}
"""

if __name__ == "__main__":
    sys.exit(replay_text(CASE, target={target!r}))
'''


class Unwritable(BaseException):
    """The run folder cannot be written: a full disk, say. Not an ``Exception``, so that Hypothesis lets it through."""

    def __init__(self, path: Path, error: OSError):
        super().__init__(
            f"run folder: {path} cannot be written: {error.strerror or error}; make room or mend it, then "
            f"go on with: gdn-apc fuzz --resume {path}"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whatever kills the process. Raises ``Unwritable``."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise Unwritable(path.parent, e) from e


def default_path(root: Path) -> Path:
    """A new folder's name under ``root``, by local time to the second; a number is added if it exists."""
    base = root / HOME / "runs" / time.strftime("%Y%m%d-%H%M%S")
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def compact(case: Case, **provenance: Any) -> str:
    """The case as one line of JSON, which ``Case.from_json`` reads too; made for every example, so it must be quick."""
    text = json.dumps(case, default=vars, sort_keys=True)
    return f'{text[:-1]}, "provenance": {json.dumps(provenance)}}}' if provenance else text


def digest(case: Case) -> str:
    """12 hex digits that identify a case: equal cases have equal digests on every machine."""
    return hashlib.sha256(compact(case).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class RunFolder:
    """One run folder. Several processes may append to it at once."""

    path: Path

    @property
    def cases(self) -> Path:
        """Where cases are kept."""
        return self.path / "cases"

    @property
    def events_path(self) -> Path:
        """The source of truth."""
        return self.path / "events.jsonl"

    @property
    def summary_path(self) -> Path:
        """The page for a pull request."""
        return self.path / "summary.md"

    def create(self) -> RunFolder:
        """Make the folder; under ``.gdn-apc`` also a ``.gitignore``, so that no run is committed by accident."""
        try:
            self.cases.mkdir(parents=True, exist_ok=True)
            home = next((p for p in self.path.parents if p.name == HOME), None)
            if home is not None and not (home / ".gitignore").exists():
                (home / ".gitignore").write_text("*\n")
        except OSError as e:
            raise Unwritable(self.path, e) from e
        return self

    def append(self, kind: str, **fields: Any) -> None:
        """Add one event: ``time`` for people, ``at`` in seconds since the command started. Raises ``Unwritable``."""
        stamp = {"event": kind, "time": round(time.time(), 3), "at": round(clock.elapsed(), 2)}
        self.append_line(json.dumps({**stamp, **fields}, sort_keys=True))

    def append_line(self, line: str) -> None:
        """Add a line, in a single write, so that lines of several workers never mix.

        What a kill or a full disk left of an earlier line is ended first.
        """
        try:
            fd = os.open(self.events_path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(fd).st_size
                torn = size and os.pread(fd, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + line.encode() + b"\n"
                rest = data[os.write(fd, data) :]
                if rest:
                    os.write(fd, rest)  # says why
            finally:
                os.close(fd)
        except OSError as e:
            raise Unwritable(self.path, e) from e

    def events(self) -> list[dict[str, Any]]:
        """All events so far. A last line that a kill cut short is left out; another broken one is an event ``torn``."""
        if not self.events_path.exists():
            return []
        *lines, last = self.events_path.read_text(errors="replace").split("\n")
        events = [parse(line, number) for number, line in enumerate(lines, 1) if line]
        tail = parse(last, 0) if last else {"event": "torn"}
        return events + ([] if tail["event"] == "torn" else [tail])

    def current_path(self, worker: str) -> Path:
        """The case that ``worker`` is running."""
        return self.cases / f"current-{worker}.json"

    def journal(self, worker: str, text: str) -> None:
        """Record the case about to run, so that a crash or a kill leaves it.

        One write over the old text, blanks over what is left of it: no rename, which some file systems turn into a
        flush to the disk at every example.
        """
        try:
            fd = os.open(self.current_path(worker), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                data = text.encode()
                os.write(fd, data + b" " * (os.fstat(fd).st_size - len(data)))
            finally:
                os.close(fd)
        except OSError as e:
            raise Unwritable(self.path, e) from e

    def clear_journal(self, worker: str) -> None:
        """The worker's case came to an end."""
        self.current_path(worker).unlink(missing_ok=True)

    def save_case(self, case: Case, provenance: Mapping[str, Any], suffix: str = "") -> Path:
        """Write ``cases/<property>-<digest><suffix>.json`` and return its path."""
        path = self.cases / f"{case.property}-{digest(case)}{suffix}.json"
        write_whole(path, case.to_json(**provenance))
        return path

    def record_crash(self, worker: str, message: str) -> Path | None:
        """The process of ``worker`` died: keep the case that it was running as a finding. None if there is none."""
        try:
            text = self.current_path(worker).read_text()
            case = Case.from_json(text)
        except (OSError, ValueError):
            self.append("broken", message=f"{message}, and left no case: it died outside of the examples")
            return None
        provenance = json.loads(text)["provenance"]
        return self.save_failure(
            case,
            f"{message} while it ran this case",
            provenance,
            shard=provenance["shard"],
            round=provenance["round"],
            phase="generate",
            shrunk="was not tried: the case kills its process",
        )

    def save_failure(
        self,
        case: Case,
        message: str,
        provenance: Mapping[str, Any],
        where: Mapping[str, Any] = MappingProxyType({}),
        **more: Any,
    ) -> Path:
        """Save a failing case with its script, record the failure, and return the case's path."""
        path = self.save_case(case, provenance)
        self.save_repro(case, provenance, message)
        self.append(
            "failure",
            property=case.property,
            message=message,
            where={k: str(v) for k, v in where.items()},
            case=path.name,
            tokens=case.num_tokens,
            **more,
        )
        return path

    def save_repro(self, case: Case, provenance: Mapping[str, Any], headline: str) -> Path:
        """Write ``repro/<property>-<digest>.py``, which replays the case by itself, and return its path."""
        path = self.path / "repro" / f"{case.property}-{digest(case)}.py"
        path.parent.mkdir(exist_ok=True)
        clean = (
            headline.replace("\\", "/").replace('"', "'").splitlines()[0][:90] if headline else "no message"
        )
        target = str(provenance.get("target", "native"))
        write_whole(
            path, REPRO.format(headline=clean, target=target, name=path.name, text=case.to_json(**provenance))
        )
        return path


def parse(line: str, number: int) -> dict[str, Any]:
    """The event of a line; an event ``torn``, with the line's number, if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        return event
    return {"event": "torn", "line": number, "text": line[:80]}


def environment() -> dict[str, str]:
    """Versions of everything but the target that may change a result, and the machine's kind."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for package in ("gdn-apc", "torch", "triton", "numpy", "hypothesis", "pytest"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def revision(folder: Path) -> str | None:
    """The git revision that ``folder`` is a checkout of, ``+`` added if it has changes; None outside a checkout."""
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
