"""Work that needs no answer, shared out to child processes: compiling ahead, into the compilers' caches on disk.

Imports the standard library. Exercise it with ``pytest tests/fuzz/test_ahead.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


def share_out(work: Callable[[Any], None], tasks: Sequence[Any], jobs: int, limit_s: float) -> float:
    """Run ``work(task)`` for each task in ``jobs`` processes, for at most ``limit_s`` seconds; returns the seconds taken.

    ``work`` is a function of a module, and tasks can be pickled. What fails there is passed over: it fails again where it
    is reported. Children start with nothing of this process, so they may use a GPU.
    """
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    children = [context.Process(target=_work, args=(work, queue), daemon=True) for _ in range(jobs)]
    for child in children:
        child.start()
    # In a thread: a pipe holds some 64 KiB, and nobody empties it once time is up.
    threading.Thread(target=_feed, args=(queue, [*tasks, *[None] * jobs]), daemon=True).start()
    for child in children:
        child.join(max(0.0, limit_s - (time.monotonic() - began)))
    for child in children:
        child.terminate()
        child.join()
    return time.monotonic() - began


def _feed(queue: Any, tasks: list[Any]) -> None:
    for task in tasks:
        queue.put(task)


def _work(work: Callable[[Any], None], queue: Any) -> None:
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    while (task := queue.get()) is not None:
        try:
            work(task)
        except Exception:  # an impossible configuration, an implementation that breaks
            continue
