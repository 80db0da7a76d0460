"""The same contract in plain PyTorch: the CPU user's path, and the plugin's default on CPU.

Each row is walked chunk by chunk in fp32, the triangular inverse in fp64. Every chunk is padded to one fixed tile: a
product of 1 row and one of 64 rows differ in their last bits. The numerics contract compares equal chunks only, so it
would hold without; with it, a chunk's bits do not follow how the matrix library treats each length.

It reads the metadata on the host, so it is for CPU tensors. Imports torch only.
Exercise it with ``pytest tests/impl``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from gdn_apc.impl.metadata import BlockIndexMetadata, chunk_bounds


def _live_rows(meta: BlockIndexMetadata) -> Iterator[tuple[int, int, int, int, int, list[int]]]:
    """(row, packed offset, n, m, read slot, table) of every row with tokens."""
    starts, n, m, read, table = (
        t.tolist()
        for t in (
            meta.query_start_loc,
            meta.num_computed_tokens,
            meta.num_scheduled_tokens,
            meta.read_slot,
            meta.block_table,
        )
    )
    for row in range(meta.num_rows):
        if m[row] > 0:
            yield row, starts[row], n[row], m[row], read[row], table[row]


def _lanes(f: Callable[[torch.Tensor], torch.Tensor], t: torch.Tensor) -> torch.Tensor:
    """``f`` of every element of an fp32 tensor, each in a full vector lane.

    PyTorch computes the last few elements of a tensor one by one, with another exp than the vector one; so without
    the padding here an element's bits would depend on its place. Pieces stay below the size that is split over threads.
    """
    count = t.numel()
    flat = torch.zeros(-(-count // 64) * 64)
    flat[:count] = t.reshape(-1)
    return torch.cat([f(piece) for piece in flat.split(1 << 14)] or [flat])[:count].view(t.shape)


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_state: torch.Tensor,
    meta: BlockIndexMetadata,
    activation: str | None,
) -> torch.Tensor:
    """See ``impl.ops.causal_conv1d``. Taps are added one by one, so each output is the same sum in any step."""
    W = weight.shape[1]
    taps = weight.float()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    B = meta.block_size
    for _, q0, n, m, read, table in _live_rows(meta):
        old = conv_state[read].to(x.dtype) if read > 0 else x.new_zeros(W - 1, x.shape[1])
        history = torch.cat([old, x[q0 : q0 + m]])  # history[i] is position n - (W - 1) + i
        out = torch.zeros(m, x.shape[1]) if bias is None else bias.float().expand(m, -1).clone()
        for w in range(W):
            out += history[w : w + m].float() * taps[:, w]
        y[q0 : q0 + m] = (_lanes(F.silu, out) if activation == "silu" else out).to(y.dtype)
        for column in range(n // B, (n + m - 1) // B + 1):
            slot = table[column] if column < len(table) else 0
            if slot > 0:
                boundary = min((column + 1) * B, n + m)
                conv_state[slot] = history[boundary - n : boundary - n + W - 1].to(conv_state.dtype)
    return y


def gdn_gates(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``impl.ops.gdn_gates``."""
    soft = _lanes(lambda t: F.softplus(t, threshold=20.0), a.float() + dt_bias.float())
    return -torch.exp(A_log.float()) * soft, _lanes(torch.sigmoid, b.float())


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
    HV = v.shape[1]
    group = HV // q.shape[1]
    for _, q0, n, m, read, table in _live_rows(meta):
        S = ssm_state[read].float() if read > 0 else torch.zeros(ssm_state.shape[1:])
        query, key = (_heads(t[q0 : q0 + m], group, use_qk_l2norm) for t in (q, k))
        value, decay, strength = (t[q0 : q0 + m].float() for t in (v, g, beta))
        if m == 1:
            out, S = _token(query[0], key[0], value[0], decay[0], strength[0], S)
            o[q0] = (scale * out).to(o.dtype)
            _store(ssm_state, table, n // meta.block_size, S)
            continue
        position, i = n, 0
        while position < n + m:
            start, position = chunk_bounds(n, m, i, meta.block_size, meta.chunk_size)
            i += 1
            part = slice(start - n, position - n)
            tile = min(meta.block_size, meta.chunk_size)
            out, S = _chunk(*(t[part] for t in (query, key, value, decay, strength)), S, tile)
            o[q0 + start - n : q0 + position - n] = (scale * out).to(o.dtype)
            if position % meta.block_size == 0 or position == n + m:
                S = _store(ssm_state, table, (position - 1) // meta.block_size, S)
    return o


def _heads(t: torch.Tensor, group: int, normalise: bool) -> torch.Tensor:
    """[m, H, K] → [m, HV, K] fp32, normalised if asked, each key head repeated for its value heads."""
    t = t.float().contiguous()
    if normalise:
        t = t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6)
    return t.repeat_interleave(group, dim=1)


def _token(q, k, v, g, beta, S):
    """One token by the recurrence: (o [HV, V], state [HV, V, K]), all fp32."""
    S = S * g.exp()[:, None, None]
    delta = beta[:, None] * (v - (S * k[:, None, :]).sum(-1))
    S = S + delta[:, :, None] * k[:, None, :]
    return (S * q[:, None, :]).sum(-1), S


def _chunk(q, k, v, g, beta, S, tile):
    """One chunk by the WY form (``impl/kernels/chunked.py`` has the maths): (o [c, HV, V], state [HV, V, K])."""
    c = q.shape[0]
    q, k, v = (
        F.pad(t, (0, 0, 0, 0, 0, tile - c)).transpose(0, 1).contiguous() for t in (q, k, v)
    )  # [HV, tile, ·]
    g, beta = (F.pad(t, (0, 0, 0, tile - c)).t().contiguous() for t in (g, beta))  # [HV, tile]
    G = g.cumsum(1)
    decay = torch.exp((G[:, :, None] - G[:, None, :]).tril())
    A = (torch.bmm(k, k.transpose(1, 2)) * decay * beta[:, :, None]).tril(-1)
    eye = torch.eye(tile, dtype=torch.float64).expand(A.shape)
    T = torch.linalg.solve_triangular(eye + A.double(), eye, upper=False, unitriangular=True).float()
    T = T * beta[:, None, :]
    fresh = torch.bmm(T, v) - torch.bmm(torch.bmm(T * G.exp()[:, None, :], k), S.transpose(1, 2))
    P = (torch.bmm(q, k.transpose(1, 2)) * decay).tril()
    out = torch.bmm(q, S.transpose(1, 2)) * G.exp()[:, :, None] + torch.bmm(P, fresh)
    G_end = G[:, c - 1]
    kept = fresh * torch.exp(G_end[:, None] - G)[:, :, None]
    S = S * G_end.exp()[:, None, None] + torch.bmm(kept.transpose(1, 2), k)
    return out[:, :c].transpose(0, 1), S


def _store(ssm_state: torch.Tensor, table: list[int], column: int, S: torch.Tensor) -> torch.Tensor:
    """Write the state to the column's slot; returns it as stored, which the row continues from."""
    stored = S.to(ssm_state.dtype)
    slot = table[column] if column < len(table) else 0
    if slot > 0:
        ssm_state[slot] = stored
    return stored.float()
