"""The operators: convolution, gates, gated delta rule, and the GDN core that ties them, over one batch.

Each takes the batch's ``BlockIndexMetadata``, reads every row's state from its slot, and leaves the state and
the window of every boundary in their slots. ``backend`` is ``"triton"``, ``"torch"``, or None: Triton on a GPU and
under Triton's interpreter, PyTorch on a CPU. Imports torch; Triton only when it is used.
Exercise it with ``pytest tests/impl``.
"""

from __future__ import annotations

import os

import torch

from gdn_apc.impl import torch_path
from gdn_apc.impl._checks import INPUT_DTYPES, check_exact_window, check_shape, check_tensor
from gdn_apc.impl.metadata import BlockIndexMetadata

MAX_CHUNK_SIZE = 64  # a chunk's square tiles must fit in shared memory


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    meta: BlockIndexMetadata,
    *,
    activation: str | None = "silu",
    backend: str | None = None,
) -> torch.Tensor:
    """Causal depthwise convolution of a batch; writes the window of every boundary into its slot.

    Args:
        x: [T, D] packed inputs, bf16, fp16 or fp32.
        weight: [D, W], W ≥ 2; bias: [D] or None; both of x's dtype or fp32.
        conv_state: [num_slots, W - 1, D], any strides, x's dtype or fp32, changed in place.
        activation: ``"silu"`` or None.

    Returns:
        y: [T, D] in x's dtype. Rows of padding tokens are not written.

    Raises:
        TypeError, ValueError: an argument that does not fit; the message names it.
    """
    _check_conv(x, weight, bias, conv_state, meta, activation)
    if _backend(backend, x) == "torch":
        return torch_path.causal_conv1d(x, weight, bias, conv_state, meta, activation)
    from gdn_apc.impl import triton_path

    return triton_path.causal_conv1d(x, weight, bias, conv_state, meta, activation)


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay ``g = -exp(A_log) · softplus(a + dt_bias)`` and write strength ``beta = sigmoid(b)``, fp32.

    Args:
        a, b: [T, HV] of any input dtype; A_log, dt_bias: [HV].

    Returns:
        g, beta: [T, HV] fp32.
    """
    _check_gates(a, b, A_log, dt_bias)
    if _backend(backend, a) == "torch":
        return torch_path.gdn_gates(a, b, A_log, dt_bias)
    from gdn_apc.impl import triton_path

    return triton_path.gdn_gates(a, b, A_log, dt_bias)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ssm_state: torch.Tensor,
    meta: BlockIndexMetadata,
    *,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    backend: str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gated delta rule of a batch; writes the state of every boundary into its slot.

    Args:
        q, k: [T, H, K]; v: [T, HV, V]; one dtype of bf16, fp16, fp32; heads contiguous, any token stride.
        g, beta: [T, HV] fp32: log decay (≤ 0) and write strength.
        ssm_state: [num_slots, HV, V, K] fp32, bf16 or fp16, changed in place; the last dimension contiguous.
        scale: of the outputs; None means K ** -0.5, 0.0 means zero.
        use_qk_l2norm: normalise q and k per head, ``x · rsqrt(Σx² + 1e-6)`` in fp32.
        out: where o goes, [T, HV, V] in v's dtype, heads contiguous; a new tensor if None.

    Returns:
        o: [T, HV, V] in v's dtype. Rows of padding tokens are not written.

    Raises:
        TypeError, ValueError: an argument that does not fit; the message names it.
    """
    check_tensor("q", q, (None, None, None), _device(meta))
    T, H, K = q.shape
    check_tensor("k", k, (T, H, K), q.device, (q.dtype,))
    check_tensor("v", v, (T, None, None), q.device, (q.dtype,))
    HV, V = v.shape[1:]
    _check_heads(H, HV)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.shape[1] > 1 and t.stride(1) != t.shape[2]:
            raise ValueError(f"{name}: strides {t.stride()}, expected heads side by side; call .contiguous()")
    check_tensor("g", g, (T, HV), q.device, (torch.float32,))
    check_tensor("beta", beta, (T, HV), q.device, (torch.float32,))
    check_tensor("ssm_state", ssm_state, (None, HV, V, K), q.device, INPUT_DTYPES)
    out = _check_out(out, v.dtype, (T, HV, V), meta)
    _check_tokens("q", T, meta)
    scale = _scale(scale, K)
    if _backend(backend, q) == "torch":
        return torch_path.gated_delta_rule(q, k, v, g, beta, ssm_state, meta, scale, use_qk_l2norm, out)
    from gdn_apc.impl import triton_path

    return triton_path.gated_delta_rule(q, k, v, g, beta, ssm_state, meta, scale, use_qk_l2norm, out)


def gdn_core(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    conv_state: torch.Tensor,
    ssm_state: torch.Tensor,
    meta: BlockIndexMetadata,
    *,
    num_k_heads: int,
    head_k_dim: int,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
    activation: str | None = "silu",
    backend: str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A GDN layer between its projections: convolution, SiLU, gates, L2 norm, gated delta rule.

    Args:
        x: [T, D] with D = 2·H·K + HV·V channels in the order q, k, v, before the convolution.
        a, b: [T, HV]; the other arguments as in the functions above; both states change in place.

    Returns:
        o: [T, HV, V] in x's dtype, ``out`` if it is given. Rows of padding tokens are not written.

    Raises:
        TypeError, ValueError: an argument that does not fit; the message names it.
    """
    check_tensor("ssm_state", ssm_state, (None, None, None, head_k_dim), x.device, INPUT_DTYPES)
    HV, V, K = ssm_state.shape[1:]
    H = num_k_heads
    check_shape("x", x, (None, 2 * H * K + HV * V))
    check_shape("a", a, (x.shape[0], HV))
    if conv_state.dim() == 3 and conv_state.shape[0] != ssm_state.shape[0]:
        raise ValueError(
            f"conv_state: {conv_state.shape[0]} slots, ssm_state has {ssm_state.shape[0]}; a slot holds both"
        )
    if _backend(backend, x) == "torch":
        return _core_by_parts(
            x, a, b, conv_weight, conv_bias, A_log, dt_bias, conv_state, ssm_state, meta,
            H, K, scale, use_qk_l2norm, activation, out,
        )  # fmt: skip
    _check_conv(x, conv_weight, conv_bias, conv_state, meta, activation)
    _check_gates(a, b, A_log, dt_bias)
    _check_heads(H, HV)
    out = _check_out(out, x.dtype, (x.shape[0], HV, V), meta)
    scale = _scale(scale, K)
    from gdn_apc.impl import triton_path

    gates = triton_path.RawGates(a, b, A_log, dt_bias)
    return triton_path.gdn_core(
        x,
        gates,
        conv_weight,
        conv_bias,
        conv_state,
        ssm_state,
        meta,
        H,
        scale,
        use_qk_l2norm,
        activation,
        out,
    )


def _core_by_parts(
    x, a, b, conv_weight, conv_bias, A_log, dt_bias, conv_state, ssm_state, meta,
    H, K, scale, use_qk_l2norm, activation, out,
) -> torch.Tensor:  # fmt: skip
    """The core by PyTorch's operators, one after another."""
    HV, V = ssm_state.shape[1:3]
    y = causal_conv1d(x, conv_weight, conv_bias, conv_state, meta, activation=activation, backend="torch")
    g, beta = gdn_gates(a, b, A_log, dt_bias, backend="torch")
    q, k, v = (
        part.unflatten(1, (heads, width))
        for part, heads, width in zip(y.split((H * K, H * K, HV * V), dim=1), (H, H, HV), (K, K, V))
    )
    return gated_delta_rule(
        q, k, v, g, beta, ssm_state, meta, scale=scale, use_qk_l2norm=use_qk_l2norm, backend="torch", out=out
    )


def _device(meta: BlockIndexMetadata) -> torch.device:
    return meta.query_start_loc.device


def _scale(scale: float | None, K: int) -> float:
    return K**-0.5 if scale is None else float(scale)


def _check_conv(x, weight, bias, conv_state, meta, activation) -> None:
    check_tensor("x", x, (None, None), _device(meta))
    T, D = x.shape
    check_tensor("weight", weight, (D, None), x.device)
    W = weight.shape[1]
    if W < 2:
        raise ValueError(f"weight: width {W}, expected at least 2; a width of 1 has no window to cache")
    if bias is not None:
        check_tensor("bias", bias, (D,), x.device)
    check_tensor("conv_state", conv_state, (None, W - 1, D), x.device, last_dim_contiguous=False)
    check_exact_window(x, conv_state)
    if activation not in ("silu", None):
        raise ValueError(f"activation: expected 'silu' or None, got {activation!r}")
    _check_tokens("x", T, meta)


def _check_gates(a, b, A_log, dt_bias) -> None:
    check_tensor("a", a, (None, None), a.device)
    T, HV = a.shape
    check_tensor("b", b, (T, HV), a.device)
    check_tensor("A_log", A_log, (HV,), a.device)
    check_tensor("dt_bias", dt_bias, (HV,), a.device)


def _check_heads(H: int, HV: int) -> None:
    if H < 1 or HV % H:
        raise ValueError(f"v: {HV} heads, expected a multiple of q's {H}; group the value heads by key head")


def _check_out(
    out: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, int, int], meta: BlockIndexMetadata
) -> torch.Tensor:
    """``out``, or a new tensor; and the metadata's chunks fit the kernels."""
    _, HV, V = shape
    device = _device(meta)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=device)
    check_tensor("out", out, shape, device, (dtype,))
    if HV > 1 and out.stride(1) != V:
        raise ValueError(
            f"out: strides {out.stride()}, expected heads side by side; pass a contiguous tensor"
        )
    if meta.chunk_size > MAX_CHUNK_SIZE:
        raise ValueError(
            f"chunk_size: {meta.chunk_size}, expected at most {MAX_CHUNK_SIZE}; build the metadata with 64"
        )
    return out


def _check_tokens(name: str, T: int, meta: BlockIndexMetadata) -> None:
    """The metadata was built for at least this many tokens' worth of chunks."""
    if T < meta.num_tokens:
        raise ValueError(
            f"{name}: {T} tokens, but the metadata was built for {meta.num_tokens}; pass the packed batch it describes"
        )


def _backend(backend: str | None, x: torch.Tensor) -> str:
    """The backend to run; raises ValueError for one that cannot."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if backend is None:
        return "triton" if x.is_cuda or interpreted else "torch"
    if backend not in ("triton", "torch"):
        raise ValueError(f"backend: expected 'triton', 'torch' or None, got {backend!r}")
    if backend == "triton" and not x.is_cuda and not interpreted:
        raise ValueError(
            "backend: 'triton' needs a CUDA device or TRITON_INTERPRET=1; pass backend='torch' for CPU tensors"
        )
    return backend
