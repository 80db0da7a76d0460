"""Metadata of a step for the GDN layers: vLLM's batch (``CommonAttentionMetadata``) as a ``BlockIndexMetadata``.

Everything is computed where the batch lies, from sizes that the host knows, so that no step waits for the GPU.
A batch of one-token rows may replay a CUDA graph, which knows addresses only: for these, and for nothing else, there
are persistent buffers. They hold resolved slots (``resolved``), not the block table, whose width a graph need not know.
Stock: vllm/v1/attention/backends/gdn_attn.py; the same indices for Mamba2: vllm/v1/attention/backends/mamba_attn.py.
Imports vLLM. Exercise it with ``pytest -m vllm tests/vllm/test_metadata.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

ONE_COLUMN = 1 << 30
"""A block size beyond every length: each row has the one column 0."""


@dataclass
class GdnApcMetadata(GDNAttentionMetadata):
    """What ``GdnApcAttention`` needs of a step. The inherited counts are for vLLM's own checks only."""

    blocks: BlockIndexMetadata | None = None
    is_real: torch.Tensor | None = None
    """[num_actual_tokens] bool: False on padding tokens; None if there is no padding."""


class GdnApcMetadataBuilder(AttentionMetadataBuilder[GdnApcMetadata]):
    """One per KV cache group. Needs no order of the rows, hence no ``reorder_batch_threshold``."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    reorder_batch_threshold = None

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
        self.max_staged_rows = 0
        if compilation.cudagraph_mode.has_full_cudagraphs():
            self.max_staged_rows = vllm_config.scheduler_config.max_num_seqs
            if compilation.max_cudagraph_capture_size is not None:
                self.max_staged_rows = min(self.max_staged_rows, compilation.max_cudagraph_capture_size)
        rows = self.max_staged_rows
        self.staged_starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.staged_n = torch.zeros(rows, dtype=torch.int32, device=device)
        self.staged_read = torch.zeros(rows, dtype=torch.int32, device=device)
        self.staged_write = torch.zeros(rows, dtype=torch.int32, device=device)
        self.staged_is_real = torch.zeros(rows, dtype=torch.bool, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GdnApcMetadata:
        """Metadata of one step; ``common_prefix_len`` is for cascade attention, which GDN has not."""
        m = common_attn_metadata
        blocks = build_metadata(
            m.seq_lens,
            m.query_start_loc,
            m.block_table_tensor,
            block_size=self.block_size,
            chunk_size=CHUNK_SIZE,
            max_query_len=m.max_query_len,
            num_tokens=m.num_actual_tokens,
        )
        if blocks.only_one_token_rows:
            blocks = resolved(blocks)
            if max(m.num_reqs, m.num_actual_tokens) <= self.max_staged_rows:
                return self._staged(blocks)
        scheduled = int(m.query_start_loc_cpu[-1])  # on the host
        is_real = None
        if scheduled < m.num_actual_tokens:
            is_real = torch.arange(m.num_actual_tokens, device=self.device) < m.query_start_loc[-1]
        return _metadata(blocks, is_real)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> GdnApcMetadata:
        """Only batches of one-token rows are captured in full (``_cudagraph_support``)."""
        m = common_attn_metadata
        if m.max_query_len > 1 or max(m.num_reqs, m.num_actual_tokens) > self.max_staged_rows:
            raise ValueError(
                f"CUDA graph: {m.num_reqs} rows of up to {m.max_query_len} tokens, expected at most "
                f"{self.max_staged_rows} rows of one; use cudagraph_mode=FULL_AND_PIECEWISE or FULL_DECODE_ONLY"
            )
        return self.build(0, m)

    def _staged(self, blocks: BlockIndexMetadata) -> GdnApcMetadata:
        """The same batch at the addresses that graphs were captured with."""
        rows, tokens = blocks.num_rows, blocks.num_tokens
        starts, is_real = self.staged_starts[: rows + 1], self.staged_is_real[:tokens]
        n, read, write = self.staged_n[:rows], self.staged_read[:rows], self.staged_write[:rows]
        starts.copy_(blocks.query_start_loc)
        n.copy_(blocks.num_computed_tokens)
        read.copy_(blocks.read_slot)
        write.copy_(blocks.write_slot)
        torch.lt(torch.arange(tokens, device=self.device), starts[-1], out=is_real)
        staged = replace(
            blocks,
            query_start_loc=starts,
            num_computed_tokens=n,
            read_slot=read,
            write_slot=write,
            block_table=write[:, None],
        )
        return _metadata(staged, is_real)


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


def resolved(blocks: BlockIndexMetadata) -> BlockIndexMetadata:
    """A batch of one-token rows with its table replaced by the slots themselves: [N, 1] write slots.

    A row of one token writes one column; with a block size beyond every position that column is 0. Kernels see the
    same n, m, read and write slots as before, so the result is the same to the bit.
    """
    zeros = torch.zeros_like(blocks.read_slot)
    return replace(
        blocks,
        block_size=ONE_COLUMN,
        block_table=blocks.write_slot[:, None],
        block_idx_last_computed_token=zeros,
        block_idx_first_scheduled_token=zeros,
        block_idx_last_scheduled_token=zeros,
    )


def _metadata(blocks: BlockIndexMetadata, is_real: torch.Tensor | None) -> GdnApcMetadata:
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
        is_real=is_real,
    )
