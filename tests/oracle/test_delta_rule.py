"""The recurrence against scalar loops, hand-computed values and the properties that its equations imply."""

import math

import pytest
import torch

from gdn_apc.oracle import l2norm, recurrence


def inputs(T=7, H=2, HV=4, K=5, V=3, seed=0):
    r = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(T, H, K, generator=r, dtype=torch.float64) for _ in range(2))
    v = torch.randn(T, HV, V, generator=r, dtype=torch.float64)
    g = -torch.rand(T, HV, generator=r, dtype=torch.float64)
    beta = torch.rand(T, HV, generator=r, dtype=torch.float64)
    return q, k, v, g, beta


def by_scalars(q, k, v, g, beta, scale, state):
    """Equations (1) to (4) one number at a time, with Python floats."""
    T, H, _ = q.shape
    HV, V = v.shape[1:]
    S = state.tolist()
    o = torch.zeros(T, HV, V, dtype=torch.float64)
    for t in range(T):
        for hv in range(HV):
            key, query = k[t, hv // (HV // H)].tolist(), q[t, hv // (HV // H)].tolist()
            for row in range(V):
                s = [math.exp(g[t, hv]) * x for x in S[hv][row]]
                u = float(beta[t, hv]) * (float(v[t, hv, row]) - sum(a * b for a, b in zip(s, key)))
                s = [a + u * b for a, b in zip(s, key)]
                o[t, hv, row] = scale * sum(a * b for a, b in zip(s, query))
                S[hv][row] = s
    return o, torch.tensor(S, dtype=torch.float64)


@pytest.mark.parametrize(("H", "HV"), [(1, 1), (1, 3), (2, 2), (2, 4)])
def test_equals_the_equations_one_number_at_a_time(H, HV):
    """Heads are grouped: value head h uses key head h // (HV // H)."""
    x = inputs(H=H, HV=HV)
    state = torch.randn(HV, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    o, states = recurrence(*x, scale=0.3, initial_state=state)
    want_o, want_state = by_scalars(*x, 0.3, state)
    torch.testing.assert_close(o, want_o, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(states[-1], want_state, rtol=1e-13, atol=1e-13)


def test_one_token_by_hand():
    """S = [2 4], g = ln ½, k = [1 0], v = 5, beta = ½: S becomes [1 2] + ½ (5 − 1) [1 0] = [3 2]; q = [1 10], scale 2."""
    one = lambda *x: torch.tensor([[x]], dtype=torch.float64)  # noqa: E731
    o, states = recurrence(
        one(1.0, 10.0),
        one(1.0, 0.0),
        one(5.0),
        torch.tensor([[math.log(0.5)]]).double(),
        torch.tensor([[0.5]]),
        scale=2.0,
        initial_state=one(2.0, 4.0),
    )
    torch.testing.assert_close(states[1], one(3.0, 2.0), rtol=1e-7, atol=0)
    torch.testing.assert_close(o, one(46.0), rtol=1e-7, atol=0)


def test_states_are_the_initial_states_of_the_rest():
    """states[t] starts the request's remaining tokens, to the last bit."""
    x = inputs()
    o, states = recurrence(*x)
    rest, rest_states = recurrence(*(t[3:] for t in x), initial_state=states[3])
    assert torch.equal(rest, o[3:])
    assert torch.equal(rest_states[-1], states[-1])


def test_beta_one_and_a_unit_key_store_the_value_exactly():
    """After such a write the state answers the key with the value, whatever was there."""
    q, k, v, g, _ = inputs(H=4)
    k = k / k.norm(dim=-1, keepdim=True)
    _, states = recurrence(q, k, v, g, torch.ones(7, 4))
    answers = torch.einsum("thvk,thk->thv", states[1:], k)
    torch.testing.assert_close(answers, v, rtol=1e-12, atol=1e-12)


def test_beta_zero_or_a_zero_key_only_decays():
    """Nothing is written, and g = 0 keeps the state bit for bit."""
    q, k, v, g, beta = inputs()
    state = torch.randn(4, 3, 5, dtype=torch.float64)
    for args in ((q, k, v, g * 0, beta * 0), (q, k * 0, v, g * 0, beta)):
        _, states = recurrence(*args, initial_state=state)
        assert torch.equal(states[-1], state)


def test_near_total_decay_forgets():
    """g = −50 a token leaves e^−50 of the initial state; what is written meanwhile stays."""
    q, k, v, g, beta = inputs(T=1)
    ones = torch.ones(4, 3, 5).double()
    _, states = recurrence(q, k, v, g * 0 - 50, beta * 0, initial_state=ones)
    torch.testing.assert_close(states[1], ones * math.exp(-50), rtol=1e-14, atol=0)
    old, _ = recurrence(q, k, v, g * 0 - 50, beta, initial_state=ones)
    torch.testing.assert_close(old, recurrence(q, k, v, g, beta)[0], rtol=1e-14, atol=1e-14)


def test_scale_defaults_to_the_root_of_the_key_width_and_zero_is_zero():
    """None means K ** −0.5; 0 is not a sentinel."""
    x = inputs()
    assert torch.equal(recurrence(*x)[0], recurrence(*x, scale=5**-0.5)[0])
    assert torch.equal(recurrence(*x, scale=0.0)[0], torch.zeros(7, 4, 3).double())


def test_l2norm_is_applied_to_queries_and_keys():
    """The option equals normalising first; a zero key stays zero."""
    q, k, v, g, beta = inputs()
    k[2] = 0
    norm = lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    o, states = recurrence(q, k, v, g, beta, use_qk_l2norm=True)
    want_o, want_states = recurrence(norm(q), norm(k), v, g, beta)
    torch.testing.assert_close(o, want_o, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(states, want_states, rtol=1e-14, atol=1e-14)
    assert torch.equal(l2norm(k)[2], torch.zeros(2, 5).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_works_in_the_dtype_asked_for(dtype):
    """Inputs of any dtype are converted; outputs have the dtype of the computation."""
    x = [t.bfloat16() for t in inputs()]
    o, states = recurrence(*x, dtype=dtype)
    assert o.dtype == states.dtype == dtype


def test_no_tokens():
    """T = 0 gives no outputs and the initial state."""
    x = [t[:0] for t in inputs()]
    state = torch.randn(4, 3, 5).double()
    o, states = recurrence(*x, initial_state=state)
    assert o.shape == (0, 4, 3)
    assert torch.equal(states, state[None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(k=torch.zeros(7, 2, 4)),
            r"k: has shape \[7, 2, 4\]; expected \[7, 2, 5\] to fit q \[7, 2, 5\]",
        ),
        (dict(g=torch.zeros(6, 4)), r"g: has shape \[6, 4\]; expected \[7, 4\]"),
        (dict(beta=torch.zeros(7, 2)), r"beta: has shape \[7, 2\]; expected \[7, 4\]"),
        (dict(v=torch.zeros(7, 12)), r"q, v: have shapes .*; expected \[T, H, K\], \[T, HV, V\]"),
        (
            dict(initial_state=torch.zeros(4, 5, 3)),
            r"initial_state: has shape \[4, 5, 3\]; expected \[4, 3, 5\]",
        ),
    ],
)
def test_misfits_are_named(change, message):
    """The error names the argument, its shape, and what was expected."""
    arguments = dict(zip("q k v g beta".split(), inputs())) | change
    with pytest.raises(ValueError, match=message):
        recurrence(**arguments)


def test_value_heads_must_be_a_multiple():
    """Three value heads cannot share two key heads."""
    with pytest.raises(ValueError, match="v: has 3 heads; expected a multiple of q's 2"):
        recurrence(*inputs(HV=3))
