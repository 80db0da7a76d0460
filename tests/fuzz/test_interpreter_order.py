"""Program order and races. Exercise it with ``pytest tests/fuzz/test_interpreter_order.py``."""

import pytest
import torch

from gdn_apc.fuzz import interpreter

interpreter.activate()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def _shift(x, n):
    """Each program reads what another writes: right only in one order."""
    i = tl.program_id(0)
    tl.store(x + i + 1, tl.load(x + i))


@triton.jit
def _double(x, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * 2)


@triton.jit
def _in_place(x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * 2)


@triton.jit
def _same_place(x, value):
    tl.store(x, value)


@triton.jit
def _count(x):
    tl.atomic_add(x, 1)


@triton.jit
def _log(out, count):
    at = tl.load(count)
    tl.store(out + at, tl.program_id(0))
    tl.store(count, at + 1)


def _sequence(launches: int = 1) -> list[int]:
    """The order in which 6 programs ran, launch after launch."""
    out, count = torch.zeros(6 * launches, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for _ in range(launches):
        _log[(6,)](out, count)
    return out.tolist()


def test_orders():
    """None is the usual order; a seed gives a permutation, the same every time, another for each launch."""
    assert _sequence() == [0, 1, 2, 3, 4, 5]
    with interpreter.program_order("reversed"):
        assert _sequence() == [5, 4, 3, 2, 1, 0]
        with interpreter.program_order(None):
            assert _sequence() == [0, 1, 2, 3, 4, 5]
    with interpreter.program_order(7):
        first = _sequence(3)
    with interpreter.program_order(7):
        assert _sequence(3) == first
    assert all(sorted(first[i : i + 6]) == list(range(6)) for i in (0, 6, 12))
    assert len({tuple(first[i : i + 6]) for i in (0, 6, 12)}) > 1
    assert _sequence() == [0, 1, 2, 3, 4, 5]


def test_another_order_shows_a_hidden_dependence():
    """A kernel that relies on the order gives other bits; one that does not, the same."""
    results = []
    for order in (None, "reversed"):
        x, out = torch.arange(9.0), torch.zeros(8)
        with interpreter.program_order(order):
            _shift[(8,)](x, 8)
            _double[(4,)](torch.arange(8.0), out, 2)
        results.append((x, out))
    assert not torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("order", [True, 1.5, "random"])
def test_unknown_order(order):
    """The text names the argument and its value."""
    with pytest.raises(
        ValueError, match=f"order: {order!r} is not known; expected a seed, 'reversed' or None"
    ):
        with interpreter.program_order(order):
            pass


@pytest.mark.parametrize(
    "order, text",
    [
        (
            None,
            "program (1, 0, 0) reads 1 elements of argument 'x' that another program has written, first at byte 4",
        ),
        (
            "reversed",
            "program (6, 0, 0) writes 1 elements of argument 'x' that another program has read, first at byte 28",
        ),
    ],
)
def test_races_are_found_whatever_the_values(order, text):
    """Read after write and write after read, on equal values too."""
    with pytest.raises(interpreter.Race) as e, interpreter.races(), interpreter.program_order(order):
        _shift[(8,)](torch.zeros(9), 8)
    assert f"kernel '_shift': {text}" in str(e.value)
    assert "Let one program own the element, or split the kernel in two" in str(e.value)


def test_two_writers_race():
    """Even if they write the same."""
    with pytest.raises(
        interpreter.Race, match="writes 1 elements of argument 'x' that another program has written"
    ):
        with interpreter.races():
            _same_place[(2,)](torch.zeros(1), 1.0)


def test_overlapping_arguments_are_one_memory():
    """A view of the same storage under another name does not hide a race."""
    storage = torch.zeros(10)
    _double[(4,)](storage[:8], storage[1:9], 2)
    with pytest.raises(interpreter.Race), interpreter.races():
        _double[(4,)](storage[:8], storage[1:9], 2)


def test_what_is_no_race():
    """Own elements, shared reads, atomics, and another launch's elements."""
    x = torch.ones(8)
    counter = torch.zeros(1, dtype=torch.int32)
    with interpreter.races():
        _in_place[(4,)](x, 2)
        _in_place[(2,)](x, 4)
        _double[(4,)](x, torch.zeros(8), 2)
        _count[(3,)](counter)
    assert x.tolist() == [4.0] * 8
    assert counter.item() == 3
