"""One-token rows in a form that a CUDA graph can replay: resolved slots at fixed addresses, instead of the block table.

A graph knows addresses only, and a block table's width is no business of its. Nothing but batches of one-token rows
is staged: prefills run eager or in piecewise graphs, and need no persistent buffer. Imports torch and ``impl``, not
vLLM. Exercise it with ``pytest tests/vllm/test_staging.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gdn_apc.impl.metadata import BlockIndexMetadata

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

    def fits(self, blocks: BlockIndexMetadata) -> bool:
        """Whether this batch can be staged."""
        return blocks.only_one_token_rows and max(blocks.num_rows, blocks.num_tokens) <= self.max_rows

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
