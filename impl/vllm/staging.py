"""One-token rows in a form that a CUDA graph can replay: resolved slots at fixed addresses, instead of the block table.

A graph knows addresses only, and a block table's width is no business of its. Nothing but batches of one-token rows
is staged: prefills run eager or in piecewise graphs, and need no persistent buffer. Imports torch and ``impl``, not
vLLM. Exercise it with ``pytest tests/vllm/test_staging.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gdn_apc.impl.metadata import BlockIndexMetadata, build_metadata

ONE_COLUMN = 1 << 30
"""A block size beyond every length: each row has the one column 0."""


def resolved(blocks: BlockIndexMetadata) -> BlockIndexMetadata:
    """A batch of one-token rows with its table replaced by the slots themselves: [N, 1] write slots.

    A row of one token writes one column; with a block size beyond every position that column is 0. Kernels see the
    same n, m, read and write slots as before, so the result is the same to the bit.

    Raises ``ValueError`` if a row may have more than one token.
    """
    if not blocks.only_one_token_rows:
        raise ValueError(
            f"blocks: rows of up to {blocks.max_query_len} tokens, expected 1; only these write a single column"
        )
    zeros = torch.zeros_like(blocks.read_slot)
    return replace(
        blocks,
        block_size=ONE_COLUMN,
        block_table=blocks.write_slot[:, None],
        block_idx_last_computed_token=zeros,
        block_idx_first_scheduled_token=zeros,
        block_idx_last_scheduled_token=zeros,
    )


class Staging:
    """Buffers for up to ``max_rows`` one-token rows; each ``stage`` overwrites them, and returns views of them."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        def buffer(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.max_rows = max_rows
        self.starts = buffer(max_rows + 1)
        self.n, self.m = buffer(max_rows), buffer(max_rows)
        self.read, self.write = buffer(max_rows), buffer(max_rows)
        self.views: dict[tuple[int, int], BlockIndexMetadata] = {}

    def build(
        self,
        seq_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        block_table: torch.Tensor,
        block_size: int,
        chunk_size: int,
        num_tokens: int,
    ) -> BlockIndexMetadata:
        """Metadata of one-token rows, at the fixed addresses at once: on a GPU one launch. See ``build_metadata``."""
        sizes = dict(block_size=block_size, chunk_size=chunk_size, max_query_len=1, num_tokens=num_tokens)
        if not seq_lens.is_cuda:
            return self.stage(build_metadata(seq_lens, query_start_loc, block_table, **sizes))
        from gdn_apc.impl.metadata_launch import launch_metadata

        rows = seq_lens.shape[0]
        staged = self.views.get((rows, num_tokens))
        if staged is None:
            staged = self.stage(build_metadata(seq_lens, query_start_loc, block_table, **sizes))
            self.views[rows, num_tokens] = staged
        outputs = staged.num_computed_tokens, staged.num_scheduled_tokens, staged.read_slot, staged.write_slot
        inputs = seq_lens.contiguous(), query_start_loc.contiguous(), block_table
        launch_metadata(inputs, outputs, None, staged.query_start_loc, None, block_size, chunk_size)
        return staged

    def fits(self, num_rows: int, num_tokens: int, max_query_len: int) -> bool:
        """Whether a batch of this shape can be staged."""
        return max_query_len <= 1 and max(num_rows, num_tokens) <= self.max_rows

    def stage(self, blocks: BlockIndexMetadata) -> BlockIndexMetadata:
        """The batch at fixed addresses."""
        rows = blocks.num_rows
        starts = self.starts[: rows + 1]
        n, m, read, write = (t[:rows] for t in (self.n, self.m, self.read, self.write))
        starts.copy_(blocks.query_start_loc)
        n.copy_(blocks.num_computed_tokens)
        m.copy_(blocks.num_scheduled_tokens)
        read.copy_(blocks.read_slot)
        write.copy_(blocks.write_slot)
        staged = replace(
            blocks,
            query_start_loc=starts,
            num_computed_tokens=n,
            num_scheduled_tokens=m,
            read_slot=read,
            write_slot=write,
        )
        return resolved(staged)
