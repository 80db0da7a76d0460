"""Runs many mutants in watched worker processes, and records what became of each.

    .gdn-apc/mutants/<time>/events.jsonl   source of truth: start, one line a mutant, end
                            summary.md     the kill table
                            <mutant>/      its run folder: events, cases, scripts that replay them

Imports the standard library; hypothesis and kernels in the workers only. Exercise it with ``gdn-apc mutants``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.mutants import load
from gdn_apc.fuzz.mutants.model import Mutant
from gdn_apc.fuzz.runs import HOME, RunFolder, environment, revision

HANG_SECONDS = 120.0
"""A case that takes longer is a hang, and so is a kill. It counts from the last sign of life."""


@dataclass(frozen=True)
class Settings:
    """What a run was asked for. ``budget`` None: that of a default campaign."""

    seed: int = 0
    budget: int | None = None
    shrink_seconds: float = 5.0
    workers: int = 1


def default_folder(root: Path) -> Path:
    """A new folder's name, by local time to the second; a number is added if it exists."""
    base = root / HOME / "mutants" / time.strftime("%Y%m%d-%H%M%S")
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def run(
    mutants: list[Mutant],
    folder: RunFolder,
    settings: Settings,
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
    hang_seconds: float = HANG_SECONDS,
) -> list[dict[str, Any]]:
    """Hunt every mutant; results in the order in which they came.

    ``on_result`` hears of each one. Raises :class:`~gdn_apc.fuzz.mutants.load.Stale` before anything runs if an edit
    no longer fits, and ``KeyboardInterrupt`` after the workers have ended.
    """
    for mutant in mutants:
        load.sources(mutant)
    folder.create()
    folder.append(
        "start",
        seed=settings.seed,
        budget=settings.budget,
        shrink_seconds=settings.shrink_seconds,
        versions=environment(),
        revision=revision(Path(__file__).parent),
        mutants=[m.name for m in mutants],
    )
    todo: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        todo.put(mutant)
    done: list[dict[str, Any]] = []
    stop = threading.Event()

    def answer(result: dict[str, Any]) -> None:
        folder.append("mutant", **result)
        done.append(result)
        on_result(result)

    count = max(1, min(settings.workers, len(mutants)))
    threads = [
        threading.Thread(target=_Worker(folder, settings, stop, hang_seconds).serve, args=(todo, answer))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        folder.append("end", finished=len(done) == len(mutants))
    return done


def worker_command(options: dict[str, Any]) -> list[str]:
    """How a worker is started."""
    return [sys.executable, "-m", "gdn_apc.fuzz.mutants.worker", json.dumps(options)]


class _Worker:
    """One worker process and the thread that feeds it; a process that dies is replaced."""

    def __init__(self, folder: RunFolder, settings: Settings, stop: threading.Event, hang_seconds: float):
        self.folder, self.stop, self.hang_seconds = folder, stop, hang_seconds
        self.options = {
            "folder": str(folder.path),
            "seed": settings.seed,
            "budget": settings.budget,
            "shrink_seconds": settings.shrink_seconds,
        }
        self.child: subprocess.Popen[str] | None = None

    def serve(self, todo: queue.SimpleQueue[Mutant], answer: Callable[[dict[str, Any]], None]) -> None:
        """Take mutants until there are none."""
        try:
            while not self.stop.is_set():
                try:
                    mutant = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    result = self._hunt(mutant)
                except Exception as e:  # in a thread: it would only be printed
                    result = _result(mutant, "broken", f"{type(e).__name__}: {e}")
                if result is not None:
                    answer(result)
        finally:
            self._end()

    def _hunt(self, mutant: Mutant) -> dict[str, Any] | None:
        """The worker's answer; or what its death or silence says. None if told to stop."""
        if self.child is None:
            self.child = subprocess.Popen(
                worker_command(self.options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
        child, asked = self.child, time.time()
        child.stdin.write(mutant.name + "\n")
        child.stdin.flush()
        own = RunFolder(self.folder.path / mutant.name)
        while not select.select([child.stdout], [], [], 0.5)[0]:
            if self.stop.is_set():
                return None
            if time.time() - max(asked, _last_sign(own)) > self.hang_seconds:
                self._end()
                return _lost(mutant, own, f"no answer for {self.hang_seconds:g} s")
        line = child.stdout.readline()
        if not line:
            code = child.wait()
            self._end()
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            return _lost(mutant, own, f"the process died of {name}")
        result = json.loads(line)
        if result.pop("last"):
            self._end()
        return result

    def _end(self) -> None:
        """End the process; it has nothing to lose."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child.stdin.close()
            self.child.stdout.close()
            self.child = None


def _environment() -> dict[str, str]:
    """One thread a worker: several workers share the machine, and interpreted kernels gain nothing from more."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _last_sign(folder: RunFolder) -> float:
    """When a mutant's run last wrote to its folder."""
    times = [p.stat().st_mtime for p in (folder.current_path("main"), folder.events_path) if p.exists()]
    return max(times, default=0.0)


def _result(mutant: Mutant, status: str, message: str, **more: Any) -> dict[str, Any]:
    """A result that no worker gave."""
    from gdn_apc.fuzz.mutants.hunt import Result

    return {**dataclasses.asdict(Result(mutant.name, status, message=message)), **more}


def _lost(mutant: Mutant, folder: RunFolder, message: str) -> dict[str, Any]:
    """The result of a mutant that took its process with it: a kill, if it was running a case."""
    if folder.create().record_crash("main", message) is None:
        return _result(mutant, "broken", message)
    from gdn_apc.fuzz.mutants.hunt import KILLED, Result

    examples = [e for e in folder.events() if e["event"] == "example"]
    result = Result(
        mutant.name, KILLED, examples=1 + len(examples), seconds=sum(e["seconds"] for e in examples)
    )
    result.measure(folder, folder.events()[-1])
    return dataclasses.asdict(result)
