"""Where the kernels of vLLM 0.31.0 deviate from the contract, each with the smallest case that shows it.

``python tests/anchors/vllm_deviations.py`` prints the table. ``test_vllm_target.py`` runs every case: a deviation
that is gone, or whose message changed, fails there. Imports ``fuzz.case``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Row, Sizes, Step

CHUNK = "third_party/flash_linear_attention/ops"
CONV = "model_executor/layers/mamba/ops/causal_conv1d.py"


@dataclass(frozen=True)
class Deviation:
    """``property`` fails on ``target`` with ``message``, for ``case``."""

    name: str
    target: str  # "vllm" or "vllm-all"
    what: str
    why: str
    case: Case
    message: str  # a regular expression


def case(
    prop: str,
    level: str,
    *steps: list[tuple[int, int, int, tuple[int, ...]]],
    B: int = 16,
    input: str = "bf16",
    state: str = "fp32",
    shared: dict[int, int] | None = None,
    exact: bool = False,
    gates: str = "mild",
    betas: str = "uniform",
    **choice,
) -> Case:
    """A case from its steps: rows of (request, n, m, table). ``shared``: so many tokens in common with request 0."""
    rows = [row for step in steps for row in step]
    lengths = {r: max(n + m for q, n, m, _ in rows if q == r) for r, *_ in rows}
    regimes = (
        dict(gates="zero", betas="binary", keys="onehot", values="ints")
        if exact
        else dict(gates=gates, betas=betas)
    )
    options = Options(
        use_qk_l2norm=not exact, activation=None if exact else "silu", scale=1.0 if exact else None
    )
    return Case(
        property=prop,
        level=level,
        sizes=Sizes(H=1, HV=1, K=16, V=16, W=4, B=B, C=64),
        dtypes=Dtypes(input, state, input),
        inputs=Inputs(seed=0, **regimes),
        requests=tuple(
            Request(lengths[r], 0, shared[r]) if shared and r in shared else Request(lengths[r])
            for r in sorted(lengths)
        ),
        steps=tuple(Step(tuple(Row(*row) for row in step)) for step in steps),
        pool=Pool(num_slots=1 + max(slot for *_, table in rows for slot in table)),
        options=options,
        choice=choice,
    )


DEVIATIONS = [
    Deviation(
        "convolution multiplies in the input dtype",
        "vllm",
        "y of the convolution is off by up to hundreds of tolerances where its terms cancel",
        f"{CONV}: `acc += matrix_x * matrix_w` rounds each product to bf16 or fp16 (mul.bf16 in PTX) before the "
        "fp32 sum. An fp32 window avoids it",
        case("values", "conv", [(0, 0, 8, (1,))]),
        "the output is wrong at step 0, row 0",
    ),
    Deviation(
        "one-token prompts in half precision",
        "vllm",
        "state(1) of a prompt of one token is off by 1e-3, where a decode step would be exact to 1e-7",
        f"{CHUNK}/chunk.py: a row without a state is a prefill, so one token goes through products with bf16 operands",
        case("values", "delta", [(0, 0, 1, (1,))]),
        r"state\(1\) is wrong at step 0, row 0",
    ),
    Deviation(
        "fp16 underflows under strong decay",
        "vllm",
        "state elements below about 6e-8 are 0 with fp16 inputs",
        f"{CHUNK}/chunk_delta_h.py: `b_v = b_v.to(k.dtype)` after the decay to the chunk's end; fp16 ends at 6e-8",
        case("values", "delta", [(0, 0, 4, (1,))], input="fp16", gates="total", betas="mixed"),
        r"state\(4\) is wrong at step 0, row 0.*actual -?0, ",
    ),
    Deviation(
        "all mode: a short prefill overwrites the hit's block",
        "vllm-all",
        "a 2-token step right after a hit writes its window into the shared slot that it read",
        f"{CONV}: with m < W - 1 the new window goes to conv_states_base, the slot of the initial state",
        case("write_set", "conv", [(0, 0, 16, (1,))], [(1, 16, 2, (1, 2))], shared={1: 16}),
        r"step 1 changed slot 1, conv.*it may write the slots 0 \(window\), 2 \(window\)",
    ),
    Deviation(
        "all mode: a short prefill leaves its own block unwritten",
        "vllm-all",
        "the same step never writes the slot of its own column",
        f"{CONV}: as above; conv_states_output_coord is only used where m >= W - 1",
        case("index_movement", "conv", [(0, 0, 16, (1,))], [(1, 16, 2, (1, 2))], shared={1: 16}, exact=True),
        "the window of column 1 must be exact, expected .*, actual nan at step 1, row 0",
    ),
    Deviation(
        "all mode: boundaries beyond the programs are not written",
        "vllm-all",
        "15 tokens from position 3 cross boundaries 8 and 16; window(16) is never written",
        f"{CONV}: program i > 0 of a row's ceil(m / 8) writes boundary i; there are 2 programs for 2 boundaries and the end",
        case("index_movement", "conv", [(0, 0, 3, (1,))], [(0, 3, 15, (1, 2, 3))], B=8, exact=True),
        "the window of column 1 must be exact, expected .*, actual nan at step 1, row 0",
    ),
    Deviation(
        "all mode: a boundary window reaches into the row before",
        "vllm-all",
        "a step that starts 1 token before a boundary fills that window from its neighbour in the batch",
        f"{CONV}: idx_tokens_last counts packed tokens and is masked at 0, not at the row's start",
        case(
            "index_movement",
            "conv",
            [(0, 0, 15, (1,))],
            [(1, 0, 16, (2,)), (0, 15, 20, (1, 3, 4))],
            exact=True,
        ),
        "the window of column 0 must be exact, expected .* at step 1, row 1",
    ),
    Deviation(
        "all mode: programs race for the slot that is read",
        "vllm-all",
        "a step from the middle of a block over its boundary depends on which program runs first",
        f"{CONV}: program 0 reads the initial window from the slot to which program 1 writes window(boundary)",
        case("program_order", "conv", [(0, 0, 4, (1,))], [(0, 4, 30, (1, 2, 3))], order=0, races=False),
        r"output of request 0 depends on the order of programs \(reversed\)",
    ),
]

NOT_CLAIMED = {
    "fp32 inputs": f"{CHUNK}/chunk.py asserts that inputs are not fp32",
    "chunk sizes but 64": f"{CHUNK}/utils.py: FLA_CHUNK_SIZE",
    "scale 0": f"{CHUNK}/fused_recurrent.py asserts scale > 0; the adapter calls the function inside",
    "null columns in all mode": f"{CONV} stores to the slots of the block table without looking at them",
    "boundary states": "the kernels know no blocks; the adapter calls them once for each block",
}


def table() -> str:
    """The deviations as Markdown."""
    lines = ["| where | what | why | seen by |", "|---|---|---|---|"]
    lines += [f"| {d.target}: {d.name} | {d.what} | {d.why} | `{d.case.property}` |" for d in DEVIATIONS]
    lines += ["", "Not claimed, so not asked:", ""]
    return "\n".join(lines + [f"- {what}: {why}" for what, why in NOT_CLAIMED.items()])


if __name__ == "__main__":
    print(table())
