"""The recurrent kernel: every row of exactly one token, fresh or resumed, in fp32 throughout.

Maths, per value head, with the state S: [V, K] after n tokens (zeros if n = 0)::

    S ← exp(g) S;    S ← S + beta (v - S k) kᵀ;    o = scale · S q

It reads the slot of the last computed column and writes the slot of the last scheduled one, in place when they
are equal. Whether a row has a state is read from the device, never from its length, so a captured graph serves
fresh one-token prompts too. Padding rows (m = 0) and rows of more tokens leave at once.

Imports triton only. Exercise it with ``pytest tests/impl/test_kernels.py``.
"""

import triton
import triton.language as tl

from gdn_apc.impl.kernels.gates import log_decay, write_strength
from gdn_apc.impl.kernels.grid import NO_SLOT


@triton.jit(do_not_specialize=["stride_g", "stride_beta", "H", "HV"])
def recurrent_kernel(
    q, k, v, g, beta, A_log, dt_bias, state, o,
    query_start_loc, num_computed_tokens, read_slots, write_slots,
    scale,
    stride_q, stride_k, stride_v, stride_g, stride_beta, stride_o, stride_slot, stride_head, stride_row, H, HV,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    L2NORM: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """Shapes as in ``impl.gated_delta_rule``; RAW: g and beta are the layer's a and b. Grid (tiles of V, HV, rows)."""
    row = tl.program_id(2)
    q0 = tl.load(query_start_loc + row)
    m = tl.load(query_start_loc + row + 1) - q0
    n = tl.load(num_computed_tokens + row)
    read_slot = tl.where(n > 0, tl.load(read_slots + row), 0)
    write_slot = tl.load(write_slots + row)
    hv = tl.program_id(1)
    h = hv // (HV // H)
    if (m != 1) | (read_slot == NO_SLOT) | (write_slot == NO_SLOT) | (h < 0):
        return
    read_slot, write_slot = read_slot.to(tl.int64), write_slot.to(tl.int64)
    kk = tl.arange(0, BK)
    vv = tl.program_id(0) * BV + tl.arange(0, BV)
    k_in, v_in = kk < K, vv < V
    tile = v_in[:, None] & k_in[None, :]
    token = q0.to(tl.int64)

    # Loads first, the state's before all others: nothing waits for anything but indices.
    inside = hv * stride_head + vv[:, None] * stride_row + kk[None, :]
    S = tl.load(state + read_slot * stride_slot + inside, mask=tile & (read_slot > 0), other=0.0)
    key = tl.load(k + token * stride_k + h * K + kk, mask=k_in, other=0.0)
    query = tl.load(q + token * stride_q + h * K + kk, mask=k_in, other=0.0)
    value = tl.load(v + token * stride_v + hv * V + vv, mask=v_in, other=0.0)
    gate, strength = tl.load(g + token * stride_g + hv), tl.load(beta + token * stride_beta + hv)
    if RAW:
        rate, bias = tl.load(A_log + hv).to(tl.float32), tl.load(dt_bias + hv).to(tl.float32)
        gate, strength = log_decay(gate.to(tl.float32), rate, bias), write_strength(strength.to(tl.float32))
    decay = tl.exp(gate)
    S, key, query, value = S.to(tl.float32), key.to(tl.float32), query.to(tl.float32), value.to(tl.float32)
    if L2NORM:
        key = key * tl.rsqrt(tl.sum(key * key, axis=0) + 1e-6)
        query = query * tl.rsqrt(tl.sum(query * query, axis=0) + 1e-6)

    S = S * decay
    delta = strength * (value - tl.sum(S * key[None, :], axis=1))
    S = S + delta[:, None] * key[None, :]
    out = scale * tl.sum(S * query[None, :], axis=1)
    tl.store(o + token * stride_o + hv * V + vv, out.to(o.dtype.element_ty), mask=v_in)
    # A step in the middle of a block writes the slot that it read: all lanes read first.
    tl.debug_barrier()
    tl.store(
        state + write_slot * stride_slot + inside, S.to(state.dtype.element_ty), mask=tile & (write_slot > 0)
    )
