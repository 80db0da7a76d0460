"""The causal depthwise convolution of a GDN layer and the window of inputs that its cache holds.

    y[t, d] = activation(bias[d] + Σ_w weight[d, w] · x[t − (W − 1) + w, d])        inputs before the start: the window

The window of a request at position t is its W − 1 inputs before t, oldest first, zeros before its start. It is a
copy of inputs, not a result: it has no tolerance.

Imports torch and ``oracle.dtypes``. Exercise it with ``pytest tests/oracle/test_conv.py``.
"""

from __future__ import annotations

import torch

from gdn_apc.oracle.dtypes import round_to


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x · sigmoid(x)``."""
    return x * torch.sigmoid(x)


def with_history(x: torch.Tensor, window: torch.Tensor | None, W: int) -> torch.Tensor:
    """``[W − 1 + T, D]``: the window (zeros if None), then ``x: [T, D]``. Raises ``ValueError`` on a misfit."""
    if x.dim() != 2:
        raise ValueError(f"x: has shape {list(x.shape)}; expected [T, D]")
    if window is None:
        window = x.new_zeros(W - 1, x.shape[1])
    if list(window.shape) != [W - 1, x.shape[1]]:
        raise ValueError(
            f"window: has shape {list(window.shape)}; expected [W - 1, D] = {[W - 1, x.shape[1]]}"
        )
    return torch.cat([window.to(x.dtype), x])


def window_after(x: torch.Tensor, window: torch.Tensor | None, t: int, W: int) -> torch.Tensor:
    """The window after the first ``t`` of the tokens ``x: [T, D]`` that follow ``window``: [W − 1, D], x's dtype."""
    if not 0 <= t <= x.shape[0]:
        raise ValueError(f"t: is {t}; expected 0 to {x.shape[0]}, the number of tokens in x")
    return with_history(x, window, W)[t : t + W - 1]


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    window: torch.Tensor | None = None,
    activation: str | None = None,
    dtype: torch.dtype = torch.float64,
    products: str = "fp32",
) -> torch.Tensor:
    """The convolution over one request's T tokens.

    ``x: [T, D]``, ``weight: [D, W]``, ``bias: [D]``, ``window: [W − 1, D]`` (None: zeros) → ``y: [T, D]`` in ``dtype``.
    ``activation`` is None or ``"silu"``. ``products``: ``"bf16"`` or ``"fp16"`` rounds every product to that dtype
    before it is summed, as some kernels do; ``"fp32"`` sums the exact ones. Raises ``ValueError`` for anything else
    and for shapes that do not fit.
    """
    if activation not in (None, "silu"):
        raise ValueError(f"activation: is {activation!r}; expected None or 'silu'")
    if weight.dim() != 2 or weight.shape[0] != x.shape[-1]:
        raise ValueError(
            f"weight: has shape {list(weight.shape)}; expected [D, W] with D = {x.shape[-1]} of x"
        )
    if bias is not None and list(bias.shape) != [x.shape[-1]]:
        raise ValueError(f"bias: has shape {list(bias.shape)}; expected [{x.shape[-1]}]")
    T, W = x.shape[0], weight.shape[1]
    weight = weight.to(dtype)
    inputs = with_history(x.to(dtype), window, W)
    y = torch.zeros(T, x.shape[1], dtype=dtype, device=x.device)
    if bias is not None:
        y += bias.to(dtype)
    for w in range(W):
        product = weight[:, w] * inputs[w : w + T]
        y += product if products == "fp32" else round_to(product, products)
    return silu(y) if activation == "silu" else y
