"""The chunked form against the recurrence: two derivations that agree to 1e-12, ordinary and extreme."""

import itertools

import pytest
import torch

from gdn_apc.oracle import chunked, recurrence
from gdn_apc.oracle.wy import decay_matrix
from tests.oracle import regimes

ATOL = 1e-12


def assert_agree(x, *, chunk_size, **options):
    """Outputs and final states, relative to the largest number at hand."""
    o, states = recurrence(**x, **options)
    got_o, got_state = chunked(**x, chunk_size=chunk_size, **options)
    magnitude = max(1.0, float(x["v"].abs().max()), float(states[0].abs().max()))
    assert o.isfinite().all() and states[-1].isfinite().all()
    torch.testing.assert_close(got_o, o, rtol=0, atol=ATOL * magnitude)
    torch.testing.assert_close(got_state, states[-1], rtol=0, atol=ATOL * magnitude)


def draw(seed, T, *, H=1, HV=1, K=8, V=5, **names):
    x = regimes.row(seed, m=T, n=1, H=H, HV=HV, K=K, V=V, dtypes=("fp32", "fp32"), **names)
    norm = x.pop("use_qk_l2norm")
    return x, dict(initial_state=x.pop("state"), use_qk_l2norm=norm)


@pytest.mark.parametrize("gate", regimes.GATES)
@pytest.mark.parametrize("beta", regimes.BETAS)
def test_agree_in_every_regime(gate, beta):
    """Every pair of gates and betas with every kind of keys and values."""
    for i, (key, value) in enumerate(itertools.product(regimes.KEYS, ("normal", "constant", "large"))):
        x, options = draw(i, 70, gate=gate, beta=beta, key=key, value=value)
        assert_agree(x, chunk_size=32, **options)


@pytest.mark.parametrize("C", [1, 2, 7, 64])
@pytest.mark.parametrize("remainder", [0, 1, -1])
def test_agree_at_every_length_of_the_last_chunk(C, remainder):
    """T mod C of 0, 1 and C − 1, shorter and longer than a chunk."""
    for chunks in (1, 3):
        T = max(1, chunks * C + remainder)
        x, options = draw(T, T, gate="mixed", beta="mixed", key="near")
        assert_agree(x, chunk_size=C, **options)


@pytest.mark.parametrize("group", [1, 2, 3, 4])
@pytest.mark.parametrize(("K", "V"), [(8, 5), (4, 16), (1, 1)])
def test_agree_for_every_grouping_and_shape(group, K, V):
    """HV / H of 1 to 4, and states that are not square."""
    x, options = draw(group, 40, H=2, HV=2 * group, K=K, V=V)
    assert_agree(x, chunk_size=16, **options)


def test_agree_on_identical_keys_and_full_writes():
    """I + A is then all ones below the diagonal: its powers overflow, its inverse does not."""
    x, options = draw(0, 128, gate="zero", beta="one", key="repeated")
    assert_agree(x, chunk_size=128, **options)


def test_without_an_initial_state_and_with_a_scale():
    """The options are the recurrence's."""
    x, _ = draw(3, 20)
    assert_agree(x, chunk_size=8, scale=0.25)


def test_decays_keep_their_digits_next_to_a_near_total_one():
    """Sums over (j, i] are formed as such: a running sum of −5,000 would cost four digits of exp(−1e-9)."""
    g = torch.cat([torch.full((100,), -50.0), torch.full((3,), -1e-9)]).double()
    D = decay_matrix(g)
    for j, tokens in ((101, 1), (100, 2), (99, 3)):
        torch.testing.assert_close(D[102, j], torch.exp(tokens * g[102]), rtol=4e-16, atol=0)
    assert D.triu(1).eq(0).all() and D.diagonal().eq(1).all()


def test_a_chunk_size_below_one_is_refused():
    """The error names the argument and its value."""
    x, _ = draw(0, 4)
    with pytest.raises(ValueError, match="chunk_size: is 0; expected at least 1 token"):
        chunked(**x, chunk_size=0)


def test_the_comparison_can_fail():
    """A chunk edge that forgets a decay is seen."""
    x, options = draw(5, 40)
    _, states = recurrence(**x, **options)
    x["g"][20] = 0
    assert (chunked(**x, chunk_size=16, **options)[1] - states[-1]).abs().max() > 1e6 * ATOL
