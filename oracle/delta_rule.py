"""The gated delta rule as a token-by-token recurrence: the definition that everything else is compared with.

The maths, per token t and value head (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024, eq. 10), with the
state S: [V, K], key k and query q: [K], value v: [V], log decay g and write strength beta scalars:

    S ← exp(g) S                      (1)  forget
    u = beta (v − S k)                (2)  what is new in v, given what S already answers for k
    S ← S + u kᵀ                      (3)  write
    o = scale · S q                   (4)  read

In one line of PyTorch: ``S = exp(g) * S; S = S + outer(beta * (v - S @ k), k); o = scale * S @ q``.
Value head h uses the key and query head ``h // (HV // H)``.

Imports torch only. Exercise it with ``pytest tests/oracle/test_delta_rule.py``.
"""

from __future__ import annotations

import torch

L2_EPSILON = 1e-6
"""Added to the sum of squares before the square root, as vLLM's l2norm does."""


def l2norm(x: torch.Tensor) -> torch.Tensor:
    """``x / sqrt(sum(x²) + 1e-6)`` over the last axis, in x's dtype (vLLM: model_executor/layers/fla/ops/l2norm.py)."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)


def check_inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> None:
    """Raise ``ValueError``, naming the argument and what was expected, unless all shapes fit together."""
    if q.dim() != 3 or v.dim() != 3:
        raise ValueError(
            f"q, v: have shapes {list(q.shape)}, {list(v.shape)}; expected [T, H, K], [T, HV, V]"
        )
    T, H, K = q.shape
    HV, V = v.shape[1:]
    wanted = {"k": (k, [T, H, K]), "v": (v, [T, HV, V]), "g": (g, [T, HV]), "beta": (beta, [T, HV])}
    if initial_state is not None:
        wanted["initial_state"] = (initial_state, [HV, V, K])
    for name, (tensor, shape) in wanted.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{name}: has shape {list(tensor.shape)}; expected {shape} to fit q {[T, H, K]}")
    if H == 0 or HV % H:
        raise ValueError(f"v: has {HV} heads; expected a multiple of q's {H}")


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """All inputs in ``dtype`` with one query and key per value head, normalised if asked, q multiplied by scale.

    Returns ``q, k: [T, HV, K]``, ``v: [T, HV, V]``, ``g, beta: [T, HV]``.
    """
    q, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    if use_qk_l2norm:
        q, k = l2norm(q), l2norm(k)
    group = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    return q * (q.shape[-1] ** -0.5 if scale is None else scale), k, v, g, beta


def advance(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """Equations (1) to (3) for one token, in place on ``state: [HV, V, K]``; returns the products of (4) [HV, V, K],
    whose sums over K are o.

    ``q, k: [HV, K, 1]`` (q already scaled), ``v: [HV, V, 1]``, ``decay = exp(g)`` and ``beta: [HV, 1, 1]``.
    """
    state.mul_(decay)  # (1)
    u = torch.baddbmm(v, state, k, alpha=-1).mul_(beta)  # (2)
    state.baddbmm_(u, k.mT)  # (3)
    return state * q.mT  # (4)


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    use_qk_l2norm: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The delta rule over one request's T tokens.

    Args:
        q, k: [T, H, K]; v: [T, HV, V]; g, beta: [T, HV], any floating dtype, converted to ``dtype`` exactly.
        scale: factor on o; None means K ** -0.5. Zero means zero.
        initial_state: [HV, V, K]; None means zeros.
        use_qk_l2norm: normalise q and k first (``l2norm``).

    Returns:
        o: [T, HV, V] and states: [T + 1, HV, V, K], both ``dtype``; ``states[t]`` is the state after t tokens.

    Raises:
        ValueError: shapes that do not fit together.
    """
    check_inputs(q, k, v, g, beta, initial_state)
    q, k, v, g, beta = prepare(q, k, v, g, beta, scale, use_qk_l2norm, dtype)
    T, HV, V = v.shape
    states = torch.zeros(T + 1, HV, V, q.shape[-1], dtype=dtype, device=v.device)
    if initial_state is not None:
        states[0] = initial_state
    o = torch.empty(T, HV, V, dtype=dtype, device=v.device)
    decay, beta = (x[:, :, None, None] for x in (torch.exp(g), beta))
    for t in range(T):
        state = states[t + 1].copy_(states[t])
        o[t] = advance(state, q[t, :, :, None], k[t, :, :, None], v[t, :, :, None], decay[t], beta[t]).sum(-1)
    return o, states
