"""Launches the Triton kernels: grids, strides, scratch. Arguments were checked by ``impl/ops.py``.

Nothing here looks at a value on the device, so a batch of one-token rows may be captured in a CUDA graph.
Imports torch and triton. Exercise it with ``pytest tests/impl``.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from gdn_apc.impl._checks import check_page_alignment
from gdn_apc.impl.configs import Config, architecture, config, next_power_of_two
from gdn_apc.impl.kernels.chunked import prepare_kernel, scan_kernel
from gdn_apc.impl.kernels.conv import causal_conv1d_kernel
from gdn_apc.impl.kernels.gates import gates_kernel
from gdn_apc.impl.kernels.recurrent import recurrent_kernel
from gdn_apc.impl.metadata import BlockIndexMetadata

# By input dtype: operands of products in Triton, in the scratch between the chunk kernels, the precision of fp32 products, and
# that of the small blocks of which T is made. fp16 goes through tf32: it has fp16's mantissa, and cannot overflow where
# a state exceeds 65,504. Three tf32 products are off by up to 2⁻²⁰, all to one side: too much beside fp32 operands.
OPERANDS = {
    torch.bfloat16: (tl.bfloat16, torch.bfloat16, "ieee", "bf16x3"),
    torch.float16: (tl.float32, torch.float32, "tf32", "bf16x3"),
    torch.float32: (tl.float32, torch.float32, "ieee", "ieee"),
}

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


def recurrent_constants(K: int, V: int, l2norm: bool) -> dict[str, Any]:
    """Compile-time arguments of the recurrent kernel, but for its tile."""
    return dict(K=K, V=V, BK=next_power_of_two(K), L2NORM=l2norm)


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
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    one_token = meta.only_one_token_rows
    programs = meta.num_rows if one_token else meta.chunk_row.shape[0]
    if programs == 0 or T == 0:
        return y
    launches = config(D, x.dtype, architecture(x.device))
    launch = launches.conv_one_token if one_token else launches.conv
    tile = min(launch.tile, next_power_of_two(D))
    causal_conv1d_kernel[(programs, triton.cdiv(D, tile))](
        x,
        weight.contiguous(),
        weight if bias is None else bias,
        conv_state,
        y,
        meta.query_start_loc,
        meta.num_computed_tokens,
        meta.read_slot,
        meta.block_table,
        meta.query_start_loc if one_token else meta.chunk_offsets,
        meta.query_start_loc if one_token else meta.chunk_row,
        D,
        meta.block_table.shape[1],
        meta.block_size,
        meta.chunk_size,
        x.stride(0),
        y.stride(0),
        *conv_state.stride(),
        meta.block_table.stride(0),
        **conv_constants(tile, W, meta.chunk_size, one_token, bias is not None, activation == "silu"),
        **launch.options,
    )
    return y


def gdn_gates(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``impl.ops.gdn_gates``."""
    T, HV = a.shape
    g = torch.empty(T, HV, dtype=torch.float32, device=a.device)
    beta = torch.empty_like(g)
    if T:
        launch = config(HV, a.dtype, architecture(a.device)).gates
        gates_kernel[(triton.cdiv(T, launch.tile),)](
            a,
            b,
            A_log,
            dt_bias,
            g,
            beta,
            T,
            a.stride(0),
            b.stride(0),
            HV=HV,
            BT=launch.tile,
            BH=next_power_of_two(HV),
            **launch.options,
        )
    return g, beta


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
    check_page_alignment("ssm_state", ssm_state)
    if q.shape[2] > MAX_K:
        raise ValueError(
            f"q: heads of {q.shape[2]}, the Triton kernels take at most {MAX_K}; pass backend='torch' on a CPU"
        )
    T, _, V = v.shape
    if T == 0 or meta.num_rows == 0:
        return o
    g, beta = g.contiguous(), beta.contiguous()
    launches = config(V, q.dtype, architecture(q.device))
    _recurrent(q, k, v, g, beta, ssm_state, o, meta, scale, use_qk_l2norm, launches)
    if not meta.only_one_token_rows:
        _chunked(q, k, v, g, beta, ssm_state, o, meta, scale, use_qk_l2norm, launches)
    return o


def _recurrent(q, k, v, g, beta, ssm_state, o, meta, scale, use_qk_l2norm, launches: Config) -> None:
    """Every row of exactly one token."""
    H, K = q.shape[1:]
    HV, V = v.shape[1:]
    launch = launches.recurrent
    recurrent_kernel[(triton.cdiv(V, launch.tile), HV, meta.num_rows)](
        q, k, v, g, beta, ssm_state, o,
        meta.query_start_loc, meta.num_computed_tokens, meta.read_slot, meta.write_slot,
        scale,
        q.stride(0), k.stride(0), v.stride(0), o.stride(0), *ssm_state.stride()[:3], H, HV,
        BV=launch.tile, **recurrent_constants(K, V, use_qk_l2norm), **launch.options,
    )  # fmt: skip


def _chunked(q, k, v, g, beta, ssm_state, o, meta, scale, use_qk_l2norm, launches: Config) -> None:
    """Every row of two or more tokens: all chunks at once, then each row's chunks in order."""
    H, K = q.shape[1:]
    HV, V = v.shape[1:]
    shape = chunk_constants(K, meta.block_size, meta.chunk_size, q.dtype)
    chunks, BT, BK = meta.chunk_row.shape[0], shape["BT"], shape["BK"]
    _, dtype, _, blocks = OPERANDS[q.dtype]
    products = dict(dtype=dtype, device=q.device)
    queries, keys = torch.empty(2, chunks, H, BT, BK, **products)
    inverses, scores = torch.empty(2, chunks, HV, BT, BT, **products)
    factors = torch.empty(chunks, HV, 4, BT, dtype=torch.float32, device=q.device)
    prepare_kernel[(chunks, HV)](
        q, k, g, beta, queries, keys, inverses, scores, factors,
        meta.query_start_loc, meta.num_computed_tokens, meta.chunk_offsets, meta.chunk_row,
        scale, meta.block_size, meta.chunk_size,
        q.stride(0), k.stride(0), H, HV,
        L2NORM=use_qk_l2norm, BLOCKS=blocks, **shape, **launches.prepare.options,
    )  # fmt: skip
    launch = launches.scan
    scan_kernel[(triton.cdiv(V, launch.tile), HV, meta.num_rows)](
        queries, keys, v, inverses, scores, factors, ssm_state, o,
        meta.query_start_loc, meta.num_computed_tokens, meta.chunk_offsets, meta.read_slot, meta.block_table,
        meta.block_table.shape[1], meta.block_size, meta.chunk_size,
        v.stride(0), o.stride(0), *ssm_state.stride()[:3], meta.block_table.stride(0), H, HV,
        V=V, BV=launch.tile, STAGES=launch.num_stages, **shape, **launch.options,
    )  # fmt: skip
