"""A GPU's memory where several workers share it: what one has cached, another cannot have.

An example that finds no memory lets go of what its process has cached and tries again while the others go on; it is
repeated whole, so its verdict does not depend on its neighbours. Imports torch. Exercise it with
``pytest tests/fuzz/test_memory.py``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

ATTEMPTS = 7
"""With waits that double from about 0.2 s, some 12 s in all: the largest examples of others last seconds."""

ROOM = 0.25
"""Share of a GPU's memory that stays free after an example, if giving up the cache can do it."""


def patiently(device: torch.device, run: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """``run()``, again after ``torch.cuda.OutOfMemoryError``. Raises that of the last attempt."""
    if device.type != "cuda":
        return run()
    for attempt in range(ATTEMPTS):
        try:
            return run()
        except torch.cuda.OutOfMemoryError:
            if attempt == ATTEMPTS - 1:
                raise
        finally:
            make_room(device)
        sleep(0.1 * 2**attempt * (1 + random.random()))
    raise AssertionError("unreachable: the last attempt returns or raises")


def make_room(device: torch.device) -> None:
    """Give cached memory back to the GPU if little of it is free."""
    free, total = torch.cuda.mem_get_info(device)
    if free < ROOM * total:
        torch.cuda.empty_cache()
