"""Rounding, half ulps and dtype names."""

import pytest
import torch

from gdn_apc.oracle import DTYPES, dtype_name, half_ulp, round_to, torch_dtype, unit_roundoff

NAMES = sorted(DTYPES)


@pytest.mark.parametrize("name", NAMES)
def test_unit_roundoff_is_half_of_torch_epsilon(name):
    """torch.finfo's eps is the spacing at 1."""
    assert unit_roundoff(name) == torch.finfo(DTYPES[name]).eps / 2


@pytest.mark.parametrize("name", NAMES)
def test_half_ulp_is_half_the_distance_to_the_next_number(name):
    """Against torch.nextafter, over normal and subnormal numbers and zero."""
    smallest = torch.finfo(DTYPES[name]).smallest_normal
    values = torch.tensor([1.0, 1.5, 1.9375, 2.0, 3.0, 1000.0, smallest, smallest / 2, smallest / 4, 0.0])
    values = values.to(DTYPES[name])
    after = torch.nextafter(values, torch.full_like(values, torch.inf))
    expected = (after.double() - values.double()) / 2
    assert torch.equal(half_ulp(values.double(), name), expected)
    assert torch.equal(half_ulp(-values.double(), name), expected)


@pytest.mark.parametrize("name", NAMES)
def test_rounding_moves_a_value_by_at_most_half_an_ulp(name):
    """And a value that the dtype has stays."""
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.logspace(-3, 3, 10_000, dtype=torch.float64)
    rounded = round_to(x, name)
    assert ((rounded - x).abs() <= half_ulp(x, name) * (1 + 1e-6)).all()
    assert torch.equal(round_to(rounded, name), rounded)


def test_names_and_dtypes_are_inverse():
    """A name's dtype has that name."""
    assert [dtype_name(torch_dtype(name)) for name in NAMES] == NAMES


def test_unknown_names_and_dtypes_are_refused():
    """The error names what was given and what is known."""
    with pytest.raises(ValueError, match="dtype: 'fp8' is unknown; use one of bf16, fp16, fp32"):
        torch_dtype("fp8")
    with pytest.raises(ValueError, match=r"dtype: torch.float64 is not supported"):
        dtype_name(torch.float64)
