"""Is the answer right? Against the oracle in float64, before any timing: a wrong kernel gets no time.

The campaign (``pytest -m fuzz``) judges kernels to the last bit; here, full-size shapes are compared with the oracle's
chunk form (``oracle/wy.py``) by relative error: ‖actual - exact‖ / ‖exact‖ of every head of every stored state, and of
every head of every 64 tokens of the outputs, so that one wrong tile shows. Windows are copies: exact.
Imports torch, ``oracle``, ``problems``, ``inputs``. Exercise it with ``pytest tests/benchmarks/test_bench_run.py``.
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
class Stored:
    """What a column's slots of some rows must hold: ``[rows, HV, V, K]`` or ``[rows, W - 1, D]``."""

    rows: list[int]
    column: int
    last: bool  # each row's last column: what a peer without exports stores too
    exact: torch.Tensor


@dataclass
class Expected:
    """What a problem's first set must give, float64: outputs, and what the slots hold afterwards."""

    o: torch.Tensor | None = None  # [T, HV, V], or y: [T, D]
    gates: tuple[torch.Tensor, torch.Tensor] | None = None  # g, beta: [T, HV]
    indices: dict[str, Any] | None = None  # oracle.block_indices
    states: list[Stored] = field(default_factory=list)
    windows: list[Stored] = field(default_factory=list)


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
        q, k, v = oracle.split_qkv(oracle.round_to(y, p.dtype), p.H, p.HV, p.K, p.V)
        g, beta = oracle.gates(tensors["a"], tensors["b"], inputs.A_log, inputs.dt_bias)
    else:
        q, k, v, g, beta = first.tensors(p)
    _delta(inputs, (q, k, v, g, beta), want)
    return want


@dataclass
class Group:
    """Rows of one length m, which are computed together: their numbers, and their tokens [rows, m]."""

    rows: list[int]
    m: int
    tokens: torch.Tensor

    def slots(self, inputs: Inputs, column: int) -> torch.Tensor:
        """The rows' slots of a column of the first set, [rows]."""
        return inputs.sets[0].table[self.rows, column].long()


def groups(inputs: Inputs) -> Iterator[Group]:
    """The rows that have tokens, by length."""
    lengths = inputs.problem.lengths
    for m in sorted(set(lengths) - {0}):
        rows = [row for row, length in enumerate(lengths) if length == m]
        first = torch.tensor([inputs.offsets[row] for row in rows], device=inputs.device)
        yield Group(rows, m, first[:, None] + torch.arange(m, device=inputs.device))


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


def _read(inputs: Inputs, group: Group, pool: torch.Tensor) -> torch.Tensor | None:
    """What the rows start from, float64, or None."""
    p = inputs.problem
    return pool[group.slots(inputs, (p.computed - 1) // p.block_size)].double() if p.computed else None


def _delta(inputs: Inputs, operands: tuple[torch.Tensor, ...], want: Expected) -> None:
    """All rows of a length at once: rows are independent, so they count as heads."""
    p = inputs.problem
    want.o = torch.empty(p.tokens, p.HV, p.V, dtype=torch.float64, device=inputs.device)
    for group in groups(inputs):
        N, flat = len(group.rows), group.tokens.flatten()
        prepared = prepare(*(t[flat] for t in operands), p.K**-0.5, True, torch.float64)
        q, k, v, g, beta = (
            t.unflatten(0, (N, group.m)).transpose(1, 2).flatten(0, 1).contiguous() for t in prepared
        )
        S = _read(inputs, group, inputs.states)
        S = q.new_zeros(N * p.HV, p.V, p.K) if S is None else S.flatten(0, 1)
        for start, end, column in ends(p, group.m):
            o, S = chunk(S, *(t[:, start:end] for t in (q, k, v, g, beta)))
            want.o[group.tokens[:, start:end]] = o.unflatten(0, (N, p.HV)).transpose(1, 2)
            if column >= 0:
                exact = S.unflatten(0, (N, p.HV))
                want.states.append(Stored(group.rows, column, end == group.m, exact))
                S = oracle.round_to(S, p.state)  # the persisted carry


def _convolution(inputs: Inputs, want: Expected) -> torch.Tensor:
    """All rows of a length at once: channels are independent, so rows count as channels."""
    p, x = inputs.problem, inputs.sets[0].operands["x"]
    y = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    for group in groups(inputs):
        N = len(group.rows)
        wide = x[group.tokens].transpose(0, 1).flatten(1)  # [m, rows · D]
        window = _read(inputs, group, inputs.windows)
        window = None if window is None else window.to(x.dtype).transpose(0, 1).flatten(1)
        weight = inputs.weight.repeat(N, 1)
        out = oracle.causal_conv1d(wide, weight, None, window, "silu")
        y[group.tokens] = out.unflatten(1, (N, p.D)).transpose(0, 1)
        for _, end, column in ends(p, group.m):
            if column >= 0:
                tail = (
                    wide[end - (p.W - 1) : end]
                    if end >= p.W - 1
                    else oracle.window_after(wide, window, end, p.W)
                )
                exact = tail.unflatten(1, (N, p.D)).transpose(0, 1)
                want.windows.append(Stored(group.rows, column, end == group.m, exact))
    return y


@dataclass
class Answer:
    """What an implementation gave for the first set. Pools are those of the inputs, after the call.

    ``all_columns``: whether it stores every column that the contract names, or each row's last one alone.
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
    for name, exact, actual in zip(("g", "beta"), want.gates or (), got.gates or ()):
        error = (actual.double() - exact).norm() / exact.norm()
        worst = max(worst, _judge(p, name, float(error), "fp32"))
    if want.o is not None:
        worst = max(worst, _outputs(inputs, want.o, got.o))
    for stored in want.states:
        if got.all_columns or stored.last:
            actual = inputs.states[table[stored.rows, stored.column].long()].double()
            error = (actual - stored.exact).norm(dim=(2, 3)) / stored.exact.norm(dim=(2, 3)).clamp(min=1e-30)
            worst = max(worst, _worst_row(p, "the state", stored, error.amax(1)))
    for stored in want.windows:
        if got.all_columns or stored.last:
            actual = inputs.windows[table[stored.rows, stored.column].long()]
            same = (actual == stored.exact).flatten(1).all(1)
            if not same.all():
                row = stored.rows[int(same.logical_not().nonzero()[0])]
                raise Wrong(f"the window of row {row}, column {stored.column} is not a copy of the inputs")
    return worst


def _worst_row(p: Problem, what: str, stored: Stored, error: torch.Tensor) -> float:
    at = int(error.nan_to_num(torch.inf).argmax())
    return _judge(p, f"{what} of row {stored.rows[at]}, column {stored.column}", float(error[at]), p.dtype)


def _outputs(inputs: Inputs, want: torch.Tensor, got: torch.Tensor) -> float:
    """By tiles of 64 tokens of a row and a head (all channels of a convolution)."""
    p, worst = inputs.problem, 0.0
    if got.shape != want.shape:
        raise Wrong(f"outputs have shape {list(got.shape)}, expected {list(want.shape)}")
    for group in groups(inputs):
        square = []
        for t in (got[group.tokens].double() - want[group.tokens], want[group.tokens]):
            per_token = t.square().sum(-1).reshape(len(group.rows), group.m, -1)  # [rows, m, heads]
            padded = torch.nn.functional.pad(per_token, (0, 0, 0, -group.m % CHUNK))
            square.append(padded.unflatten(1, (-1, CHUNK)).sum(2))
        error = (square[0] / square[1].clamp(min=1e-30)).sqrt()  # [rows, tiles, heads]
        at = int(error.nan_to_num(torch.inf).flatten(1).amax(1).argmax())
        value = float(error[at].flatten().nan_to_num(torch.inf).max())
        worst = max(worst, _judge(p, f"the outputs of row {group.rows[at]}", value, p.dtype))
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


def _judge(p: Problem, what: str, error: float, dtype: str) -> float:
    limit = LIMIT[dtype]
    if not error <= limit:
        raise Wrong(f"{what}: relative error {error:.3g}, at most {limit:g} is right ({p.name})")
    return error
