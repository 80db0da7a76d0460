"""The three dtypes of the contract by name: rounding to them, their unit roundoff, half an ulp at a value.

Imports torch only. Exercise it with ``pytest tests/oracle/test_dtypes.py``.
"""

from __future__ import annotations

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Torch's dtype of each name that a case may use for inputs, states and windows."""

# (bits of the significand with the hidden one, exponent of the smallest normal number)
_FORMAT = {"bf16": (8, -126), "fp16": (11, -14), "fp32": (24, -126), "tf32": (11, -126)}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of ``name``. Raises ``ValueError`` for a name outside ``DTYPES``."""
    if name not in DTYPES:
        raise ValueError(f"dtype: {name!r} is unknown; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype. Raises ``ValueError`` for a dtype outside ``DTYPES``."""
    for name, found in DTYPES.items():
        if found == dtype:
            return name
    raise ValueError(f"dtype: {dtype} is not supported; use one of {', '.join(map(str, DTYPES.values()))}")


def unit_roundoff(name: str) -> float:
    """Largest relative error of rounding a normal number to nearest: 2⁻⁸ for bf16, 2⁻¹¹ for fp16, 2⁻²⁴ for fp32."""
    return 2.0 ** -_FORMAT[name][0]


def round_to(x: torch.Tensor, name: str) -> torch.Tensor:
    """``x`` rounded to nearest even in dtype ``name``, in x's own dtype again; beyond the largest number, ±inf.

    Torch converts float64 to a 16-bit type through float32, which rounds twice. An fp32 kernel does the same,
    and 2⁻²⁵ of a 16-bit ulp is far below any tolerance here.
    """
    return x.to(torch_dtype(name)).to(x.dtype)


def half_ulp(x: torch.Tensor, name: str) -> torch.Tensor:
    """Half the distance between neighbours of ``x`` in dtype ``name``: the most that rounding ``x`` may change it.

    ``x``: any shape, float64. Below the smallest normal number the spacing stays that of the subnormals.
    """
    bits, emin = _FORMAT[name]
    # frexp: |x| = f · 2^e with 0.5 <= f < 1, so the spacing at x is 2^(e - bits).
    # Zero counts as the smallest: frexp gives it the exponent of 0.5.
    exponent = torch.frexp(torch.where(x == 0, 2.0**emin, x))[1].clamp(min=emin + 1)
    return torch.ldexp(torch.ones_like(x), exponent - bits - 1)
