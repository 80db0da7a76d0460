"""Launches the Triton kernels: grids, strides, scratch. Arguments were checked by ``impl/ops.py``.

Nothing here looks at a value on the device, so a batch of one-token rows may be captured in a CUDA graph.
Imports torch and triton. Exercise it with ``pytest tests/impl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from gdn_apc.impl._checks import check_page_alignment
from gdn_apc.impl.configs import architecture, config, next_power_of_two, overrides
from gdn_apc.impl.kernels.chunked import prepare_kernel, scan_kernel
from gdn_apc.impl.kernels.conv import causal_conv1d_kernel
from gdn_apc.impl.kernels.gates import gates_kernel
from gdn_apc.impl.kernels.recurrent import recurrent_kernel
from gdn_apc.impl.launch import Launcher
from gdn_apc.impl.metadata import BlockIndexMetadata

# By input dtype: operands of products in Triton, in the scratch between the chunk kernels, the precision of fp32 products, and
# that of the small blocks of which T is made. fp16 goes through tf32: it has fp16's mantissa, and cannot overflow where
# a state exceeds 65,504. Three tf32 products are off by up to 2⁻²⁰, all to one side: too much beside fp32 operands.
OPERANDS = {
    torch.bfloat16: (tl.bfloat16, torch.bfloat16, "ieee", "bf16x3"),
    torch.float16: (tl.float32, torch.float32, "tf32", "bf16x3"),
    torch.float32: (tl.float32, torch.float32, "ieee", "ieee"),
}

INTERPRETED_BLOCKS = "ieee"
"""Instead of the last column: the interpreter pays for each operation, and three products of split operands are many."""

CONV_ROWS = 16
"""Tokens that the convolution takes at a time on a GPU."""

MAX_K = 128
"""Widest head of q and k. With 256, Triton 3.6 left wrong states on sm_90 where q and k are not normalised."""


def conv_constants(tile: int, W: int, C: int, one_token: bool, has_bias: bool, silu: bool) -> dict[str, Any]:
    """Compile-time arguments of the convolution's kernel."""
    BT = next_power_of_two(W - 1 if one_token else max(C, W - 1))
    return dict(
        W=W,
        WP=next_power_of_two(W - 1),
        WT=next_power_of_two(W),
        BT=BT,
        ROWS=min(BT, CONV_ROWS),
        BD=tile,
        HAS_BIAS=has_bias,
        SILU=silu,
        ONE_TOKEN_ROWS=one_token,
    )


def recurrent_constants(K: int, V: int, l2norm: bool, raw: bool) -> dict[str, Any]:
    """Compile-time arguments of the recurrent kernel, but for its tile. ``raw``: it computes the gates."""
    return dict(K=K, V=V, BK=next_power_of_two(K), L2NORM=l2norm, RAW=raw)


def chunk_constants(K: int, B: int, C: int, dtype: torch.dtype) -> dict[str, Any]:
    """Compile-time arguments that both chunk kernels take."""
    operand, _, precision, _ = OPERANDS[dtype]
    return dict(
        K=K,
        BK=next_power_of_two(max(K, 16)),
        BT=next_power_of_two(max(min(B, C), 16)),
        OPERAND=operand,
        PRECISION=precision,
    )


_plans: dict[tuple[Any, ...], Any] = {}
"""What does not change from call to call, by all that it depends on: kernels, constants, launches and pointers' dtypes."""


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    meta: BlockIndexMetadata,
    activation: str | None,
) -> torch.Tensor:
    """See ``impl.ops.causal_conv1d``."""
    check_page_alignment("conv_state", conv_state)
    T, D = x.shape
    W = weight.shape[1]
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    one_token = meta.only_one_token_rows
    offsets = meta.query_start_loc if one_token else meta.chunk_offsets
    chunk_row = meta.query_start_loc if one_token else meta.chunk_row
    programs = meta.num_rows if one_token else chunk_row.shape[0]
    if programs == 0 or T == 0:
        return y
    if bias is None:
        bias, has_bias = weight, False
    else:
        has_bias = True
    dtypes = (x.dtype, weight.dtype, bias.dtype, conv_state.dtype)
    key = ("conv", dtypes, x.device, D, W, meta.chunk_size, one_token, has_bias, activation, overrides())
    plan = _plans.get(key)
    if plan is None:
        launches = config(1, D, x.dtype, architecture(x.device))
        launch = launches.conv_one_token if one_token else launches.conv
        tile = min(launch.tile, next_power_of_two(D))
        constants = conv_constants(tile, W, meta.chunk_size, one_token, has_bias, activation == "silu")
        plan = _plans[key] = Launcher(causal_conv1d_kernel, constants, launch.options), -(-D // tile)
    launcher, tiles = plan
    table = meta.block_table
    launcher(
        (programs, tiles, 1),
        (
            x, weight.contiguous(), bias, conv_state, y,
            meta.query_start_loc, meta.num_computed_tokens, meta.read_slot, table, offsets, chunk_row,
        ),
        (
            D, table.shape[1], meta.block_size, meta.chunk_size,
            x.stride(0), D, *conv_state.stride(), table.stride(0),
        ),
    )  # fmt: skip
    return y


def gdn_gates(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``impl.ops.gdn_gates``."""
    T, HV = a.shape
    g = torch.empty(T, HV, dtype=torch.float32, device=a.device)
    beta = torch.empty_like(g)
    if T:
        key = ("gates", a.dtype, b.dtype, A_log.dtype, dt_bias.dtype, a.device, HV, overrides())
        plan = _plans.get(key)
        if plan is None:
            launch = config(HV, HV, a.dtype, architecture(a.device)).gates
            constants = dict(BT=launch.tile, BH=next_power_of_two(HV))
            plan = _plans[key] = Launcher(gates_kernel, constants, launch.options), launch.tile
        launcher, tile = plan
        launcher((-(-T // tile), 1, 1), (a, b, A_log, dt_bias, g, beta), (T, a.stride(0), b.stride(0), HV))
    return g, beta


@dataclass(frozen=True)
class RawGates:
    """A layer's a and b, [T, HV], and what makes log decay and write strength of them, [HV]."""

    a: torch.Tensor
    b: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ssm_state: torch.Tensor,
    meta: BlockIndexMetadata,
    scale: float,
    use_qk_l2norm: bool,
    o: torch.Tensor,
) -> torch.Tensor:
    """See ``impl.ops.gated_delta_rule``."""
    given = (g, beta, g, g)
    return _delta_rule(q, k, v, given, False, ssm_state, meta, q.shape[1], scale, use_qk_l2norm, o)


def gdn_core(
    x: torch.Tensor,
    gates: RawGates,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    ssm_state: torch.Tensor,
    meta: BlockIndexMetadata,
    num_k_heads: int,
    scale: float,
    use_qk_l2norm: bool,
    activation: str | None,
    o: torch.Tensor,
) -> torch.Tensor:
    """See ``impl.ops.gdn_core``."""
    y = causal_conv1d(x, conv_weight, conv_bias, conv_state, meta, activation)
    HV, V, K = ssm_state.shape[1:]
    q, k, v = y.split((num_k_heads * K, num_k_heads * K, HV * V), dim=1)
    raw = (gates.a, gates.b, gates.A_log, gates.dt_bias)
    return _delta_rule(q, k, v, raw, True, ssm_state, meta, num_k_heads, scale, use_qk_l2norm, o)


@dataclass(frozen=True)
class _DeltaPlan:
    """The three kernels for one shape class, and what their grids and scratch are made of."""

    recurrent: Launcher
    prepare: Launcher
    scan: Launcher
    scan_tiles: int  # tiles of V of one head
    recurrent_tiles: int
    BT: int
    BK: int
    products: torch.dtype


def _delta_plan(
    dtype, device, HV: int, K: int, V: int, B: int, C: int, l2norm: bool, raw: bool
) -> _DeltaPlan:
    launches = config(HV, V, dtype, architecture(device))
    shape = chunk_constants(K, B, C, dtype)
    _, products, _, blocks = OPERANDS[dtype]
    blocks = blocks if device.type == "cuda" else INTERPRETED_BLOCKS
    one, scan = launches.recurrent, launches.scan
    return _DeltaPlan(
        Launcher(recurrent_kernel, dict(BV=one.tile, **recurrent_constants(K, V, l2norm, raw)), one.options),
        Launcher(prepare_kernel, dict(L2NORM=l2norm, BLOCKS=blocks, **shape), launches.prepare.options),
        Launcher(scan_kernel, dict(V=V, BV=scan.tile, STAGES=scan.num_stages, **shape), scan.options),
        -(-V // scan.tile),
        -(-V // one.tile),
        shape["BT"],
        shape["BK"],
        products,
    )


def _delta_rule(q, k, v, gates, raw: bool, ssm_state, meta, H, scale, use_qk_l2norm, o) -> torch.Tensor:
    """One-token rows, then all others. q, k, v: [T, …], a token's heads side by side.

    ``gates``: a, b, A_log and dt_bias if ``raw``; else g and beta, and two tensors that nobody reads.
    """
    check_page_alignment("ssm_state", ssm_state)
    HV, V, K = ssm_state.shape[1:]
    if K > MAX_K:
        raise ValueError(
            f"q: heads of {K}, the Triton kernels take at most {MAX_K}; pass backend='torch' on a CPU"
        )
    if v.shape[0] == 0 or meta.num_rows == 0:
        return o
    B, C, device = meta.block_size, meta.chunk_size, q.device
    kinds = (q.dtype, ssm_state.dtype, *[t.dtype for t in gates])
    key = ("delta", kinds, device, HV, K, V, min(B, C), use_qk_l2norm, raw, overrides())
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _delta_plan(q.dtype, device, HV, K, V, B, C, use_qk_l2norm, raw)
    plan.recurrent(
        (plan.recurrent_tiles, HV, meta.num_rows),
        (
            q, k, v, *gates, ssm_state, o,
            meta.query_start_loc, meta.num_computed_tokens, meta.read_slot, meta.write_slot,
        ),
        (
            scale, q.stride(0), k.stride(0), v.stride(0), gates[0].stride(0), gates[1].stride(0),
            o.stride(0), *ssm_state.stride()[:3], H, HV,
        ),
    )  # fmt: skip
    if not meta.only_one_token_rows:
        g, beta = gdn_gates(*gates) if raw else gates[:2]
        _chunked(plan, q, k, v, g, beta, ssm_state, meta, H, scale, o)
    return o


def _chunked(plan: _DeltaPlan, q, k, v, g, beta, ssm_state, meta, H, scale, o) -> None:
    """Every row of two or more tokens: all chunks at once, then each row's chunks in order."""
    HV = ssm_state.shape[1]
    chunks, BT, BK = meta.chunk_row.shape[0], plan.BT, plan.BK
    of_keys, of_pairs, table = chunks * H * BT * BK, chunks * HV * BT * BT, meta.block_table
    scratch = torch.empty(2 * (of_keys + of_pairs), dtype=plan.products, device=q.device)
    queries, keys, inverses, scores = scratch.split((of_keys, of_keys, of_pairs, of_pairs))
    factors = torch.empty(chunks * HV * 4 * BT, dtype=torch.float32, device=q.device)
    plan.prepare(
        (chunks, HV, 1),
        (
            q, k, g, beta, queries, keys, inverses, scores, factors,
            meta.query_start_loc, meta.num_computed_tokens, meta.chunk_offsets, meta.chunk_row,
        ),
        (
            scale, meta.block_size, meta.chunk_size,
            q.stride(0), k.stride(0), g.stride(0), beta.stride(0), H, HV,
        ),
    )  # fmt: skip
    plan.scan(
        (plan.scan_tiles, HV, meta.num_rows),
        (
            queries, keys, v, inverses, scores, factors, ssm_state, o,
            meta.query_start_loc, meta.num_computed_tokens, meta.chunk_offsets, meta.read_slot, table,
        ),
        (
            table.shape[1], meta.block_size, meta.chunk_size,
            v.stride(0), o.stride(0), *ssm_state.stride()[:3], table.stride(0), H, HV,
        ),
    )  # fmt: skip
