"""Block-index metadata against the brute-force builder, exactly: small sizes exhaustively, large ones at random."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdn_apc import oracle
from gdn_apc.impl import build_metadata, check_slots, chunk_bounds
from gdn_apc.impl.metadata import max_chunks


def build(rows, B, C, tables=None, stale=None):
    """Our metadata of rows (n, m); padding rows take their seq_len from ``stale``."""
    columns = max([-(-(n + m) // B) for n, m in rows] + [1])
    tables = tables or [[1 + i * columns + j for j in range(columns)] for i in range(len(rows))]
    offsets = [0, *itertools.accumulate(m for _, m in rows)]
    meta = build_metadata(
        torch.tensor([n + m if m else (stale or 0) for n, m in rows], dtype=torch.int32),
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(tables, dtype=torch.int32),
        block_size=B,
        chunk_size=C,
        max_query_len=max(m for _, m in rows),
        num_tokens=offsets[-1],
    )
    return meta, tables


def assert_equal_to_oracle(rows, B, C, **kwargs):
    meta, tables = build(rows, B, C, **kwargs)
    bound = 0 if meta.chunk_row is None else meta.chunk_row.shape[0]
    want = oracle.block_indices(
        [(n, m, t) for (n, m), t in zip(rows, tables)], B, C, chunk_row_length=bound or None
    )
    for f in dataclasses.fields(meta):
        have = getattr(meta, f.name)
        if have is None:
            assert max(m for _, m in rows) <= 1, f"{f.name} is missing although a row has two tokens: {rows}"
            continue
        have = have.tolist() if isinstance(have, torch.Tensor) else have
        assert have == want[f.name], f"{f.name} of rows {rows}, B={B}, C={C}: {have}, expected {want[f.name]}"
    return meta, want


@pytest.mark.parametrize(("B", "C"), [(1, 4), (2, 1), (3, 2), (4, 3), (4, 4), (4, 16)])
def test_every_small_row_is_exact(B, C):
    """Every (n, m) up to 2B + 1, all in one batch: rows do not see each other, so one batch holds thousands."""
    rows = list(itertools.product(range(2 * B + 2), repeat=2))
    assert_equal_to_oracle(rows, B, C, stale=7)


def test_every_small_batch_is_exact():
    """Every batch of two rows: where rows do meet, in the offsets and the chunk list."""
    sizes = list(itertools.product((0, 1, 3, 4), (0, 1, 2, 5)))
    for rows in itertools.product(sizes, repeat=2):
        assert_equal_to_oracle(list(rows), 3, 2, stale=9)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_large_batches_are_exact(data):
    """Any block and chunk size, long rows, empty rows anywhere."""
    B, C = data.draw(st.integers(1, 1100)), data.draw(st.sampled_from([1, 16, 64]))
    row = st.tuples(st.integers(0, 3 * B), st.one_of(st.integers(0, 2), st.integers(0, 2 * B + 70)))
    assert_equal_to_oracle(data.draw(st.lists(row, min_size=1, max_size=6)), B, C, stale=123)


def test_chunk_bounds_tile_the_step():
    """The closed form gives the oracle's chunks, in order."""
    for n, m, B, C in itertools.product(range(9), range(2, 12), (1, 3, 5, 8), (2, 3, 16)):
        _, want = assert_equal_to_oracle([(n, m)], B, C)
        assert [(0, *chunk_bounds(n, m, i, B, C)) for i in range(want["chunk_offsets"][1])] == want["chunks"]


def test_the_bound_on_chunks_is_tight_where_it_matters():
    """Aligned blocks of chunks leave at most three spare programs a row."""
    assert max_chunks(1, 8192, 1024, 64) <= 8192 // 64 + 3
    assert max_chunks(4, 4, 1024, 64) == 4


def test_copy_overwrites_every_index():
    """A captured batch sees nothing of the batch before: every tensor is rewritten in place."""
    captured, _ = build([(5, 1), (9, 1), (0, 1)], 4, 16)
    addresses = [getattr(captured, f.name).data_ptr() for f in tensors(captured)]
    for f in tensors(captured):
        getattr(captured, f.name).fill_(True if f.name == "has_initial_state" else -99)
    fresh, _ = build([(0, 1), (3, 1), (0, 0)], 4, 16, stale=77, tables=[[1, 0, 0], [2, 0, 0], [9, 9, 9]])
    captured.copy_(fresh)
    for f in tensors(captured):
        assert getattr(captured, f.name).tolist() == getattr(fresh, f.name).tolist(), f.name
    assert addresses == [getattr(captured, f.name).data_ptr() for f in tensors(captured)]


def tensors(meta):
    return [f for f in dataclasses.fields(meta) if isinstance(getattr(meta, f.name), torch.Tensor)]


def test_copy_refuses_another_shape():
    """A graph's buffers cannot grow."""
    captured, _ = build([(5, 1)], 4, 16)
    with pytest.raises(
        ValueError, match=r"query_start_loc: shape \(3,\) does not fit the captured \(2,\)|num_rows"
    ):
        captured.copy_(build([(5, 1), (5, 1)], 4, 16)[0])


def test_padding_rows_resolve_to_the_null_slot():
    """A padding row with a stale length and table reads and writes slot 0."""
    meta, _ = build([(6, 1), (0, 0)], 4, 16, stale=11, tables=[[3, 4, 0], [7, 8, 9]])
    assert (meta.read_slot.tolist(), meta.write_slot.tolist()) == ([4, 0], [4, 0])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"seq_lens": torch.tensor([5])}, TypeError, "seq_lens: expected dtype torch.int32, got torch.int64"),
        ({"seq_lens": [5]}, TypeError, "seq_lens: expected an int32 tensor, got list"),
        (
            {"query_start_loc": torch.zeros(3, dtype=torch.int32)},
            ValueError,
            r"query_start_loc: expected shape \[2\], got \[3\]",
        ),
        (
            {"block_table": torch.zeros(1, dtype=torch.int32)},
            ValueError,
            r"block_table: expected shape \[1, any\], got \[1\]",
        ),
        (
            {"block_table": torch.zeros(1, 0, dtype=torch.int32)},
            ValueError,
            "has no column, but the batch has tokens",
        ),
        ({"block_size": 0}, ValueError, "block_size: expected a positive integer, got 0"),
        ({"chunk_size": 2.0}, ValueError, "chunk_size: expected a positive integer, got 2.0"),
        ({"max_query_len": -1}, ValueError, "max_query_len and num_tokens: got -1 and 2"),
    ],
)
def test_bad_input_is_named(change, error, text):
    """Each error names the argument, its value and the remedy."""
    good = dict(
        seq_lens=torch.tensor([5], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 2], dtype=torch.int32),
        block_table=torch.tensor([[1, 2]], dtype=torch.int32),
        block_size=4,
        chunk_size=16,
        max_query_len=2,
        num_tokens=2,
    )
    build_metadata(**good)
    with pytest.raises(error, match=text):
        build_metadata(**(good | change))


def test_slots_are_checked_on_request():
    """The debug check names the row and column: outside the pool, outside the table, written twice."""
    meta, _ = build([(0, 6), (0, 3)], 4, 16, tables=[[1, 2], [3, 0]])
    check_slots(meta, 4)
    with pytest.raises(IndexError, match="row 1, column 0 names slot 3, the pool has 3"):
        check_slots(meta, 3)
    with pytest.raises(ValueError, match="slot 2 is written by row 0, column 1 and by row 1, column 0"):
        check_slots(build([(0, 6), (0, 3)], 4, 16, tables=[[1, 2], [2, 0]])[0], 4)
    with pytest.raises(
        IndexError, match="row 0 needs column 1 for 6 tokens at block_size 4, the table has 1 columns"
    ):
        check_slots(build([(0, 6)], 4, 16, tables=[[1]])[0], 4)
