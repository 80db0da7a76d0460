"""The GDN core: its parts tied together over a request, step by step, and what its tolerances must allow."""

from types import SimpleNamespace

import pytest
import torch

from gdn_apc.oracle import (
    causal_conv1d,
    check,
    conv_step,
    core_contents,
    core_step,
    delta_step,
    gates,
    gdn_core,
    recurrence,
    round_to,
    split_qkv,
    window_after,
)


def layer(H=1, HV=2, K=8, V=6, W=4, bias=True, dtype=torch.bfloat16, seed=0):
    r = torch.Generator().manual_seed(seed)
    D = 2 * H * K + HV * V
    return SimpleNamespace(
        H=H,
        HV=HV,
        K=K,
        V=V,
        conv_weight=torch.randn(D, W, generator=r).to(dtype),
        conv_bias=torch.randn(D, generator=r).to(dtype) if bias else None,
        A_log=torch.randn(HV, generator=r),
        dt_bias=torch.randn(HV, generator=r),
        scale=K**-0.5,
        use_qk_l2norm=True,
        activation="silu",
    )


def inputs(p, T, dtype=torch.bfloat16, seed=1):
    r = torch.Generator().manual_seed(seed)
    D = 2 * p.H * p.K + p.HV * p.V
    return tuple(torch.randn(T, n, generator=r).to(dtype) for n in (D, p.HV, p.HV))


def test_is_its_parts_in_order():
    """Convolution, rounding, split into q, k, v, gates, delta rule, each from its own module."""
    p = layer()
    x, a, b = inputs(p, 11)
    y = round_to(causal_conv1d(x, p.conv_weight, p.conv_bias, None, "silu"), "bf16")
    q, k, v = y[:, :8].view(11, 1, 8), y[:, 8:16].view(11, 1, 8), y[:, 16:].view(11, 2, 6)
    g, beta = gates(a, b, p.A_log, p.dt_bias)
    want = recurrence(q, k, v, g, beta, use_qk_l2norm=True)
    got = gdn_core(x, a, b, p, input_dtype="bf16")
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    unrounded, _ = gdn_core(x, a, b, p)
    assert 0 < (unrounded - got[0]).abs().max() < 0.05


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("steps", [[17], [1] * 17, [3, 1, 2, 11]])
def test_steps_leave_what_the_whole_request_says(bias, steps):
    """Each step from the state and window that the one before stored: outputs, states and windows of all columns."""
    p = layer(bias=bias)
    x, a, b = inputs(p, 17)
    want = core_contents(x, a, b, p, steps=steps, block_size=5, input_dtype="bf16", persist="fp16")
    n, state, window = 0, None, None
    for m in steps:
        part = slice(n, n + m)
        step = dict(n=n, block_size=5, chunk_size=4, state=state, window=window, dtypes=("bf16", "fp16"))
        found = core_step(x[part], a[part], b[part], p, **step)
        torch.testing.assert_close(found.o, want.o[part], rtol=1e-12, atol=1e-13)
        n += m
        last = found.writes[(n - 1) // 5]
        state, window = last.state.half(), last.window
    for j, write in found.writes.items():
        assert torch.equal(round_to(write.state, "fp16"), want.blocks[j].state)
        assert torch.equal(write.window, want.blocks[j].window)
        assert torch.equal(write.window, window_after(x, None, min(5 * j + 5, 17), 4))


def tie():
    """A layer and one token whose first value channel is exactly between two bf16 numbers: 1 + 2⁻⁸."""
    p = layer(H=1, HV=1, K=4, V=3, W=1)
    p.activation = None
    p.conv_weight.fill_(1.0)
    p.conv_bias.zero_()
    p.conv_bias[8] = 2.0**-8
    x, a, b = inputs(p, 1)
    x[0, 8] = 1.0
    return p, x, a, b


def turned(p, x, a, b, ulps):
    """The token computed with that channel rounded up by so many ulps."""
    conv = conv_step(
        x, p.conv_weight, p.conv_bias, n=0, block_size=4, window=None, activation=None, dtype="bf16"
    )
    y = round_to(conv.o, "bf16")
    assert conv.o[0, 8] == 1 + 2.0**-8 and y[0, 8] == 1.0
    y[0, 8] += ulps * 2.0**-7
    q, k, v = split_qkv(y, p.H, p.HV, p.K, p.V)
    g, beta = gates(a, b, p.A_log, p.dt_bias)
    options = dict(n=0, block_size=4, chunk_size=4, state=None, dtypes=("fp32", "fp32"), use_qk_l2norm=True)
    return delta_step(q, k, v, g, beta, **options)


def test_a_rounding_near_a_tie_may_go_either_way():
    """A kernel whose fp32 sum is an ulp off rounds y to the other neighbour: allowed, there and downstream."""
    p, x, a, b = tie()
    step = dict(n=0, block_size=4, chunk_size=4, state=None, window=None, dtypes=("bf16", "fp32"))
    want = core_step(x, a, b, p, **step)
    assert torch.equal(turned(p, x, a, b, 0).o, want.o)
    for ulps, allowed in ((1, True), (8, False)):
        other = turned(p, x, a, b, ulps)
        assert not torch.equal(other.o, want.o)
        assert check(want.o, other.o, want.o_unstored_tol).ok is allowed
        assert check(want.writes[0].state, other.writes[0].state, want.state_unstored_tol[0]).ok is allowed


def test_without_a_tie_one_ulp_is_wrong():
    """The same token, with y not near a tie: a turned rounding of one channel is seen."""
    p, x, a, b = tie()
    p.conv_bias[8] = 2.0**-9
    want = core_step(
        x, a, b, p, n=0, block_size=4, chunk_size=4, state=None, window=None, dtypes=("bf16", "fp32")
    )
    p.conv_bias[8] = 2.0**-8  # what ``turned`` starts from; its y is rounded to the same 1.0
    assert torch.equal(turned(p, x, a, b, 0).o, want.o)
    assert not check(want.o, turned(p, x, a, b, 1).o, want.o_unstored_tol).ok


def test_channels_must_add_up():
    """The error says how many were expected."""
    with pytest.raises(ValueError, match="y: has 27 channels; expected 2·H·K \\+ HV·V = 28"):
        split_qkv(torch.zeros(3, 27), 1, 2, 8, 6)
