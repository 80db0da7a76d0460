"""A simulated reference implementation: float32 arithmetic with the roundings that the contract allows a kernel.

It is what the tolerances are calibrated against, so it shares no code with ``oracle``. Chunk rows: the WY form with
operands of products rounded; one-token rows: the recurrence in float32. ``Variant`` chooses among the places
where correct kernels differ. Imports torch only; used by tests/oracle/test_tightness.py and test_compare.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Variant:
    """Choices that correct kernels make differently."""

    tf32: str = "nearest"  # fp16 inputs: "nearest", "cut" or "exact"
    fp32: str = "ieee"  # fp32 inputs: "ieee" or "three" tf32 products
    decay_on: str = "value"  # which operand of equation (10) carries e^(G_C - G)
    decay_query: bool = False  # whether e^G multiplies q before the product with S, or the product
    inverse: str = "rows"  # T by forward substitution, or "blocks" of 16 merged
    fold_beta: bool = False  # beta (and e^G) multiply the columns of T, or the rows of v (and k)
    round_u: bool = False  # whether T diag(beta) V is stored in the operand dtype before W Sᵀ is subtracted


@dataclass
class Result:
    """``o`` and ``states`` by column as a kernel has them before it stores them, and as stored."""

    o: torch.Tensor
    o_stored: torch.Tensor
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    states_stored: dict[int, torch.Tensor] = field(default_factory=dict)


def _tf32(x: torch.Tensor, how: str) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    if how == "nearest":
        bits = bits + 0x0FFF + ((bits >> 13) & 1)
    return (bits & ~0x1FFF).view(torch.float32)


class _Product:
    """Matrix products as a tensor core computes them for one input dtype."""

    def __init__(self, input_dtype: str, variant: Variant):
        self.input_dtype, self.variant = input_dtype, variant

    def round(self, x: torch.Tensor) -> torch.Tensor:
        if self.input_dtype == "bf16":
            return x.bfloat16().float()
        if self.input_dtype == "fp16" and self.variant.tf32 != "exact":
            return _tf32(x, self.variant.tf32)
        return x

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.input_dtype == "fp32" and self.variant.fp32 == "three":
            a1, b1 = _tf32(a, "nearest"), _tf32(b, "nearest")
            a2, b2 = _tf32(a - a1, "nearest"), _tf32(b - b1, "nearest")
            return a2 @ b1 + a1 @ b2 + a1 @ b1
        return self.round(a) @ self.round(b)


def _inverse(A: torch.Tensor, how: str) -> torch.Tensor:
    """(I + A)⁻¹ in float32 for strictly lower A: [HV, C, C]."""
    C = A.shape[-1]
    T = torch.eye(C).repeat(A.shape[0], 1, 1)
    if how == "rows" or C <= 16:
        for i in range(1, C):
            T[:, i, :i] = -(A[:, i : i + 1, :i] @ T[:, :i, :i])[:, 0]
        return T
    half = C // 2
    a, d = _inverse(A[:, :half, :half], how), _inverse(A[:, half:, half:], how)
    T[:, :half, :half], T[:, half:, half:] = a, d
    T[:, half:, :half] = -d @ A[:, half:, :half] @ a
    return T


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta(
    q, k, v, g, beta, *, n, block_size, chunk_size, state, dtypes, scale, use_qk_l2norm, variant=Variant()
) -> Result:
    """One row as a kernel would compute it; arguments as those of ``oracle.delta_step``."""
    HV, V = v.shape[1:]
    m, _, K = q.shape
    group = HV // q.shape[1]
    scale = K**-0.5 if scale is None else scale
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    if use_qk_l2norm:
        q, k = _norm(q), _norm(k)
    q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
    S = torch.zeros(HV, V, K) if state is None else state.float()
    if m == 1:
        return _one_token(q[0], k[0], v[0], g[0], beta[0], S, n // block_size, dtypes, scale)
    product = _Product(dtypes[0], variant)
    q, k = product.round(q), product.round(k)
    q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))
    g, beta = g.T.contiguous(), beta.T.contiguous()
    o = torch.empty(HV, m, V)
    result = Result(o, o)
    start = 0
    while start < m:
        offset = (n + start) % block_size
        end = min(start + chunk_size - offset % chunk_size, start + block_size - offset, m)
        part = (x[:, start:end] for x in (q, k, v, g, beta))
        o[:, start:end], S = _chunk(*part, S, scale, product, variant)
        if (n + end) % block_size == 0 or end == m:
            column = (n + end - 1) // block_size
            result.states[column] = S
            result.states_stored[column] = S.to(TORCH[dtypes[1]])
            S = result.states_stored[column].float()
        start = end
    result.o = o.transpose(0, 1)
    result.o_stored = result.o.to(TORCH[dtypes[0]])
    return result


def _chunk(q, k, v, g, beta, S, scale, product, variant):
    """One chunk; q, k: [HV, c, K], v: [HV, c, V], g, beta: [HV, c], S: [HV, V, K]."""
    G = g.cumsum(-1)
    beta = beta[..., None]
    D = torch.exp((G[:, :, None] - G[:, None, :]).tril())
    T = _inverse((product(k, k.mT) * D * beta).tril(-1), variant.inverse)
    if variant.fold_beta:
        T = T * beta.mT
        U, W = product(T, v), product(T * torch.exp(G)[:, None, :], k)
    else:
        U, W = product(T, beta * v), product(T, beta * torch.exp(G)[..., None] * k)
    U = (product.round(U) if variant.round_u else U) - product(W, S.mT)
    P = (product(q, k.mT) * D).tril()
    grown = torch.exp(G)[..., None]
    before = product(q * grown, S.mT) if variant.decay_query else product(q, S.mT) * grown
    o = scale * (before + product(P, U))
    to_end = torch.exp(G[:, -1:] - G)[..., None]
    if variant.decay_on == "value":
        new = product((U * to_end).mT, k)
    else:
        new = product(U.mT, k * to_end)
    return o, S * torch.exp(G[:, -1])[:, None, None] + new


def _one_token(q, k, v, g, beta, S, column, dtypes, scale) -> Result:
    """q, k: [HV, K], v: [HV, V], g, beta: [HV]."""
    S = S * torch.exp(g)[:, None, None]
    u = beta[:, None] * (v - (S * k[:, None]).sum(-1))
    S = S + u[..., None] * k[:, None]
    o = ((S * (q * scale)[:, None]).sum(-1))[None]
    return Result(o, o.to(TORCH[dtypes[0]]), {column: S}, {column: S.to(TORCH[dtypes[1]])})


def conv(x, weight, bias, *, window, activation) -> torch.Tensor:
    """The convolution in float32, before it is stored: [m, D]."""
    W = weight.shape[1]
    window = torch.zeros(W - 1, x.shape[1]) if window is None else window.float()
    inputs = torch.cat([window, x.float()])
    y = torch.zeros(x.shape) if bias is None else bias.float().expand(x.shape).clone()
    for w in range(W):
        y = y + inputs[w : w + x.shape[0]] * weight[:, w].float()
    return y / (1 + torch.exp(-y)) if activation == "silu" else y


def core(x, a, b, layer, *, n, block_size, chunk_size, state, window, dtypes, variant=Variant()) -> Result:
    """The GDN core in float32; arguments as those of ``oracle.core_step``."""
    y = conv(x, layer.conv_weight, layer.conv_bias, window=window, activation=layer.activation)
    y = y.to(TORCH[dtypes[0]])
    q, k, v = y.split([layer.H * layer.K, layer.H * layer.K, layer.HV * layer.V], -1)
    z = a.float() + layer.dt_bias
    softplus = torch.where(z > 20, z, torch.log(1 + torch.exp(z.clamp(max=20))))
    return delta(
        q.unflatten(-1, (layer.H, layer.K)),
        k.unflatten(-1, (layer.H, layer.K)),
        v.unflatten(-1, (layer.HV, layer.V)),
        -torch.exp(layer.A_log) * softplus,
        1 / (1 + torch.exp(-b.float())),
        n=n,
        block_size=block_size,
        chunk_size=chunk_size,
        state=state,
        dtypes=dtypes,
        scale=layer.scale,
        use_qk_l2norm=layer.use_qk_l2norm,
        variant=variant,
    )
