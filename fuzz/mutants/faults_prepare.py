"""Faults of the chunk kernels' first half, ``prepare``, and of what it hands to the second: ``impl/kernels/chunked.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import BETA, plant

CHUNKED = "kernels/chunked.py"
BF16 = ".to(tl.bfloat16)"
ROUNDED = f"{BF16}.to(tl.float32)"

STORED = "(inverse * strength[None, :]).to(OPERAND)"

FACTORS = (
    plant(
        "decay_from_the_first_token",
        CHUNKED,
        "tl.store(at, exp(G) * of_q)",
        "tl.store(at, exp(G - tl.max(G, axis=0)) * of_q)",
        "kernel-numerics",
        "The decay of the incoming state is measured from the chunk's first token, not from before it (vllm 23279).",
    ),
    plant(
        "end_before_the_last_token",
        CHUNKED,
        "G_end = tl.sum(tl.where(t == count - 1, G, 0.0), axis=0)",
        "G_end = tl.sum(tl.where(t == tl.maximum(count - 2, 0), G, 0.0), axis=0)",
        "kernel-numerics",
        "What a chunk writes decays to its last token but one.",
    ),
    plant(
        "end_of_the_last_row",
        CHUNKED,
        "tl.where(t == count - 1, G, 0.0)",
        "tl.where(t == BT - 1, G, 0.0)",
        "kernel-numerics",
        "The end's prefix sum is taken behind the last token: equal on paper, not in the bits of a parallel scan.",
    ),
    plant(
        "answers_without_the_norm",
        CHUNKED,
        "tl.store(at + BT, exp(G) * of_k)",
        "tl.store(at + BT, exp(G))",
        "kernel-numerics",
        "The keys that the state answers are not normalised.",
    ),
    plant(
        "update_without_the_norm",
        CHUNKED,
        "exp(G_end - G) * of_k",
        "exp(G_end - G)",
        "kernel-numerics",
        "The keys that are written to the state are not normalised.",
    ),
    plant(
        "scores_without_the_norm",
        CHUNKED,
        "PRECISION) * decay * of_q[:, None]",
        "PRECISION) * decay",
        "kernel-numerics",
        "The queries that meet keys of their own chunk are not normalised, and not scaled.",
    ),
    plant(
        "inverse_without_the_norm",
        CHUNKED,
        "* decay * (of_k * strength)[:, None]",
        "* decay * strength[:, None]",
        "kernel-numerics",
        "The keys that meet earlier keys of their chunk are not normalised.",
    ),
    plant(
        "decay_without_the_norm",
        CHUNKED,
        "exp(G[:, None] - G[None, :]) * of_k[None, :]",
        "exp(G[:, None] - G[None, :])",
        "kernel-numerics",
        "The keys that queries and keys of their own chunk meet are not normalised.",
    ),
    plant(
        "norm_missing_between_halves",
        CHUNKED,
        "* decay * (of_k * strength)[:, None]",
        "* decay * (tl.where(t[:, None] < 32, of_k[:, None], 1.0) * strength[:, None])",
        "kernel-numerics",
        "The same for the keys of the second half of a chunk of 33 to 64 tokens.",
    ),
    plant(
        "l2norm_without_epsilon",
        CHUNKED,
        "tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)",
        "tl.rsqrt(tl.sum(wide * wide, axis=1))",
        "kernel-numerics",
        "A key of zeros is divided by zero (executorch 21417).",
    ),
    plant(
        "l2norm_epsilon_as_minimum",
        CHUNKED,
        "tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)",
        "tl.rsqrt(tl.maximum(tl.sum(wide * wide, axis=1), 1e-6))",
        "kernel-numerics",
        "The epsilon is a lower limit, not a term of the sum: small keys come out longer.",
    ),
    plant(
        "norms_in_bf16",
        CHUNKED,
        "of_q, of_k = _inverse_norm(query), _inverse_norm(key)",
        f"of_q, of_k = _inverse_norm(query){ROUNDED}, _inverse_norm(key){ROUNDED}",
        "dtype",
        "The factors that normalise q and k are rounded to bf16.",
    ),
    plant(
        "prefix_sums_in_bf16",
        CHUNKED,
        "G = tl.cumsum(gates, axis=0)",
        f"G = tl.cumsum(gates, axis=0){ROUNDED}",
        "dtype",
        "The sums of log decays are rounded to bf16.",
    ),
    plant(
        "prefix_sums_in_operand_dtype",
        CHUNKED,
        "G = tl.cumsum(gates, axis=0)",
        "G = tl.cumsum(gates, axis=0).to(OPERAND).to(tl.float32)",
        "dtype",
        "The sums of log decays are rounded as operands are: wrong for bf16 inputs only, whose tolerances are wide.",
    ),
)

PACKED = (
    plant(
        "tail_lanes_read",
        CHUNKED,
        "inside = (t < count)[:, None] & (c < width)[None, :]",
        "inside = (t >= 0)[:, None] & (c < width)[None, :]",
        "kernel-indexing",
        "Lanes beyond a chunk's end read q and k of other rows, or of nobody (cuLA 38).",
    ),
    plant(
        "gate_tail_read",
        CHUNKED,
        "_of_tokens(g, t, count, stride_g)",
        "_of_tokens(g, t, BT, stride_g)",
        "kernel-indexing",
        "Lanes beyond a chunk's end read gates of other rows, or of nobody (cuLA 38).",
    ),
    plant(
        "packed_tail_not_zeroed",
        CHUNKED,
        "tl.store(keys + packed, key)",
        "tl.store(keys + packed, key, mask=(t < count)[:, None])",
        "kernel-indexing",
        "The packed keys beyond a chunk's end are what memory held before, which may be NaN.",
    ),
    plant(
        "packed_inverse_lower_only",
        CHUNKED,
        "tl.store(T + pair, (inverse * strength[None, :]).to(OPERAND))",
        "tl.store(T + pair, (inverse * strength[None, :]).to(OPERAND), mask=causal)",
        "kernel-indexing",
        "The half of the inverse that is 0 is never written.",
    ),
    plant(
        "packed_by_the_first_head",
        CHUNKED,
        "if hv % group == 0:",
        "if hv == 0:",
        "kernel-indexing",
        "Only the first key head is packed.",
    ),
    plant(
        "prepare_wrong_head",
        CHUNKED,
        "h = hv // group",
        "h = hv % H",
        "kernel-indexing",
        "In the first kernel, value heads take key heads in turn, not in groups.",
    ),
    plant(
        "scores_without_the_diagonal",
        CHUNKED,
        "causal = t[:, None] >= t[None, :]",
        "causal = t[:, None] > t[None, :]",
        "kernel-numerics",
        "A query does not see its own token's write.",
    ),
    plant(
        "scores_not_causal",
        CHUNKED,
        "causal = t[:, None] >= t[None, :]",
        "causal = t[:, None] + t[None, :] >= 0",
        "kernel-numerics",
        "A query sees later writes of its chunk.",
    ),
    plant(
        "scores_in_bf16",
        CHUNKED,
        "scores.to(OPERAND)",
        f"scores{BF16}.to(OPERAND)",
        "dtype",
        "Products of queries and keys are rounded to bf16, whatever the inputs.",
    ),
    plant(
        "exponent_of_either_sign",
        CHUNKED,
        "decay = tl.where(causal, exp(G[:, None] - G[None, :]) *",
        "decay = tl.where(causal, exp(G)[:, None] * exp(-G)[None, :] *",
        "kernel-numerics",
        "exp(-G) overflows where a chunk decays a lot (fla 99, cudnn-frontend 1017).",
    ),
    plant(
        "either_sign_in_the_inverse",
        CHUNKED,
        "* decay * (of_k * strength)[:, None]",
        "* (exp(G) * of_k * strength)[:, None] * (exp(-G) * of_k)[None, :]",
        "kernel-numerics",
        "exp(-G) between the keys of a chunk: infinity times 0.",
    ),
)

INVERSE = (
    plant(
        "prefill_beta_rounded",
        CHUNKED,
        "_of_tokens(beta, t, count, stride_beta)",
        f"_of_tokens(beta, t, count, stride_beta){ROUNDED}",
        "dtype",
        "A prefill rounds beta to bf16.",
        kind=BETA,
    ),
    plant(
        "inverse_without_beta",
        CHUNKED,
        STORED,
        "inverse.to(OPERAND)",
        "kernel-numerics",
        "Beta is in A, and forgotten in the inverse's columns.",
    ),
    plant(
        "inverse_without_beta_of_64_tokens",
        CHUNKED,
        STORED,
        STORED.replace("strength[None, :]", "tl.where(t[None, :] < 32, strength[None, :], 1.0)"),
        "kernel-numerics",
        "The same for the second half of a chunk of 33 to 64 tokens.",
    ),
    plant(
        "inverse_with_the_diagonal",
        CHUNKED,
        "tl.where(t[:, None] > t[None, :], A, 0.0)",
        "tl.where(t[:, None] >= t[None, :], A, 0.0)",
        "kernel-numerics",
        "A token's key answers itself.",
    ),
    plant(
        "inverse_of_16_tokens",
        CHUNKED,
        "X = _join(X, D, i, j, 8",
        "X = _join(X, D, i, j, 4",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 9 to 16 tokens.",
    ),
    plant(
        "inverse_of_32_tokens",
        CHUNKED,
        "X = _join(X, A, t[:, None], t[None, :], 16,",
        "X = _join(X, A * 0.0, t[:, None], t[None, :], 16,",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 17 to 32 tokens.",
    ),
    plant(
        "inverse_of_64_tokens",
        CHUNKED,
        "X = _join(X, A, t[:, None], t[None, :], 32,",
        "X = _join(X, A * 0.0, t[:, None], t[None, :], 32,",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 33 to 64 tokens.",
    ),
    plant(
        "inverse_of_one_half_only",
        CHUNKED,
        "X - _times(_times(X, M, BLOCKS), X, BLOCKS)",
        "X - _times(M, X, BLOCKS)",
        "kernel-numerics",
        "Pairs of blocks are joined by the inverse of the first one only.",
    ),
    plant(
        "inverse_in_bf16",
        CHUNKED,
        STORED,
        STORED.replace(".to(OPERAND)", f"{BF16}.to(OPERAND)"),
        "dtype",
        "The inverse is rounded to bf16, whatever the inputs.",
    ),
)

FAULTS = FACTORS + PACKED + INVERSE
