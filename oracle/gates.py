"""The gates of a GDN layer: log decay g and write strength beta from the projections a and b.

    g = −exp(A_log) · softplus(a + dt_bias)        beta = sigmoid(b)

Softplus switches to the identity above a threshold of 20, as vLLM's fused_gdn_gating does; there the two differ
by at most log1p(exp(−20)) = 2e-9, which is seen in float64 and not in fp32.

Imports torch only. Exercise it with ``pytest tests/oracle/test_gates.py``.
"""

from __future__ import annotations

import torch

SOFTPLUS_THRESHOLD = 20.0


def softplus(x: torch.Tensor) -> torch.Tensor:
    """``log(1 + exp(x))``, and x itself where x > 20."""
    return torch.where(x > SOFTPLUS_THRESHOLD, x, torch.log1p(torch.exp(x.clamp(max=SOFTPLUS_THRESHOLD))))


def gates(
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``a, b: [T, HV]``, ``A_log, dt_bias: [HV]`` → ``g, beta: [T, HV]`` in ``dtype``; g ≤ 0, 0 ≤ beta ≤ 1.

    Raises ``ValueError`` when the shapes do not fit together.
    """
    if a.dim() != 2 or b.shape != a.shape:
        raise ValueError(f"a, b: have shapes {list(a.shape)}, {list(b.shape)}; expected both [T, HV]")
    for name, tensor in (("A_log", A_log), ("dt_bias", dt_bias)):
        if list(tensor.shape) != [a.shape[1]]:
            raise ValueError(
                f"{name}: has shape {list(tensor.shape)}; expected [{a.shape[1]}] to fit a {list(a.shape)}"
            )
    a, b, A_log, dt_bias = (x.to(dtype) for x in (a, b, A_log, dt_bias))
    return -torch.exp(A_log) * softplus(a + dt_bias), torch.sigmoid(b)
