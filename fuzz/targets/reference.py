"""The oracle as a target: what passes every property, and the place to plant faults in.

It computes each row with the oracle's recurrence in float64, chunk by chunk over the absolute grid, carries fp32
between chunks and the stored value over boundaries, and rounds what it returns to the input dtype. So it keeps
every clause of the contract bitwise. A mock that is the oracle cannot rot.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_targets.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.geometry import chunks, read_column, state_end, write_columns
from gdn_apc.fuzz.targets.base import Batch, Layer, Target


@dataclass
class Line:
    """A live row of a batch: tokens ``at`` to ``at + m`` of the packed ones, positions n to n + m of its request."""

    index: int
    at: int
    n: int
    m: int
    table: list[int]


class ReferenceTarget(Target):
    """See the module. Subclasses plant faults by overriding one of the small methods."""

    name = "reference"

    def device(self) -> torch.device:
        return torch.device("cpu")

    # ---- the seams --------------------------------------------------------------------------------------------

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        starts, lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
        rows = [
            (lens[i] - (starts[i + 1] - starts[i]), starts[i + 1] - starts[i], table)
            for i, table in enumerate(batch.block_table.tolist())
        ]
        found = oracle.block_indices(rows, batch.block_size, batch.chunk_size)
        names = [name for name in found if name not in ("chunks", "write_columns")]
        return {name: torch.tensor(found[name]) for name in names}

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.zeros_like(x)
        for line in self.lines(batch):
            part = x[line.at : line.at + line.m]
            slot = self.read_slot(line, batch)
            window = None if slot is None else conv_state[slot].clone()
            y[line.at : line.at + line.m] = oracle.causal_conv1d(
                part, layer.conv_weight, layer.conv_bias, window, layer.activation
            ).to(x.dtype)
            for column, slot in self.write_slots(line, batch):
                tokens = state_end(column, line.n, line.m, batch.block_size) - line.n
                conv_state[slot] = self.window(part, window, tokens, layer).to(conv_state.dtype)
        return y

    def delta(
        self,
        layer: Layer,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        ssm_state: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        o = torch.zeros_like(v)
        for line in self.lines(batch):
            slot = self.read_slot(line, batch)
            state = None if slot is None else self.load(ssm_state[slot]).double()
            slots = dict(self.write_slots(line, batch))
            for start, end in self.chunks(line, batch):
                part = slice(line.at + start - line.n, line.at + end - line.n)
                out, states = oracle.recurrence(
                    *(t[part] for t in (q, k, v, g, beta)),
                    scale=layer.scale,
                    initial_state=state,
                    use_qk_l2norm=layer.use_qk_l2norm,
                )
                o[part] = out.to(v.dtype)
                state = states[-1].float().double()
                column = (end - 1) // batch.block_size
                if end == state_end(column, line.n, line.m, batch.block_size):
                    if column in slots:
                        ssm_state[slots[column]] = self.store(state).to(ssm_state.dtype)
                    state = self.carry(state, ssm_state.dtype)
        return o

    def core(
        self,
        layer: Layer,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        conv_state: torch.Tensor,
        ssm_state: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        y = self.conv(layer, x, conv_state, batch)
        q, k, v = oracle.split_qkv(y, layer.H, layer.HV, layer.K, layer.V)
        g, beta = self.gates(layer, a, b)
        return self.delta(layer, q, k, v, g, beta, ssm_state, batch)

    # ---- what a fault changes ---------------------------------------------------------------------------------

    def lines(self, batch: Batch) -> Iterator[Line]:
        """The rows that compute something."""
        starts, lens, tables = (
            t.tolist() for t in (batch.query_start_loc, batch.seq_lens, batch.block_table)
        )
        for i, (start, end) in enumerate(itertools.pairwise(starts)):
            if end > start:
                yield Line(i, start, lens[i] - (end - start), end - start, tables[i])

    def read_slot(self, line: Line, batch: Batch) -> int | None:
        """The slot that a row starts from, None for a fresh one."""
        return line.table[read_column(line.n, batch.block_size)] if line.n else None

    def write_slots(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        """(column, slot) of every column that a row writes."""
        columns = write_columns(line.n, line.m, batch.block_size)
        return [(j, line.table[j]) for j in columns if line.table[j]]

    def chunks(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        """The positions of a row's chunks."""
        return chunks(line.n, line.m, batch.block_size, batch.chunk_size)

    def window(self, x: torch.Tensor, window: torch.Tensor | None, tokens: int, layer: Layer) -> torch.Tensor:
        """The window after so many tokens of a row."""
        old = None if window is None else window.to(x.dtype)
        return oracle.window_after(x, old, tokens, layer.conv_weight.shape[1])

    def gates(self, layer: Layer, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """g and beta, fp32."""
        g, beta = oracle.gates(a, b, layer.A_log, layer.dt_bias)
        return g.float(), beta.float()

    def load(self, state: torch.Tensor) -> torch.Tensor:
        """What a row takes its slot's state to be."""
        return state

    def store(self, state: torch.Tensor) -> torch.Tensor:
        """What a row leaves in a slot, before it is rounded to the cache's dtype."""
        return state

    def carry(self, state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What a row goes on with after a boundary: what it stored."""
        return state.to(dtype).double()
