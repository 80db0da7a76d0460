"""The gates: log decay and write strength of every token and value head, fp32.

    g = -exp(A_log) · softplus(a + dt_bias)        softplus(x) = x above 20, as vLLM's fused gating
    beta = sigmoid(b)

The recurrent kernel computes them itself from a layer's a and b; in ``prepare`` that would take a third more cycles.

Imports triton only. Exercise it with ``pytest tests/impl/test_kernels.py``.
"""

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + eˣ); x above 20; below, a series where 1 + eˣ would lose eˣ, so that gates near 1 keep their decay."""
    e = tl.exp(tl.minimum(x, 20.0))
    return tl.where(x > 20.0, x, tl.where(e < 0.0009765625, e * (1.0 - 0.5 * e), tl.log(1.0 + e)))


@triton.jit
def log_decay(a, A_log, dt_bias):
    """g of raw a, all fp32."""
    return -tl.exp(A_log) * softplus(a + dt_bias)


@triton.jit
def write_strength(b):
    """beta of raw b, fp32."""
    return 1.0 / (1.0 + tl.exp(-b))


@triton.jit(do_not_specialize=["num_tokens", "HV"])
def gates_kernel(
    a,
    b,
    A_log,
    dt_bias,
    g,
    beta,
    num_tokens,
    stride_a,
    stride_b,
    HV,
    BT: tl.constexpr,
    BH: tl.constexpr,
):
    """a, b: [T, HV] → g, beta: [T, HV] fp32 contiguous. Grid (token tiles,)."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.arange(0, BH)
    used = (t < num_tokens)[:, None] & (h < HV)[None, :]
    rows = t.to(tl.int64)[:, None]
    raw = tl.load(a + rows * stride_a + h[None, :], mask=used, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + h, mask=h < HV, other=0.0).to(tl.float32)
    rate = tl.load(A_log + h, mask=h < HV, other=0.0).to(tl.float32)
    tl.store(g + rows * HV + h[None, :], log_decay(raw, rate[None, :], bias[None, :]), mask=used)
    write = tl.load(b + rows * stride_b + h[None, :], mask=used, other=0.0).to(tl.float32)
    tl.store(beta + rows * HV + h[None, :], write_strength(write), mask=used)
