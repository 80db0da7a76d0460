"""Steps of one row, and the contents of a whole request's blocks: columns, persisted carry, windows, errors."""

import itertools

import pytest
import torch

from gdn_apc.oracle import (
    block_contents,
    block_indices,
    conv_step,
    delta_step,
    half_ulp,
    recurrence,
    round_to,
    window_after,
)
from gdn_apc.oracle.cache import segments
from tests.oracle import regimes


def request(T, seed=0, dtypes=("fp32", "fp32"), **names):
    """A fresh request's q, k, v, g, beta and its options."""
    x = regimes.row(seed, m=T, n=0, H=1, HV=2, K=8, V=5, dtypes=dtypes, **names)
    x.pop("state")
    return x, dict(use_qk_l2norm=x.pop("use_qk_l2norm"))


def in_steps(x, options, steps, B, C, dtypes):
    """The request run step by step, each from what the one before stored: outputs, and the columns at the end."""
    n, state, outputs, columns = 0, None, [], {}
    for m in steps:
        part = {name: t[n : n + m] for name, t in x.items()}
        found = delta_step(**part, n=n, block_size=B, chunk_size=C, state=state, dtypes=dtypes, **options)
        n += m
        outputs.append(found.o)
        columns |= {j: round_to(write.state, dtypes[1]) for j, write in found.writes.items()}
        state = columns[(n - 1) // B].to(regimes.TORCH[dtypes[1]])
    return torch.cat(outputs), columns


@pytest.mark.parametrize("B", [1, 3, 8, 40])
@pytest.mark.parametrize("state", ["fp32", "bf16", "fp16"])
def test_steps_leave_what_the_whole_request_says(B, state):
    """Every column and output of any list of steps equals ``block_contents`` with persisted rounding."""
    x, options = request(23, seed=B)
    for steps in ([23], [1] * 23, [5, 1, 1, 9, 7], [8, 8, 7]):
        o, columns = in_steps(x, options, steps, B, 4, ("fp32", state))
        want = block_contents(**x, steps=steps, block_size=B, persist=state, **options)
        torch.testing.assert_close(o, want.o, rtol=1e-13, atol=1e-13)
        assert list(columns) == list(want.blocks) == list(range(-(-23 // B)))
        for j, found in columns.items():
            torch.testing.assert_close(found, want.blocks[j].state, rtol=0, atol=0)


def test_exact_contents_do_not_depend_on_the_steps():
    """Block j holds state(min((j+1)B, T)) of the recurrence."""
    x, options = request(23)
    _, states = recurrence(**x, **options)
    for steps in ([23], [1] * 23, [5, 1, 0, 17]):
        found = block_contents(**x, steps=steps, block_size=6, **options)
        for j, write in found.blocks.items():
            torch.testing.assert_close(write.state, states[min(6 * j + 6, 23)], rtol=1e-13, atol=1e-13)


def test_a_cut_on_a_boundary_changes_no_bit_and_another_does():
    """Persisted carry makes boundaries free cuts; elsewhere a 16-bit cache rounds once more."""
    x, options = request(20)
    contents = lambda *steps: block_contents(  # noqa: E731
        **x, steps=steps, block_size=8, persist="bf16", **options
    )
    whole, free, other = contents(20), contents(8, 12), contents(10, 10)
    assert torch.equal(free.o, whole.o)
    assert not torch.equal(other.o, whole.o)
    for j in range(3):
        assert torch.equal(free.blocks[j].state, whole.blocks[j].state)


def test_the_carry_is_the_rounded_state():
    """By hand: run to the boundary, round, run on from there."""
    x, options = request(12)
    head, tail = ({name: t[part] for name, t in x.items()} for part in (slice(8), slice(8, 12)))
    state = round_to(recurrence(**head, **options)[1][-1], "bf16")
    o, states = recurrence(**tail, initial_state=state, **options)
    found = delta_step(**x, n=0, block_size=8, chunk_size=4, state=None, dtypes=("fp32", "bf16"), **options)
    torch.testing.assert_close(found.o[8:], o, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found.writes[1].state, states[-1], rtol=1e-14, atol=1e-14)
    exact, _ = recurrence(**x, **options)
    assert (found.o[8:] - exact[8:]).abs().max() > 1e-4


def test_what_each_step_leaves():
    """``after_step`` has the columns so far, the last one with the step's end."""
    x, options = request(10)
    inputs = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    found = block_contents(**x, steps=[3, 7], block_size=4, x=inputs, conv_width=4, **options)
    _, states = recurrence(**x, **options)
    assert [sorted(columns) for columns in found.after_step] == [[0], [0, 1, 2]]
    torch.testing.assert_close(found.after_step[0][0].state, states[3])
    torch.testing.assert_close(found.after_step[1][0].state, states[4])
    assert torch.equal(found.after_step[0][0].window, window_after(inputs, None, 3, 4))
    assert torch.equal(found.blocks[2].window, inputs[7:10])


@pytest.mark.parametrize("W", [2, 4])
def test_windows_of_a_step_are_copies(W):
    """Each column's window, from short steps too: the request's own inputs before the block's end, bit for bit."""
    x = torch.randn(19, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight = torch.randn(5, W, generator=torch.Generator().manual_seed(2)).bfloat16()
    for B, steps in itertools.product((1, 2, 3, 7), ([19], [1] * 19, [2, 1, 1, 15])):
        n = 0
        for m in steps:
            window = window_after(x, None, n, W) if n else None
            found = conv_step(
                x[n : n + m], weight, None, n=n, block_size=B, window=window, activation="silu", dtype="bf16"
            )
            n += m
            for j, write in found.writes.items():
                assert torch.equal(write.window, window_after(x, None, min((j + 1) * B, n), W))
            assert list(found.writes) == list(range((n - m) // B, -(-n // B)))


def test_columns_and_chunks_are_those_of_the_brute_force():
    """The two readings of the absolute grid in this package agree."""
    for n, m, B, C in itertools.product(range(9), range(1, 9), (1, 2, 5, 6), (1, 2, 4)):
        metadata = block_indices([(n, m, range(100))], B, C)
        found = segments(n, m, B, C)
        assert [column for column, _ in found] == metadata["write_columns"][0]
        chunks = [(n + start, n + end) for _, chunks in found for start, end in chunks]
        assert chunks == [chunk[1:] for chunk in metadata["chunks"]]


def test_a_row_without_tokens_touches_nothing():
    """m = 0: no outputs, no writes; its n may be stale and there is no state to give."""
    x, options = request(0)
    found = delta_step(**x, n=7, block_size=4, chunk_size=4, state=None, dtypes=("fp32", "bf16"), **options)
    assert found.o.shape == found.o_tol.shape == (0, 2, 5)
    assert found.writes == {} and found.state_tol == {}


@pytest.mark.parametrize("m", [1, 13])
def test_tolerances_fit_their_values_and_are_the_same_every_time(m):
    """Shapes, positive and finite numbers, no less than half an ulp, no randomness between calls."""
    x = regimes.row(3, m=m, n=5, H=1, HV=2, K=8, V=5, dtypes=("bf16", "fp16"))
    step = lambda: delta_step(  # noqa: E731
        **x, n=5, block_size=4, chunk_size=2, dtypes=("bf16", "fp16")
    )
    first, second = step(), step()
    assert first.o_tol.shape == first.o.shape
    assert ((first.o_tol >= half_ulp(first.o, "bf16")) & first.o_tol.isfinite()).all()
    assert torch.equal(first.o_tol, second.o_tol)
    assert list(first.writes) == list(first.state_tol)
    for j, tolerance in first.state_tol.items():
        state = first.writes[j].state
        assert tolerance.shape == state.shape
        assert ((tolerance >= half_ulp(state, "fp16")) & tolerance.isfinite()).all()
        assert torch.equal(tolerance, second.state_tol[j])


def test_a_state_that_overflows_leaves_the_other_rows_their_values():
    """fp16 stores infinity; that row is undefined from there on, the head's other rows are as they were."""
    x, options = request(6, value="normal", beta="one", gate="zero")
    big = {**x, "v": x["v"].clone()}
    big["v"][:, :, 0] = 1e6
    args = dict(n=0, block_size=3, chunk_size=4, state=None, dtypes=("fp32", "fp16"), **options)
    found, want = delta_step(**big, **args), delta_step(**x, **args)
    assert found.o[:3].isfinite().all() and found.o[3:, :, 0].isnan().all()
    assert torch.equal(found.o[:, :, 1:], want.o[:, :, 1:])
    assert found.o_tol[:, :, 1:].isfinite().all() and found.state_tol[1][:, 1:].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(n=4), "state: is None with n = 4; a row reads its slot exactly if n > 0"),
        (
            dict(state=torch.zeros(2, 5, 8)),
            "state: is given with n = 0; a row reads its slot exactly if n > 0",
        ),
        (dict(n=-1), "n, m, block_size, chunk_size: are -1, 6, 4, 4; expected counts of 0 or more"),
        (dict(chunk_size=0), "n, m, block_size, chunk_size: are 0, 6, 4, 0; expected counts"),
    ],
)
def test_impossible_steps_are_refused(change, message):
    """The error names the argument, its value, and the rule."""
    x, options = request(6)
    step = dict(n=0, block_size=4, chunk_size=4, state=None, dtypes=("fp32", "fp32"), **options)
    with pytest.raises(ValueError, match=message):
        delta_step(**x, **(step | change))


def test_impossible_lists_of_steps_are_refused():
    """They must add up to the request; windows need the convolution's width."""
    x, options = request(6)
    with pytest.raises(
        ValueError, match=r"steps: are \[2, 3\]; expected token counts that add up to the request's 6"
    ):
        block_contents(**x, steps=[2, 3], block_size=4, **options)
    with pytest.raises(ValueError, match="conv_width: is None; expected the convolution's width"):
        block_contents(**x, steps=[6], block_size=4, x=torch.zeros(6, 3), **options)
