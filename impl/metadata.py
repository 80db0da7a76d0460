"""Block-index metadata of a batch: which slot each row reads, which columns it writes, and its chunk grid.

Every tensor is computed where the inputs live, so nothing waits for the host: on a GPU by one launch
(``kernels/metadata.py``), elsewhere by PyTorch operations, which the kernel must match bit for bit. Groups of layers
that differ in their block tables only share one batch's metadata (``BlockIndexMetadata.with_block_table``).
Imports torch; Triton only when it is used. Exercise it with ``pytest tests/impl/test_metadata.py``.

For a row that goes from ``n`` computed tokens to ``n + m`` (DESIGN.md, section 3)::

    block_idx_last_computed_token   = ceil(n / B) - 1        read column, if n > 0
    block_idx_first_scheduled_token = floor(n / B)           first write column
    block_idx_last_scheduled_token  = ceil((n + m) / B) - 1  last write column

Chunk edges are the multiples of B, and every C tokens from the last one. With ``cpb = ceil(B / C)`` chunks a
block, position ``p`` lies in the chunk of ordinal ``(p // B) · cpb + (p % B) // C``; so the i-th chunk of a row is
found in closed form (``chunk_bounds``), and a row needs no list of its chunks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import torch

from gdn_apc.impl._checks import check_index_tensor, check_positive

LARGEST = 1 << 30
"""Largest block and chunk size: sums of two stay within int32."""


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
            if f.name != "num_tokens":
                _check_fits(f.name, mine, theirs)
            if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
                mine.copy_(theirs)
        return self

    def with_block_table(
        self, block_table: torch.Tensor, *, backend: str | None = None
    ) -> BlockIndexMetadata:
        """The same batch by another group's block table, [N, columns] int32: all but the slots is shared.

        Raises ``TypeError`` or ``ValueError`` for a table that does not fit, as ``build_metadata``.
        """
        check_index_tensor("block_table", block_table, (self.num_rows, None), self.query_start_loc.device)
        _check_columns(block_table, self.num_rows, self.num_tokens)
        if _runs_kernel(backend, block_table):
            from gdn_apc.impl.metadata_launch import carve, launch_slots

            slots = carve(block_table.device, 2, self.num_rows)
            known = (self.num_computed_tokens, self.num_scheduled_tokens)
            known += (self.block_idx_last_computed_token, self.block_idx_last_scheduled_token)
            launch_slots(block_table, known, slots)
        else:
            used = self.has_initial_state, self.num_scheduled_tokens > 0
            columns = self.block_idx_last_computed_token, self.block_idx_last_scheduled_token
            slots = tuple(_resolve(block_table, c, u) for c, u in zip(columns, used))
        other = object.__new__(BlockIndexMetadata)  # dataclasses.replace takes longer than the launch
        other.__dict__.update(self.__dict__, block_table=block_table, read_slot=slots[0], write_slot=slots[1])
        return other


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
    out: BlockIndexMetadata | None = None,
    backend: str | None = None,
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
        out: metadata of the same sizes to overwrite in place, for a captured graph; it is returned. Its
            ``num_tokens`` stays what it was.
        backend: ``"triton"``, ``"torch"``, or None: Triton on a GPU, PyTorch on a CPU.

    Raises:
        TypeError, ValueError: an argument of the wrong type, shape or range; the message names it.
    """
    check_index_tensor("seq_lens", seq_lens, (None,))
    n_rows = seq_lens.shape[0]
    check_index_tensor("query_start_loc", query_start_loc, (n_rows + 1,), seq_lens.device)
    check_index_tensor("block_table", block_table, (n_rows, None), seq_lens.device)
    check_positive("block_size", block_size)
    check_positive("chunk_size", chunk_size)
    if max(block_size, chunk_size) > LARGEST:
        raise ValueError(
            f"block_size, chunk_size: got {block_size} and {chunk_size}, expected at most {LARGEST}; "
            "positions are int32, and such a block is beyond them all"
        )
    if max_query_len < 0 or num_tokens < 0:
        raise ValueError(
            f"max_query_len and num_tokens: got {max_query_len} and {num_tokens}; pass the host's upper bounds, not negative numbers"
        )
    _check_columns(block_table, n_rows, num_tokens)
    inputs = seq_lens, query_start_loc, block_table
    if _runs_kernel(backend, seq_lens):
        return _launch(inputs, block_size, chunk_size, max_query_len, num_tokens, out)
    meta = _compute(inputs, block_size, chunk_size, max_query_len, num_tokens)
    return meta if out is None else out.copy_(meta)


def _compute(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    B: int,
    C: int,
    max_query_len: int,
    num_tokens: int,
) -> BlockIndexMetadata:
    """``build_metadata`` by PyTorch operations."""
    seq_lens, query_start_loc, block_table = inputs
    n_rows = seq_lens.shape[0]
    m = query_start_loc[1:] - query_start_loc[:-1]
    live = m > 0
    n = torch.where(live, seq_lens - m, 0)
    end = n + m
    has_state = n > 0
    first = n // B
    last = torch.where(live, (end - 1) // B, 0)
    read = torch.where(has_state, (n - 1) // B, 0)
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


def _launch(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    B: int,
    C: int,
    max_query_len: int,
    num_tokens: int,
    out: BlockIndexMetadata | None,
) -> BlockIndexMetadata:
    """``build_metadata`` by one launch of the kernel, into one allocation or into ``out``."""
    from gdn_apc.impl.metadata_launch import carve, launch_metadata

    seq_lens, query_start_loc, block_table = inputs
    N, chunked = seq_lens.shape[0], max_query_len > 1
    bound = max_chunks(N, num_tokens, B, C) if chunked else 0
    if out is None:
        n, m, read, first, last, read_slot, write_slot = carve(seq_lens.device, 7, N)
        integers = dict(dtype=torch.int32, device=seq_lens.device)
        out = BlockIndexMetadata(
            block_size=B,
            chunk_size=C,
            num_rows=N,
            num_tokens=num_tokens,
            max_query_len=max_query_len,
            query_start_loc=query_start_loc,
            block_table=block_table,
            num_computed_tokens=n,
            num_scheduled_tokens=m,
            has_initial_state=torch.empty(N, dtype=torch.bool, device=seq_lens.device),
            block_idx_last_computed_token=read,
            block_idx_first_scheduled_token=first,
            block_idx_last_scheduled_token=last,
            read_slot=read_slot,
            write_slot=write_slot,
            chunk_offsets=torch.empty(N + 1, **integers) if chunked else None,
            chunk_row=torch.empty(bound, **integers) if chunked else None,
        )
    else:
        sizes = dict(block_size=B, chunk_size=C, num_rows=N, max_query_len=max_query_len)
        for name, value in (sizes | dict(query_start_loc=query_start_loc, block_table=block_table)).items():
            _check_fits(name, getattr(out, name), value)
        if chunked and out.chunk_row.shape[0] != bound:
            raise ValueError(_other_shape("chunk_row", (bound,), out.chunk_row))
        out.query_start_loc.copy_(query_start_loc)
        out.block_table.copy_(block_table)
    launch_metadata(
        (seq_lens.contiguous(), query_start_loc.contiguous(), block_table),
        (out.num_computed_tokens, out.num_scheduled_tokens, out.read_slot, out.write_slot),
        (
            out.has_initial_state,
            out.block_idx_last_computed_token,
            out.block_idx_first_scheduled_token,
            out.block_idx_last_scheduled_token,
        ),
        None,
        (out.chunk_offsets, out.chunk_row) if chunked else None,
        B,
        C,
    )
    return out


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
    if columns == 0:
        return torch.zeros_like(column)
    slot = block_table.gather(1, column.clamp(0, columns - 1).long()[:, None])[:, 0]
    return torch.where(used & (column < columns), slot, 0)


def _runs_kernel(backend: str | None, t: torch.Tensor) -> bool:
    """Whether the kernel computes the metadata; raises ``ValueError`` for a backend that cannot."""
    if backend not in ("triton", "torch", None):
        raise ValueError(f"backend: expected 'triton', 'torch' or None, got {backend!r}")
    if backend == "triton" and not t.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "backend: 'triton' needs a CUDA device or TRITON_INTERPRET=1; pass backend='torch' for CPU tensors"
        )
    return backend == "triton" or (backend is None and t.is_cuda)


def _check_columns(block_table: torch.Tensor, num_rows: int, num_tokens: int) -> None:
    """A batch with tokens has a table with columns."""
    if block_table.shape[1] == 0 and num_rows and num_tokens:
        raise ValueError(
            f"block_table: shape {tuple(block_table.shape)} has no column, but the batch has tokens; pass one column a block"
        )


def _check_fits(name: str, captured: object, value: object) -> None:
    """``value`` can overwrite what a graph captured: tensors of one shape, or equal sizes."""
    if isinstance(captured, torch.Tensor) and isinstance(value, torch.Tensor):
        if captured.shape != value.shape:
            raise ValueError(_other_shape(name, tuple(value.shape), captured))
    elif captured != value:
        raise ValueError(
            f"{name}: {value!r} differs from the captured {captured!r}; capture a graph for this shape"
        )


def _other_shape(name: str, shape: tuple[int, ...], captured: torch.Tensor) -> str:
    return (
        f"{name}: shape {shape} does not fit the captured {tuple(captured.shape)}; "
        "pad the batch to the captured number of rows and columns"
    )
