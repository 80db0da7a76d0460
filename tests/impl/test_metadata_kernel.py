"""The metadata kernel: every index equals the PyTorch path's and the brute-force builder's, bit for bit.

Here it runs in the interpreter, on a GPU compiled: ``pytest tests/impl/test_metadata_kernel.py``.
"""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gdn_apc import oracle
from gdn_apc.fuzz import interpreter
from gdn_apc.impl import build_metadata
from gdn_apc.impl.metadata import BlockIndexMetadata
from gdn_apc.impl.metadata_launch import carve, launch_metadata
from tests.impl.batches import DEVICE


def batch(rows, B, C, *, tables=None, stale=7, spare_tokens=0, one_token=False):
    """Arguments of ``build_metadata`` for rows (n, m); padding rows take a stale length."""
    columns = max([-(-(n + m) // B) for n, m in rows] + [1])
    if tables is None:
        tables = [[1 + i * columns + j for j in range(columns)] for i in range(len(rows))]
    offsets = [0, *itertools.accumulate(m for _, m in rows)]
    table = torch.tensor(tables, dtype=torch.int32).reshape(len(rows), columns)
    return dict(
        seq_lens=torch.tensor([n + m if m else stale for n, m in rows], dtype=torch.int32, device=DEVICE),
        query_start_loc=torch.tensor(offsets, dtype=torch.int32, device=DEVICE),
        block_table=table.to(DEVICE),
        block_size=B,
        chunk_size=C,
        max_query_len=1 if one_token else max([m for _, m in rows] + [2]),
        num_tokens=offsets[-1] + spare_tokens,
    )


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def assert_same(kernel: BlockIndexMetadata, torch_path: BlockIndexMetadata):
    """Every field: dtype, shape and value."""
    for f in dataclasses.fields(BlockIndexMetadata):
        have, want = getattr(kernel, f.name), getattr(torch_path, f.name)
        if isinstance(want, torch.Tensor):
            assert (have.dtype, have.shape) == (want.dtype, want.shape), f.name
        assert plain(have) == plain(want), f"{f.name}: {plain(have)}, expected {plain(want)}"


def check(arguments, rows=None):
    """The kernel against the PyTorch path, and against the oracle if the rows are given."""
    kernel = build_metadata(**arguments, backend="triton")
    assert_same(kernel, build_metadata(**arguments, backend="torch"))
    if rows is not None:
        bound = 0 if kernel.chunk_row is None else kernel.chunk_row.shape[0]
        tables = arguments["block_table"].tolist()
        want = oracle.block_indices(
            [(n, m, t) for (n, m), t in zip(rows, tables)],
            arguments["block_size"],
            arguments["chunk_size"],
            chunk_row_length=bound or None,
        )
        for name in want.keys() & {f.name for f in dataclasses.fields(kernel)} - {
            "max_query_len",
            "num_tokens",
        }:
            have = getattr(kernel, name)
            assert have is None or plain(have) == want[name], name
    return kernel


@pytest.mark.parametrize(("B", "C"), [(1, 4), (2, 1), (3, 2), (4, 3), (4, 4), (4, 16)])
def test_every_small_row_is_exact(B, C):
    """Every (n, m) up to 2B + 1 in one batch, so that programs add up the chunks of many others."""
    rows = list(itertools.product(range(2 * B + 2), repeat=2))
    check(batch(rows, B, C), rows)


def test_every_small_batch_is_exact():
    """Every batch of two rows."""
    sizes = list(itertools.product((0, 1, 3), (0, 1, 2, 5)))
    for rows in itertools.product(sizes, repeat=2):
        check(batch(list(rows), 3, 2), list(rows))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_large_batches_are_exact(data):
    """Any block and chunk size, long rows, empty rows anywhere, more tokens allowed for than there are."""
    B, C = data.draw(st.integers(1, 1100)), data.draw(st.sampled_from([1, 16, 64]))
    row = st.tuples(st.integers(0, 3 * B), st.one_of(st.integers(0, 2), st.integers(0, 2 * B + 70)))
    rows = data.draw(st.lists(row, min_size=1, max_size=70))
    check(batch(rows, B, C, spare_tokens=data.draw(st.integers(0, 200))), rows)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 256])
def test_decode_batches_are_exact(count):
    """Rows of one token, fresh ones and padding among them: no chunk grid."""
    generator = torch.Generator().manual_seed(count)
    n = torch.randint(0, 300, (count,), generator=generator).tolist()
    m = (torch.rand(count, generator=generator) < 0.9).int().tolist()
    rows = list(zip(n, m))
    kernel = check(batch(rows, 64, 64, one_token=True), rows)
    assert kernel.chunk_row is None and kernel.only_one_token_rows


def test_more_rows_than_are_added_up_at_once():
    """2,100 rows: the sum over the rows before takes several rounds."""
    rows = [(i % 5, i % 4) for i in range(2100)]
    check(batch(rows, 3, 2), rows)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter orders programs and sees them meet")
def test_programs_do_not_meet():
    """No two programs write one element, in any order of them."""
    rows = [(i % 7, i % 5) for i in range(150)]
    with interpreter.races():
        check(batch(rows, 3, 2), rows)
    with interpreter.program_order(5):
        check(batch(rows, 3, 2), rows)


def test_no_row_at_all():
    """An empty batch has an offset and chunks that belong to nobody."""
    kernel = check(batch([], 4, 2, tables=[], spare_tokens=3))
    assert kernel.chunk_offsets.tolist() == [0]


@pytest.mark.parametrize("layout", ["wide pages", "transposed", "every second"])
def test_a_table_of_any_strides(layout):
    """A slice of an engine's wide table, and stranger ones, give the slots of the same values."""
    rows = [(5, 9), (0, 0), (12, 1), (0, 40)]
    arguments = batch(rows, 4, 2)
    table = arguments["block_table"]
    N, columns = table.shape
    if layout == "wide pages":
        other = torch.full((N, 3 * columns + 5), -9, dtype=torch.int32, device=DEVICE)[:, :columns]
    elif layout == "transposed":
        other = torch.full((columns, N), -9, dtype=torch.int32, device=DEVICE).T
    else:
        other = torch.full((2 * N, 2 * columns), -9, dtype=torch.int32, device=DEVICE)[::2, ::2]
    other.copy_(table)
    assert other.stride() != table.stride()
    check(arguments | dict(block_table=other), rows)


def test_lengths_of_any_stride():
    """Lengths and offsets may be columns of something larger."""
    rows = [(5, 9), (0, 0), (12, 1)]
    arguments = batch(rows, 4, 2)
    for name in ("seq_lens", "query_start_loc"):
        spread = torch.full((len(arguments[name]), 2), -9, dtype=torch.int32, device=DEVICE)[:, 0]
        spread.copy_(arguments[name])
        arguments[name] = spread
    check(arguments, rows)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_addresses_of_any_alignment(shift):
    """One compiled kernel serves every address: inputs that start in the middle of a buffer, after aligned ones."""
    rows = [(5, 9), (0, 0), (12, 1), (0, 40)] * 10
    arguments = batch(rows, 4, 2)
    check(arguments, rows)
    for name in ("seq_lens", "query_start_loc"):
        buffer = torch.full((shift + len(arguments[name]),), -9, dtype=torch.int32, device=DEVICE)
        buffer[shift:] = arguments[name]
        arguments[name] = buffer[shift:]
    table = arguments["block_table"]
    buffer = torch.full((table.numel() + shift,), -9, dtype=torch.int32, device=DEVICE)
    buffer[shift:] = table.flatten()
    arguments["block_table"] = buffer[shift:].view(table.shape)
    check(arguments, rows)


def test_a_table_too_short_resolves_to_the_null_slot():
    """Columns beyond the table are null, and nothing outside it is read."""
    arguments = batch([(9, 4), (2, 1)], 4, 2)
    check(arguments | dict(block_table=arguments["block_table"][:, :1]))


def test_a_block_beyond_every_position():
    """One column a row: staged decodes use a block of 2³⁰ tokens."""
    rows = [(5, 1), (1000, 3)]
    check(batch(rows, 1 << 30, 64), rows)
    with pytest.raises(
        ValueError, match=r"block_size, chunk_size: got 1099511627776 and 64, expected at most"
    ):
        build_metadata(**batch(rows, 1 << 40, 64))


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_out_is_overwritten_in_place(backend):
    """Every tensor of a captured batch is rewritten where it is."""
    rows = [(9, 4), (0, 3), (2, 0)]
    arguments = batch(rows, 4, 2)
    captured = build_metadata(**batch([(1, 1), (4, 6), (8, 0)], 4, 2), backend="torch")
    arguments["max_query_len"] = captured.max_query_len
    arguments["block_table"] = arguments["block_table"][:, : captured.block_table.shape[1]]
    if arguments["block_table"].shape != captured.block_table.shape:
        captured = dataclasses.replace(captured, block_table=torch.zeros_like(arguments["block_table"]))
    names = [
        f.name for f in dataclasses.fields(captured) if isinstance(getattr(captured, f.name), torch.Tensor)
    ]
    for name in names:
        getattr(captured, name).fill_(True if name == "has_initial_state" else -99)
    addresses = [getattr(captured, name).data_ptr() for name in names]
    assert build_metadata(**arguments, out=captured, backend=backend) is captured
    assert [getattr(captured, name).data_ptr() for name in names] == addresses
    assert_same(captured, build_metadata(**arguments, backend="torch"))


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(block_size=8), "block_size: 8 differs from the captured 4"),
        (dict(max_query_len=5), "max_query_len: 5 differs from the captured 9"),
        (dict(num_tokens=1), r"chunk_row: shape \(1,\) does not fit the captured \(7,\)"),
        (dict(columns=1), r"block_table: shape \(1, 1\) does not fit the captured \(1, 4\)"),
    ],
)
def test_out_of_another_shape_is_refused(backend, change, text):
    """A graph's buffers cannot grow."""
    arguments = batch([(5, 9)], 4, 3)
    captured = build_metadata(**arguments, backend=backend)
    if "columns" in change:
        change = dict(block_table=arguments["block_table"][:, : change["columns"]])
    with pytest.raises(ValueError, match=text):
        build_metadata(**(arguments | change), out=captured, backend=backend)


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("one_token", [False, True])
def test_another_groups_table(backend, one_token):
    """A second group shares all but the slots with the first, and has what its own build would give."""
    rows = [(5, 1), (0, 1), (12, 0), (7, 1)] if one_token else [(5, 9), (0, 0), (12, 1), (0, 40)]
    arguments = batch(rows, 4, 2, one_token=one_token)
    first = build_metadata(**arguments, backend=backend)
    table = arguments["block_table"].flip(0) * 3
    second = first.with_block_table(table, backend=backend)
    assert_same(second, build_metadata(**(arguments | dict(block_table=table)), backend="torch"))
    assert second.num_computed_tokens is first.num_computed_tokens and second.chunk_row is first.chunk_row
    assert first.block_table is arguments["block_table"], "the first group's is as it was"


def test_a_table_that_does_not_fit():
    """One row a row of the batch, int32, with columns."""
    meta = build_metadata(**batch([(5, 9), (0, 2)], 4, 2), backend="triton")
    with pytest.raises(ValueError, match=r"block_table: expected shape \[2, any\], got \[1, 3\]"):
        meta.with_block_table(torch.zeros(1, 3, dtype=torch.int32, device=DEVICE))
    with pytest.raises(ValueError, match="has no column, but the batch has tokens"):
        meta.with_block_table(torch.zeros(2, 0, dtype=torch.int32, device=DEVICE))
    with pytest.raises(TypeError, match=r"block_table: expected dtype torch.int32, got torch.int64"):
        meta.with_block_table(torch.zeros(2, 3, dtype=torch.int64, device=DEVICE))


@pytest.mark.parametrize("padding", [28, 60])
def test_fixed_addresses(padding):
    """For a graph's buffers: the offsets are copied too, also where the last one is a program's only element."""
    rows = [(5, 1), (0, 1), (12, 0), (7, 1)] + [(0, 0)] * padding
    arguments = batch(rows, 4, 2, one_token=True)
    want = build_metadata(**arguments, backend="torch")
    N = len(rows)
    buffers = [*carve(DEVICE, 4, N), *carve(DEVICE, 1, N + 1)]
    inputs = tuple(arguments[name] for name in ("seq_lens", "query_start_loc", "block_table"))
    launch_metadata(inputs, buffers[:4], None, buffers[4], None, 4, 2)
    names = ("num_computed_tokens", "num_scheduled_tokens", "read_slot", "write_slot", "query_start_loc")
    for name, have in zip(names, buffers):
        assert plain(have) == plain(getattr(want, name)), name


@pytest.mark.parametrize("size", [0, 1, 5, 8])
def test_parts_of_one_buffer_are_aligned(size):
    """Whatever the number of rows is, other kernels see addresses of one alignment, and parts do not overlap."""
    parts = carve(torch.device("cpu"), 3, size)
    assert [p.shape for p in parts] == [(size,)] * 3
    assert all(p.is_contiguous() and (p.data_ptr() - parts[0].data_ptr()) % 16 == 0 for p in parts)
    for i, p in enumerate(parts):
        p.fill_(i)
    assert [set(p.tolist()) for p in parts] == [{i} if size else set() for i in range(3)]


def test_a_backend_that_cannot(monkeypatch):
    """The kernel needs a GPU or the interpreter."""
    arguments = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in batch([(5, 9)], 4, 3).items()}
    with pytest.raises(ValueError, match="backend: expected 'triton', 'torch' or None, got 'cuda'"):
        build_metadata(**arguments, backend="cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="backend: 'triton' needs a CUDA device or TRITON_INTERPRET=1"):
        build_metadata(**arguments, backend="triton")
