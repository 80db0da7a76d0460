"""The convolution against torch's own, and windows as copies of inputs."""

import pytest
import torch

from gdn_apc.oracle import causal_conv1d, window_after


def inputs(T=9, D=6, W=4, seed=0):
    r = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(*s, generator=r, dtype=torch.float64) for s in ((T, D), (D, W), (D,), (W - 1, D))
    )


@pytest.mark.parametrize("W", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_torchs_grouped_convolution(W, activation, bias):
    """torch.nn.functional.conv1d with one group a channel, over the window and the inputs."""
    x, weight, b, window = inputs(W=W)
    full = torch.cat([window, x]).T[None]
    want = torch.nn.functional.conv1d(full, weight[:, None], b if bias else None, groups=6)[0].T
    want = torch.nn.functional.silu(want) if activation else want
    got = causal_conv1d(x, weight, b if bias else None, window, activation)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_no_window_is_a_window_of_zeros():
    """A request starts with zeros before it."""
    x, weight, _, window = inputs()
    assert torch.equal(causal_conv1d(x, weight), causal_conv1d(x, weight, window=window * 0))


@pytest.mark.parametrize("cut", range(10))
def test_a_window_continues_the_request(cut):
    """Cut anywhere, also before W − 1 tokens, the rest computes what the whole does, bit for bit."""
    x, weight, bias, window = inputs()
    whole = causal_conv1d(x, weight, bias, window, "silu")
    at_cut = window_after(x, window, cut, 4)
    assert torch.equal(causal_conv1d(x[cut:], weight, bias, at_cut, "silu"), whole[cut:])


def test_windows_are_copies_in_the_inputs_dtype():
    """The last W − 1 inputs, oldest first, older ones from the window before, zeros before the start."""
    x = torch.arange(1.0, 6.0)[:, None].bfloat16()
    old = torch.tensor([[-3.0], [-2.0], [-1.0]]).bfloat16()
    assert window_after(x, old, 0, 4).flatten().tolist() == [-3, -2, -1]
    assert window_after(x, old, 2, 4).flatten().tolist() == [-1, 1, 2]
    assert window_after(x, None, 2, 4).flatten().tolist() == [0, 1, 2]
    assert window_after(x, None, 5, 4).flatten().tolist() == [3, 4, 5]
    assert window_after(x, old, 5, 4).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(activation="gelu"), "activation: is 'gelu'; expected None or 'silu'"),
        (dict(weight=torch.zeros(5, 4)), r"weight: has shape \[5, 4\]; expected \[D, W\] with D = 6 of x"),
        (dict(bias=torch.zeros(5)), r"bias: has shape \[5\]; expected \[6\]"),
        (dict(window=torch.zeros(4, 6)), r"window: has shape \[4, 6\]; expected \[W - 1, D\] = \[3, 6\]"),
    ],
)
def test_misfits_are_named(change, message):
    """The error names the argument, what it is, and what was expected."""
    x, weight, _, _ = inputs()
    with pytest.raises(ValueError, match=message):
        causal_conv1d(**(dict(x=x, weight=weight) | change))


def test_a_window_lies_within_the_tokens():
    """t counts tokens of x."""
    x, _, _, _ = inputs()
    with pytest.raises(ValueError, match="t: is 10; expected 0 to 9, the number of tokens in x"):
        window_after(x, None, 10, 4)
