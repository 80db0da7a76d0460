"""Loads and stores: every way of naming lanes, and every way of leaving the memory.

Exercise it with ``pytest tests/fuzz/test_interpreter_memory.py``.
"""

import itertools

import pytest
import torch

from gdn_apc.fuzz import interpreter

interpreter.activate()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gdn_apc.fuzz.interpreter._settings import SETTINGS  # noqa: E402

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
]


@triton.jit
def _copy_tile(x, out, rows, cols, stride, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    mask = (i < rows) & (j < cols)
    tl.store(out + i * M + j, tl.load(x + i * stride + j, mask=mask, other=3), mask=mask | (j == M - 1))


@triton.jit
def _copy_bool(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.int32))


@triton.jit
def _gather(table, out, N: tl.constexpr):
    i = tl.arange(0, N)
    address = tl.load(table + i).to(tl.pointer_type(tl.float32))
    tl.store(out + i, tl.load(address))


@triton.jit
def _row_mask(x, out, n, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.load(x + i * N + j, mask=(i < n), other=-1.0))


@triton.jit
def _block_pointer(x, out, rows, N: tl.constexpr):
    p = tl.make_block_ptr(x, (rows, N), (N, 1), (0, 0), (N, N), (1, 0))
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.load(p, boundary_check=(0,)))


@triton.jit
def _write_at(x, offset):
    tl.store(x + offset, 1.0)


@triton.jit
def _write_far(x, offset):
    tl.store(x + offset.to(tl.int64) * 1000000, 1.0)


@triton.jit
def _atomic_at(x, offset):
    tl.atomic_add(x + offset, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_every_dtype(dtype):
    """A strided, masked copy equals torch's, in every dtype that kernels use."""
    x = torch.arange(64).reshape(8, 8).to(dtype)
    for rows, cols in itertools.product((0, 3, 4), (0, 5, 8)):
        out = torch.zeros(4, 8, dtype=dtype)
        _copy_tile[(1,)](x, out, rows, cols, 8, 4, 8)
        expected = torch.zeros(4, 8, dtype=dtype)
        expected[:, 7] = 3
        expected[:rows, :cols] = x[:rows, :cols]
        assert torch.equal(out, expected), (rows, cols)


def test_booleans():
    """torch.bool is read as truth values."""
    out = torch.zeros(4, dtype=torch.int32)
    _copy_bool[(1,)](torch.tensor([True, False, True, True]), out, 4)
    assert out.tolist() == [1, 0, 1, 1]


def test_pointers_from_a_table():
    """A tile may span several tensors, as long as each lane is inside one."""
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    table = torch.tensor([t.data_ptr() + 4 * i for t in (a, b) for i in (1, 0)])
    out = torch.zeros(4)

    @triton.jit
    def gather(table, a, b, out, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, tl.load(tl.load(table + i).to(tl.pointer_type(tl.float32))))

    gather[(1,)](table, a, b, out, 4)
    assert out.tolist() == [2, 1, 4, 3]
    with pytest.raises(interpreter.OutOfBounds, match="4 of 4 active lanes"):
        _gather[(1,)](table, out, 4)


def test_masks_of_fewer_columns():
    """A mask that broadcasts over a tile."""
    out = torch.zeros(4, 4)
    x = torch.arange(16.0).reshape(4, 4)
    _row_mask[(1,)](x, out, 2, 4)
    assert torch.equal(out, torch.cat([x[:2], -torch.ones(2, 4)]))


def test_block_pointers():
    """The deprecated block pointers go through the same checks."""
    x, out = torch.arange(8.0).reshape(2, 4), torch.ones(4, 4)
    _block_pointer[(1,)](x, out, 2, 4)
    assert torch.equal(out, torch.cat([x, torch.zeros(2, 4)]))
    with pytest.raises(interpreter.OutOfBounds):
        _block_pointer[(1,)](x, out, 4, 4)


@pytest.mark.parametrize(
    "kernel, offset, text",
    [
        (_write_at, -1, "a store of 1 of 1 active lanes lies in no tensor passed to the launch"),
        (_write_at, -1, "4 bytes before the start of its 16"),
        (_write_at, 5, "4 bytes after the end of its 16"),
        (_atomic_at, 4, "an atomic of 1 of 1 active lanes"),
    ],
)
def test_where_the_error_says_it_is(kernel, offset, text):
    """How far outside, on which side."""
    with pytest.raises(interpreter.OutOfBounds) as e:
        kernel[(1,)](torch.zeros(12)[4:8], offset)
    assert text in str(e.value)


def test_far_writes_do_not_reach_memory():
    """Where the stock interpreter would kill the process."""
    with pytest.raises(
        interpreter.OutOfBounds, match="nearest is argument 'x': 399999984 bytes after the end of its 16"
    ):
        _write_far[(1,)](torch.zeros(4), 100)


def test_empty_tensors_hold_nothing():
    """No lane is inside a tensor without elements."""
    with pytest.raises(interpreter.OutOfBounds, match="no tensor was passed"):
        _write_at[(1,)](torch.zeros(0), 0)


def test_gaps_of_a_view_count_as_inside():
    """A limit of the guard, stated in its documentation: a span runs from the first element to the last."""
    x = torch.zeros(4, 4)
    _write_at[(1,)](x[:, :2], 3)
    assert x[0, 3] == 1


def test_bounds_can_be_switched_off():
    """Then the access happens as in the stock interpreter."""
    storage = torch.zeros(8)
    SETTINGS.bounds = False
    try:
        _write_at[(1,)](storage[:4], 5)
    finally:
        SETTINGS.bounds = True
    assert storage.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def test_atomics():
    """fp32 and integer atomics work; bf16 is refused by name."""
    x = torch.zeros(2)
    _atomic_at[(3,)](x, 1)
    assert x.tolist() == [0, 3]
    with pytest.raises(
        NotImplementedError, match="kernel '_atomic_at': atomics on bf16 are not interpreted; use fp32"
    ):
        _atomic_at[(1,)](torch.zeros(2, dtype=torch.bfloat16), 0)
