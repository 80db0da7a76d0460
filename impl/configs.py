"""Static kernel configurations: one per shape class and architecture, never tuned on a live pool.

A configuration may depend on (H, HV, K, V, C, dtypes, architecture) and on nothing else, so that a row's bits
depend on its own inputs only (DESIGN.md, section 4.1). Imports torch and the standard library. Exercise it with
``pytest tests/impl/test_configs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps

import torch


@dataclass(frozen=True)
class Launch:
    """Tile and launch parameters of one kernel."""

    tile: int  # channels, columns of V, or tokens
    num_warps: int
    num_stages: int
    max_registers: int | None = (
        None  # a thread's, so that more programs fit on a multiprocessor; None: as many as it likes
    )

    @property
    def options(self) -> dict[str, int]:
        """What Triton takes beside a kernel's own arguments."""
        options = dict(num_warps=self.num_warps, num_stages=self.num_stages)
        return options if self.max_registers is None else options | dict(maxnreg=self.max_registers)


@dataclass(frozen=True)
class Config:
    """Configurations of all kernels for one shape class."""

    conv: Launch
    conv_one_token: Launch  # of batches of one-token rows
    prepare: Launch
    scan: Launch
    recurrent: Launch
    gates: Launch


FEW_HEADS = 16
"""Up to so many value heads, the scan's tiles of V are half as wide, so that one long row has enough programs."""

GATES = Launch(16, 2, 1)
"""The gates are elementwise: one configuration serves every shape."""


PREPARE = {
    torch.bfloat16: Launch(64, 4, 1, 168),
    torch.float16: Launch(64, 4, 1),
    torch.float32: Launch(64, 8, 1),
}
"""By input dtype. With 168 registers, three programs of four warps share a multiprocessor; bf16 needs no more."""


def next_power_of_two(x: int) -> int:
    """The least power of two ≥ x."""
    return 1 << max(x - 1, 0).bit_length()


@lru_cache
def architecture(device: torch.device) -> str:
    """``sm_90`` and the like for a CUDA device, ``interpreter`` for a CPU."""
    if device.type != "cuda":
        return "interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


_overrides: dict[str, Launch] = {}


@contextmanager
def override(**launches: Launch) -> Iterator[None]:
    """Launches by kernel, in the place of the table's, for the tuning script (``fuzz/bench/tune.py``) and nobody else.

    Raises ``TypeError`` for a kernel that ``Config`` has not.
    """
    unknown = launches.keys() - Config.__dataclass_fields__.keys()
    if unknown:
        raise TypeError(
            f"override: no kernel is called {', '.join(sorted(unknown))}; expected some of {', '.join(Config.__dataclass_fields__)}"
        )
    before = dict(_overrides)
    _overrides.update(launches)
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)


def overrides() -> tuple[tuple[str, Launch], ...]:
    """What ``override`` set, for the key of whatever is remembered of a configuration; nothing, but while someone tunes."""
    return tuple(_overrides.items())


def _overridable(table: Callable[..., Config]) -> Callable[..., Config]:
    @wraps(table)
    def configured(*shape_class) -> Config:
        found = table(*shape_class)
        return replace(found, **_overrides) if _overrides else found

    return configured


@_overridable
@lru_cache
def config(HV: int, V: int, dtype: torch.dtype, arch: str) -> Config:
    """The configuration of one shape class: HV value heads of V columns, inputs of this dtype.

    The interpreter pays for each operation and nothing for width, so its tiles are as wide as the heads. On a
    GPU, narrow tiles of V give few heads enough programs; fp32 operands take twice the registers, so half the width.
    """
    BV = next_power_of_two(max(V, 16))
    if arch == "interpreter":
        whole = Launch(BV, 4, 1)
        conv = Launch(1 << 16, 4, 1)
        return Config(conv, conv, whole, whole, whole, gates=GATES)
    wide = dtype != torch.bfloat16
    return Config(
        conv=Launch(256, 4, 1),
        conv_one_token=Launch(128, 2, 1),
        prepare=PREPARE[dtype],
        scan=Launch(min(BV, 16), 4, 1) if wide else Launch(min(BV, 16 if HV <= FEW_HEADS else 32), 4, 3),
        recurrent=Launch(min(BV, 16), 4, 1),
        gates=GATES,
    )
