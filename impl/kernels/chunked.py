"""The chunk kernels: every row of two or more tokens, all boundary states in one pass.

Maths (``oracle/wy.py`` derives it), for one chunk with keys k_i, values v_i, G_i = g_1 + … + g_i, incoming state S::

    A_ij = beta_i exp(G_i - G_j) k_i·k_j  for i > j,    T = (I + A)⁻¹ diag(beta)
    P_ij = exp(G_i - G_j) q_i·k_j  for i ≥ j
    x_i  = v_i - exp(G_i) S k_i                                what the state does not answer yet
    v'   = T x                                                 what the chunk really writes
    o_i  = scale · (exp(G_i) S q_i + sum over j of P_ij v'_j)
    S ← exp(G_C) S + sum over j of exp(G_C - G_j) v'_j k_jᵀ

Picture: chunks of the absolute grid (edges at boundaries, and every C tokens from the last one), clipped to the
step; ``prepare`` makes T and P of all of them at once, ``scan`` walks a row's chunks with S in registers::

    block  |---- j ----|---- j+1 ----|        B = 6, C = 4, n = 1, m = 9
    chunk     |2 |  |4   |  |2 |              ] edges 1 4 6 10: state(6) → slot j, state(10) → slot j+1
    S      read      ↓ state(6) stored, and continued from as stored (rounded to the cache's dtype)

Only differences G_i - G_j, i ≥ j, are used of what is exponentiated, so nothing overflows at any gate; what a parallel sum
leaves above 0 of them stays, since the factors of one token must fit together where large parts cancel. T comes from block inversion,
doubling the block size, never from powers of A, which overflow for repeated keys. L2 norms are factors of a token, so they
multiply sums of products, not the operands: k_i·k_j and S k_i are of the keys as given. In ``scan`` tokens are columns: S, x and
v' are left operands, which tensor cores take from registers.

Imports triton only. Exercise it with ``pytest tests/impl/test_kernels.py``.
"""

import triton
import triton.language as tl

from gdn_apc.impl.kernels.grid import chunk_of_row, clipped_chunk, exp, num_chunks


@triton.jit
def _inverse_norm(tile):
    """1 / √(Σx² + 1e-6) of each row, in fp32, as vLLM's l2norm."""
    wide = tile.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)


@triton.jit
def _tokens(ptr, t, count, stride, width: tl.constexpr, BW: tl.constexpr):
    """Rows t of a chunk's tile, zero beyond its ``count`` tokens: [len(t), BW]."""
    c = tl.arange(0, BW)
    inside = (t < count)[:, None] & (c < width)[None, :]
    return tl.load(ptr + (t[:, None] * stride + c[None, :]), mask=inside, other=0.0)


@triton.jit
def _of_tokens(ptr, t, count, stride):
    """A number of each token: [len(t)]."""
    return tl.load(ptr + t * stride, mask=t < count, other=0.0)


@triton.jit
def _near(X):
    """The nearest bf16, still as fp32: two integer operations, where a conversion and its return take a slow one."""
    bits = X.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _times(X, Y, BLOCKS: tl.constexpr):
    """Products of fp32 blocks: of the precision BLOCKS, or, as ``bf16x3``, of operands split into two bf16 each.

    The split leaves 2⁻¹⁷ of an operand and rounds to nearest, so it is off to neither side; T is rounded to bf16 after that.
    """
    if BLOCKS == "bf16x3":
        X_near, Y_near = _near(X), _near(Y)
        X_high, Y_high = X_near.to(tl.bfloat16), Y_near.to(tl.bfloat16)
        X_low, Y_low = (X - X_near).to(tl.bfloat16), (Y - Y_near).to(tl.bfloat16)
        product = tl.dot(X_low, Y_high, tl.dot(X_high, Y_low))
        return tl.dot(X_high, Y_high, product)
    return tl.dot(X, Y, input_precision=BLOCKS)


@triton.jit
def _join(X, A, i, j, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """From the inverses of diagonal blocks of size SIZE to those of size 2·SIZE: X - X M X, M joining each pair."""
    lower = (i % (2 * SIZE) >= SIZE) & (j % (2 * SIZE) < SIZE)
    M = tl.where((i // (2 * SIZE) == j // (2 * SIZE)) & lower, A, 0.0)
    return X - _times(_times(X, M, BLOCKS), X, BLOCKS)


@triton.jit
def _inverse(A, BT: tl.constexpr, BLOCKS: tl.constexpr):
    """(I + A)⁻¹ for strictly lower A: [BT, BT] fp32.

    Blocks of 16 on the diagonal first, side by side; then whole matrices, which tensor cores like better than their parts. Each
    step multiplies true inverses, so it is as stable as forward substitution.
    """
    N: tl.constexpr = BT // 16
    n, r = tl.arange(0, N), tl.arange(0, 16)
    diagonal = n[:, None, None, None] == n[None, None, :, None]
    D = tl.sum(tl.where(diagonal, tl.reshape(A, [N, 16, N, 16]), 0.0), axis=2)
    i, j = r[None, :, None], r[None, None, :]
    X = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, D, 0.0)
    X = _join(X, D, i, j, 2, BLOCKS)
    X = _join(X, D, i, j, 4, BLOCKS)
    X = _join(X, D, i, j, 8, BLOCKS)
    X = tl.reshape(tl.where(diagonal, X[:, :, None, :], 0.0), [BT, BT])
    t = tl.arange(0, BT)
    if BT >= 32:
        X = _join(X, A, t[:, None], t[None, :], 16, BLOCKS)
    if BT >= 64:
        X = _join(X, A, t[:, None], t[None, :], 32, BLOCKS)
    return X


@triton.jit(do_not_specialize=["B", "C", "stride_g", "stride_beta", "H", "HV"])
def prepare_kernel(
    q, k, g, beta, queries, keys, T, P, factors,
    query_start_loc, num_computed_tokens, chunk_offsets, chunk_row,
    scale, B, C,
    stride_q, stride_k, stride_g, stride_beta, H, HV,
    K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, BLOCKS: tl.constexpr, L2NORM: tl.constexpr,
):  # fmt: skip
    """All that the scan needs of q, k, g and beta, chunk by chunk, without gaps and without tails. Grid (chunks, HV).

    In the operand dtype: queries, keys: [chunks, H, BT, BK] as given, zero beyond the chunk; T and scale · P: [chunks,
    HV, BT, BT]. In fp32, factors: [chunks, HV, 4, BT], by which the scan multiplies columns of products:
    scale · exp(G) / ‖q‖, exp(G) / ‖k‖, exp(G_C - G) / ‖k‖, and exp(G) itself.
    """
    chunk = tl.program_id(0)
    _row, _i, q0, n, m, start, end = chunk_of_row(
        chunk, query_start_loc, num_computed_tokens, chunk_offsets, chunk_row, B, C, False
    )
    if (m <= 1) | (start < 0):
        return
    hv = tl.program_id(1)
    group = HV // H
    h = hv // group
    first = tl.cast(q0 + start - n, tl.int64)
    count = end - start
    chunk = tl.cast(chunk, tl.int64)
    q += first * stride_q + h * K
    k += first * stride_k + h * K
    g += first * stride_g + hv
    beta += first * stride_beta + hv
    T += (chunk * HV + hv) * (BT * BT)
    P += (chunk * HV + hv) * (BT * BT)

    t = tl.arange(0, BT)
    query, key = _tokens(q, t, count, stride_q, K, BK), _tokens(k, t, count, stride_k, K, BK)
    gates, strength = _of_tokens(g, t, count, stride_g), _of_tokens(beta, t, count, stride_beta)
    of_q, of_k = tl.full([BT], 1.0, tl.float32), tl.full([BT], 1.0, tl.float32)
    if L2NORM:
        of_q, of_k = _inverse_norm(query), _inverse_norm(key)
    of_q *= scale
    G = tl.cumsum(gates, axis=0)
    # The chunk's last prefix sum, bit for bit: a parallel scan need not repeat it for the places behind it.
    G_end = tl.sum(tl.where(t == count - 1, G, 0.0), axis=0)
    at = factors + (chunk * HV + hv) * (4 * BT) + t
    tl.store(at, exp(G) * of_q)
    tl.store(at + BT, exp(G) * of_k)
    tl.store(at + 2 * BT, exp(G_end - G) * of_k)
    tl.store(at + 3 * BT, exp(G))

    query, key = query.to(OPERAND), key.to(OPERAND)
    if hv % group == 0:
        packed = (chunk * H + h) * (BT * BK) + (t[:, None] * BK + tl.arange(0, BK)[None, :])
        tl.store(queries + packed, query)
        tl.store(keys + packed, key)
    pair = t[:, None] * BT + t[None, :]
    causal = t[:, None] >= t[None, :]
    decay = tl.where(causal, exp(G[:, None] - G[None, :]) * of_k[None, :], 0.0)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * decay * of_q[:, None]
    tl.store(P + pair, scores.to(OPERAND))

    A = tl.dot(key, tl.trans(key), input_precision=PRECISION) * decay * (of_k * strength)[:, None]
    inverse = _inverse(tl.where(t[:, None] > t[None, :], A, 0.0), BT, BLOCKS)
    tl.store(T + pair, (inverse * strength[None, :]).to(OPERAND))


@triton.jit
def _values(v, start, end, n, t, vv, v_in, stride_v):
    """The values of a chunk, [len(t), len(vv)], zero beyond its tokens; of a chunk behind the last one, nothing is read."""
    inside = (t < end - start)[:, None] & v_in[None, :]
    return tl.load(
        v + tl.cast(start - n, tl.int64) * stride_v + (t[:, None] * stride_v + vv[None, :]),
        mask=inside,
        other=0.0,
    )


@triton.jit(do_not_specialize=["num_columns", "stride_table", "B", "C", "H", "HV"])
def scan_kernel(
    queries, keys, v, T, P, factors, state, o,
    query_start_loc, num_computed_tokens, chunk_offsets, read_slots, block_table,
    num_columns, B, C,
    stride_v, stride_o, stride_slot, stride_head, stride_row, stride_table, H, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    BT: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """o: [tokens, HV, V], and the state of every write column in its slot. Grid (tiles of V, HV, rows)."""
    row = tl.program_id(2)
    q0 = tl.load(query_start_loc + row)
    m = tl.load(query_start_loc + row + 1) - q0
    if m <= 1:
        return
    n = tl.load(num_computed_tokens + row)
    read_slot = tl.where(n > 0, tl.load(read_slots + row), 0).to(tl.int64)
    chunk = tl.cast(tl.load(chunk_offsets + row), tl.int64)
    hv = tl.program_id(1)
    h = hv // (HV // H)
    kk = tl.arange(0, BK)
    vv = tl.program_id(0) * BV + tl.arange(0, BV)
    k_in, v_in = kk < K, vv < V
    tile = v_in[:, None] & k_in[None, :]
    state += tl.cast(hv, tl.int64) * stride_head
    inside = vv[:, None] * stride_row + kk[None, :]
    S = tl.load(state + read_slot * stride_slot + inside, mask=tile & (read_slot > 0), other=0.0).to(
        tl.float32
    )
    # The first column's slot may be the one just read: all lanes read before any writes.
    tl.debug_barrier()

    t = tl.arange(0, BT)
    of_key, of_pair = t[:, None] * BK + kk[None, :], t[:, None] * BT + t[None, :]
    keys += (chunk * H + h) * (BT * BK)
    queries += (chunk * H + h) * (BT * BK)
    T += (chunk * HV + hv) * (BT * BT)
    P += (chunk * HV + hv) * (BT * BT)
    factors += (chunk * HV + hv) * (4 * BT)
    v += q0 * tl.cast(stride_v, tl.int64) + hv * V
    o += q0 * tl.cast(stride_o, tl.int64) + hv * V
    table = block_table + tl.cast(row, tl.int64) * stride_table
    per_block = (B + C - 1) // C
    ordinal = (n // B) * per_block + (n % B) // C
    # Values are read a chunk ahead, at the top of the loop: the compiler's own prefetch waits for them at its end.
    _, start, end = clipped_chunk(ordinal, per_block, n, m, B, C)
    value = _values(v, start, end, n, t, vv, v_in, stride_v)
    for i in tl.range(0, num_chunks(n, m, B, C), num_stages=STAGES):
        past = tl.cast(i, tl.int64)
        column, start, end = clipped_chunk(ordinal + i, per_block, n, m, B, C)
        _, next_start, next_end = clipped_chunk(ordinal + i + 1, per_block, n, m, B, C)
        coming = _values(v, next_start, next_end, n, t, vv, v_in, stride_v)
        slot = tl.load(table + column, mask=column < num_columns, other=0).to(tl.int64)
        key = tl.load(keys + past * H * (BT * BK) + of_key)
        inverse = tl.load(T + past * HV * (BT * BT) + of_pair)
        query = tl.load(queries + past * H * (BT * BK) + of_key)
        scores = tl.load(P + past * HV * (BT * BT) + of_pair)
        at = factors + past * HV * (4 * BT)
        of_q = tl.load(at + t)
        of_k = tl.load(at + BT + t)
        to_end = tl.load(at + 2 * BT + t)
        decay = tl.load(at + 3 * BT + (end - start - 1))
        token = tl.cast(start - n, tl.int64)
        in_values = (t < end - start)[:, None] & v_in[None, :]

        # What waits for nothing but S stands beside its products, and the outputs behind the next S: the chain is short.
        operand = S.to(OPERAND)
        answers = tl.dot(operand, tl.trans(key), input_precision=PRECISION)
        out = tl.dot(operand, tl.trans(query), input_precision=PRECISION) * of_q[None, :]
        x = tl.trans(value).to(tl.float32) - answers * of_k[None, :]
        fresh = tl.dot(x.to(OPERAND), tl.trans(inverse), input_precision=PRECISION)
        S = tl.dot((fresh * to_end[None, :]).to(OPERAND), key, S * decay, input_precision=PRECISION)
        out = tl.dot(fresh.to(OPERAND), tl.trans(scores), out, input_precision=PRECISION)
        tl.store(
            o + token * stride_o + (t[:, None] * stride_o + vv[None, :]),
            tl.trans(out).to(o.dtype.element_ty),
            mask=in_values,
        )

        if (end == (column + 1) * B) | (end == n + m):
            stored = S.to(state.dtype.element_ty)
            tl.store(state + slot * stride_slot + inside, stored, mask=tile & (slot > 0))
            S = stored.to(tl.float32)  # the persisted carry: go on from what was stored
        value = coming
