"""Is the answer right? Against the oracle in float64, before any timing: a wrong kernel gets no time.

The campaign (``pytest -m fuzz``) judges kernels to the last bit; here, full-size shapes are compared with the oracle's
chunk form (``oracle/wy.py``) by relative error: ‖actual - exact‖ / ‖exact‖ of every head of every stored state, and of
every head of every 64 tokens of the outputs, so that one wrong tile shows. Windows are copies: exact.
Imports torch, ``oracle``, ``problems``, ``inputs``. Exercise it with ``pytest tests/benchmarks/test_run.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.bench.inputs import Inputs
from gdn_apc.fuzz.bench.problems import CHUNK, Problem
from gdn_apc.oracle.delta_rule import prepare
from gdn_apc.oracle.wy import chunk

LIMIT = {"bf16": 2e-2, "fp16": 5e-3, "fp32": 1e-3}
"""Largest relative error by the operands' dtype: a few times what right kernels show (bf16: 4e-3 to 8e-3)."""


class Wrong(Exception):
    """The implementation computes something else; the message says where and by how much."""


@dataclass
class Expected:
    """What a problem's first set must give, float64: outputs, and what each column's slot holds afterwards."""

    o: torch.Tensor | None = None  # [T, HV, V], or y: [T, D]
    gates: tuple[torch.Tensor, torch.Tensor] | None = None  # g, beta: [T, HV]
    indices: dict[str, Any] | None = None  # oracle.block_indices
    states: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # (row, column) → [HV, V, K]
    windows: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # (row, column) → [W - 1, D]


def expected(inputs: Inputs) -> Expected:
    """The oracle's answer for the first set, from the pools as they are now."""
    p, first = inputs.problem, inputs.sets[0]
    want, tensors = Expected(), first.operands
    if p.op == "metadata":
        tables = first.table.tolist()
        want.indices = oracle.block_indices(
            [(p.computed, m, t) for m, t in zip(p.lengths, tables)], p.block_size, CHUNK
        )
        return want
    if p.op == "gates":
        want.gates = oracle.gates(tensors["a"], tensors["b"], inputs.A_log, inputs.dt_bias)
        return want
    if p.op in ("conv", "core", "decode"):
        y = _convolution(inputs, want)
        if p.op == "conv":
            want.o = y
            return want
        y = oracle.round_to(y, p.dtype)
        q, k, v = oracle.split_qkv(y, p.H, p.HV, p.K, p.V)
        g, beta = oracle.gates(tensors["a"], tensors["b"], inputs.A_log, inputs.dt_bias)
    else:
        q, k, v, g, beta = first.tensors(p)
    _delta(inputs, (q, k, v, g, beta), want)
    return want


def _rows(inputs: Inputs) -> Iterator[tuple[int, slice, int | None]]:
    """(row, its packed tokens, the slot that it reads or None)."""
    p, table = inputs.problem, inputs.sets[0].table
    for row, m in enumerate(p.lengths):
        read = int(table[row, (p.computed - 1) // p.block_size]) if p.computed else None
        yield row, slice(inputs.offsets[row], inputs.offsets[row] + m), read


def ends(p: Problem, m: int) -> Iterator[tuple[int, int, int]]:
    """(first token, end, column or -1) of a row's chunks; a column where the chunk's end is stored."""
    n, B = p.computed, p.block_size
    position = n
    while position < n + m:
        column = position // B
        end = min((column + 1) * B, n + m)
        next_edge = column * B + ((position - column * B) // CHUNK + 1) * CHUNK
        edges = [position, *range(next_edge, end, CHUNK), end]
        for start, stop in pairwise(edges):
            yield start - n, stop - n, column if stop == end else -1
        position = end


def _delta(inputs: Inputs, operands: tuple[torch.Tensor, ...], want: Expected) -> None:
    p = inputs.problem
    want.o = torch.empty(p.tokens, p.HV, p.V, dtype=torch.float64, device=inputs.device)
    for row, part, read in _rows(inputs):
        q, k, v, g, beta = (
            t.transpose(0, 1) for t in prepare(*(t[part] for t in operands), p.K**-0.5, True, torch.float64)
        )
        S = torch.zeros(p.HV, p.V, p.K, dtype=torch.float64, device=inputs.device)
        if read is not None:
            S = inputs.states[read].double()
        for start, end, column in ends(p, part.stop - part.start):
            tile = slice(start, end)
            o, S = chunk(S, *(t[:, tile] for t in (q, k, v, g, beta)))
            want.o[part][tile] = o.transpose(0, 1)
            if column >= 0:
                want.states[row, column] = S
                S = oracle.round_to(S, p.state)  # the persisted carry


def _convolution(inputs: Inputs, want: Expected) -> torch.Tensor:
    p, x = inputs.problem, inputs.sets[0].operands["x"]
    y = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    for row, part, read in _rows(inputs):
        window = None if read is None else inputs.windows[read].clone()
        y[part] = oracle.causal_conv1d(x[part], inputs.weight, None, window, "silu")
        for _, end, column in ends(p, part.stop - part.start):
            if column >= 0:
                inside = end >= p.W - 1
                want.windows[row, column] = (
                    x[part][end - (p.W - 1) : end]
                    if inside
                    else oracle.window_after(x[part], window, end, p.W)
                )
    return y


@dataclass
class Answer:
    """What an implementation gave for the first set. Pools are those of the inputs, after the call.

    ``columns``: which columns it stores: all that the contract names, or each row's last one alone.
    """

    o: torch.Tensor | None = None
    gates: tuple[torch.Tensor, torch.Tensor] | None = None
    indices: list[dict[str, Any]] | None = None  # the fields of each group's metadata
    all_columns: bool = True


def check(inputs: Inputs, want: Expected, got: Answer) -> float:
    """The largest relative error; raises ``Wrong`` where it is beyond ``LIMIT``, or a slot was not written."""
    p, table = inputs.problem, inputs.sets[0].table
    worst = 0.0
    for found in got.indices or ():
        _indices(p, want.indices, found)
    if want.gates is not None:
        for name, w, g in zip(("g", "beta"), want.gates, got.gates):
            worst = max(worst, _compare(p, name, w, g, "fp32"))
    if want.o is not None:
        worst = max(worst, _outputs(p, want.o, got.o))
    last = {row: max(c for r, c in want.states if r == row) for row, _ in want.states}
    for (row, column), state in want.states.items():
        if got.all_columns or column == last[row]:
            actual = inputs.states[int(table[row, column])]
            worst = max(worst, _compare(p, f"state of row {row}, column {column}", state, actual, p.dtype))
    last = {row: max(c for r, c in want.windows if r == row) for row, _ in want.windows}
    for (row, column), window in want.windows.items():
        if got.all_columns or column == last[row]:
            actual = inputs.windows[int(table[row, column])]
            if not torch.equal(actual.double(), window.double()):
                raise Wrong(f"the window of row {row}, column {column} is not a copy of the inputs")
    return worst


def _indices(p: Problem, want: dict[str, Any], got: dict[str, Any]) -> None:
    """Exactly the brute-force builder's; chunks beyond the last are -1."""
    for name in sorted(want.keys() & got.keys() - {"max_query_len"}):
        actual = got[name].tolist() if isinstance(got[name], torch.Tensor) else got[name]
        if actual is None:
            continue
        exact = want[name] + [-1] * (len(actual) - len(want[name])) if name == "chunk_row" else want[name]
        if actual != exact:
            raise Wrong(f"{name} is {str(actual)[:80]}, expected {str(exact)[:80]} ({p.name})")


def _outputs(p: Problem, want: torch.Tensor, got: torch.Tensor) -> float:
    if got.shape != want.shape:
        raise Wrong(f"outputs have shape {list(got.shape)}, expected {list(want.shape)}")
    worst, at = 0.0, 0
    for m in p.lengths:
        for start in range(at, at + m, 64 * CHUNK):
            part = slice(start, min(start + 64 * CHUNK, at + m))
            w, g = (
                t[part].double().flatten(2) if t.dim() == 3 else t[part].double()[:, None]
                for t in (want, got)
            )
            pad = -w.shape[0] % CHUNK
            w, g = (
                torch.nn.functional.pad(t, (0, 0, 0, 0, 0, pad)).unflatten(0, (-1, CHUNK)) for t in (w, g)
            )
            error = ((g - w).norm(dim=(1, 3)) / w.norm(dim=(1, 3)).clamp(min=1e-30)).max()
            worst = max(
                worst, _judge(p, f"outputs of tokens {part.start} to {part.stop}", float(error), p.dtype)
            )
        at += m
    return worst


def _compare(p: Problem, what: str, want: torch.Tensor, got: torch.Tensor, dtype: str) -> float:
    """Relative error of each head; the first axis of a state, all of anything else."""
    want, got = want.double(), got.double()
    if want.dim() == 3:
        error = ((got - want).norm(dim=(1, 2)) / want.norm(dim=(1, 2)).clamp(min=1e-30)).max()
    else:
        error = (got - want).norm() / want.norm().clamp(min=1e-30)
    return _judge(p, what, float(error), dtype)


def _judge(p: Problem, what: str, error: float, dtype: str) -> float:
    limit = LIMIT[dtype]
    if not error <= limit:
        raise Wrong(f"{what}: relative error {error:.3g}, at most {limit:g} is right ({p.name})")
    return error
