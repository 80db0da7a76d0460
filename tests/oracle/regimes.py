"""Inputs of the oracle's tests: one row's tensors by named regimes, ordinary and extreme, from a seed.

Imports torch only; used by the tests beside it.
"""

from __future__ import annotations

import torch

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

GATES = ("zero", "tiny", "mild", "five", "total", "mixed", "runs")
BETAS = ("uniform", "zero", "one", "small", "mixed")
KEYS = ("normal", "repeated", "zeros", "one_hot", "small", "near")
VALUES = ("normal", "tiny", "large", "constant", "heavy_row", "heavy_token", "integers")
STATES = ("none", "normal", "large", "tiny")


def gates(regime: str, shape: tuple[int, ...], r: torch.Generator) -> torch.Tensor:
    """Log decays, fp32 (e.g. "runs": exactly 0 over long runs, then one near-total decay)."""
    u = torch.rand(shape, generator=r)
    if regime == "mixed":
        table = torch.tensor([0.0, -1e-3, -0.1, -1.0, -5.0, -50.0])
        return table[torch.randint(6, shape, generator=r)] * torch.where(u < 0.5, 1.0, 0.7)
    if regime == "runs":
        return torch.where(u < 0.03, -50.0, 0.0)
    scale = {"zero": 0.0, "tiny": 2e-4, "mild": 0.2, "five": 0.0, "total": 0.0}[regime]
    return -scale * u - {"five": 5.0, "total": 50.0}.get(regime, 0.0)


def betas(regime: str, shape: tuple[int, ...], r: torch.Generator) -> torch.Tensor:
    """Write strengths, fp32."""
    u = torch.rand(shape, generator=r)
    if regime == "mixed":
        return torch.where(u < 0.25, 0.0, torch.where(u < 0.5, 1.0, u))
    return {"uniform": u, "zero": 0 * u, "one": 0 * u + 1, "small": 0.02 + 0.05 * u}[regime]


def keys(regime: str, T: int, H: int, K: int, r: torch.Generator) -> torch.Tensor:
    """[T, H, K], fp32; "small" is shorter than 1 and meant for use without normalisation."""
    x = torch.randn(T, H, K, generator=r)
    if regime == "repeated":
        return x[:1].expand(T, H, K).clone()
    if regime == "near":
        return x[:1] + 0.1 * x
    if regime == "zeros":
        return x * (torch.rand(T, H, 1, generator=r) < 0.6)
    if regime == "one_hot":
        return torch.nn.functional.one_hot(torch.randint(K, (T, H), generator=r), K).float()
    if regime == "small":
        return 0.9 * x / x.norm(dim=-1, keepdim=True) * torch.rand(T, H, 1, generator=r)
    return x


def values(regime: str, T: int, HV: int, V: int, r: torch.Generator) -> torch.Tensor:
    """[T, HV, V], fp32."""
    x = torch.randn(T, HV, V, generator=r)
    if regime == "heavy_row":
        x[..., 0] *= 300
    if regime == "heavy_token":
        x[T // 2] *= 300
    if regime == "constant":
        x = x[:1].expand(T, HV, V).clone()
    if regime == "integers":
        x = torch.randint(-8, 9, (T, HV, V), generator=r).float()
    return x * {"tiny": 1e-3, "large": 1e3}.get(regime, 1.0)


def row(
    seed: int,
    *,
    m: int,
    n: int,
    H: int,
    HV: int,
    K: int,
    V: int,
    dtypes: tuple[str, str],
    gate: str = "mild",
    beta: str = "uniform",
    key: str = "normal",
    value: str = "normal",
    state: str = "normal",
) -> dict:
    """The arguments of ``delta_step`` for one row, tensors only, in their real dtypes."""
    r = torch.Generator().manual_seed(seed)
    T = m + 1
    tensors = {
        "q": keys("normal" if key in ("one_hot", "repeated", "near") and seed % 2 else key, T, H, K, r),
        "k": keys(key, T, H, K, r),
        "v": values(value, T, HV, V, r),
    }
    if seed % 4 == 0 and key in ("repeated", "near"):
        tensors["q"] = tensors["k"].clone()  # queries that ask for what was stored
    inputs = {name: x[:m].to(TORCH[dtypes[0]]) for name, x in tensors.items()}
    inputs["g"], inputs["beta"] = gates(gate, (m, HV), r), betas(beta, (m, HV), r)
    S = torch.randn(HV, V, K, generator=r) * {"large": 100.0, "tiny": 1e-3}.get(state, 1.0)
    if state == "none":
        S = torch.zeros(HV, V, K)
    inputs["state"] = None if n == 0 else S.to(TORCH[dtypes[1]])
    inputs["use_qk_l2norm"] = key not in ("small",)
    return inputs
