"""Both backends against the oracle, row by row: outputs, every boundary state and window, and nothing else."""

import pytest
import torch

from gdn_apc import oracle
from gdn_apc.impl import causal_conv1d, gated_delta_rule, gdn_core, gdn_gates
from tests.impl.batches import DEVICE, DTYPES, Rows, assert_close, assert_delta_rows, pool

BACKENDS = ["triton", "torch"]
# A fresh prompt, a resumed token, a chunk clipped at both ends, a fresh token, padding, two tokens after a hit, …
MIXED = [(0, 21), (5, 1), (3, 18), (0, 1), (0, 0), (12, 2), (7, 1), (6, 7)]


@pytest.fixture(autouse=True)
def only_where_it_runs(request):
    """The PyTorch path is for CPU tensors."""
    if DEVICE.type == "cuda" and request.node.callspec.params.get("backend") == "torch":
        pytest.skip("the PyTorch path reads its metadata on the host")


def delta_inputs(rows, H, HV, K, V, dtype, gen, gates=1.0):
    """q, k, v, g, beta of a batch, with a tail of NaN that nobody may read."""
    T = rows.num_tokens
    q, k, v = (torch.randn(T + 3, h, w, generator=gen).to(dtype) for h, w in ((H, K), (H, K), (HV, V)))
    g, beta = -gates * torch.rand(T + 3, HV, generator=gen), torch.rand(T + 3, HV, generator=gen)
    for t in (q, k, v, g, beta):
        t[T:] = float("nan")
    return [t.to(DEVICE) for t in (q, k, v, g, beta)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("B", "C"), [(6, 4), (16, 16), (3, 16), (1, 4)])
@pytest.mark.parametrize("dtypes", [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_delta_rule(backend, B, C, dtypes):
    """Every row's outputs and states are the oracle's, from the bits that the row read; other slots keep theirs."""
    H, HV, K, V = 1, 2, 24, 16
    gen = torch.Generator().manual_seed(B * 100 + C)
    rows = Rows(MIXED, B, C)
    state = pool((rows.num_slots, HV, V, K), DTYPES[dtypes[1]], gen)
    before = state.clone()
    inputs = delta_inputs(rows, H, HV, K, V, DTYPES[dtypes[0]], gen)

    o = gated_delta_rule(*inputs, state, rows.metadata(), use_qk_l2norm=True, backend=backend)

    written = assert_delta_rows(rows, inputs, o, before, state, dtypes)
    untouched = [s for s in range(rows.num_slots) if s not in written]
    assert torch.equal(state[untouched].nan_to_num(7), before[untouched].nan_to_num(7))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("W", [2, 4, 5])
@pytest.mark.parametrize(("B", "C"), [(6, 4), (3, 16), (2, 4), (1, 4)])
@pytest.mark.parametrize("layout", ["time_major", "channel_major"])
def test_convolution(backend, W, B, C, layout):
    """y is the oracle's; every window is the exact bits of the last W - 1 inputs."""
    D = 20
    gen = torch.Generator().manual_seed(W)
    rows = Rows(MIXED, B, C)
    T = rows.num_tokens
    x = torch.randn(T + 3, D, generator=gen).bfloat16()
    x[::3] = -0.0
    x[T:] = float("nan")
    weight, bias = torch.randn(D, W, generator=gen).bfloat16(), torch.randn(D, generator=gen).bfloat16()
    windows = pool(
        (rows.num_slots, W - 1, D) if layout == "time_major" else (rows.num_slots, D, W - 1),
        torch.bfloat16,
        gen,
    )
    windows = windows if layout == "time_major" else windows.transpose(1, 2)
    before = windows.clone()

    y = causal_conv1d(
        x.to(DEVICE), weight.to(DEVICE), bias.to(DEVICE), windows, rows.metadata(), backend=backend
    )

    written = set()
    for i, part, n, _, read, columns in rows.live():
        want = oracle.conv_step(
            x[part],
            weight,
            bias,
            n=n,
            block_size=B,
            window=None if read is None else before[read].cpu(),
            activation="silu",
            dtype="bf16",
        )
        assert_close(want.o, y[part], want.o_tol, what="y", axes=("position", "channel"), first=n, request=i)
        for column, slot in columns.items():
            exact = want.writes[column].window.bfloat16().view(torch.int16)  # bits: a zero keeps its sign
            assert torch.equal(windows[slot].cpu().contiguous().view(torch.int16), exact), (i, column)
        written |= set(columns.values())
    untouched = [s for s in range(rows.num_slots) if s not in written]
    assert torch.equal(windows[untouched].nan_to_num(7), before[untouched].nan_to_num(7))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gates(backend):
    """Gates at every scale: softplus's threshold, gates so near 1 that 1 + eˣ would lose them, sigmoid's ends."""
    HV = 3
    a = torch.linspace(-40, 40, 161)[:, None].expand(-1, HV).contiguous()
    b = a.flip(0).contiguous()
    A_log, dt_bias = torch.tensor([-3.0, 0.0, 2.7]), torch.tensor([0.0, -1.5, 0.3])
    g, beta = gdn_gates(a.to(DEVICE), b.to(DEVICE), A_log.to(DEVICE), dt_bias.to(DEVICE), backend=backend)
    want_g, want_beta = oracle.gates(a, b, A_log, dt_bias)
    # fp32 in x and in 1 + eˣ: relative where the gate is large, absolute (times exp(A_log)) where it is small
    tol = 2.0**-22 * (want_g.abs() + A_log.exp() * (1 + a.abs()))
    assert_close(want_g, g, tol, what="g", axes=("token", "head"))
    assert_close(
        want_beta, beta, 2.0**-22 * (1 + b.abs()) * want_beta + 2.0**-126, what="beta", axes=("token", "head")
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_out(backend):
    """Outputs go where they are wanted, the same bits; rows of padding tokens there keep what they held."""
    H, HV, K, V, W = 2, 4, 16, 24, 4
    D = 2 * H * K + HV * V
    for steps in (MIXED, [(n, 1) for n, _ in MIXED]):
        gen = torch.Generator().manual_seed(3)
        rows = Rows(steps, 5, 4)
        T, meta = rows.num_tokens, rows.metadata()
        x, a, b = (torch.randn(T + 3, w, generator=gen).bfloat16().to(DEVICE) for w in (D, HV, HV))
        weight = (torch.randn(D, W, generator=gen) / 2).bfloat16().to(DEVICE)
        gate = torch.zeros(HV, device=DEVICE)

        def run(x, a, b, out=None):
            pages = (
                pool((rows.num_slots, W - 1, D), torch.bfloat16, torch.Generator().manual_seed(4)),  # noqa: B023
                pool((rows.num_slots, HV, V, K), torch.float32, torch.Generator().manual_seed(5)),  # noqa: B023
            )
            arguments = (x, a, b, weight, None, gate, gate, *pages, meta)  # noqa: B023
            return gdn_core(*arguments, num_k_heads=H, head_k_dim=K, backend=backend, out=out)

        plain = run(x[:T], a[:T], b[:T])
        out = torch.full((T + 3, HV, V), 7.0, dtype=x.dtype, device=DEVICE)
        assert run(x, a, b, out) is out
        assert torch.equal(out[:T], plain) and (out[T:] == 7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_core(backend):
    """The whole core, value heads grouped, K ≠ V."""
    B, C, H, HV, K, V, W = 5, 4, 2, 4, 16, 24, 4
    gen = torch.Generator().manual_seed(3)
    rows = Rows(MIXED, B, C)
    D = 2 * H * K + HV * V
    x, a, b = (torch.randn(rows.num_tokens, w, generator=gen).bfloat16() for w in (D, HV, HV))
    weight = (torch.randn(D, W, generator=gen) / 2).bfloat16()
    A_log, dt_bias = torch.randn(HV, generator=gen) - 2, torch.randn(HV, generator=gen)
    windows, state = (
        pool((rows.num_slots, W - 1, D), torch.bfloat16, gen),
        pool((rows.num_slots, HV, V, K), torch.float32, gen),
    )
    before = windows.clone(), state.clone()

    o = gdn_core(
        *(t.to(DEVICE) for t in (x, a, b, weight)),
        None,
        A_log.to(DEVICE),
        dt_bias.to(DEVICE),
        windows,
        state,
        rows.metadata(),
        num_k_heads=H,
        head_k_dim=K,
        backend=backend,
    )

    from gdn_apc.fuzz.targets.base import Layer

    layer = Layer(H, HV, K, V, weight, None, A_log, dt_bias, K**-0.5, True, "silu")
    for i, part, n, _, read, columns in rows.live():
        want = oracle.core_step(
            x[part],
            a[part],
            b[part],
            layer,
            n=n,
            block_size=B,
            chunk_size=C,
            state=None if read is None else before[1][read].cpu(),
            window=None if read is None else before[0][read].cpu(),
            dtypes=("bf16", "fp32"),
        )
        # y may round to the neighbouring bf16, which the delta rule then sees; see oracle.core_step's tolerance
        assert_close(
            want.o, o[part], want.o_tol, what="o", axes=("position", "head", "row"), first=n, request=i
        )
        for column, slot in columns.items():
            assert torch.equal(windows[slot].cpu().double(), want.writes[column].window.double()), (i, column)
            assert_close(
                want.writes[column].state,
                state[slot],
                want.state_tol[column],
                what="state",
                request=i,
                column=column,
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_keys_do_not_overflow(backend):
    """64 equal keys, no decay, beta 1: powers of A reach 10¹⁷ although its inverse is 0 and ±1."""
    K, V, C = 16, 16, 64
    rows = Rows([(0, 64)], 64, C)
    gen = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(K, generator=gen), dim=0)
    k = key.expand(64, 1, K).contiguous()
    v = torch.randn(64, 1, V, generator=gen)
    state = torch.full((2, 1, V, K), float("nan"))
    inputs = [t.to(DEVICE) for t in (k, k, v, torch.zeros(64, 1), torch.ones(64, 1))]
    state = state.to(DEVICE)
    o = gated_delta_rule(*inputs, state, rows.metadata(), scale=1.0, backend=backend)
    torch.testing.assert_close(o.cpu(), v, atol=2e-5, rtol=0)
    torch.testing.assert_close(state[1, 0].cpu(), v[-1, 0][:, None] * key, atol=2e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_factors_of_one_token_fit_together(backend):
    """Repeated keys, beta 1, and no decay after near-total ones: a write and its answer cancel but for 4 %.

    Added up in parallel, the last two prefix sums of equal value differ by an ulp of 60, either way. What T takes for their
    difference and what is written to the state with must be off alike, whatever the sign.
    """
    H, HV, K, V = 1, 16, 8, 8
    gen = torch.Generator().manual_seed(2)
    rows = Rows([(0, 8), (0, 16), (8, 13)], 8, 16)
    T = rows.num_tokens
    g = torch.tensor([-0.1, -5.0, -27.631021, 0.0])[torch.randint(4, (T, HV), generator=gen)]
    g[1::8], g[6::8], g[7::8] = -0.1, -27.631021, 0.0
    key = torch.randn(1, H, K, generator=gen)
    k = (0.98 * key / key.norm()).repeat(T, 1, 1)
    q, v = torch.randn(T, H, K, generator=gen), torch.randn(T, HV, V, generator=gen)
    state = pool((rows.num_slots, HV, V, K), torch.float32, gen)
    before = state.clone()
    inputs = [t.to(DEVICE) for t in (q, k, v, g, torch.ones(T, HV))]
    o = gated_delta_rule(*inputs, state, rows.metadata(), backend=backend)
    assert_delta_rows(rows, inputs, o, before, state, ("fp32", "fp32"), use_qk_l2norm=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_of_zero_is_zero(backend):
    """scale = 0.0 is a number, not a request for the default."""
    rows = Rows([(0, 3)], 4, 4)
    inputs = [t.to(DEVICE) for t in delta_inputs(rows, 1, 1, 16, 16, torch.float32, torch.Generator())]
    state = torch.zeros(rows.num_slots, 1, 16, 16, device=DEVICE)
    o = gated_delta_rule(*inputs, state, rows.metadata(), scale=0.0, backend=backend)
    assert o[:3].abs().max() == 0
