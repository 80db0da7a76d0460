"""One campaign at a time in a run folder: locks that the kernel takes back when a process dies, however it dies.

The controller holds ``.lock`` alone; its workers share ``.lock-workers``. Who wants to go on in a folder needs both:
workers of a controller that was killed may live on for a moment, and would write what is being read.

Imports the standard library and ``fuzz.runs``. Exercise it with ``pytest tests/fuzz/test_resume.py``.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import IO

from gdn_apc.fuzz.runs import RunFolder, Unwritable

PATIENCE = 20.0
"""Seconds that workers of a dead controller get to end."""


class Taken(Exception):
    """Another process is running a campaign in this folder."""


def control(run: RunFolder, patience: float | None = PATIENCE) -> IO[str]:
    """Take the folder for one controller; the lock lasts as long as the returned file is open. Raises :class:`Taken`.

    ``patience``: seconds to wait for workers of an earlier controller; None: those that are there are ours.
    """
    file = _open(run, ".lock")
    if not _lock(file, fcntl.LOCK_EX):
        owner = os.pread(file.fileno(), 20, 0).decode(errors="replace").strip()
        file.close()
        raise Taken(
            f"run folder: {run.path} is in use by process {owner or '?'}; wait for it, stop it, or choose another folder"
        )
    os.ftruncate(file.fileno(), 0)
    os.pwrite(file.fileno(), str(os.getpid()).encode(), 0)
    if patience is not None:
        try:
            _no_workers(run, patience)
        except Taken:
            file.close()
            raise
    return file


def work(run: RunFolder) -> IO[str]:
    """A worker's share of the folder, for as long as the returned file is open."""
    file = _open(run, ".lock-workers")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _no_workers(run: RunFolder, patience: float) -> None:
    """Wait until no worker of an earlier controller is left. Raises :class:`Taken`."""
    with _open(run, ".lock-workers") as file:
        until = time.monotonic() + patience
        while not _lock(file, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise Taken(
                    f"run folder: {run.path} is in use by workers of an earlier campaign; stop them first"
                )
            time.sleep(0.1)


def _open(run: RunFolder, name: str) -> IO[str]:
    try:
        return open(run.path / name, "a+")
    except OSError as e:
        raise Unwritable(run.path, e) from e


def _lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
