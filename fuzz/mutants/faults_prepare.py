"""Faults of the chunk kernels' first half, ``prepare``, and of what it hands to the second: ``impl/kernels/chunked.py``.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants.model import BETA, NEUTRAL, plant

CHUNKED = "kernels/chunked.py"
BF16 = ".to(tl.bfloat16)"
ROUNDED = f"{BF16}.to(tl.float32)"

BETAS = "s_low, s_high = _of_tokens(beta, u, count, HV), _of_tokens(beta, u + 32, count, HV)"
STORED = "(inverse * strength[None, :]).to(OPERAND)"
STORED_32 = "(tl.reshape(X, [32, 32]) * strength[None, :]).to(OPERAND)"

FACTORS = (
    plant(
        "decay_from_the_first_token",
        CHUNKED,
        "tl.store(at, tl.exp(G) * of_q)",
        "tl.store(at, tl.exp(G - tl.max(G, axis=0)) * of_q)",
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
        "tl.store(at + BT, tl.exp(G) * of_k)",
        "tl.store(at + BT, tl.exp(G))",
        "kernel-numerics",
        "The keys that the state answers are not normalised.",
    ),
    plant(
        "update_without_the_norm",
        CHUNKED,
        "tl.exp(G_end - G) * of_k",
        "tl.exp(G_end - G)",
        "kernel-numerics",
        "The keys that are written to the state are not normalised.",
    ),
    plant(
        "scores_without_the_norm",
        CHUNKED,
        "tl.exp(G[:, None] - G[None, :]) * of_k[None, :]",
        "tl.exp(G[:, None] - G[None, :])",
        "kernel-numerics",
        "The keys that queries of their own chunk meet are not normalised.",
    ),
    plant(
        "inverse_without_the_norm",
        CHUNKED,
        "of_k * strength, of_k, 1, BK, PRECISION",
        "of_k * strength, of_k * 0.0 + 1.0, 1, BK, PRECISION",
        "kernel-numerics",
        "The keys that later keys of their chunk meet are not normalised.",
        also=(
            (
                "of_k * strength, of_k, 2 * N, BK, PRECISION",
                "of_k * strength, of_k * 0.0 + 1.0, 2 * N, BK, PRECISION",
            ),
        ),
    ),
    plant(
        "norm_missing_between_halves",
        CHUNKED,
        "(n_high * s_high)[:, None] * n_low[None, :]",
        "(n_high * s_high)[:, None]",
        "kernel-numerics",
        "The same for the keys of the first half of a chunk of 33 to 64 tokens, as those of the second meet them.",
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
        "G = tl.cumsum(_of_tokens(g, t, count, HV), axis=0)",
        f"G = tl.cumsum(_of_tokens(g, t, count, HV), axis=0){ROUNDED}",
        "dtype",
        "The sums of log decays are rounded to bf16.",
    ),
    plant(
        "prefix_sums_in_operand_dtype",
        CHUNKED,
        "G = tl.cumsum(_of_tokens(g, t, count, HV), axis=0)",
        "G = tl.cumsum(_of_tokens(g, t, count, HV), axis=0).to(OPERAND).to(tl.float32)",
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
        "_of_tokens(g, t, count, HV)",
        "_of_tokens(g, t, BT, HV)",
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
        "            tl.store(T + (block + 32), tl.zeros([32, 32], tl.float32).to(OPERAND))\n",
        "",
        "kernel-indexing",
        "A quarter of the inverse of 33 to 64 tokens, which is 0, is never written.",
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
        "decay = tl.where(causal, tl.exp(G[:, None] - G[None, :]) *",
        "decay = tl.where(causal, tl.exp(G)[:, None] * tl.exp(-G)[None, :] *",
        "kernel-numerics",
        "exp(-G) overflows where a chunk decays a lot (fla 99, cudnn-frontend 1017).",
    ),
    plant(
        "either_sign_in_the_inverse",
        CHUNKED,
        "tl.exp(G_left - G_right)",
        "tl.exp(G_left) * tl.exp(-G_right)",
        "kernel-numerics",
        "exp(-G) between the keys of a chunk: infinity times 0.",
    ),
    plant(
        "scores_cut_off",
        CHUNKED,
        "decay = tl.where(causal, tl.exp(G[:, None] - G[None, :]) *",
        "decay = tl.where(causal, tl.exp(tl.minimum(G[:, None] - G[None, :], 0.0)) *",
        "kernel-numerics",
        "No fault: a parallel sum may leave a difference above 0, but outputs cancel with nothing that was not cut off.",
        fate=NEUTRAL,
    ),
)

INVERSE = (
    plant(
        "prefill_beta_rounded",
        CHUNKED,
        "strength = _of_tokens(beta, t, count, HV)",
        f"strength = _of_tokens(beta, t, count, HV){ROUNDED}",
        "dtype",
        "A prefill rounds beta to bf16.",
        kind=BETA,
        also=((BETAS, BETAS.replace("HV)", f"HV){ROUNDED}")),),
    ),
    plant(
        "inverse_without_beta",
        CHUNKED,
        STORED,
        "inverse.to(OPERAND)",
        "kernel-numerics",
        "Beta is in A, and forgotten in the inverse's columns.",
        also=((STORED_32, "tl.reshape(X, [32, 32]).to(OPERAND)"),),
    ),
    plant(
        "inverse_without_beta_of_64_tokens",
        CHUNKED,
        "(across * s_low[None, :]).to(OPERAND)",
        "across.to(OPERAND)",
        "kernel-numerics",
        "The same in one quarter of a chunk of 33 to 64 tokens.",
    ),
    plant(
        "inverse_with_the_diagonal",
        CHUNKED,
        "A = tl.where(i > j, A, 0.0)",
        "A = tl.where(i >= j, A, 0.0)",
        "kernel-numerics",
        "A token's key answers itself.",
    ),
    plant(
        "inverse_of_16_tokens",
        CHUNKED,
        "return _join(X, A, i, j, 8",
        "return _join(X, A, i, j, 4",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 9 to 16 tokens.",
    ),
    plant(
        "inverse_of_32_tokens",
        CHUNKED,
        "Xba = -_times(Xb, _times(",
        "Xba = -_times(0.0 * Xb, _times(",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 17 to 32 tokens.",
    ),
    plant(
        "inverse_of_64_tokens",
        CHUNKED,
        "across = -",
        "across = -0.0 * ",
        "kernel-numerics",
        "The inverse misses its last doubling in chunks of 33 to 64 tokens.",
    ),
    plant(
        "inverse_of_one_half_twice",
        CHUNKED,
        "(high, ",
        "(low, ",
        "kernel-numerics",
        "The halves of a chunk of 33 to 64 tokens are joined by the inverse of the first one, twice.",
    ),
    plant(
        "inverse_in_bf16",
        CHUNKED,
        STORED,
        STORED.replace(".to(OPERAND)", f"{BF16}.to(OPERAND)"),
        "dtype",
        "The inverse is rounded to bf16, whatever the inputs.",
        also=((STORED_32, STORED_32.replace(".to(OPERAND)", f"{BF16}.to(OPERAND)")),),
    ),
)

FAULTS = FACTORS + PACKED + INVERSE
