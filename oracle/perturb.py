"""How far a correct kernel may be from the exact values: the step run several times with every rounding disturbed.

A closed bound on the error of a chunked kernel is either far too wide (worst cases added up over hundreds of
roundings) or wrong (independent errors assumed where keys repeat and errors line up). So the errors are propagated
by the algorithm itself, as in stochastic arithmetic (Vignes, "A stochastic arithmetic for reliable scientific
computation", 1993): ``REPLICAS`` copies of the step run in float64, and wherever the contract lets a kernel round
(DESIGN.md section 4.1), each copy disturbs the value by a random relative error of that rounding's size. The
first copy rounds the way hardware does, so that errors which repeat with the data add up as they would in a kernel,
and turns every rounding of a stored value that lies so near a tie that a correct kernel might round it the other way.

The spread of the copies around the exact values depends on the inputs, the dtypes and the exact values, never on
what a target computed; the random numbers are the same in every call. ``oracle.compare`` makes tolerances of it.

Where values are rounded, chunk path (equations of ``oracle.wy``): operands of every product to the operand dtype
(bf16 for bf16 inputs, tf32 for fp16 inputs, "fp32" for fp32 inputs, which allows three tf32 products in place of
one); with fp32 operands, every partial sum of a product; sums of g to fp32; the state to the cache's dtype at every boundary. One-token path: fp32 throughout.

Imports torch and ``oracle``. Exercise it with ``pytest tests/oracle/test_tightness.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gdn_apc.oracle.compare import TURNS
from gdn_apc.oracle.delta_rule import L2_EPSILON
from gdn_apc.oracle.dtypes import half_ulp, round_to

REPLICAS = 8

OPERAND = {"bf16": "bf16", "fp16": "tf32", "fp32": "fp32"}
"""Operand dtype of a chunk kernel's products, by input dtype. ``"fp16"`` has tf32's precision without its range."""

# Random relative error of an operand, ±: 3/4 of the unit roundoff has the variance of rounding to nearest.
# fp32 stands for three tf32 products, off by some 2^-22; what the sums of fp32 products lose comes on top.
# fp16 is allowed what tf32 is, and the spacing of its subnormals.
_OPERAND_ERROR = {
    "bf16": 0.75 * 2.0**-8,
    "tf32": 1.5 * 2.0**-11,
    "fp16": 1.5 * 2.0**-11,
    "fp32": 0.75 * 2.0**-22,
}
_SUBNORMAL = 2.0**-25
_FP32 = 2.0**-24
_FP32_SUM = 2.0**-23  # a sum of K products in fp32, relative to each product
_EXP = 2.0**-22  # exp, log and division as GPUs compute them
_SUMMED = (_FP32 / _OPERAND_ERROR["fp32"]) ** 2 / 2  # from ``_drift`` to sums of squares of products


_TABLE: dict[torch.device, torch.Tensor] = {}
_HALF = 1 << 20
_PERIOD = 1_000_003  # of longer runs of numbers: a prime, so that copies do not get the same ones


class Noise:
    """Uniform random numbers in [−1, 1] from one fixed table, the same sequence for every step."""

    def __init__(self, device: torch.device):
        if device not in _TABLE:
            generator = torch.Generator().manual_seed(20_240_917)
            _TABLE[device] = (torch.rand(2 * _HALF, generator=generator, dtype=torch.float64) * 2 - 1).to(
                device
            )
        self._table, self._at = _TABLE[device], 0

    def like(self, x: torch.Tensor) -> torch.Tensor:
        """As many as x has, in x's shape."""
        count, start = x.numel(), self._at
        self._at = (start + count + 1) % _HALF
        if count > _HALF:
            return self._table[start : start + _PERIOD].repeat(-(-count // _PERIOD))[:count].view(x.shape)
        return self._table[start : start + count].view(x.shape)

    def relative(self, x: torch.Tensor, size: float) -> torch.Tensor:
        """``x`` with a relative error of up to ±size in each element."""
        return torch.addcmul(x, x, self.like(x), value=size)


def _hardware_round(x: torch.Tensor, operand: str) -> torch.Tensor:
    """``x`` as a tensor core sees it: bf16 to nearest, tf32 cut off after ten bits, fp32 with its errors on one side."""
    if operand == "bf16":
        return x.to(torch.bfloat16).to(x.dtype)
    if operand == "fp16":
        return x.to(torch.float16).to(x.dtype)
    if operand == "tf32":
        bits = x.to(torch.float32).view(torch.int32) & ~0x1FFF
        return bits.view(torch.float32).to(x.dtype)
    return x * (1 - 2.0**-23)


def _drift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``[H, i, n] @ [H, n, j]`` → n times the mean square of the running sums, from sums after each eighth of n.

    Times 2⁻⁴⁸ / 3 it is the variance of adding n products in fp32: sums that wander far before they end near 0, or grow
    steadily, lose more digits than the products' own size tells.
    """
    n = a.shape[-1]
    parts = [x @ y for x, y in zip(a.tensor_split(min(n, 8), -1), b.tensor_split(min(n, 8), -2), strict=True)]
    return torch.stack(parts).cumsum_(0).square_().mean(0) * n


@dataclass
class Inputs:
    """A step's inputs, prepared, in float64: what ``delta_rule.prepare`` returns and how it came about.

    ``q, k: [R or 1, m, HV, K]`` before normalisation, ``v: [R or 1, m, HV, V]``, ``g, beta: [R or 1, m, HV]``;
    a leading axis of 1 means that all copies get the same inputs.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    scale: float
    use_qk_l2norm: bool


class Copies:
    """The disturbed copies of one step. Feed it chunk by chunk, or one token; all copies and heads share axis 0.

    ``operand``: the dtype of the products' operands, see :data:`OPERAND`. ``one_token``: the step is a single token
    and takes the recurrent path.
    """

    def __init__(self, inputs: Inputs, operand: str, state: torch.Tensor, *, one_token: bool):
        self.operand = operand
        self.HV = state.shape[0]
        self.noise = Noise(state.device)
        self.state = state.repeat(REPLICAS, 1, 1)  # [R·HV, V, K]
        # How far turned roundings alone may have moved each element of the state, decayed: [HV, V, K]; and, as squares,
        # what such moves of other elements add to it through answers S k.
        self.turned, self.answered = torch.zeros_like(state), torch.zeros_like(state)
        self.written = torch.zeros_like(
            state
        )  # sums of squares of all parts of writes u kᵀ, decayed: [HV, V, K]
        self.one_token = one_token
        q, k = inputs.q, inputs.k
        if inputs.use_qk_l2norm:
            q, k = (self._normalise(x) for x in (q, k))
        self.q = self._spread(q * inputs.scale)
        self.k = self._spread(k)
        if not self.one_token and (inputs.use_qk_l2norm or self.operand == "fp32"):
            self.q, self.k = self._operand(self.q), self._operand(self.k)
        self.v = self._spread(inputs.v)
        self.g, self.beta = (self._spread(x[..., None])[..., 0] for x in (inputs.g, inputs.beta))

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        """The L2 norm with an fp32 reciprocal root: one relative error a vector."""
        x = x.expand(REPLICAS, *x.shape[1:])
        inverse = torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)
        return x * self.noise.relative(inverse, _FP32_SUM)

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        """``[R or 1, m, HV, n]`` → ``[R·HV, m, n]``."""
        x = x.expand(REPLICAS, *x.shape[1:])
        return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])

    def _operand(self, x: torch.Tensor) -> torch.Tensor:
        """``x: [R·HV, …]`` rounded to the operand dtype: as hardware does in the first copy, at random in the others."""
        out = self.noise.relative(x, _OPERAND_ERROR[self.operand])
        if self.operand == "fp16":
            out = out + self.noise.like(x) * _SUBNORMAL
        out[: self.HV] = _hardware_round(x[: self.HV], self.operand)
        return out

    def chunk(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens ``start`` to ``end`` of the step by equations (7) to (10).

        Returns ``o: [R, end − start, HV, V]``, its natural measure, ``[end − start, HV, V]``, and likewise the squares of
        what turned roundings of earlier states may add to it: see ``_measure``.
        """
        r, noise = self._operand, self.noise
        q, k, v, g, beta = (x[:, start:end] for x in (self.q, self.k, self.v, self.g, self.beta))
        G = g.cumsum(-1)
        # 2^-24 · max|cumsum g|, and the roundings of a running sum walk at random.
        G = G + noise.like(G) * (2.5 * _FP32 * G.abs().amax(-1, keepdim=True))
        D = torch.exp(G[:, :, None] - G[:, None, :]).tril()
        from_start, beta = torch.exp(G)[..., None], beta[..., None]
        T = torch.eye(end - start, dtype=G.dtype, device=G.device).expand_as(D)
        if end - start > 1:
            A = noise.relative((beta * D * self._product(k, k.mT)).tril(-1), _EXP)  # (7)
            T = torch.linalg.solve_triangular(T + A, T, upper=False, unitriangular=True)
        # Each product rounds its own T: where a state already answers v, U and W Sᵀ cancel, and their errors do not.
        T_u, T_w = T * beta.mT, T * (beta * from_start).mT
        W = self._product(r(T_w), r(k))
        U = self._product(r(T_u), r(v))
        S = r(self.state)
        U = r(U) - self._product(r(W), S.mT)  # (8)
        P = D * self._product(q, k.mT)
        o = from_start * self._product(q, S.mT) + self._product(r(P), r(U))  # (9)
        to_end = torch.exp(G[:, -1:] - G)[..., None]
        kept = noise.relative(from_start[:, -1:] * self.state, _EXP)
        measure = self._measure(q, k, v, D, beta, from_start, T, T_u, T_w, W, U, P, to_end)
        self.state = kept + self._product(r(to_end * U).mT, k)  # (10)
        o = o.view(REPLICAS, self.HV, *o.shape[1:]).transpose(1, 2)
        return o, *(x.transpose(0, 1) for x in measure)

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``a @ b``, summed up in fp32: each addition rounds the sum so far. Matters beside fp32 operands only."""
        exact = a @ b
        if self.operand != "fp32":
            return exact
        error = _FP32 * _drift(a[: self.HV], b[: self.HV]).sqrt()
        return exact + self.noise.like(exact) * error.repeat(REPLICAS, 1, 1)

    def _measure(self, *chunk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the chunk's outputs are made of: [HV, end − start, V]; ``written`` and ``turned`` brought to its end.

        Sums of squares of all that is added up on the way to an output, U, W and A included, as if each summand had
        an independent relative error of 1: where large parts cancel, the errors follow the parts.
        """
        chunk = [x[: self.HV] for x in chunk]
        S = self.state[: self.HV]
        q, k, v, D, beta, from_start, T, T_u, T_w, W, U, P, to_end = (x.square() for x in chunk)
        in_S = S.square() + self.written
        in_qS, in_WS, in_qk, in_PU = q @ in_S.mT, (T_w @ k) @ in_S.mT, q @ k.mT, P @ U
        if self.operand == "fp32":
            q_, k_, W_, U_, P_ = (chunk[i] for i in (0, 1, 9, 10, 11))
            in_qS, in_WS = in_qS + _SUMMED * _drift(q_, S.mT), in_WS + _SUMMED * _drift(W_, S.mT)
            in_qk, in_PU = in_qk + _SUMMED * _drift(q_, k_.mT), in_PU + _SUMMED * _drift(P_, U_)
        in_A = (beta * D * (k @ k.mT)).tril(-1)
        in_U = T_u @ v + in_WS + T @ (in_A @ U)
        kept = from_start[:, -1:] * S.square() * (_EXP / _OPERAND_ERROR[self.operand]) ** 2
        self.written = from_start[:, -1:] * self.written + (to_end * (U + in_U)).mT @ k
        self.parts = self.written + kept
        moved = self.turned.square() + self.answered
        turned = from_start * (q @ moved.mT) + P @ (W @ moved.mT)
        self.turned = chunk[5][:, -1:] * self.turned
        self.answered = from_start[:, -1:] * self.answered + (to_end * (W @ moved.mT)).mT @ k
        return from_start * in_qS + (D * in_qk) @ U + in_PU + P @ in_U, turned

    def token(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The only token of the step by equations (1) to (4), fp32 throughout; returns as ``chunk`` does."""
        noise = self.noise
        # A GPU's exp is 2^(g · log2 e) with a rounded argument, off by 2^-24 |g|: as for a chunk of one token.
        decay = torch.exp(self.g)
        decay = (decay + decay * noise.like(decay) * (_EXP + 2.5 * _FP32 * self.g.abs()))[..., None]
        S = noise.relative(self.state * decay, _FP32)  # (1)
        answer = (noise.relative(S, _FP32_SUM) * self.k).sum(-1)  # S k: [R·HV, V]
        u = self.beta * (self.v[:, 0] - answer)  # (2)
        first = slice(self.HV)
        q, k, v, beta = (x[first].square() for x in (self.q, self.k, self.v[:, 0], self.beta))
        in_u = beta * (v + (S[first].square() * k).sum(-1))
        self.written = in_u[..., None] * k
        self.parts = self.written + S[first].square()
        S = noise.relative(S + noise.relative(u, _FP32_SUM)[..., None] * self.k, _FP32)  # (3)
        self.state = S
        o = (noise.relative(S, _FP32_SUM) * self.q).sum(-1)  # (4)
        across = (self.q * self.k)[first].sum(-1).square()  # (q·k)²: [HV, 1]
        measure = (S[first].square() * q).sum(-1) + across * in_u
        return o.view(REPLICAS, 1, self.HV, -1), measure[None], torch.zeros_like(measure[None])

    @property
    def roundoff(self) -> float:
        """The least relative error that a product of this step may have."""
        return _FP32_SUM if self.one_token else _OPERAND_ERROR[self.operand]

    def deviation(self, exact: torch.Tensor) -> torch.Tensor:
        """The copies' states minus the exact one: [R, HV, V, K]."""
        return self.state.view(REPLICAS, *exact.shape) - exact

    def persist(self, exact: torch.Tensor, state_dtype: str) -> None:
        """Round the copies' states to the cache's dtype at a boundary, where ``exact`` is the unrounded exact state.

        The first copy takes the other neighbour wherever the exact value is so near a tie that a correct kernel
        may: such turns are rare and large beside the errors that cause them, so chance alone would miss them. Where
        they are rare, they also get a bound for each element: a turn moves the next value before it is rounded, and
        lasts, as an ulp of the time when the element was larger.
        """
        deviation = torch.nan_to_num(self.deviation(exact)[1:].abs(), 0.0, 0.0, 0.0)
        self.state = round_to(self.state, state_dtype)
        if state_dtype == "fp32":
            return
        near = _largest_error(deviation)
        first, stored = self.state[: self.HV], round_to(exact, state_dtype)
        first.copy_(other_neighbour(exact, near, first, state_dtype))
        near = near.where(near < 2 * half_ulp(exact, state_dtype), 0.0)  # else the copies turn often enough
        off = (near.square() + self.turned.square() + TURNS**2 * self.answered).sqrt()
        below, above = (round_to(exact + x, state_dtype) for x in (-off, off))
        self.turned = torch.nan_to_num(torch.maximum(above - stored, stored - below), 0.0, 0.0, 0.0)
        self.answered = torch.zeros_like(exact)

    @property
    def moved(self) -> torch.Tensor:
        """How far turned roundings may have moved the state that the copies are at: [HV, V, K]."""
        return self.turned + TURNS * self.answered.sqrt()


def _largest_error(deviation: torch.Tensor) -> torch.Tensor:
    """The largest error of each element, from those of a few copies, ``[R, HV, V, K]``, all ≥ 0 → [HV, V, K].

    A write u kᵀ is off by as much as its row's u and its column's k say; what the element's own copies show, too.
    """
    row, column, mean = (deviation.mean(axes, keepdim=True)[0] for axes in ((0, 3), (0, 2), (0, 2, 3)))
    return 4 * row * (column / mean.clamp(min=1e-300)).clamp(min=1) + 1.5 * deviation.amax(0)


def other_neighbour(
    exact: torch.Tensor, near: torch.Tensor, rounded: torch.Tensor, dtype: str
) -> torch.Tensor:
    """``rounded`` moved one ulp across the tie wherever it equals round(exact) and the tie is within ``near`` of exact."""
    expected = round_to(exact, dtype)
    room = half_ulp(exact, dtype)
    towards = torch.sign(exact - expected)
    turns = (room - (exact - expected).abs() <= near) & (rounded == expected)
    return torch.where(turns, expected + 2 * room * towards, rounded)


def disturbed_rounding(exact: torch.Tensor, error: torch.Tensor, dtype: str) -> torch.Tensor:
    """``[R, *exact.shape]``: what correct kernels may store for ``exact`` in ``dtype`` when off by up to ``error``.

    The first copy takes the other neighbour wherever ``error`` reaches the tie.
    """
    copies = exact.expand(REPLICAS, *exact.shape)
    copies = round_to(copies + Noise(exact.device).like(copies) * (error / 2), dtype)
    if dtype != "fp32":
        copies[0] = other_neighbour(exact, error, round_to(exact, dtype), dtype)
    return copies


def disturbed_gates(
    g: torch.Tensor, beta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, params: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates as fp32 kernels compute them: ``g, beta: [m, HV]`` exact → [R, m, HV] each.

    exp, log and division are off by some 2⁻²², and by the roundoff of their argument; log(1 + exp(z)) for
    very negative z has the absolute error of 1.
    """
    noise = Noise(g.device)
    rate = torch.exp(params.A_log.double())
    z = (a.double() + params.dt_bias.double()).abs()
    g_error = _EXP * g.abs() * (1 + z / 4) + _FP32 * rate
    beta_error = _EXP * beta * (1 + b.double().abs() / 4)
    g, beta = (x.expand(REPLICAS, *x.shape) for x in (g, beta))
    g, beta = g + noise.like(g) * g_error, beta + noise.like(beta) * beta_error
    g[0] -= g_error / 2  # errors that repeat with the data add up
    return g, beta
