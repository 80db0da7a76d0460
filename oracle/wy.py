"""The gated delta rule in chunks (the WY form), derived here on its own: a second opinion on ``delta_rule``.

Derivation. Take one value head and one chunk of tokens 1..C that starts from the state S₀: [V, K]. Write
G_i = g_1 + … + g_i and D_ij = exp(G_i − G_j) for j ≤ i, the decay between the writes of token j and token i.

A state is S₀ decayed plus all writes, each decayed since it was made. Unrolling (1) and (3) of ``delta_rule``:

    S_i = e^{G_i} S₀ + Σ_{j ≤ i} D_ij u_j k_jᵀ                                                    (5)

The write of token i sees the state before it, already decayed by g_i, which is (5) without its last term.
So (2) becomes

    u_i = beta_i (v_i − e^{G_i} S₀ k_i − Σ_{j < i} D_ij (k_j·k_i) u_j)                             (6)

Stack the u_i as rows of U: [C, V], and likewise V, K, Q. With the strictly lower triangular

    A_ij = beta_i D_ij (k_i·k_j)    for j < i, else 0                                              (7)

(6) reads (I + A) U = diag(beta) (V − diag(e^G) K S₀ᵀ). I + A is unit lower triangular, hence invertible. Let
T = (I + A)⁻¹. Then

    U = T diag(beta) V − W S₀ᵀ,    W = T diag(beta e^G) K                                          (8)

where nothing but the last product needs S₀: that is what lets chunks be prepared in parallel. Reading (5)
with the queries, P_ij = D_ij (q_i·k_j) for j ≤ i, else 0:

    O = scale (diag(e^G) Q S₀ᵀ + P U)                                                              (9)

and the chunk leaves, from (5) at i = C,

    S_C = e^{G_C} S₀ + Uᵀ diag(e^{G_C − G}) K                                                     (10)

Every exponent in (5) to (10) is ≤ 0 as g is, so nothing overflows. D is exp of sums over (j, i], formed here
as such: differences of a running sum would lose digits next to a near-total decay.

Imports torch and ``oracle.delta_rule`` (preparation of the inputs only). Exercise it with
``pytest tests/oracle/test_wy.py``.
"""

from __future__ import annotations

import torch

from gdn_apc.oracle.delta_rule import check_inputs, prepare


def decay_matrix(g: torch.Tensor) -> torch.Tensor:
    """``g: [..., C]`` → D: [..., C, C], D_ij = exp(g_{j+1} + … + g_i) for j ≤ i, else 0."""
    C = g.shape[-1]
    lower = torch.ones(C, C, dtype=torch.bool, device=g.device).tril(-1)
    # terms[l, j] = g_l where l > j: its running sum over l at row i is the sum over (j, i].
    sums = torch.where(lower, g[..., :, None], torch.zeros((), dtype=g.dtype, device=g.device)).cumsum(-2)
    return torch.exp(sums).tril()


def chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Equations (7) to (10) for one chunk of all heads.

    ``state: [HV, V, K]``, ``q, k: [HV, C, K]`` (q scaled), ``v: [HV, C, V]``, ``g, beta: [HV, C]``
    → ``o: [HV, C, V]`` and the state after the chunk.
    """
    C = g.shape[-1]
    D, from_start = decay_matrix(g), torch.exp(g.cumsum(-1))[..., None]  # [HV, C, C], e^G: [HV, C, 1]
    A = beta[..., None] * (D * (k @ k.mT)).tril(-1)  # (7)
    eye = torch.eye(C, dtype=g.dtype, device=g.device)
    rhs = beta[..., None] * (v - from_start * (k @ state.mT))
    U = torch.linalg.solve_triangular(eye + A, rhs, upper=False, unitriangular=True)  # (8)
    o = from_start * (q @ state.mT) + (D * (q @ k.mT)) @ U  # (9)
    to_end = D[..., -1, :, None]  # e^{G_C − G}: [HV, C, 1]
    return o, from_start[..., -1:, :] * state + (to_end * U).mT @ k  # (10)


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    chunk_size: int,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    use_qk_l2norm: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``delta_rule.recurrence`` computed chunk by chunk: the same arguments, and ``chunk_size`` tokens a chunk.

    Returns ``o: [T, HV, V]`` and the final state [HV, V, K]. Raises ``ValueError`` on shapes that do not fit
    and on a chunk size below 1.
    """
    check_inputs(q, k, v, g, beta, initial_state)
    if chunk_size < 1:
        raise ValueError(f"chunk_size: is {chunk_size}; expected at least 1 token")
    q, k, v, g, beta = prepare(q, k, v, g, beta, scale, use_qk_l2norm, dtype)
    T, HV, V = v.shape
    state = torch.zeros(HV, V, q.shape[-1], dtype=dtype, device=v.device)
    if initial_state is not None:
        state = initial_state.to(dtype)
    o = torch.empty(T, HV, V, dtype=dtype, device=v.device)
    for start in range(0, T, chunk_size):
        part = slice(start, start + chunk_size)
        part_o, state = chunk(state, *(x[part].transpose(0, 1) for x in (q, k, v, g, beta)))
        o[part] = part_o.transpose(0, 1)
    return o, state
