"""The tensors of a case: deterministic, shared where requests share, inside the numeric domain.

``pytest tests/fuzz/test_tensors.py``
"""

import dataclasses
import itertools

import pytest
import torch

from gdn_apc.fuzz import tensors
from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Sizes

SIZES = Sizes(H=2, HV=4, K=16, V=8, W=4, B=4, C=16)


TWO = (Request(20), Request(14, parent=0, shared=8))


def make(level="delta", requests=TWO, dtype="bf16", options=None, **inputs):
    return Case(
        property="values",
        level=level,
        sizes=SIZES,
        dtypes=Dtypes(dtype, "fp32", dtype),
        inputs=Inputs(**{"seed": 3, **inputs}),
        requests=tuple(requests),
        steps=(),
        pool=Pool(2),
        options=options or Options(),
    )


SHAPES = {
    "conv": {"x": (20, 96)},
    "delta": {"q": (20, 2, 16), "k": (20, 2, 16), "v": (20, 4, 8), "g": (20, 4), "beta": (20, 4)},
    "core": {"x": (20, 96), "a": (20, 4), "b": (20, 4)},
}


@pytest.mark.parametrize("level", SHAPES)
def test_names_shapes_and_dtypes(level):
    """Streams have the tensors of their level, in the order in which targets take them."""
    stream = tensors.streams(make(level))[0]

    assert tuple(stream) == tensors.STREAMS[level]
    assert {name: tuple(t.shape) for name, t in stream.items()} == SHAPES[level]
    for name, t in stream.items():
        assert t.dtype == (torch.float32 if name in ("g", "beta") else torch.bfloat16), name


@pytest.mark.parametrize("level", SHAPES)
def test_shared_prefix_is_equal_and_the_rest_is_not(level):
    """A child's stream is its parent's up to ``shared``, its own after it."""
    parent, child = tensors.streams(make(level))

    for name in parent:
        assert torch.equal(child[name][:8], parent[name][:8]), name
        assert not torch.equal(child[name][8:], parent[name][8:14]), name


@pytest.mark.parametrize(
    "level, gates, betas, keys, values",
    [
        (level, g, b, k, v)
        for level in SHAPES
        for g, b, k, v in itertools.zip_longest(
            tensors.GATES, tensors.BETAS, tensors.KEYS, tensors.VALUES, fillvalue=None
        )
    ],
)
def test_a_shorter_request_has_the_same_tokens(level, gates, betas, keys, values):
    """Every regime draws token by token, so shrinking a length changes no token that is left."""
    regimes = {n: r for n, r in zip(("gates", "betas", "keys", "values"), (gates, betas, keys, values)) if r}
    long = tensors.streams(make(level, [Request(40)], **regimes))[0]

    for length in (0, 1, 7, 39):
        short = tensors.streams(make(level, [Request(length)], **regimes))[0]
        for name in long:
            assert torch.equal(short[name], long[name][:length]), (name, length)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("keys", tensors.KEYS)
def test_unnormalised_keys_stay_in_the_numeric_domain(dtype, keys):
    """beta·‖k‖² ≤ 1 (DESIGN.md, section 4.6) when the kernel does not normalise."""
    case = make("delta", [Request(300)], dtype, Options(use_qk_l2norm=False), keys=keys, betas="one")
    k = tensors.streams(case)[0]["k"].double()

    assert (k**2).sum(-1).max() <= 1.0


@pytest.mark.parametrize(
    "regime, low, high",
    [
        ("zero", 0, 0),
        ("minus3", -3, -3),
        ("minus5", -5, -5),
        ("near_one", -1e-3, 0),
        ("total", -27.64, -27.63),
    ],
)
def test_gate_regimes(regime, low, high):
    """Gates are what the regime's name says."""
    g = tensors.streams(make("delta", gates=regime))[0]["g"]

    assert low <= g.min() and g.max() <= high


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    "regime, want", [("zero", 0.0), ("minus3", -3.0), ("minus5", -5.0), ("total", -27.63)]
)
def test_core_gates_reach_the_regime(regime, want, dtype):
    """a is chosen so that −exp(A_log)·softplus(a + dt_bias) comes out as the regime says, zero exactly."""
    case = make("core", dtype=dtype, gates=regime)
    p, a = tensors.layer(case), tensors.streams(case)[0]["a"].float()
    g = -p.A_log.exp() * torch.nn.functional.softplus(a + p.dt_bias)

    torch.testing.assert_close(g, torch.full_like(g, want), rtol=0.02, atol=0)


@pytest.mark.parametrize("regime, want", [("one", 1.0), ("zero", 0.0)])
def test_core_betas_saturate_exactly(regime, want):
    """sigmoid(b) in fp32 is exactly 0 or 1."""
    b = tensors.streams(make("core", betas=regime))[0]["b"].float()

    assert (torch.sigmoid(b) == want).all()


def test_zero_keys_appear_at_both_levels():
    """Half the keys are zero, and in the core whole spans of them, longer than the convolution."""
    k = tensors.streams(make("delta", [Request(200)], keys="zero"))[0]["k"]
    x = tensors.streams(make("core", [Request(200)], keys="zero"))[0]["x"]

    zero = (k == 0).all(-1)
    assert 0.3 < zero.double().mean() < 0.7
    empty = (x[:, 32:64] == 0).all(-1).int()
    assert empty.unfold(0, SIZES.W, 1).sum(-1).max() == SIZES.W
    assert empty.double().mean() < 0.9


def test_index_regimes_are_small_integers():
    """Keys one-hot, values and queries small integers, weights powers of two: equality can be exact."""
    case = make("delta", [Request(64)], values="ints", keys="onehot", betas="binary", gates="zero")
    s = tensors.streams(case)[0]

    assert ((s["k"] == 0) | (s["k"] == 1)).all() and (s["k"].sum(-1) == 1).all()
    assert (s["v"] == s["v"].round()).all() and s["v"].abs().max() <= 31
    assert (s["q"] == s["q"].round()).all() and s["q"].abs().max() <= 2
    assert set(s["beta"].unique().tolist()) == {0.0, 1.0}
    mantissa, _ = torch.frexp(tensors.layer(case).conv_weight.double().abs())
    assert (mantissa == 0.5).all()


def test_seeds_requests_and_ingredients_differ():
    """No two ingredients share random numbers by accident."""
    one, two = tensors.streams(make("delta", [Request(30), Request(30)]))
    other = tensors.streams(make("delta", [Request(30)], seed=4))[0]

    assert not torch.equal(one["q"], one["k"])
    assert not torch.equal(one["q"], two["q"])
    assert not torch.equal(one["q"], other["q"])


def test_bad_requests_are_refused():
    """Each error names the request, the value and what was expected."""
    with pytest.raises(ValueError, match=r"requests\[0\]\.parent: 1, expected an earlier request"):
        tensors.streams(make(requests=[Request(5, 1, 2), Request(5)]))
    with pytest.raises(
        ValueError, match=r"requests\[1\]\.shared: 6 tokens, but request 1 has 9 and its parent 0 has 5"
    ):
        tensors.streams(make(requests=[Request(5), Request(9, 0, 6)]))
    with pytest.raises(ValueError, match=r"inputs\.gates: unknown regime 'warm', expected one of mild"):
        tensors.streams(make(gates="warm"))
    with pytest.raises(ValueError, match="level: 'metadata' has no tensors"):
        tensors.streams(dataclasses.replace(make(), level="metadata"))
