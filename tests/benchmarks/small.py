"""Problems that a CPU solves in a moment, for the tests of the benchmarks."""

from __future__ import annotations

import pytest
import torch

from gdn_apc.fuzz.bench.problems import IN_PLACE, SLOT_TO_SLOT, Problem

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="small shapes through the interpreter: for a machine without a GPU"
)
SMALL = dict(K=16, V=16)
PREFILLS = [Problem(op, 1, 2, (70, 5), block=32, **SMALL) for op in ("delta", "conv", "gates", "core")]
LAST = Problem("delta", 1, 2, (70, 5), **SMALL)
DECODES = [
    Problem("decode", 1, 2, (1,) * 3, n, block=16, state=state, variant=variant, **SMALL)
    for variant, n in ((IN_PLACE, 20), (SLOT_TO_SLOT, 32))
    for state in ("fp32", "bf16")
]
METADATA = Problem("metadata", 1, 2, (1, 1, 40, 1), 10, block=16, variant="3 groups")


def row(name: str = "delta/x", impl: str = "native", **others) -> dict:
    """A row of results."""
    return (
        dict(
            op="delta",
            impl=impl,
            heads="16/32",
            shape="1x8192",
            export=1024,
            dtype="bf16/fp32",
            ms=1.0,
            low_ms=0.9,
            high_ms=1.1,
            eager_ms=1.5,
            host_ms=0.2,
            graph_ms=None,
            floor_ms=0.05,
            ratio=20.0,
            error=0.004,
            device="NVIDIA H200",
            name=name,
            variant="",
            tokens=8192,
            version="1",
        )
        | others
    )
