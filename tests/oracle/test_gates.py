"""The gates against their formulas and torch's own functions."""

import math

import pytest
import torch

from gdn_apc.oracle import gates, softplus


def test_equal_their_formulas():
    """g = −exp(A_log) · softplus(a + dt_bias), beta = sigmoid(b), one number at a time."""
    a, b = torch.tensor([[0.5, -2.0]]).double(), torch.tensor([[1.0, -3.0]]).double()
    A_log, dt_bias = torch.tensor([0.1, 1.2]).double(), torch.tensor([-0.3, 0.4]).double()
    g, beta = gates(a, b, A_log, dt_bias)
    for h in range(2):
        want = -math.exp(A_log[h]) * math.log1p(math.exp(a[0, h] + dt_bias[h]))
        assert math.isclose(float(g[0, h]), want, rel_tol=1e-14)
        assert math.isclose(float(beta[0, h]), 1 / (1 + math.exp(-b[0, h])), rel_tol=1e-14)


def test_softplus_switches_at_twenty():
    """At 20 still the logarithm, just above it the identity, as torch's with threshold 20."""
    x = torch.tensor([-800.0, -20.0, 0.0, 19.9, 20.0, 20.000001, 25.0, 1e30]).double()
    torch.testing.assert_close(
        softplus(x), torch.nn.functional.softplus(x, threshold=20.0), rtol=1e-15, atol=0
    )
    assert float(softplus(x)[4]) > 20
    assert torch.equal(softplus(x)[5:], x[5:])


def test_stay_in_their_ranges_for_extreme_inputs():
    """g is finite and not positive, beta within 0 and 1; both reach their ends."""
    extreme = torch.tensor([[-1e4, -30.0, 0.0, 30.0, 1e4]]).double()
    g, beta = gates(extreme, extreme, torch.zeros(5), torch.zeros(5))
    assert g.isfinite().all() and (g <= 0).all() and g[0, 0] == 0
    assert beta[0].tolist()[0] == 0 and beta[0].tolist()[4] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(b=torch.zeros(3, 1)), r"a, b: have shapes \[3, 2\], \[3, 1\]; expected both \[T, HV\]"),
        (dict(A_log=torch.zeros(1)), r"A_log: has shape \[1\]; expected \[2\] to fit a \[3, 2\]"),
        (dict(dt_bias=torch.zeros(2, 1)), r"dt_bias: has shape \[2, 1\]; expected \[2\]"),
    ],
)
def test_misfits_are_named(change, message):
    """The error names the argument, its shape, and what was expected."""
    fit = dict(a=torch.zeros(3, 2), b=torch.zeros(3, 2), A_log=torch.zeros(2), dt_bias=torch.zeros(2))
    with pytest.raises(ValueError, match=message):
        gates(**(fit | change))
