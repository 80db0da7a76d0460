"""Tolerances are neither too tight nor too loose: the simulated kernel over ordinary and extreme regimes.

For each class (quantity, input dtype, state dtype, path) the worst error / tolerance of every unit (a token or block,
times a head) is collected: none may exceed 1, and the tolerance may be at most 10 times the 99th percentile of the
errors. Both are asserted before storing (where rounding to the stored dtype hides nothing) and after. Run with
``pytest tests/oracle/test_tightness.py -s`` to see the table.
"""

import math
import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from gdn_apc import oracle
from gdn_apc.oracle import conv_step, core_step, delta_step
from tests.oracle import regimes, simulated

LOOSE = 10.0
LARGEST = 0.95  # of error / tolerance before storing; 1 would be a false alarm

INPUTS = ["bf16", "fp16", "fp32"]
STATES = ["fp32", "bf16", "fp16"]


class Ratios:
    """error / tolerance of units, by quantity, before and after storing."""

    def __init__(self, *name):
        self.name, self.found = name, defaultdict(list)

    def add(self, quantity, exact, before, stored, unstored_tol, tol):
        """Units are the first axis and the heads; the rest of a unit counts by its worst element."""
        for when, actual, t in (("unstored", before, unstored_tol), ("stored", stored, tol)):
            ratio = ((actual.double() - exact).abs() / t).nan_to_num(nan=torch.inf)
            self.found[quantity, when].append(ratio.amax(-1).flatten())

    def add_step(self, want, got):
        """A row's outputs and states."""
        self.add("o", want.o, got.o, got.o_stored, want.o_unstored_tol, want.o_tol)
        for j, write in want.writes.items():
            tols = (t[j].flatten(1) for t in (want.state_unstored_tol, want.state_tol))
            exact, before, stored = (x.flatten(1) for x in (write.state, got.states[j], got.states_stored[j]))
            self.add("state", exact, before, stored, *tols)

    def judge(self):
        """Print the table, and assert both bounds for every class."""
        for (quantity, when), parts in self.found.items():
            ratio = torch.cat(parts)
            p99, largest = float(ratio.quantile(0.99)), float(ratio.max())
            loose = 1 / p99 if p99 else float("inf")
            name = " ".join((quantity, *self.name, when))
            print(
                f"{name:40} {len(ratio):6} units, tolerance / p99 {loose:5.2f}, largest ratio {largest:.3f}"
            )
            assert len(ratio) >= 100, name
            assert largest <= (LARGEST if when == "unstored" else 1.0), name
            assert loose <= LOOSE, name


def a_variant(r):
    """A kernel's choices, at random."""
    return simulated.Variant(
        tf32=r.choice(["nearest", "cut"]),
        fp32=r.choice(["ieee", "three"]),
        decay_on=r.choice(["value", "key"]),
        decay_query=r.random() < 0.5,
        inverse=r.choice(["rows", "blocks"]),
        fold_beta=r.random() < 0.5,
        round_u=r.random() < 0.5,
    )


def sizes(r, path):
    """Lengths, heads, widths, block and chunk sizes of one row."""
    H, B = r.choice([1, 2]), r.choice([1, 3, 16, 40, 64, 200])
    m = 1 if path == "one" else r.choice([2, 3, 5, 17, 40, 80])
    return SimpleNamespace(
        m=min(m, 17) if B == 1 else m,
        n=r.choice([0, 1, B, 2 * B, 2 * B + 1]),
        H=H,
        HV=H * r.choice([1, 2, 3]),
        K=r.choice([8, 16, 64]),
        V=r.choice([8, 16, 32]),
        B=B,
        C=r.choice([16, 32, 64]),
    )


@pytest.mark.parametrize("path", ["one", "chunk"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", INPUTS)
def test_delta_rule(dtype, state, path):
    """Every regime of gates, betas, keys, values and states: long memory, −5 a token, repeated keys, heavy rows, …"""
    r = random.Random(f"{dtype} {state} {path}")
    found = Ratios(dtype, state, path)
    for seed in range(120 if path == "one" else 80):
        s = sizes(r, path)
        names = dict(
            gate=r.choice(regimes.GATES),
            beta=r.choice(regimes.BETAS),
            key=r.choice(regimes.KEYS),
            value=r.choice(regimes.VALUES if state != "fp16" else ("normal", "tiny", "constant", "integers")),
            state=r.choice(regimes.STATES),
        )
        x = regimes.row(seed, m=s.m, n=s.n, H=s.H, HV=s.HV, K=s.K, V=s.V, dtypes=(dtype, state), **names)
        args = dict(n=s.n, block_size=s.B, chunk_size=s.C, dtypes=(dtype, state), scale=None, **x)
        found.add_step(delta_step(**args), simulated.delta(**args, variant=a_variant(r)))
    found.judge()


@pytest.mark.parametrize("state", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", INPUTS)
def test_many_boundaries(dtype, state):
    """Short blocks, real head sizes, 16-bit states: a rounding turned at one boundary lasts over the next ones.

    One element in thousands is turned, and an element that shrinks keeps the ulp of the larger value that it had.
    """
    r = random.Random(f"many {dtype} {state}")
    found = Ratios(dtype, state, "many")
    for seed in range(6):
        B = r.choice([1, 1, 2, 3, 8])
        names = dict(
            gate=r.choice(["zero", "tiny", "mild", "mild", "mixed", "runs"]),
            beta=r.choice(regimes.BETAS),
            key=r.choice(["normal", "normal", "repeated", "near", "one_hot"]),
            value=r.choice(["normal", "heavy_row", "constant"]),
            state="none",
        )
        m = r.choice([27, 50]) * (1 if B < 3 else 2)
        x = regimes.row(seed, m=m, n=0, H=4, HV=8, K=128, V=128, dtypes=(dtype, state), **names)
        args = dict(n=0, block_size=B, chunk_size=r.choice([16, 64]), dtypes=(dtype, state), scale=None, **x)
        found.add_step(delta_step(**args), simulated.delta(**args, variant=a_variant(r)))
    found.judge()


def a_layer(r, generator, s, dtype):
    """A layer, with and without bias, activation and normalisation (short keys without it)."""
    D = 2 * s.H * s.K + s.HV * s.V
    weight = torch.randn(D, 4, generator=generator) / 2
    normalise = r.random() < 0.8
    if not normalise:
        weight[s.H * s.K : 2 * s.H * s.K] *= 0.1 * s.K**-0.5
    return SimpleNamespace(
        H=s.H,
        HV=s.HV,
        K=s.K,
        V=s.V,
        conv_weight=weight.to(regimes.TORCH[dtype]),
        conv_bias=torch.randn(D, generator=generator).to(regimes.TORCH[dtype])
        if r.random() < 0.3 and normalise
        else None,
        A_log=3 * torch.rand(s.HV, generator=generator) - 2,
        dt_bias=torch.randn(s.HV, generator=generator),
        scale=s.K**-0.5,
        use_qk_l2norm=normalise,
        activation=r.choice(["silu", "silu", None]),
    )


def a_core_row(seed, r, s, dtypes):
    """A layer and the arguments of ``core_step``: gates from exactly 0 to near total, inputs small, large, constant."""
    generator = torch.Generator().manual_seed(seed)
    layer = a_layer(r, generator, s, dtypes[0])
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    size = r.choice([0.05, 1.0, 1.0, 3.0]) if layer.use_qk_l2norm else 1.0
    x, a = size * draw(s.m, layer.conv_weight.shape[0]), draw(s.m, s.HV)
    if r.random() < 0.2:
        x = x[:1].expand_as(x)
    a = r.choice([a, a - 12, 3 * a + 15, 10 * a])
    b = r.choice([0, 1, 6]) * draw(s.m, s.HV)
    state, window = draw(s.HV, s.V, s.K), size * draw(3, x.shape[1])
    inputs = [t.to(regimes.TORCH[dtypes[0]]) for t in (x, a, b)]
    return (
        layer,
        inputs,
        dict(
            n=s.n,
            block_size=s.B,
            chunk_size=s.C,
            dtypes=dtypes,
            state=state.to(regimes.TORCH[dtypes[1]]) if s.n else None,
            window=window.to(regimes.TORCH[dtypes[0]]) if s.n else None,
        ),
    )


@pytest.mark.parametrize("path", ["one", "chunk"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", INPUTS)
def test_core(dtype, state, path):
    """The whole core, y's turned roundings and the gates' errors included."""
    r = random.Random(f"core {dtype} {state} {path}")
    found = Ratios("core", dtype, state, path)
    for seed in range(120 if path == "one" else 45):
        layer, inputs, step = a_core_row(seed, r, sizes(r, path), (dtype, state))
        want = core_step(*inputs, layer, **step)
        found.add_step(want, simulated.core(*inputs, layer, **step, variant=a_variant(r)))
    found.judge()


@pytest.mark.parametrize("dtype", INPUTS)
def test_convolution(dtype):
    """Units are tokens."""
    r = random.Random(dtype)
    found = Ratios("conv", dtype)
    for seed in range(100):
        layer, (x, _, _), step = a_core_row(seed, r, sizes(r, r.choice(["one", "chunk"])), (dtype, "fp32"))
        args = dict(window=step["window"], activation=layer.activation)
        want = conv_step(
            x, layer.conv_weight, layer.conv_bias, n=step["n"], block_size=8, dtype=dtype, **args
        )
        got = simulated.conv(x, layer.conv_weight, layer.conv_bias, **args)
        found.add("y", want.o, got, got.to(x.dtype), want.o_unstored_tol, want.o_tol)
    found.judge()


def test_the_bounds_can_fail():
    """Tolerances a hundred times wider, or narrower, are both rejected."""
    exact, actual = torch.zeros(200, 1, 4).double(), torch.full((200, 1, 4), 0.1)
    for tol in (torch.tensor(20.0), torch.tensor(0.02)):
        found = Ratios("planted")
        found.add("o", exact, actual, actual, tol, tol)
        with pytest.raises(AssertionError, match="o planted unstored"):
            found.judge()


@pytest.mark.parametrize("g", [-0.3, -5.0, -27.631, -60.0])
def test_a_strong_gate_may_be_exponentiated_in_fp32(g):
    """exp(g) as 2^(g · log2 e) with the argument rounded to fp32 is off by 2⁻²⁴ |g|: within the tolerance, and near it."""
    gates = torch.full((1, 1), g)
    state = torch.randn(1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros(1, 1, 64)
    want = oracle.delta_step(
        nothing, nothing, nothing, gates, torch.zeros(1, 1),
        n=5, block_size=8, chunk_size=64, state=state, dtypes=("fp32", "fp32"),
    )  # fmt: skip
    argument = gates.double() * math.log2(math.e)
    rounded = argument * (1 + 2.0**-24)
    actual = state * torch.exp2(rounded)
    ratio = float(oracle.ratios(want.writes[0].state, actual, want.state_tol[0]).max())
    assert ratio < 1
    assert (
        float(
            oracle.ratios(
                want.writes[0].state, state * torch.exp2(argument) * (1 + 1e-4), want.state_tol[0]
            ).max()
        )
        > 2
    )


def wide_row(dtype, state, values, m=6, heads=4, width=128):
    """One row of heads as wide as real models': q, k, v, g, beta and a state that the row reads."""
    r = torch.Generator().manual_seed(7)
    q, k = (torch.randn(m, heads, width, generator=r).to(regimes.TORCH[dtype]) for _ in range(2))
    k = k[:1].expand_as(k)
    key = torch.nn.functional.normalize(k[0].float(), dim=-1)
    S = values(r, heads, width)
    v = (S @ key[..., None])[..., 0].expand(m, heads, width).to(regimes.TORCH[dtype])
    g, beta = torch.full((m, heads), -1e-4), torch.full((m, heads), 0.9)
    args = dict(n=5, block_size=64, chunk_size=64, dtypes=(dtype, state), scale=None, use_qk_l2norm=True)
    return args | dict(q=q, k=k, v=v, g=g, beta=beta, state=S.to(regimes.TORCH[state]))


def assert_near(found):
    """No alarm, and no tolerance that is out of all proportion, in a few units of every quantity."""
    for (quantity, when), parts in found.found.items():
        largest = float(torch.cat(parts).max())
        assert 0.05 < largest <= (LARGEST if when == "unstored" else 1.0), (quantity, when)


@pytest.mark.parametrize("dtype", INPUTS)
def test_a_state_that_already_answers(dtype):
    """v = S k: what is written cancels, the roundings of its two parts do not; they are of the parts' size."""
    found = Ratios("answered", dtype)
    for fold in (False, True):
        args = wide_row(dtype, "fp32", lambda r, H, W: torch.randn(H, W, W, generator=r), m=40)
        found.add_step(delta_step(**args), simulated.delta(**args, variant=simulated.Variant(fold_beta=fold)))
    assert_near(found)


def test_sums_that_grow_to_their_end():
    """fp32 products of one sign: the running sums, and what each addition loses, grow with every product."""
    args = wide_row("fp32", "fp32", lambda r, H, W: 1 + torch.rand(H, W, W, generator=r), m=40)
    args["q"] = args["k"] = args["q"].abs()
    found = Ratios("growing", "fp32")
    found.add_step(delta_step(**args), simulated.delta(**args))
    found.add_step(delta_step(**args), simulated.delta(**args, variant=simulated.Variant(fp32="three")))
    assert_near(found)


def test_small_rows_beside_large_ones():
    """A value row 2¹⁶ times smaller than its neighbours keeps a tolerance of its own size, in outputs and states."""
    args = wide_row("bf16", "fp32", lambda r, H, W: torch.randn(H, W, W, generator=r))
    small = torch.ones(128).scatter(0, torch.arange(0, 128, 2), 2.0**-16)
    args["v"], args["state"] = args["v"] * small, args["state"] * small[:, None]
    want = delta_step(**args)
    for tol, exact in ((want.o_tol, want.o), (want.state_tol[0].amax(-1), want.writes[0].state.norm(dim=-1))):
        relative = (tol / exact.abs().mean(-1, keepdim=True)).reshape(-1, 64, 2).mean((0, 1))
        assert relative[0] < 4 * 2.0**-16 * relative[1]


def test_one_turned_rounding_of_a_stored_state():
    """Outputs after a boundary: a correct kernel may store the other neighbour of a tie, for one element alone.

    fp32 inputs and a bf16 cache: one ulp of one element of the state outweighs all other errors.
    """
    r = torch.Generator().manual_seed(3)
    B, m, H, W = 16, 20, 8, 128
    q, k, v = (torch.randn(m, H, W, generator=r) for _ in range(3))
    g, beta = -0.01 * torch.rand(m, H, generator=r), torch.rand(m, H, generator=r)
    common = dict(block_size=B, chunk_size=16, dtypes=("fp32", "bf16"), scale=None, use_qk_l2norm=True)
    want = delta_step(q, k, v, g, beta, n=0, state=None, **common)
    exact = want.writes[0].state
    stored = exact.bfloat16().double()
    ulp = 2 * oracle.dtypes.half_ulp(exact, "bf16")
    from_tie = (ulp / 2 - (exact - stored).abs()) / ulp
    order = from_tie.flatten().argsort()

    def worst(element):
        turned = stored.flatten().clone()
        turned[element] += ulp.flatten()[element] * torch.sign(exact - stored).flatten()[element]
        after = [x[B:] for x in (q, k, v, g, beta)]
        got = delta_step(*after, n=B, state=turned.view_as(exact).bfloat16(), **common)
        return float(oracle.ratios(want.o[B:], got.o, want.o_unstored_tol[B:]).max())

    assert from_tie.flatten()[order[2]] < 1e-5
    assert max(worst(e) for e in order[:3]) < 1
    large = torch.where(from_tie > 0.1, ulp, 0.0).flatten().argsort()
    assert min(worst(e) for e in large[-3:]) > 2
