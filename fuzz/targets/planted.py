"""The reference target with one fault planted in each: bugs that were reported somewhere, or that a check must see.

A property that catches none of them cannot fail; ``tests/fuzz/test_properties.py`` says which catches which. They are
targets like any other: ``pytest -m fuzz --target gdn_apc.fuzz.targets.planted:DropsBoundary``.
Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_properties.py``.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch

from gdn_apc.fuzz.geometry import read_column, write_columns
from gdn_apc.fuzz.targets.base import Batch, Layer
from gdn_apc.fuzz.targets.reference import Line, ReferenceTarget


class ReadsFirstScheduled(ReferenceTarget):
    """The read column is floor(n / B): right inside a block, one too far on a boundary."""

    def read_slot(self, line: Line, batch: Batch) -> int | None:
        return line.table[line.n // batch.block_size] if line.n else None


class DropsBoundary(ReferenceTarget):
    """Only the last column of a step is written."""

    def write_slots(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        return super().write_slots(line, batch)[-1:]


class Transposes(ReferenceTarget):
    """States are stored [K, V]: hidden by K = V and a symmetric state."""

    def store(self, state: torch.Tensor) -> torch.Tensor:
        return state.mT.reshape(state.shape)


class WritesShared(ReferenceTarget):
    """A step shorter than the window writes where it read (vllm 56196)."""

    def write_slots(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        slots = super().write_slots(line, batch)
        if 0 < line.m < 3 and line.n and slots:
            return [(slots[0][0], self.read_slot(line, batch)), *slots[1:]]
        return slots


class StateByLength(ReferenceTarget):
    """A row of one token is taken for a decode, so a fresh one reads what its slot held (vllm 51562)."""

    def read_slot(self, line: Line, batch: Batch) -> int | None:
        return line.table[0] if line.n == 0 and line.m == 1 else super().read_slot(line, batch)


class StaleWindow(ReferenceTarget):
    """A step shorter than the window forgets the inputs before it."""

    def window(self, x: torch.Tensor, window: torch.Tensor | None, tokens: int, layer: Layer) -> torch.Tensor:
        return super().window(x, None, tokens, layer)


class CarriesUnrounded(ReferenceTarget):
    """After a boundary the step goes on from the unrounded state (sglang 33515)."""

    def carry(self, state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return state


class WritesNull(ReferenceTarget):
    """Null columns are written like any other."""

    def write_slots(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        return [(j, line.table[j]) for j in write_columns(line.n, line.m, batch.block_size)]


class RoundsBeta(ReferenceTarget):
    """beta goes through bf16 (vllm 53877)."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, v, g, beta.bfloat16().float(), ssm_state, batch)


class GridFromStart(ReferenceTarget):
    """Chunks count from the step's start (vllm 38561)."""

    def chunks(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        edges = {line.n, line.n + line.m, *range(line.n, line.n + line.m, batch.chunk_size)}
        edges |= {p for p in range(line.n, line.n + line.m) if p % batch.block_size == 0}
        ordered = sorted(edges)
        return list(itertools.pairwise(ordered))


class DependsOnBatch(ReferenceTarget):
    """Another chunk size when the batch has several rows."""

    def chunks(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        if len(batch.seq_lens) > 1:
            batch = dataclasses.replace(batch, chunk_size=3)
        return super().chunks(line, batch)


class DependsOnSlot(ReferenceTarget):
    """Another chunk size when the last column's slot is odd."""

    def chunks(self, line: Line, batch: Batch) -> list[tuple[int, int]]:
        last = write_columns(line.n, line.m, batch.block_size)[-1]
        if line.table[last] % 2:
            batch = dataclasses.replace(batch, chunk_size=3)
        return super().chunks(line, batch)


class MultipliesTail(ReferenceTarget):
    """A mask that multiplies by zero: NaN after the last token gets through (ascend 11807, vllm 57158)."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, v + 0 * v[-1:], g, beta, ssm_state, batch)

    def conv(self, layer, x, conv_state, batch):
        return super().conv(layer, x + 0 * x[-1:], conv_state, batch)


class MultipliesForeign(ReferenceTarget):
    """Fresh rows start from zero times the null block."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        return out + 0 * ssm_state[0].sum().to(out.dtype)

    def conv(self, layer, x, conv_state, batch):
        out = super().conv(layer, x, conv_state, batch)
        return out + 0 * conv_state[0].sum().to(out.dtype)


class IgnoresHit(ReferenceTarget):
    """Every step of two tokens or more starts from nothing (transformers 45513)."""

    def read_slot(self, line: Line, batch: Batch) -> int | None:
        return None if line.m > 1 else super().read_slot(line, batch)


class Remembers(ReferenceTarget):
    """States are kept beside the pool, and the pool is never read: right until a slot holds something else."""

    def _through(self, state: torch.Tensor, call, batch: Batch) -> torch.Tensor:
        kept = state.__dict__.setdefault("kept", {})  # dies with the pool's view
        shadow = state.clone()
        for slot, held in kept.items():
            shadow[slot] = held
        out = call(shadow)
        for line in self.lines(batch):
            for _, slot in self.write_slots(line, batch):
                state[slot] = shadow[slot]
                kept[slot] = shadow[slot].clone()
        return out

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        inner = super().delta
        return self._through(ssm_state, lambda s: inner(layer, q, k, v, g, beta, s, batch), batch)

    def conv(self, layer, x, conv_state, batch):
        inner = super().conv
        return self._through(conv_state, lambda s: inner(layer, x, s, batch), batch)


class WritesPastState(ReferenceTarget):
    """One element after a slot's state is overwritten."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        for line in self.lines(batch):
            for _, slot in self.write_slots(line, batch):
                end = ssm_state.storage_offset() + slot * ssm_state.stride(0) + ssm_state[0].numel()
                ssm_state.as_strided((1,), (1,), end).fill_(1.0)
        return out


class RunsPadding(ReferenceTarget):
    """A padding row writes where its stale table points (vllm 37728)."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        out = super().delta(layer, q, k, v, g, beta, ssm_state, batch)
        self._zero(ssm_state, batch)
        return out

    def conv(self, layer, x, conv_state, batch):
        out = super().conv(layer, x, conv_state, batch)
        self._zero(conv_state, batch)
        return out

    def _zero(self, state: torch.Tensor, batch: Batch) -> None:
        lengths = batch.query_start_loc.diff().tolist()
        for i, n in enumerate(batch.seq_lens.tolist()):
            if lengths[i] == 0 and n:
                state[
                    batch.block_table[
                        i, min(read_column(n, batch.block_size), batch.block_table.shape[1] - 1)
                    ]
                ] = 0


class WrapsOffsets(ReferenceTarget):
    """Element offsets are int32 (flashinfer 3230, vllm 35275): far slots land elsewhere."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return super().delta(layer, q, k, v, g, beta, ssm_state, self._wrapped(ssm_state, batch))

    def conv(self, layer, x, conv_state, batch):
        return super().conv(layer, x, conv_state, self._wrapped(conv_state, batch))

    @staticmethod
    def _wrapped(state: torch.Tensor, batch: Batch) -> Batch:
        offset = batch.block_table.long() * state.stride(0)
        low = (offset + 2**31) % 2**32 - 2**31
        return dataclasses.replace(batch, block_table=(low // state.stride(0)).clamp(min=0).int())


class MixesHeads(ReferenceTarget):
    """Value head h uses key head h mod H."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        order = [h % layer.H for h in range(layer.HV)]
        layer = dataclasses.replace(layer, H=layer.HV)
        return super().delta(layer, q[:, order], k[:, order], v, g, beta, ssm_state, batch)


class DefaultsScale(ReferenceTarget):
    """scale = 0 is taken for "not given" (flashinfer 3165)."""

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        layer = dataclasses.replace(layer, scale=layer.scale or layer.K**-0.5)
        return super().delta(layer, q, k, v, g, beta, ssm_state, batch)


class LastColumnTooFar(ReferenceTarget):
    """block_idx_last_scheduled_token is floor((n + m) / B)."""

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        found = super().metadata(batch)
        live = found["num_scheduled_tokens"] > 0
        last = torch.where(live, batch.seq_lens // batch.block_size, 0)
        return found | {"block_idx_last_scheduled_token": last}


class KeepsPaddedIndices(ReferenceTarget):
    """Indices of padding rows are computed from their stale lengths."""

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        first = (batch.seq_lens - batch.query_start_loc.diff()) // batch.block_size
        return super().metadata(batch) | {"block_idx_first_scheduled_token": first}


FAULTS = {
    c.__name__: c for c in vars().copy().values() if isinstance(c, type) and ReferenceTarget in c.__mro__[1:]
}
"""Every faulty target by name."""
