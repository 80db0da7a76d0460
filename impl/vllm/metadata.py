"""Metadata of a step for the GDN layers: vLLM's batch (``CommonAttentionMetadata``) as a ``BlockIndexMetadata``.

Everything is computed where the batch lies, from sizes that the host knows, so that no step waits for the GPU.
Batches of one-token rows, which may replay a CUDA graph, go through ``staging.py``; nothing else has persistent buffers.
Stock: vllm/v1/attention/backends/gdn_attn.py; the same indices for Mamba2: vllm/v1/attention/backends/mamba_attn.py.
Imports vLLM. Exercise it with ``pytest -m vllm tests/vllm/test_vllm_metadata.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata
from vllm.v1.kv_cache_interface import MambaSpec

from gdn_apc.impl import BlockIndexMetadata, build_metadata
from gdn_apc.impl.vllm.settings import CHUNK_SIZE
from gdn_apc.impl.vllm.staging import Staging


@dataclass
class GdnApcMetadata(GDNAttentionMetadata):
    """What ``GdnApcAttention`` needs of a step. The inherited counts are for vLLM's own checks only."""

    blocks: BlockIndexMetadata | None = None
    step: CommonAttentionMetadata | None = None


class GdnApcMetadataBuilder(AttentionMetadataBuilder[GdnApcMetadata]):
    """One per KV cache group. Needs no order of the rows, hence no ``reorder_batch_threshold``."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    reorder_batch_threshold = None
    supports_update_block_table = True

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.block_size = kv_cache_spec.block_size
        compilation = vllm_config.compilation_config
        rows = 0
        if compilation.cudagraph_mode.has_full_cudagraphs():
            rows = vllm_config.scheduler_config.max_num_seqs
            if compilation.max_cudagraph_capture_size is not None:
                rows = min(rows, compilation.max_cudagraph_capture_size)
        self.staging = Staging(rows, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GdnApcMetadata:
        """Metadata of one step; ``common_prefix_len`` is for cascade attention, which GDN has not."""
        return self._build(common_attn_metadata, common_attn_metadata.block_table_tensor)

    def update_block_table(
        self, metadata: GdnApcMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> GdnApcMetadata:
        """The same step for another KV cache group: shared, but for the slots; graphs know this group's addresses."""
        m = metadata.step
        if self.staging.fits(m.num_reqs, m.num_actual_tokens, m.max_query_len):
            return self._build(m, blk_table)
        return _metadata(metadata.blocks.with_block_table(blk_table), m)

    def _build(self, m: CommonAttentionMetadata, block_table: torch.Tensor) -> GdnApcMetadata:
        inputs = m.seq_lens, m.query_start_loc, block_table
        if self.staging.fits(m.num_reqs, m.num_actual_tokens, m.max_query_len):
            blocks = self.staging.build(*inputs, self.block_size, CHUNK_SIZE, m.num_actual_tokens)
        else:
            blocks = build_metadata(
                *inputs,
                block_size=self.block_size,
                chunk_size=CHUNK_SIZE,
                max_query_len=m.max_query_len,
                num_tokens=m.num_actual_tokens,
            )
        return _metadata(blocks, m)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> GdnApcMetadata:
        """Only batches of one-token rows are captured in full (``_cudagraph_support``), on the null block alone.

        vLLM also calls this for the padding that a data-parallel rank without work replays, with block tables that may
        still name blocks of requests that have ended; a dummy row must not write there.
        """
        m = common_attn_metadata
        rows = max(m.num_reqs, m.num_actual_tokens)
        if m.max_query_len > 1 or rows > self.staging.max_rows:
            raise ValueError(
                f"CUDA graph: {rows} rows of up to {m.max_query_len} tokens, expected at most "
                f"{self.staging.max_rows} rows of one; use cudagraph_mode=FULL_AND_PIECEWISE or FULL_DECODE_ONLY"
            )
        return self._build(m, torch.zeros_like(m.block_table_tensor))


class GdnApcBackend(AttentionBackend):
    """Names the builder; chosen by ``GdnApcAttention.get_attn_backend`` for its own layers only."""

    @staticmethod
    def get_name() -> str:
        return "GDN_APC"

    @staticmethod
    def get_builder_cls() -> type[GdnApcMetadataBuilder]:
        return GdnApcMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """A row's bits depend on its own inputs only, whatever ``VLLM_BATCH_INVARIANT`` says (DESIGN.md, 4.1)."""
        return True


def _metadata(blocks: BlockIndexMetadata, step: CommonAttentionMetadata) -> GdnApcMetadata:
    decodes = blocks.num_rows if blocks.only_one_token_rows else 0
    return GdnApcMetadata(
        num_prefills=blocks.num_rows - decodes,
        num_prefill_tokens=0 if decodes else blocks.num_tokens,
        num_decodes=decodes,
        num_decode_tokens=blocks.num_tokens if decodes else 0,
        num_spec_decodes=0,
        num_spec_decode_tokens=0,
        num_actual_tokens=blocks.num_tokens,
        blocks=blocks,
        step=step,
    )
