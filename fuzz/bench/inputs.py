"""Random tensors of a problem: as many sets as it takes to leave the L2 behind, and fresh ones for every check.

Zeros are faster than data, and a buffer that fits in the cache measures the cache: so every number is random, and
calls rotate over sets with slots of their own. Pools start as NaN but for the slots that are read, so that an unwritten
state shows. Imports torch and ``problems``, ``floors``. Exercise it with ``pytest tests/benchmarks/test_bench_run.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch

from gdn_apc.fuzz.bench.floors import traffic
from gdn_apc.fuzz.bench.problems import Problem

L2_BYTES = 60 << 20
"""Of an H200. Sets add up to more than twice as much."""
MOST_SETS = 64

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OPERANDS = {
    "conv": ("x",),
    "gates": ("a", "b"),
    "delta": ("q", "k", "v", "g", "beta"),
    "core": ("x", "a", "b"),
    "decode": ("x", "a", "b"),
    "metadata": (),
}


@dataclass
class Set:
    """One batch: packed operands by name, and its own columns of slots.

    ``x: [T, D]``; ``a, b: [T, HV]``; ``q, k: [T, H, K]`` of length 1; ``v: [T, HV, V]``; ``g, beta: [T, HV]`` fp32; ``table:
    [N, columns]`` int32 slots; ``seq_lens: [N]``, ``query_start_loc: [N + 1]`` int32.
    """

    operands: dict[str, torch.Tensor]
    table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor

    def tensors(self, problem: Problem) -> list[torch.Tensor]:
        """The operands in the order of ``OPERANDS``."""
        return [self.operands[name] for name in OPERANDS[problem.op]]


@dataclass
class Inputs:
    """All sets of a problem, the layer's parameters, and the pools that they share."""

    problem: Problem
    sets: list[Set]
    weight: torch.Tensor  # [D, W]
    A_log: torch.Tensor  # [HV] fp32
    dt_bias: torch.Tensor  # [HV] fp32
    windows: torch.Tensor  # [slots, W - 1, D]
    states: torch.Tensor  # [slots, HV, V, K]
    offsets: list[int]

    @property
    def device(self) -> torch.device:
        """Where everything lives."""
        return self.weight.device


def sets_of(problem: Problem) -> int:
    """How many sets rotate."""
    return max(2, min(MOST_SETS, -(-2 * L2_BYTES // max(traffic(problem), 1))))


def make(problem: Problem, device: torch.device, seed: int = 0, sets: int | None = None) -> Inputs:
    """Random inputs of a problem; ``sets`` None means enough to leave the cache behind."""
    p, gen = problem, torch.Generator(device).manual_seed(seed)
    dtype, N = DTYPES[p.dtype], len(p.lengths)
    count = sets or (sets_of(p) if device.type == "cuda" else 2)
    columns = p.columns
    has_pool = p.op != "gates"
    slots = 1 + count * N * columns if has_pool and p.op != "metadata" else 2

    def normal(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=gen, device=device, dtype=torch.float32).to(dtype)

    needs_state = p.op in ("delta", "core", "decode")
    needs_window = p.op in ("conv", "core", "decode")
    states = _pool(slots if needs_state else 2, (p.HV, p.V, p.K), DTYPES[p.state], device)
    windows = _pool(slots if needs_window else 2, (p.W - 1, p.D), dtype, device)
    offsets = [0, *accumulate(p.lengths)]
    made = []
    for i in range(count):
        table = 1 + i * N * columns + torch.arange(N * columns, dtype=torch.int32, device=device)
        table = table.view(N, columns)
        if p.computed:
            read = table[:, (p.computed - 1) // p.block_size].long()
            if needs_state:
                states[read] = normal(N, p.HV, p.V, p.K, dtype=DTYPES[p.state])
            if needs_window:
                windows[read] = normal(N, p.W - 1, p.D)
        made.append(
            Set(
                {name: _operand(p, name, normal) for name in OPERANDS[p.op]},
                table,
                torch.tensor([p.computed + m for m in p.lengths], dtype=torch.int32, device=device),
                torch.tensor(offsets, dtype=torch.int32, device=device),
            )
        )
    return Inputs(
        p,
        made,
        (normal(p.D, p.W, dtype=torch.float32) / 2).to(dtype),
        normal(p.HV, dtype=torch.float32) / 4,
        normal(p.HV, dtype=torch.float32) / 4,
        windows,
        states,
        offsets,
    )


def _pool(slots: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((slots, *shape), float("nan"), dtype=dtype, device=device)


def _operand(p: Problem, name: str, normal) -> torch.Tensor:
    """One operand. Gates are those of a trained layer: most tokens keep most of the state."""
    if name in ("q", "k"):
        heads = normal(p.tokens, p.H, p.K, dtype=torch.float32)
        return torch.nn.functional.normalize(heads, dim=-1).to(DTYPES[p.dtype])
    if name == "v":
        return normal(p.tokens, p.HV, p.V)
    if name == "g":
        return -0.1 * normal(p.tokens, p.HV, dtype=torch.float32).abs()
    if name == "beta":
        return normal(p.tokens, p.HV, dtype=torch.float32).sigmoid()
    if name == "x":
        return normal(p.tokens, p.D)
    return normal(p.tokens, p.HV) - (3 if name == "a" else 0)
