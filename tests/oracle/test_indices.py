"""The brute-force block indices against values worked out by hand and the formulas of DESIGN.md section 3."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdn_apc.oracle import block_indices

PER_ROW = (
    "num_computed_tokens",
    "num_scheduled_tokens",
    "block_idx_last_computed_token",
    "block_idx_first_scheduled_token",
    "block_idx_last_scheduled_token",
    "read_slot",
    "write_slot",
    "has_initial_state",
)


def one(n, m, B, C, table=range(100, 200)):
    """The fields of a batch of one row."""
    found = block_indices([(n, m, table)], B, C)
    return {name: found[name][0] for name in PER_ROW} | {"chunks": [c[1:] for c in found["chunks"]]}


def test_a_step_across_two_boundaries_by_hand():
    """B = 6, C = 4, tokens 4..13: columns 0 to 2, chunks 4-6, 6-10, 10-12, 12-14."""
    assert one(4, 10, 6, 4) == {
        "num_computed_tokens": 4,
        "num_scheduled_tokens": 10,
        "block_idx_last_computed_token": 0,
        "block_idx_first_scheduled_token": 0,
        "block_idx_last_scheduled_token": 2,
        "read_slot": 100,
        "write_slot": 102,
        "has_initial_state": True,
        "chunks": [(4, 6), (6, 10), (10, 12), (12, 14)],
    }


def test_a_hit_reads_the_column_before_the_first_that_it_writes():
    """n = 12 = 2B: reads column 1, writes column 2."""
    found = one(12, 1, 6, 4)
    assert (found["block_idx_last_computed_token"], found["read_slot"]) == (1, 101)
    assert (found["block_idx_first_scheduled_token"], found["write_slot"]) == (2, 102)


def test_a_step_that_ends_on_a_boundary_stays_in_its_column():
    """Token 11 is the last of column 1."""
    assert one(7, 5, 6, 4)["block_idx_last_scheduled_token"] == 1


def test_a_fresh_row_reads_nothing():
    """n = 0, one token or many: no state, the null slot, column 0."""
    for m in (1, 7):
        found = one(0, m, 6, 4)
        assert (found["has_initial_state"], found["read_slot"], found["block_idx_last_computed_token"]) == (
            False,
            0,
            0,
        )


def test_padding_rows_are_not_looked_at():
    """m = 0: all zeros, whatever n and the table are, between rows with tokens."""
    found = block_indices([(3, 2, [7]), (-5, 0, []), (9, 0, [3]), (5, 1, [7, 8])], 6, 4)
    assert found["query_start_loc"] == [0, 2, 2, 2, 3]
    assert found["chunk_offsets"] == [0, 2, 2, 2, 3]
    assert found["chunk_row"] == [0, 0, 3]
    for name in PER_ROW:
        assert found[name][1:3] == [0, 0]


def test_the_list_of_chunks_can_be_padded():
    """−1 beyond the end, as an upper bound on the grid needs it."""
    assert block_indices([(3, 2, [7])], 6, 4, chunk_row_length=4)["chunk_row"] == [0, 0, -1, -1]
    with pytest.raises(ValueError, match="chunk_row_length: is 1; the batch has 2 chunks"):
        block_indices([(3, 2, [7])], 6, 4, chunk_row_length=1)


def test_an_empty_batch():
    """No rows, no tokens."""
    found = block_indices([], 4, 4)
    assert (found["num_rows"], found["num_tokens"], found["query_start_loc"]) == (0, 0, [0])


@pytest.mark.parametrize(
    ("rows", "B", "message"),
    [
        ([(0, 1, [1])], 0, "B, C: are 0, 4; expected block and chunk sizes of at least 1 token"),
        ([(0, -1, [1])], 4, r"rows\[0\]: n, m are 0, -1; expected counts of tokens, 0 or more"),
        ([(0, 1, [1]), (-2, 1, [1])], 4, r"rows\[1\]: n, m are -2, 1"),
        ([(3, 2, [1])], 4, r"rows\[0\]: its block table has 1 columns; its last token is in column 1"),
    ],
)
def test_bad_rows_are_named(rows, B, message):
    """The error names the row and what was expected."""
    with pytest.raises(ValueError, match=message):
        block_indices(rows, B, 4)


def test_formulas_of_the_contract_for_all_small_sizes():
    """ceil(n/B) − 1, floor(n/B), ceil((n+m)/B) − 1, and the chunk ordinals of the absolute grid."""
    for B, C, n, m in itertools.product(range(1, 8), range(1, 6), range(0, 17), range(1, 15)):
        found = one(n, m, B, C)
        assert found["block_idx_last_computed_token"] == max(0, -(-n // B) - 1)
        assert found["block_idx_first_scheduled_token"] == n // B
        assert found["block_idx_last_scheduled_token"] == -(-(n + m) // B) - 1
        first, last = ((p // B) * -(-B // C) + (p % B) // C for p in (n, n + m - 1))
        assert len(found["chunks"]) == last - first + 1


@given(n=st.integers(0, 3000), m=st.integers(1, 700), B=st.integers(1, 1100), C=st.sampled_from([16, 32, 64]))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_chunks_tile_the_step_on_the_absolute_grid(n, m, B, C):
    """They cover [n, n+m) in order, are no longer than C, cross no boundary, and do not depend on the start."""
    table = range(1, (n + m) // B + 2)
    chunks = one(n, m, B, C, table)["chunks"]
    assert [chunks[0][0], *(end for _, end in chunks)] == [*(start for start, _ in chunks), n + m]
    assert chunks[0][0] == n
    for start, end in chunks:
        assert 0 < end - start <= C
        assert start // B == (end - 1) // B
    from_zero = {edge for chunk in one(0, n + m, B, C, table)["chunks"] for edge in chunk}
    inner = {end for _, end in chunks[:-1]}
    assert inner == {edge for edge in from_zero if n < edge < n + m}
