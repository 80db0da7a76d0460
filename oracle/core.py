"""The GDN core: convolution, gates and delta rule tied together, over a whole request and for one step of a row.

    x [T, D] → causal convolution, activation → y, rounded to the input dtype → q, k, v → (L2 norm) → delta rule → o
    a, b [T, HV] → g, beta ──────────────────────────────────────────────────────────────────────────────┘

``params`` is anything with the fields of ``fuzz.targets.base.Layer``: H, HV, K, V, conv_weight, conv_bias, A_log,
dt_bias, scale, use_qk_l2norm, activation.

Imports torch and ``oracle``. Exercise it with ``pytest tests/oracle/test_core.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gdn_apc.oracle.cache import Contents, StepResult, Write, block_contents, conv_step, disturbed_step
from gdn_apc.oracle.conv import causal_conv1d
from gdn_apc.oracle.delta_rule import check_inputs, prepare, recurrence
from gdn_apc.oracle.dtypes import round_to
from gdn_apc.oracle.gates import gates
from gdn_apc.oracle.perturb import Inputs, disturbed_gates, disturbed_rounding


def split_qkv(
    y: torch.Tensor, H: int, HV: int, K: int, V: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``y: […, T, D]``, channels q, k, v side by side → ``q, k: […, T, H, K]``, ``v: […, T, HV, V]``.

    Raises ``ValueError`` unless D = 2·H·K + HV·V.
    """
    if y.shape[-1] != 2 * H * K + HV * V:
        raise ValueError(f"y: has {y.shape[-1]} channels; expected 2·H·K + HV·V = {2 * H * K + HV * V}")
    q, k, v = y.split([H * K, H * K, HV * V], dim=-1)
    return q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V))


def _delta_inputs(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, params: Any, input_dtype: str | None
) -> tuple[torch.Tensor, ...]:
    """q, k, v, g, beta of a whole request, float64; ``input_dtype`` None leaves the convolution's y unrounded."""
    y = causal_conv1d(x, params.conv_weight, params.conv_bias, None, params.activation)
    if input_dtype is not None:
        y = round_to(y, input_dtype)
    return *split_qkv(y, params.H, params.HV, params.K, params.V), *gates(a, b, params.A_log, params.dt_bias)


def gdn_core(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, params: Any, *, input_dtype: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The core over a whole request. ``x: [T, D]``, ``a, b: [T, HV]`` → ``o: [T, HV, V]``, states [T + 1, HV, V, K].

    ``input_dtype``: round the convolution's output to it, as the contract says; None computes without roundings.
    """
    return recurrence(
        *_delta_inputs(x, a, b, params, input_dtype), scale=params.scale, use_qk_l2norm=params.use_qk_l2norm
    )


def core_contents(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    params: Any,
    *,
    steps: Sequence[int],
    block_size: int,
    input_dtype: str | None = None,
    persist: str | None = None,
) -> Contents:
    """``block_contents`` of the core: outputs, and the state and window of every block of a whole request."""
    return block_contents(
        *_delta_inputs(x, a, b, params, input_dtype),
        steps=steps,
        block_size=block_size,
        persist=persist,
        scale=params.scale,
        use_qk_l2norm=params.use_qk_l2norm,
        x=x,
        conv_width=params.conv_weight.shape[1],
    )


def core_step(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    params: Any,
    *,
    n: int,
    block_size: int,
    chunk_size: int,
    state: torch.Tensor | None,
    window: torch.Tensor | None,
    dtypes: tuple[str, str],
    conv_products: str = "fp32",
    one_token_fp32: bool = True,
    operand: str | None = None,
) -> StepResult:
    """The core of one row of a step: see ``cache.delta_step`` and ``cache.conv_step``.

    ``x: [m, D]``, ``a, b: [m, HV]``; ``state: [HV, V, K]`` and ``window: [W − 1, D]``, the bits that the row read, None
    if and only if n = 0. Tolerances allow the convolution's y to be rounded the other way where it is within
    fp32 errors of a tie, and the gates to be computed in fp32. ``conv_products``,
    ``one_token_fp32`` and ``operand`` are ``conv_step``'s and ``delta_step``'s, for clauses that a target does not claim.
    """
    conv = conv_step(
        x,
        params.conv_weight,
        params.conv_bias,
        n=n,
        block_size=block_size,
        window=window,
        activation=params.activation,
        dtype=dtypes[0],
        products=conv_products,
    )
    heads = (params.H, params.HV, params.K, params.V)
    q, k, v = split_qkv(round_to(conv.o, dtypes[0]), *heads)
    g, beta = gates(a, b, params.A_log, params.dt_bias)
    check_inputs(q, k, v, g, beta, state)
    scale = params.K**-0.5 if params.scale is None else params.scale
    exact = prepare(q, k, v, g, beta, scale, params.use_qk_l2norm, torch.float64)

    group = params.HV // params.H
    y = disturbed_rounding(conv.o, conv.o_unstored_tol, dtypes[0])
    near_q, near_k, near_v = split_qkv(y, *heads)
    near_q, near_k = (t.repeat_interleave(group, dim=2) for t in (near_q, near_k))
    near_g, near_beta = disturbed_gates(g, beta, a, b, params)
    disturbed = Inputs(near_q, near_k, near_v, near_g, near_beta, scale, params.use_qk_l2norm)

    result = disturbed_step(
        exact, disturbed, n, block_size, chunk_size, state, dtypes, one_token_fp32, operand
    )
    for column, write in conv.writes.items():
        result.writes[column] = Write(result.writes[column].state, write.window)
    return result
