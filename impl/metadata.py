"""Block-index metadata of a batch: which slot each row reads, which columns it writes, and its chunk grid.

Imports torch only. Every tensor is computed where the inputs live, with elementwise and prefix-sum operations
on the device, so the GPU path never waits for the host. Exercise it with ``pytest tests/impl/test_metadata.py``.

For a row that goes from ``n`` computed tokens to ``n + m`` (DESIGN.md, section 3)::

    block_idx_last_computed_token   = ceil(n / B) - 1        read column, if n > 0
    block_idx_first_scheduled_token = floor(n / B)           first write column
    block_idx_last_scheduled_token  = ceil((n + m) / B) - 1  last write column

Chunk edges are the multiples of B, and every C tokens from the last one. With ``cpb = ceil(B / C)`` chunks a
block, position ``p`` lies in the chunk of ordinal ``(p // B) · cpb + (p % B) // C``; so the i-th chunk of a row is
found in closed form (``chunk_bounds``), and a row needs no list of its chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from gdn_apc.impl._checks import check_index_tensor, check_positive


@dataclass(frozen=True)
class BlockIndexMetadata:
    """What the kernels need to know of a batch of N rows. Tensors are int32 unless said otherwise.

    Indices are 0 where they are undefined (n = 0, padding rows): kernels decide by ``num_computed_tokens`` and
    ``num_scheduled_tokens``, never by a clamped index. A slot of 0 is the null block: nothing is read or written.
    """

    block_size: int
    chunk_size: int
    num_rows: int
    num_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor  # [N + 1]
    block_table: torch.Tensor  # [N, columns]
    num_computed_tokens: torch.Tensor  # [N] n
    num_scheduled_tokens: torch.Tensor  # [N] m
    has_initial_state: torch.Tensor  # [N] bool: n > 0 and m > 0
    block_idx_last_computed_token: torch.Tensor  # [N]
    block_idx_first_scheduled_token: torch.Tensor  # [N]
    block_idx_last_scheduled_token: torch.Tensor  # [N]
    read_slot: torch.Tensor  # [N] slot of the read column, 0 if nothing is read
    write_slot: torch.Tensor  # [N] slot of the last write column, 0 if nothing is written
    chunk_offsets: torch.Tensor | None  # [N + 1] chunks before each row; None if no row has two tokens
    chunk_row: torch.Tensor | None  # [max_chunks] row of each chunk, -1 beyond the last; None as above

    @property
    def only_one_token_rows(self) -> bool:
        """No row has two tokens: the batch may replay a captured graph."""
        return self.max_query_len <= 1

    def copy_(self, other: BlockIndexMetadata) -> BlockIndexMetadata:
        """Overwrite every tensor in place with ``other``'s, so that a captured graph sees the new batch.

        Raises ``ValueError`` if a size differs, because the addresses that a graph captured cannot grow.
        """
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
                if mine.shape != theirs.shape:
                    raise ValueError(
                        f"{f.name}: shape {tuple(theirs.shape)} does not fit the captured {tuple(mine.shape)}; "
                        "pad the batch to the captured number of rows and columns"
                    )
                mine.copy_(theirs)
            elif f.name != "num_tokens" and mine != theirs:
                raise ValueError(
                    f"{f.name}: {theirs!r} differs from the captured {mine!r}; capture a graph for this shape"
                )
        return self


def max_chunks(num_rows: int, num_tokens: int, block_size: int, chunk_size: int) -> int:
    """The most chunks that any batch of this shape can have, whatever its starts are.

    A row of m tokens has one chunk and one more for each edge inside it: at most ``m · cpb / B`` edges in whole
    blocks and two more where it is clipped. A chunk has a token, so there are never more than tokens.
    """
    chunks_per_block = -(-block_size // chunk_size)
    return min(num_tokens, num_tokens * chunks_per_block // block_size + 3 * num_rows)


def build_metadata(
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_size: int,
    chunk_size: int = 64,
    max_query_len: int,
    num_tokens: int,
) -> BlockIndexMetadata:
    """Block-index metadata of a batch.

    Args:
        seq_lens: [N] int32, n + m of each row; any value on a padding row.
        query_start_loc: [N + 1] int32, packed token offsets, flat over padding rows.
        block_table: [N, columns] int32, slots; columns before the read column are never looked at.
        block_size: B ≥ 1, tokens of a cache block.
        chunk_size: C ≥ 1, tokens of a kernel chunk.
        max_query_len: an upper bound of the rows' m, known on the host. With 1 or less, no row may have
            two tokens, and the batch runs by the recurrent kernel alone.
        num_tokens: an upper bound of the tokens of the batch, known on the host (padding included).

    Raises:
        TypeError, ValueError: an argument of the wrong type, shape or range; the message names it.
    """
    check_index_tensor("seq_lens", seq_lens, (None,))
    n_rows = seq_lens.shape[0]
    check_index_tensor("query_start_loc", query_start_loc, (n_rows + 1,), seq_lens.device)
    check_index_tensor("block_table", block_table, (n_rows, None), seq_lens.device)
    check_positive("block_size", block_size)
    check_positive("chunk_size", chunk_size)
    if max_query_len < 0 or num_tokens < 0:
        raise ValueError(
            f"max_query_len and num_tokens: got {max_query_len} and {num_tokens}; pass the host's upper bounds, not negative numbers"
        )
    B, C = block_size, chunk_size
    m = query_start_loc[1:] - query_start_loc[:-1]
    live = m > 0
    n = torch.where(live, seq_lens - m, 0)
    end = n + m
    has_state = n > 0
    first = n // B
    last = torch.where(live, (end - 1) // B, 0)
    read = torch.where(has_state, (n - 1) // B, 0)
    if block_table.shape[1] == 0:
        if n_rows and num_tokens:
            raise ValueError(
                f"block_table: shape {tuple(block_table.shape)} has no column, but the batch has tokens; pass one column a block"
            )
        read_slot = write_slot = torch.zeros_like(n)
    else:
        read_slot, write_slot = _resolve(block_table, read, has_state), _resolve(block_table, last, live)

    chunk_offsets = chunk_row = None
    if max_query_len > 1:
        counts = torch.where(live, _ordinal(end - 1, B, C) - _ordinal(n, B, C) + 1, 0)
        chunk_offsets = torch.zeros(n_rows + 1, dtype=torch.int32, device=n.device)
        torch.cumsum(counts, 0, dtype=torch.int32, out=chunk_offsets[1:])
        bound = max_chunks(n_rows, num_tokens, B, C)
        chunk = torch.arange(bound, dtype=torch.int32, device=n.device)
        row = torch.searchsorted(chunk_offsets[1:], chunk, right=True, out_int32=True)
        chunk_row = torch.where(row < n_rows, row, -1)
    return BlockIndexMetadata(
        block_size=B,
        chunk_size=C,
        num_rows=n_rows,
        num_tokens=num_tokens,
        max_query_len=max_query_len,
        query_start_loc=query_start_loc,
        block_table=block_table,
        num_computed_tokens=n,
        num_scheduled_tokens=m,
        has_initial_state=has_state,
        block_idx_last_computed_token=read,
        block_idx_first_scheduled_token=first,
        block_idx_last_scheduled_token=last,
        read_slot=read_slot,
        write_slot=write_slot,
        chunk_offsets=chunk_offsets,
        chunk_row=chunk_row,
    )


def chunk_bounds(n: int, m: int, i: int, block_size: int, chunk_size: int) -> tuple[int, int]:
    """First and one-past-last position of the i-th chunk of a row: the absolute grid clipped to ``[n, n + m)``."""
    per_block = -(-block_size // chunk_size)
    ordinal = (n // block_size) * per_block + (n % block_size) // chunk_size + i
    block, within = divmod(ordinal, per_block)
    start = block * block_size + within * chunk_size
    return max(start, n), min(start + chunk_size, (block + 1) * block_size, n + m)


def _ordinal(position: torch.Tensor, B: int, C: int) -> torch.Tensor:
    """The ordinal of the chunk that holds a position, counted over the absolute grid."""
    return (position // B) * (-(-B // C)) + (position % B) // C


def _resolve(block_table: torch.Tensor, column: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """The slot of one column a row, 0 where it is not used or lies outside the table."""
    columns = block_table.shape[1]
    slot = block_table.gather(1, column.clamp(0, columns - 1).long()[:, None])[:, 0]
    return torch.where(used & (column < columns), slot, 0)
