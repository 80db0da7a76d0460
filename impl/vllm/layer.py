"""The GDN layer with ``mamba_cache_mode="all"``: vLLM's own layer around our core.

Registered in the place of ``QwenGatedDeltaNetAttention`` (``PluggableLayer.register_oot``), of which it is a subclass
and which it is, unchanged, in any other mode. Projections, norm and weights stay vLLM's
(vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py); convolution, gates and the delta rule are
``gdn_apc.impl.gdn_core``: PyTorch on a CPU, Triton on a GPU. Heads are divided over tensor-parallel ranks before us.
Imports vLLM. Exercise it with ``pytest -m vllm tests/vllm``.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend

from gdn_apc.impl import build_metadata, gdn_core
from gdn_apc.impl.vllm.metadata import GdnApcBackend, GdnApcMetadata
from gdn_apc.impl.vllm.settings import CHUNK_SIZE
from gdn_apc.impl.vllm.touchpoints import takes_over

logger = init_logger("vllm.plugins.gdn_apc")


class GdnApcAttention(QwenGatedDeltaNetAttention):
    """``kv_cache`` is (windows [slots, W - 1, D] or [slots, D, W - 1], states [slots, HV, V, K]), a slot a block."""

    _warm: set[tuple[Any, ...]] = set()  # noqa: RUF012  (shapes whose kernels this process has compiled)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gdn_apc = takes_over(self.cache_config)
        if self.gdn_apc and current_platform.is_cpu():
            # touchpoints.py, 4: forward_cpu calls an operator that cannot be overridden.
            self._forward_method = self.forward_cuda

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Our metadata builder for our layers, vLLM's for everybody else's."""
        return GdnApcBackend if self.gdn_apc else super().get_attn_backend()

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the pages, and refuse at start what the kernels would refuse at the first step."""
        super().bind_kv_cache(kv_cache)
        if not self.gdn_apc:
            return
        windows, states = self.kv_cache
        for name, pages in (("window", windows), ("state", states)):
            if pages.data_ptr() % 16 or pages.stride(0) % 16:
                raise ValueError(
                    f"gdn-apc: {self.prefix}: {name} pages start at {pages.data_ptr() % 16} modulo 16, "
                    f"{pages.stride(0)} elements apart, expected multiples of 16 of both; choose another block_size"
                )
        logger.info_once(
            "gdn-apc is active: a state at every %d tokens, in chunks of %d; %d bytes a state and layer, %d slots.",
            self.cache_config.mamba_block_size,
            CHUNK_SIZE,
            sum(t[0].numel() * t.element_size() for t in self.kv_cache),
            states.shape[0],
        )

    def _forward_core(
        self, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor
    ) -> None:
        """Convolution to delta rule over one step.

        Args:
            mixed_qkv: [tokens, D] q, k, v after their projection; b, a: [tokens, HV] of this rank.
            core_attn_out: [tokens, HV, V], zeros. No kernel writes rows of padding tokens, so they stay zero,
                which later layers need.
        """
        if not self.gdn_apc:
            return super()._forward_core(mixed_qkv, b, a, core_attn_out)
        every_layer = get_forward_context().attn_metadata
        step = every_layer.get(self.prefix) if isinstance(every_layer, dict) else None
        if step is None:  # profiling, or a step of padding alone: there is nothing to read or write
            return self._warmup_prefill_kernels(mixed_qkv, 0)
        assert isinstance(step, GdnApcMetadata) and step.blocks is not None
        T = step.num_actual_tokens
        self._core(mixed_qkv[:T], a[:T], b[:T], *self.kv_cache, step.blocks, core_attn_out[:T])

    def _forward_core_fused_norm(
        self,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        output_gate: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        """The core, then the gated norm in place; vLLM's way on a GPU, but for copies of b and a, whose strides our kernel takes.

        Args:
            output_gate: [tokens, HV, V]; the others as in ``_forward_core``.
        """
        if not self.gdn_apc:
            return super()._forward_core_fused_norm(mixed_qkv, b, a, output_gate, core_attn_out)
        self._forward_core(mixed_qkv, b, a, core_attn_out)
        every_layer = get_forward_context().attn_metadata
        if isinstance(every_layer, dict) and self.prefix in every_layer:
            T = every_layer[self.prefix].num_actual_tokens
            self._rms_norm_gated_cuda(core_attn_out[:T], output_gate[:T], core_attn_out[:T])

    def _core(self, x, a, b, windows, states, blocks, out=None) -> torch.Tensor:
        if is_conv_state_dim_first():
            windows = windows.transpose(1, 2)
        return gdn_core(
            x,
            a,
            b,
            self._conv_weight(),
            self.conv1d.bias,
            self.A_log,
            self.dt_bias,
            windows,
            states,
            blocks,
            num_k_heads=self.num_k_heads // self.tp_size,
            head_k_dim=self.head_k_dim,
            activation="silu",
            backend="triton" if x.is_cuda else "torch",
            out=out,
        )

    def _conv_weight(self) -> torch.Tensor:
        """[D, W], also where vLLM has repacked the weight for a kernel of its own (touchpoints.py, 7)."""
        unpacked = getattr(self.conv1d, "_cpu_unpacked_conv_weight", None)
        return self.conv1d.weight.squeeze(1) if unpacked is None else unpacked

    def _warmup_prefill_kernels(self, qkv_or_qkvz: torch.Tensor, v_dim: int) -> None:
        """Compile every kernel while vLLM measures memory, so that the first request does not wait for it.

        The measured batch is run as one long prompt too, so that what a layer allocates for a while is counted.
        """
        if not self.gdn_apc:
            return super()._warmup_prefill_kernels(qkv_or_qkvz, v_dim)
        if not qkv_or_qkvz.is_cuda:
            return
        shapes, dtypes = self.get_state_shape(), self.get_state_dtype()
        key = (shapes, dtypes, qkv_or_qkvz.dtype, qkv_or_qkvz.stride())
        if key in self._warm:
            return
        self._warm.add(key)
        for tokens in sorted({1, CHUNK_SIZE + 1, qkv_or_qkvz.shape[0]}):
            self._warm_up(qkv_or_qkvz, tokens, shapes, dtypes)

    def _warm_up(self, x: torch.Tensor, tokens: int, shapes: Any, dtypes: Any) -> None:
        device, HV = x.device, self.num_v_heads // self.tp_size
        block_size = self.cache_config.mamba_block_size or CHUNK_SIZE
        table = torch.ones(1, -(-tokens // block_size), dtype=torch.int32, device=device)  # any slot will do
        blocks = build_metadata(
            torch.tensor([tokens], dtype=torch.int32, device=device),
            torch.tensor([0, tokens], dtype=torch.int32, device=device),
            table,
            block_size=block_size,
            chunk_size=CHUNK_SIZE,
            max_query_len=tokens,
            num_tokens=tokens,
        )
        x = x[:1].expand(tokens, -1).contiguous() if x.shape[0] < tokens else x[:tokens]
        b, a = torch.zeros(tokens, 2 * HV, dtype=x.dtype, device=device).chunk(
            2, dim=1
        )  # as vLLM projects them
        windows, states = (torch.zeros(2, *s, dtype=d, device=device) for s, d in zip(shapes, dtypes))
        self._core(x, a, b, windows, states, blocks.with_block_table(table))
