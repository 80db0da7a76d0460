"""An installed vLLM's own GDN kernels as targets: code that was not written here.

``vllm`` drives the chunk, recurrent and convolution kernels of vLLM's Flash-Linear-Attention copy. They know no
blocks: a layer hands them one slot for each row. So the adapter plays the engine: it cuts a prefill at every
boundary, and between two calls copies a row's state from the slot it was read from to the slot it goes to, as
vLLM's ``align`` mode does. What this makes true by construction (boundary states, carry through the stored value,
null slots) says nothing about vLLM; what it shows is whether the kernels compute the rule, from any start and in any
batch, and touch nothing else.

``vllm-all`` instead asks the convolution of vLLM's ``all`` cache mode, which walks the block table itself, with the
indices that vLLM's own builder computes.

Not claimed: fp32 inputs (the chunk wrapper refuses them), chunks other than 64, an absolute grid (chunks count from
where a call starts), block-index metadata by our names. ``_vllm_loader.py`` says how vLLM is found; without a GPU
the kernels run in the interpreter. Imports torch and, when constructed, single files of vLLM.
Exercise it with ``GDN_APC_VLLM=DIR pytest tests/anchors/test_vllm_target.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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

    ``source`` is None where the row starts from nothing; ``destination`` is 0 where its column is null.
    """

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
        absolute_grid=False,
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
        if decode:
            self._conv_decode(layer, x, y, conv_state, decode)
        for pieces in rounds:
            self._conv_prefill(layer, x, y, conv_state, pieces)
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
        inputs = (q, k, v, g, beta)
        if decode:
            self._delta_decode(layer, inputs, o, ssm_state, decode)
        for pieces in rounds:
            at = tokens_of(pieces, q.device)
            o[at] = self._chunk(layer, [t[at] for t in inputs], layer.use_qk_l2norm, ssm_state, pieces)
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
        if decode:
            self._core_decode(layer, y, a, b, o, ssm_state, decode)
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
            o[at] = self._chunk(layer, inputs, False, ssm_state, pieces)
        return o

    # ---- one call of one kernel -------------------------------------------------------------------------------

    def _chunk(
        self, layer: Layer, inputs, l2norm: bool, ssm_state: torch.Tensor, pieces: list[Piece]
    ) -> torch.Tensor:
        """The chunk kernels over one piece of each row: o of its tokens; final states go to their slots."""
        q, k, v, g, beta = inputs
        initial = ssm_state.new_zeros(len(pieces), *ssm_state.shape[1:])
        warm = [i for i, p in enumerate(pieces) if p.source is not None]
        initial[warm] = ssm_state[[pieces[i].source for i in warm]]
        o, final = self.chunk.chunk_gated_delta_rule(
            *(t[None].contiguous() for t in (q, k, v, g, beta)),
            scale=layer.scale,
            initial_state=initial,
            output_final_state=True,
            cu_seqlens=offsets(pieces, q.device),
            use_qk_l2norm_in_kernel=l2norm,
        )
        kept = [i for i, p in enumerate(pieces) if p.destination]
        ssm_state[[pieces[i].destination for i in kept]] = final[kept].to(ssm_state.dtype)
        return o[0]

    def _delta_decode(
        self, layer: Layer, inputs, o: torch.Tensor, ssm_state: torch.Tensor, pieces: list[Piece]
    ) -> None:
        """The recurrent kernel on one-token rows, in place in the pages."""
        at = tokens_of(pieces, o.device)
        q, k, v, g, beta = (t[at].contiguous()[None] for t in inputs)
        with in_place(ssm_state, pieces) as (states, slots):
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

    def _core_decode(
        self, layer: Layer, y, a, b, o: torch.Tensor, ssm_state: torch.Tensor, pieces: list[Piece]
    ) -> None:
        """The packed decode kernel: gates, normalisation and recurrence of one-token rows, in place in the pages."""
        at = tokens_of(pieces, o.device)
        out = o.new_empty(len(pieces), 1, layer.HV, layer.V)
        with in_place(ssm_state, pieces) as (states, slots):
            self.recurrent.fused_recurrent_gated_delta_rule_packed_decode(
                y[at].contiguous(), a[at].contiguous(), b[at].contiguous(), layer.A_log, layer.dt_bias,
                scale=layer.scale,
                initial_state=states,
                out=out,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=layer.use_qk_l2norm,
            )  # fmt: skip
        o[at] = out[:, 0]

    def _conv_prefill(self, layer: Layer, x, y, conv_state: torch.Tensor, pieces: list[Piece]) -> None:
        """The varlen convolution over one piece of each row, in place in the pages."""
        at = tokens_of(pieces, x.device)
        warm = [p.source is not None for p in pieces]
        with in_place(conv_state, pieces) as (states, slots):
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

    def _conv_decode(self, layer: Layer, x, y, conv_state: torch.Tensor, pieces: list[Piece]) -> None:
        """The one-token convolution, in place in the pages."""
        at = tokens_of(pieces, x.device)
        with in_place(conv_state, pieces) as (states, slots):
            y[at] = self.convolution.causal_conv1d_update(
                x[at].contiguous(),
                states.transpose(1, 2),
                layer.conv_weight,
                layer.conv_bias,
                layer.activation,
                conv_state_indices=slots,
            )


class VllmAllTarget(VllmTarget):
    """vLLM's convolution in ``all`` mode, which reads and writes through the block table itself."""

    name = "vllm-all"
    claims = replace(VllmTarget.claims, seams=frozenset({"conv"}), block_multiple=8)

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
    B = batch.block_size
    decode: list[Piece] = []
    rounds: list[list[Piece]] = []
    starts, lengths, tables = (t.tolist() for t in (batch.query_start_loc, batch.seq_lens, batch.block_table))
    for row, (start, end) in enumerate(zip(starts, starts[1:])):
        n, table = lengths[row] - (end - start), tables[row]
        pieces = list(pieces_of(start, n, end - start, table, B))
        if end - start == 1 and n > 0:
            decode += pieces
        else:
            for i, piece in enumerate(pieces):
                rounds += [[]] if i == len(rounds) else []
                rounds[i].append(piece)
    return decode, rounds


def pieces_of(at: int, n: int, m: int, table: list[int], B: int) -> Iterator[Piece]:
    """The pieces of a row whose first token is packed at ``at``: cut at every boundary inside."""
    position, source = n, table[(n - 1) // B] if n else None
    while position < n + m:
        end = min((position // B + 1) * B, n + m)
        destination = table[position // B]
        yield Piece(at + position - n, at + end - n, source, destination)
        position, source = end, destination


def tokens_of(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """Indices of all tokens of these pieces among the packed ones."""
    return torch.tensor([t for p in pieces for t in range(p.start, p.end)], device=device)


def offsets(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """``cu_seqlens`` of a call over these pieces, int32 [N + 1]."""
    lengths = torch.tensor([0] + [p.end - p.start for p in pieces])
    return lengths.cumsum(0).int().to(device)


class in_place:
    """The pages with each row's state already in the slot it goes to, and those slots (int32 [N]).

    A row whose destination is null works in a copy that is dropped.
    """

    def __init__(self, states: torch.Tensor, pieces: list[Piece]):
        self.states, self.pieces = states, pieces

    def __enter__(self) -> tuple[torch.Tensor, torch.Tensor]:
        pieces, states = self.pieces, self.states
        if any(p.destination == 0 for p in pieces):
            states = states.new_zeros(len(pieces) + 1, *states.shape[1:])
            slots = list(range(1, len(pieces) + 1))
        else:
            slots = [p.destination for p in pieces]
        self.used, self.slots = states, slots
        moved = [(s, p.source) for s, p in zip(slots, pieces) if p.source is not None]
        if moved:
            states[[s for s, _ in moved]] = self.states[[source for _, source in moved]]
        return states, torch.tensor(slots, dtype=torch.int32, device=states.device)

    def __exit__(self, *exc) -> None:
        if self.used is not self.states:
            kept = [(s, p.destination) for s, p in zip(self.slots, self.pieces) if p.destination]
            self.states[[d for _, d in kept]] = self.used[[s for s, _ in kept]]
