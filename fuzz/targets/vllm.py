"""An installed vLLM's GDN code as targets: its kernels, its layer with its metadata builder, its ``all`` mode.

``vllm`` asks three seams. ``conv`` and ``delta`` drive the convolution, chunk and recurrent kernels, one call a
block (``blockwise.py``). ``core`` runs the layer itself with its metadata builder, as an engine's step in ``align``
mode does (``_vllm_layer.py``); what the layer cannot be asked (no SiLU, no L2 norm, another scale) goes to the
kernels it would call.

``vllm-all`` is the convolution in ``all`` mode, which walks the block table itself, with the indices of vLLM's own
builder; releases from 0.32 on have no such mode. ``vllm-metadata`` is the arithmetic alone, without kernels: the
indices of ``all`` mode where they exist, and the slots of ``align`` mode.

Where vLLM deviates from what it is asked here, and why: ``tests/anchors/VERDICTS.md``. ``_vllm_loader.py`` says how
a vLLM is found and which releases are supported; without a GPU the kernels run in the interpreter. Imports torch
and, when constructed, single files of vLLM. Exercise it with ``GDN_APC_VLLM=DIR pytest tests/anchors/test_vllm_target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from gdn_apc.fuzz.targets import TargetUnavailable, _vllm_layer, _vllm_loader
from gdn_apc.fuzz.targets._vllm_loader import CONV, MAMBA
from gdn_apc.fuzz.targets.base import Batch, Claims, Layer, Target
from gdn_apc.fuzz.targets.blockwise import BY_ENGINE, Blockwise, Cache, Piece

CHUNK = 64
"""vLLM's ``FLA_CHUNK_SIZE``."""


class _Vllm(Target):
    """What all of these share: finding vLLM. Raises :class:`TargetUnavailable` without a supported one."""

    modules: tuple[str, ...] = ()

    def __init__(self) -> None:
        try:
            self.found = _vllm_loader.find()
            self.loaded = _vllm_loader.Loaded(self.found)
            self.load()
        except (_vllm_loader.VllmMissing, _vllm_loader.VllmUnsupported) as e:
            raise TargetUnavailable(f"target: {self.name!r} cannot run here: {e}") from e

    def load(self) -> None:
        """Load the modules."""

    def versions(self) -> dict[str, str]:
        """torch, triton and vllm."""
        import triton

        return {"torch": torch.__version__, "triton": triton.__version__, "vllm": self.found.version}


class VllmTarget(_Vllm, Blockwise):
    """See the module.

    Not claimed: fp32 inputs (the chunk wrapper refuses them), chunks other than 64, a chunk grid counted from
    boundaries inside a block (theirs counts from where a call starts), fp32 products in the convolution (they are
    rounded to the input dtype), a first step of one token in fp32 (it takes the chunk kernels), and fp32's range
    between fp16 inputs.
    """

    name = "vllm"
    runs_triton = True
    claims = Claims(
        seams=frozenset({"conv", "delta", "core"}),
        input_dtypes=frozenset({"bf16", "fp16"}),
        chunk_sizes=frozenset({CHUNK}),
        absolute_grid=False,
        conv_fp32=False,
        fresh_token_fp32=False,
        fp16_range=False,
        by_adapter=BY_ENGINE,
    )

    def load(self) -> None:
        kernels = ("chunk", "fused_recurrent", "fused_gdn_prefill_post_conv")
        names = (*(f"{self.found.fla}.{name}" for name in kernels), CONV)
        self.chunks, self.recurrents, self.prepare, self.convolution = self.loaded.load(*names)
        self.layer = _vllm_layer.VllmLayer(self.loaded)

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
        core = self.layer.core if _vllm_layer.takes(layer) else super().core
        return core(layer, x, a, b, conv_state, ssm_state, batch)

    # ---- one call of one kernel -------------------------------------------------------------------------------

    def conv_prefill(self, layer, x, windows, slots, cu, warm) -> torch.Tensor:
        return self.convolution.causal_conv1d_fn(
            x.T,
            layer.conv_weight,
            layer.conv_bias,
            conv_states=windows.transpose(1, 2),
            query_start_loc=cu,
            cache_indices=slots,
            has_initial_state=warm,
            activation=layer.activation,
        ).T

    def conv_decode(self, layer, x, windows, slots) -> torch.Tensor:
        return self.convolution.causal_conv1d_update(
            x,
            windows.transpose(1, 2),
            layer.conv_weight,
            layer.conv_bias,
            layer.activation,
            conv_state_indices=slots,
        )

    def gates(self, layer, y, a, b):
        inputs = self.prepare.fused_post_conv_prep(
            y, a, b, layer.A_log, layer.dt_bias, layer.H, layer.K, layer.V, layer.use_qk_l2norm
        )
        return list(inputs), False

    def chunk(self, layer, inputs, l2norm, states, cu):
        o, after = self.chunks.chunk_gated_delta_rule(
            *(t[None].contiguous() for t in inputs),
            scale=layer.scale,
            initial_state=states,
            output_final_state=True,
            cu_seqlens=cu,
            use_qk_l2norm_in_kernel=l2norm,
        )
        return o[0], after

    def rule(
        self,
        layer: Layer,
        inputs: Sequence[torch.Tensor],
        l2norm: bool,
        cache: Cache,
        decode: bool,
        pieces: list[Piece],
    ) -> torch.Tensor:
        """One-token rows run in place in the pages, as in the engine."""
        if not decode:
            return super().rule(layer, inputs, l2norm, cache, decode, pieces)
        with cache.in_place(pieces) as (states, slots):
            # The public wrapper asserts scale > 0; the layer never passes another.
            out, _ = self.recurrents.fused_recurrent_gated_delta_rule_fwd(
                *(t[None].contiguous() for t in inputs),
                scale=layer.scale,
                initial_state=states,
                cu_seqlens=torch.arange(len(pieces) + 1, dtype=torch.int32, device=states.device),
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=l2norm,
            )
        return out[0]

    def core_call(self, layer, y, a, b, cache: Cache, decode: bool, pieces: list[Piece]) -> torch.Tensor:
        """One-token rows take the packed kernel, which computes gates and norm itself, as in the engine."""
        if not decode:
            return super().core_call(layer, y, a, b, cache, decode, pieces)
        out = y.new_empty(len(pieces), 1, layer.HV, layer.V)
        with cache.in_place(pieces) as (states, slots):
            self.recurrents.fused_recurrent_gated_delta_rule_packed_decode(
                y, a, b, layer.A_log, layer.dt_bias,
                scale=layer.scale,
                initial_state=states,
                out=out,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=layer.use_qk_l2norm,
            )  # fmt: skip
        return out[:, 0]


class VllmMetadataTarget(_Vllm):
    """The block-index arithmetic alone: no kernel is needed, so it runs wherever vLLM's Python files are.

    ``block_idx_*`` are those of ``all`` mode, up to 0.31. ``write_slot`` and ``has_initial_state`` are what the GDN
    builder hands the kernels in ``align`` mode: the slot of the row's last token, and whether a state is read. The
    engine gives that builder one row for each block that a prefill enters; here it is asked for whole rows.
    """

    name = "vllm-metadata"
    claims = Claims(seams=frozenset({"metadata"}))

    def load(self) -> None:
        self.layer = _vllm_layer.VllmLayer(self.loaded)
        [mamba] = self.loaded.load(MAMBA)
        builder = mamba.BaseMambaAttentionMetadataBuilder
        self.compute = getattr(builder, "_compute_prefix_caching_block_indices", None)
        columns = frozenset(COLUMNS if self.compute else ())
        self.claims = replace(self.claims, metadata=columns | {"write_slot", "has_initial_state"})

    def device(self) -> torch.device:
        return torch.device("cpu")

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        columns = dict(zip(COLUMNS, _columns(self.compute, batch))) if self.compute else {}
        return columns | self.layer.align_mode(batch)


COLUMNS = (
    "block_idx_last_computed_token",
    "block_idx_first_scheduled_token",
    "block_idx_last_scheduled_token",
)


def _columns(compute, batch: Batch) -> tuple[torch.Tensor, ...]:
    """vLLM zeroes the length of a padding row before it builds metadata."""
    m = batch.query_start_loc.diff()
    lengths = torch.where(m > 0, batch.seq_lens, 0)
    common = SimpleNamespace(seq_lens=lengths, compute_num_computed_tokens=lambda: lengths - m)
    return compute(None, common, batch.block_size)


class VllmAllTarget(VllmTarget):
    """vLLM's convolution in ``all`` mode, which reads and writes through the block table itself.

    Its blocks are multiples of the 8 tokens that one program takes, and it does not skip null columns.
    """

    name = "vllm-all"
    claims = replace(
        VllmTarget.claims,
        seams=frozenset({"conv"}),
        block_multiple=8,
        skips_null=False,
        absolute_grid=True,
        by_adapter=frozenset(),
    )

    def load(self) -> None:
        self.convolution, mamba = self.loaded.load(CONV, MAMBA)
        builder = mamba.BaseMambaAttentionMetadataBuilder
        self.compute = getattr(builder, "_compute_prefix_caching_block_indices", None)
        if self.compute is None:
            raise _vllm_loader.VllmUnsupported(
                f"vllm {self.found.version} has no `all` cache mode for the convolution any more; "
                "`--target vllm` asks what it has"
            )

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.zeros_like(x)
        m = batch.query_start_loc.diff()
        n = batch.seq_lens - m
        read, first, last = _columns(self.compute, batch)
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
