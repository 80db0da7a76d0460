"""The chunk kernels: every row of two or more tokens, all boundary states in one pass.

Maths (``oracle/wy.py`` derives it), for one chunk with keys k_i, values v_i, G_i = g_1 + … + g_i, incoming state S::

    A_ij = beta_i exp(G_i - G_j) k_i·k_j  for i > j,    T = (I + A)⁻¹
    u = T diag(beta) v        w = T diag(beta exp(G)) k
    v' = u - w Sᵀ                                              what the chunk really writes
    o_i = scale · (exp(G_i) S q_i + sum over j ≤ i of exp(G_i - G_j) (q_i·k_j) v'_j)
    S ← exp(G_C) S + sum over j of exp(G_C - G_j) v'_j k_jᵀ

Picture: chunks of the absolute grid (edges at boundaries, and every C tokens from the last one), clipped to the
step; ``prepare`` runs all of them at once, ``scan`` walks a row's chunks with S in registers::

    block  |---- j ----|---- j+1 ----|        B = 6, C = 4, n = 1, m = 9
    chunk     |2 |  |4   |  |2 |              ] edges 1 4 6 10: state(6) → slot j, state(10) → slot j+1
    S      read      ↓ state(6) stored, and continued from as stored (rounded to the cache's dtype)

Only differences G_i - G_j ≤ 0 are exponentiated, so nothing overflows at any gate. T comes from block inversion,
doubling the block size, never from powers of A, which overflow for repeated keys.

Imports triton only. Exercise it with ``pytest tests/impl/test_kernels.py``.
"""

import triton
import triton.language as tl

from gdn_apc.impl.kernels.grid import chunk_bounds, chunk_of_row, l2_normalise, num_chunks


@triton.jit
def _load_heads(
    ptr,
    rows,
    used,
    stride,
    h,
    width: tl.constexpr,
    BW: tl.constexpr,
    OPERAND: tl.constexpr,
    L2NORM: tl.constexpr,
):
    """A tile [rows, width] of head h in the operand dtype, normalised in fp32 first if asked."""
    c = tl.arange(0, BW)
    tile = tl.load(
        ptr + rows[:, None] * stride + h * width + c[None, :],
        mask=used[:, None] & (c < width)[None, :],
        other=0.0,
    )
    if L2NORM:
        tile = l2_normalise(tile.to(tl.float32))
    return tile.to(OPERAND)


@triton.jit
def _join(X, A, i, j, SIZE: tl.constexpr):
    """From the inverses of diagonal blocks of size SIZE to those of size 2·SIZE: X - X M X, M joining each pair."""
    lower = (i % (2 * SIZE) >= SIZE) & (j % (2 * SIZE) < SIZE)
    M = tl.where((i // (2 * SIZE) == j // (2 * SIZE)) & lower, A, 0.0)
    return X - tl.dot(tl.dot(X, M, input_precision="tf32x3"), X, input_precision="tf32x3")


@triton.jit
def _unit_lower_inverse(A, BT: tl.constexpr):
    """(I + A)⁻¹ for a strictly lower A: [BT, BT] fp32, BT 16, 32 or 64.

    Each step multiplies true inverses, so it is as stable as forward substitution.
    """
    i = tl.arange(0, BT)[:, None]
    j = tl.arange(0, BT)[None, :]
    X = tl.where(i == j, 1.0, 0.0) - tl.where((i // 2 == j // 2) & (i > j), A, 0.0)
    X = _join(X, A, i, j, 2)
    X = _join(X, A, i, j, 4)
    X = _join(X, A, i, j, 8)
    if BT > 16:
        X = _join(X, A, i, j, 16)
    if BT > 32:
        X = _join(X, A, i, j, 32)
    return X


@triton.jit(do_not_specialize=["B", "C", "H", "HV"])
def prepare_kernel(
    k, v, g, beta, w, u,
    query_start_loc, num_computed_tokens, chunk_offsets, chunk_row,
    B, C,
    stride_k, stride_v, H, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    BT: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, L2NORM: tl.constexpr,
):  # fmt: skip
    """w: [T, HV, K] and u: [T, HV, V] of every chunk, in the operand dtype. Grid (chunks, HV)."""
    _row, _i, q0, n, m, start, end = chunk_of_row(
        tl.program_id(0), query_start_loc, num_computed_tokens, chunk_offsets, chunk_row, B, C, False
    )
    if m <= 1:
        return
    hv = tl.program_id(1)
    h = hv // (HV // H)
    t = tl.arange(0, BT)
    used = t < end - start
    rows = (q0 + start - n + t).to(tl.int64)

    key = _load_heads(k, rows, used, stride_k, h, K, BK, OPERAND, L2NORM)
    G = tl.cumsum(tl.load(g + rows * HV + hv, mask=used, other=0.0), axis=0)
    strength = tl.load(beta + rows * HV + hv, mask=used, other=0.0)
    below = t[:, None] > t[None, :]
    decay = tl.exp(tl.where(below, G[:, None] - G[None, :], 0.0))
    A = tl.where(
        below, tl.dot(key, tl.trans(key), input_precision=PRECISION) * decay * strength[:, None], 0.0
    )
    T = _unit_lower_inverse(A, BT) * strength[None, :]

    for first in tl.static_range(0, V, BV):
        vv = first + tl.arange(0, BV)
        inside = used[:, None] & (vv < V)[None, :]
        value = tl.load(v + rows[:, None] * stride_v + hv * V + vv[None, :], mask=inside, other=0.0).to(
            OPERAND
        )
        fresh = tl.dot(T.to(OPERAND), value, input_precision=PRECISION).to(OPERAND)
        tl.store(u + (rows[:, None] * HV + hv) * V + vv[None, :], fresh, mask=inside)
    kk = tl.arange(0, BK)
    tl.store(
        w + (rows[:, None] * HV + hv) * K + kk[None, :],
        tl.dot((T * tl.exp(G)[None, :]).to(OPERAND), key, input_precision=PRECISION).to(OPERAND),
        mask=used[:, None] & (kk < K)[None, :],
    )


@triton.jit(do_not_specialize=["num_columns", "stride_table", "B", "C", "H", "HV"])
def scan_kernel(
    q, k, g, w, u, state, o,
    query_start_loc, num_computed_tokens, read_slots, block_table,
    scale, num_columns, B, C,
    stride_q, stride_k, stride_o, stride_slot, stride_head, stride_row, stride_table, H, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    BT: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, L2NORM: tl.constexpr,
):  # fmt: skip
    """o: [T, HV, V], and the state of every write column in its slot. Grid (tiles of V, HV, rows)."""
    row = tl.program_id(2)
    q0 = tl.load(query_start_loc + row)
    m = tl.load(query_start_loc + row + 1) - q0
    if m <= 1:
        return
    n = tl.load(num_computed_tokens + row)
    read_slot = tl.where(n > 0, tl.load(read_slots + row), 0).to(tl.int64)
    hv = tl.program_id(1)
    h = hv // (HV // H)
    kk = tl.arange(0, BK)
    vv = tl.program_id(0) * BV + tl.arange(0, BV)
    k_in, v_in = kk < K, vv < V
    tile = k_in[:, None] & v_in[None, :]
    inside = hv * stride_head + vv[None, :] * stride_row + kk[:, None]  # S is held as [K, V]
    S = tl.load(state + read_slot * stride_slot + inside, mask=tile & (read_slot > 0), other=0.0).to(
        tl.float32
    )
    # The first column's slot may be the one just read: all lanes read before any writes.
    tl.debug_barrier()

    t = tl.arange(0, BT)
    causal = t[:, None] >= t[None, :]
    for i in range(num_chunks(n, m, B, C)):
        start, end = chunk_bounds(n, m, i, B, C)
        used = t < end - start
        rows = (q0 + start - n + t).to(tl.int64)
        query = _load_heads(q, rows, used, stride_q, h, K, BK, OPERAND, L2NORM)
        key = _load_heads(k, rows, used, stride_k, h, K, BK, OPERAND, L2NORM)
        G = tl.cumsum(tl.load(g + rows * HV + hv, mask=used, other=0.0), axis=0)
        G_end = tl.sum(tl.where(t == end - start - 1, G, 0.0), axis=0)  # the last prefix sum, bit for bit

        weights = tl.load(
            w + (rows[:, None] * HV + hv) * K + kk[None, :], mask=used[:, None] & k_in[None, :], other=0.0
        )
        fresh = tl.load(
            u + (rows[:, None] * HV + hv) * V + vv[None, :], mask=used[:, None] & v_in[None, :], other=0.0
        )
        S_operand = S.to(OPERAND)
        fresh = fresh.to(tl.float32) - tl.dot(weights, S_operand, input_precision=PRECISION)

        decay = tl.exp(tl.where(causal, G[:, None] - G[None, :], 0.0))
        P = tl.where(causal, tl.dot(query, tl.trans(key), input_precision=PRECISION) * decay, 0.0)
        out = tl.dot(query, S_operand, input_precision=PRECISION) * tl.exp(G)[:, None]
        out += tl.dot(P.to(OPERAND), fresh.to(OPERAND), input_precision=PRECISION)
        tl.store(
            o + rows[:, None] * stride_o + hv * V + vv[None, :],
            (out * scale).to(o.dtype.element_ty),
            mask=used[:, None] & v_in[None, :],
        )
        kept = fresh * tl.exp(G_end - G)[:, None]
        S = S * tl.exp(G_end) + tl.dot(tl.trans(key), kept.to(OPERAND), input_precision=PRECISION)

        at_boundary = end % B == 0
        if at_boundary | (end == n + m):
            stored = S.to(state.dtype.element_ty)
            column = (end - 1) // B
            slot = tl.load(
                block_table + row.to(tl.int64) * stride_table + column, mask=column < num_columns, other=0
            ).to(tl.int64)
            tl.store(state + slot * stride_slot + inside, stored, mask=tile & (slot > 0))
            S = stored.to(tl.float32)  # the persisted carry: go on from what was stored
