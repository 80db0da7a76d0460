"""An installed vLLM's own GDN kernels as targets: code that was not written here.

``vllm`` drives the chunk, recurrent and convolution kernels of vLLM's Flash-Linear-Attention copy. They know no
blocks: a layer hands them one slot for each row. So the adapter plays the engine: it cuts a prefill at every
boundary, and between two calls copies a row's state from the slot it was read from to the slot it goes to, as
vLLM's ``align`` mode does. What this makes true by construction (boundary states, carry through the stored value,
null slots) says nothing about vLLM; what it shows is whether the kernels compute the rule, from any start and in any
batch, and touch nothing else.

``vllm-all`` instead asks the convolution of vLLM's ``all`` cache mode, which walks the block table itself, with the
indices that vLLM's own builder computes.

Not claimed: fp32 inputs (the chunk wrapper refuses them), chunks other than 64, block-index metadata by our names.
Chunks count from where a call starts, which is the absolute grid wherever a cut is free, as the adapter's calls end
at boundaries. Where vLLM deviates from what it is asked here, and why: ``tests/anchors/vllm_deviations.py``.
``_vllm_loader.py`` says how vLLM is found; without a GPU the kernels run in the interpreter. Imports torch and, when constructed, single files of vLLM.
Exercise it with ``GDN_APC_VLLM=DIR pytest tests/anchors/test_vllm_target.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import torch

from gdn_apc.fuzz.targets import TargetUnavailable, _vllm_loader
from gdn_apc.fuzz.targets._vllm_loader import CONV, FLA
from gdn_apc.fuzz.targets.base import Batch, Claims, Layer, Target

CHUNK = 64
"""vLLM's ``FLA_CHUNK_SIZE``."""


@dataclass(frozen=True)
class Piece:
    """Part of a row between two boundaries: packed tokens ``[start, end)``, from slot ``source`` to ``destination``.

    ``source`` is None where the row starts from nothing. A slot is 0 where its column is null: then the state
    stays with the adapter, in the cache's dtype.
    """

    row: int
    start: int
    end: int
    source: int | None
    destination: int


class VllmTarget(Target):
    """See the module. Raises :class:`TargetUnavailable` without a supported vLLM."""

    name = "vllm"
    runs_triton = True
    claims = Claims(
        seams=frozenset({"conv", "delta", "core"}),
        input_dtypes=frozenset({"bf16", "fp16"}),
        chunk_sizes=frozenset({CHUNK}),
    )

    def __init__(self) -> None:
        try:
            self.found = _vllm_loader.find()
            names = ("chunk", "fused_recurrent", "fused_gdn_prefill_post_conv")
            modules = _vllm_loader.load(self.found, *(f"{FLA}.{name}" for name in names), CONV)
        except (_vllm_loader.VllmMissing, _vllm_loader.VllmUnsupported) as e:
            raise TargetUnavailable(f"target: {self.name!r} cannot run here: {e}") from e
        self.chunk, self.recurrent, self.prepare, self.convolution = modules

    def versions(self) -> dict[str, str]:
        """torch, triton and vllm."""
        import triton

        return {"torch": torch.__version__, "triton": triton.__version__, "vllm": self.found.version}

    # ---- the seams --------------------------------------------------------------------------------------------

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.zeros_like(x)
        decode, rounds = schedule(batch)
        cache = Cache(conv_state)
        if decode:
            self._conv_decode(layer, x, y, cache, decode)
        for pieces in rounds:
            self._conv_prefill(layer, x, y, cache, pieces)
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
        decode, rounds = schedule(batch)
        inputs, cache = (q, k, v, g, beta), Cache(ssm_state)
        if decode:
            self._delta_decode(layer, inputs, o, cache, decode)
        for pieces in rounds:
            at = tokens_of(pieces, q.device)
            o[at] = self._chunk(layer, [t[at] for t in inputs], layer.use_qk_l2norm, cache, pieces)
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
        o = x.new_zeros(x.shape[0], layer.HV, layer.V)
        y = self.conv(layer, x, conv_state, batch)
        decode, rounds = schedule(batch)
        cache = Cache(ssm_state)
        if decode:
            self._core_decode(layer, y, a, b, o, cache, decode)
        for pieces in rounds:
            at = tokens_of(pieces, x.device)
            inputs = self.prepare.fused_post_conv_prep(
                y[at],
                a[at],
                b[at],
                layer.A_log,
                layer.dt_bias,
                layer.H,
                layer.K,
                layer.V,
                layer.use_qk_l2norm,
            )
            o[at] = self._chunk(layer, inputs, False, cache, pieces)
        return o

    # ---- one call of one kernel -------------------------------------------------------------------------------

    def _chunk(self, layer: Layer, inputs, l2norm: bool, cache: Cache, pieces: list[Piece]) -> torch.Tensor:
        """The chunk kernels over one piece of each row: o of its tokens; final states go to their slots."""
        q, k, v, g, beta = inputs
        initial = cache.pages.new_zeros(len(pieces), *cache.pages.shape[1:])
        for i, piece in enumerate(pieces):
            if piece.source is not None:
                initial[i] = cache.read(piece)
        o, final = self.chunk.chunk_gated_delta_rule(
            *(t[None].contiguous() for t in (q, k, v, g, beta)),
            scale=layer.scale,
            initial_state=initial,
            output_final_state=True,
            cu_seqlens=offsets(pieces, q.device),
            use_qk_l2norm_in_kernel=l2norm,
        )
        for piece, state in zip(pieces, final):
            cache.write(piece, state)
        return o[0]

    def _delta_decode(self, layer: Layer, inputs, o: torch.Tensor, cache: Cache, pieces: list[Piece]) -> None:
        """The recurrent kernel on one-token rows, in place in the pages."""
        at = tokens_of(pieces, o.device)
        q, k, v, g, beta = (t[at].contiguous()[None] for t in inputs)
        with cache.in_place(pieces) as (states, slots):
            # The public wrapper asserts scale > 0; the layer never passes another.
            out, _ = self.recurrent.fused_recurrent_gated_delta_rule_fwd(
                q, k, v, g, beta,
                scale=layer.scale,
                initial_state=states,
                cu_seqlens=torch.arange(len(pieces) + 1, dtype=torch.int32, device=o.device),
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=layer.use_qk_l2norm,
            )  # fmt: skip
        o[at] = out[0]

    def _core_decode(self, layer: Layer, y, a, b, o: torch.Tensor, cache: Cache, pieces: list[Piece]) -> None:
        """The packed decode kernel: gates, normalisation and recurrence of one-token rows, in place in the pages."""
        at = tokens_of(pieces, o.device)
        out = o.new_empty(len(pieces), 1, layer.HV, layer.V)
        with cache.in_place(pieces) as (states, slots):
            self.recurrent.fused_recurrent_gated_delta_rule_packed_decode(
                y[at].contiguous(), a[at].contiguous(), b[at].contiguous(), layer.A_log, layer.dt_bias,
                scale=layer.scale,
                initial_state=states,
                out=out,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=layer.use_qk_l2norm,
            )  # fmt: skip
        o[at] = out[:, 0]

    def _conv_prefill(self, layer: Layer, x, y, cache: Cache, pieces: list[Piece]) -> None:
        """The varlen convolution over one piece of each row, in place in the pages."""
        at = tokens_of(pieces, x.device)
        warm = [p.source is not None for p in pieces]
        with cache.in_place(pieces) as (states, slots):
            out = self.convolution.causal_conv1d_fn(
                x[at].T,
                layer.conv_weight,
                layer.conv_bias,
                conv_states=states.transpose(1, 2),
                query_start_loc=offsets(pieces, x.device),
                cache_indices=slots,
                has_initial_state=torch.tensor(warm, device=x.device),
                activation=layer.activation,
            )
        y[at] = out.T

    def _conv_decode(self, layer: Layer, x, y, cache: Cache, pieces: list[Piece]) -> None:
        """The one-token convolution, in place in the pages."""
        at = tokens_of(pieces, x.device)
        with cache.in_place(pieces) as (states, slots):
            y[at] = self.convolution.causal_conv1d_update(
                x[at].contiguous(),
                states.transpose(1, 2),
                layer.conv_weight,
                layer.conv_bias,
                layer.activation,
                conv_state_indices=slots,
            )


class VllmAllTarget(VllmTarget):
    """vLLM's convolution in ``all`` mode, which reads and writes through the block table itself.

    Its blocks are multiples of the 8 tokens that one program takes, and it does not skip null columns.
    """

    name = "vllm-all"
    claims = replace(VllmTarget.claims, seams=frozenset({"conv"}), block_multiple=8, skips_null=False)

    def __init__(self) -> None:
        super().__init__()
        [mamba] = _vllm_loader.load(self.found, "vllm.v1.attention.backends.mamba_attn")
        self.builder = mamba.BaseMambaAttentionMetadataBuilder

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.zeros_like(x)
        m = batch.query_start_loc.diff()
        n = batch.seq_lens - m
        common = SimpleNamespace(seq_lens=batch.seq_lens, compute_num_computed_tokens=lambda: n)
        read, first, last = self.builder._compute_prefix_caching_block_indices(None, common, batch.block_size)
        states = conv_state.transpose(1, 2)
        for rows, call in (
            ((m == 1) & (n > 0), self._update),
            (((m > 1) | (n == 0)) & (m > 0), self._prefill),
        ):
            rows = rows.nonzero()[:, 0]
            if len(rows):
                starts, lengths = batch.query_start_loc[rows].tolist(), m[rows].tolist()
                at = torch.tensor(
                    [t for s, e in zip(starts, lengths) for t in range(s, s + e)], device=x.device
                )
                some = [t[rows].contiguous() for t in (batch.block_table, read, first, last, n, m)]
                y[at] = call(layer, x[at].contiguous(), states, batch, *some)
        return y

    def _prefill(self, layer, x, states, batch, table, read, first, last, n, m) -> torch.Tensor:
        return self.convolution.causal_conv1d_fn(
            x.T,
            layer.conv_weight,
            layer.conv_bias,
            conv_states=states,
            query_start_loc=torch.cat([m.new_zeros(1), m.cumsum(0)]).int(),
            cache_indices=table,
            has_initial_state=n > 0,
            activation=layer.activation,
            block_idx_first_scheduled_token=first,
            block_idx_last_scheduled_token=last,
            initial_state_idx=read,
            num_computed_tokens=n,
            block_size_to_align=batch.block_size,
        ).T

    def _update(self, layer, x, states, batch, table, read, first, last, n, m) -> torch.Tensor:
        return self.convolution.causal_conv1d_update(
            x,
            states,
            layer.conv_weight,
            layer.conv_bias,
            layer.activation,
            conv_state_indices=table,
            block_idx_last_scheduled_token=last,
            initial_state_idx=read,
        )


# ---- the engine's part: which slot a call reads and writes -------------------------------------------------------


def schedule(batch: Batch) -> tuple[list[Piece], list[list[Piece]]]:
    """One-token rows that have a state, and the rounds of all others: round i holds the i-th piece of each row."""
    decode: list[Piece] = []
    rounds: list[list[Piece]] = []
    starts, lengths, tables = (t.tolist() for t in (batch.query_start_loc, batch.seq_lens, batch.block_table))
    for row, (start, end) in enumerate(pairwise(starts)):
        n = lengths[row] - (end - start)
        pieces = list(pieces_of(row, start, n, end - start, tables[row], batch.block_size))
        if end - start == 1 and n > 0:
            decode += pieces
        else:
            for i, piece in enumerate(pieces):
                rounds += [[]] if i == len(rounds) else []
                rounds[i].append(piece)
    return decode, rounds


def pieces_of(row: int, at: int, n: int, m: int, table: list[int], B: int) -> Iterator[Piece]:
    """The pieces of a row whose first token is packed at ``at``: cut at every boundary inside."""
    position = n
    while position < n + m:
        end = min((position // B + 1) * B, n + m)
        source = table[(position - 1) // B] if position else None
        yield Piece(row, at + position - n, at + end - n, source, table[position // B])
        position = end


def tokens_of(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """Indices of all tokens of these pieces among the packed ones."""
    return torch.tensor([t for p in pieces for t in range(p.start, p.end)], device=device)


def offsets(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """``cu_seqlens`` of a call over these pieces, int32 [N + 1]."""
    lengths = torch.tensor([0] + [p.end - p.start for p in pieces])
    return lengths.cumsum(0).int().to(device)


class Cache:
    """One part of the pages during one batch, and the states of rows whose column is null."""

    def __init__(self, pages: torch.Tensor):
        self.pages = pages
        self.kept: dict[int, torch.Tensor] = {}

    def read(self, piece: Piece) -> torch.Tensor:
        """The state that a piece starts from."""
        return self.pages[piece.source] if piece.source else self.kept[piece.row]

    def write(self, piece: Piece, state: torch.Tensor) -> None:
        """The state that a piece ends with, rounded to the cache's dtype."""
        if piece.destination:
            self.pages[piece.destination] = state.to(self.pages.dtype)
        else:
            self.kept[piece.row] = state.to(self.pages.dtype)

    @contextmanager
    def in_place(self, pieces: list[Piece]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages with each row's state already in the slot that it goes to, and those slots (int32 [N]).

        If a column is null, all rows work in a copy outside the pages.
        """
        outside = any(p.destination == 0 for p in pieces)
        states = self.pages.new_zeros(len(pieces) + 1, *self.pages.shape[1:]) if outside else self.pages
        slots = list(range(1, len(pieces) + 1)) if outside else [p.destination for p in pieces]
        for slot, piece in zip(slots, pieces):
            if piece.source is not None and (outside or slot != piece.source):
                states[slot] = self.read(piece)
        yield states, torch.tensor(slots, dtype=torch.int32, device=states.device)
        if outside:
            for slot, piece in zip(slots, pieces):
                self.write(piece, states[slot].clone())
