"""The oracle against ``transformers``' torch implementation of Qwen3-Next's Gated DeltaNet.

Theirs computes in fp32, ours in float64. Exercise it with ``pytest tests/anchors/test_transformers.py``.
"""

import inspect

import pytest
import torch

from gdn_apc import oracle

pytestmark = pytest.mark.anchor

GATES = {"none": 0.0, "mild": -0.1, "strong": -5.0, "near total": -60.0}


def inputs(T: int, HV: int, K: int, V: int, gate: float, seed: int):
    """q, k, v, g, beta with one query and key head per value head, and an initial state, float32."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(T, HV, n, generator=rng) for n in (K, K, V))
    g = gate * torch.rand(T, HV, generator=rng)
    return q, k, v, g, torch.rand(T, HV, generator=rng), torch.randn(HV, V, K, generator=rng)


def theirs(function, q, k, v, g, beta, state, **kwargs):
    """Their function on one request: o [T, HV, V] and the final state in our layout [HV, V, K]."""
    function = inspect.unwrap(function)  # never a kernel from elsewhere
    initial = None if state is None else state.mT[None]
    o, final = function(
        *(x[None] for x in (q, k, v)),
        g=g[None],
        beta=beta[None],
        initial_state=initial,
        output_final_state=True,
        **kwargs,
    )
    return o[0].double(), final[0].mT.double()


@pytest.mark.parametrize("function", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("T, HV, K, V", [(1, 1, 16, 16), (7, 2, 16, 24), (64, 2, 32, 16), (150, 1, 24, 8)])
@pytest.mark.parametrize("normalised, warm", [(True, True), (True, False), (False, True)])
def test_delta_rule(qwen3_next, function, gate, T, HV, K, V, normalised, warm):
    """Outputs and final state agree to fp32's accuracy, from zero or from a state."""
    q, k, v, g, beta, state = inputs(T, HV, K, V, GATES[gate], seed=T + HV)
    if not normalised:
        k = torch.nn.functional.normalize(k, dim=-1)  # keeps beta |k|² at most 1
    state = state if warm else None

    o, final = theirs(
        getattr(qwen3_next, function), q, k, v, g, beta, state, use_qk_l2norm_in_kernel=normalised
    )
    expected, states = oracle.recurrence(q, k, v, g, beta, initial_state=state, use_qk_l2norm=normalised)

    torch.testing.assert_close(o, expected, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(final, states[-1], rtol=2e-4, atol=2e-5)


def test_the_comparison_sees_a_transposed_state(qwen3_next):
    """The layouts differ ([K, V] there, [V, K] here), and taking one for the other does not pass."""
    q, k, v, g, beta, state = inputs(20, 2, 16, 16, -0.1, seed=3)
    _, final = theirs(
        qwen3_next.torch_recurrent_gated_delta_rule, q, k, v, g, beta, state, use_qk_l2norm_in_kernel=True
    )
    _, states = oracle.recurrence(q, k, v, g, beta, initial_state=state, use_qk_l2norm=True)
    assert not torch.allclose(final.mT, states[-1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("T, D, W", [(1, 3, 4), (2, 5, 2), (30, 8, 4)])
def test_convolution(qwen3_next, T, D, W, activation, bias):
    """From the start, and continued from a window with the one-token and the many-token update."""
    rng = torch.Generator().manual_seed(T * D)
    x, weight = torch.randn(T + 9, D, generator=rng), torch.randn(D, W, generator=rng)
    b = torch.randn(D, generator=rng) if bias else None
    y = inspect.unwrap(qwen3_next.causal_conv1d_fn)(x.T[None], weight, b, activation)[0].T
    torch.testing.assert_close(
        y.double(), oracle.causal_conv1d(x, weight, b, None, activation), rtol=1e-5, atol=1e-5
    )

    window = oracle.window_after(x, None, 9, W)
    state = window.T[None].clone()
    y = inspect.unwrap(qwen3_next.causal_conv1d_update)(x[9:].T[None], state, weight, b, activation)[0].T

    expected = oracle.causal_conv1d(x[9:], weight, b, window, activation)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(state[0].T, oracle.window_after(x[9:], window, T, W))


@pytest.fixture(scope="module")
def layer(qwen3_next):
    """A whole layer of theirs, 2 key heads, 4 value heads, with random gates; float32."""
    from transformers import Qwen3NextConfig

    config = Qwen3NextConfig(
        hidden_size=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=8, linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
        num_attention_heads=2, num_key_value_heads=1, vocab_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    layer = qwen3_next.Qwen3NextGatedDeltaNet(config, layer_idx=0)
    with torch.no_grad():
        layer.A_log.copy_(torch.randn(4))
        layer.dt_bias.copy_(torch.randn(4))
        layer.conv1d.weight.copy_(torch.randn_like(layer.conv1d.weight))
    return layer, config


def run_layer(layer, hidden, cache=None):
    """Their forward pass of one request: what enters the core (x, a, b) and what leaves it (o), as ours names them."""
    seen = {}
    handle = layer.norm.register_forward_pre_hook(lambda module, args: seen.update(o=args[0]))
    with torch.no_grad():
        layer(hidden[None], cache_params=cache)
        q, k, v, _, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(hidden[None]), layer.in_proj_ba(hidden[None])
        )
    handle.remove()
    T = hidden.shape[0]
    x = torch.cat([t.reshape(T, -1) for t in (q, k, v)], dim=-1)
    return x, a[0], b[0], seen["o"].reshape(T, 4, 8).double()


def our_core(layer, x, a, b, window=None, state=None):
    """The same core by the oracle: o and the final state."""
    weight = layer.conv1d.weight[:, 0].detach()
    y = oracle.causal_conv1d(x, weight, None, window, "silu")
    q, k, v = y.split([32, 32, 32], dim=-1)
    g, beta = oracle.gates(a, b, layer.A_log.detach(), layer.dt_bias.detach())
    heads = (t.reshape(len(x), n, -1) for t, n in ((q, 2), (k, 2), (v, 4)))
    o, states = oracle.recurrence(*heads, g, beta, initial_state=state, use_qk_l2norm=True)
    return o, states[-1]


@pytest.mark.parametrize("T", [1, 5, 100])
def test_whole_core(layer, T):
    """Convolution, SiLU, split, normalisation, gates and delta rule, in their order."""
    layer, _ = layer
    x, a, b, o = run_layer(layer, torch.randn(T, 32, generator=torch.Generator().manual_seed(T)) * 3)
    torch.testing.assert_close(our_core(layer, x, a, b)[0], o, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n, m", [(2, 1), (9, 1), (9, 20), (70, 3)])
def test_continued_core(layer, n, m):
    """A second call continues from their cache: one token by their recurrence, more by their chunks."""
    from transformers import DynamicCache

    layer, config = layer
    hidden = torch.randn(n + m, 32, generator=torch.Generator().manual_seed(n)) * 3
    cache = DynamicCache(config=config)
    x, a, b, _ = run_layer(layer, hidden[:n], cache)
    _, state = our_core(layer, x, a, b)
    x2, a2, b2, o2 = run_layer(layer, hidden[n:], cache)

    window = oracle.window_after(x, None, n, 4)
    ours, final = our_core(layer, x2, a2, b2, window, state)

    torch.testing.assert_close(ours, o2, rtol=1e-3, atol=1e-4)
    recurrent = cache.layers[0].recurrent_states[0]
    torch.testing.assert_close(final, recurrent[0].mT.double(), rtol=1e-3, atol=1e-4)
    held = cache.layers[0].conv_states[0][0].T[-3:]
    assert torch.equal(held, oracle.window_after(x2, window, m, 4))
