"""A GPU for each worker, where there are several.

Imports the standard library; torch only to count GPUs. Exercise it with ``pytest tests/fuzz/test_devices.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


def count() -> int:
    """GPUs of this machine, without starting CUDA in this process."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def visible(environment: Mapping[str, str] = os.environ, counted: Callable[[], int] = count) -> list[str]:
    """Names of the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = environment.get(VISIBLE)
    if given is None:
        return [str(i) for i in range(counted())]
    return [name.strip() for name in given.split(",") if name.strip()]


def spread(specs: list[Any], gpus: list[str]) -> None:
    """Give the i-th of pytest-xdist's workers GPU i; they share where there are more workers than GPUs.

    The variable must be there before the worker starts, since CUDA reads it once; and it must be in the text of the
    specification, which is all that pytest-xdist keeps of it.
    """
    if len(gpus) > 1:
        for i, spec in enumerate(specs):
            if VISIBLE not in spec.env:
                specs[i] = type(spec)(f"{spec}//env:{VISIBLE}={gpus[i % len(gpus)]}")
