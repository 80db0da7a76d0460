"""Where the convolution of vLLM's `all` mode deviates from the contract, each way with the smallest case that shows it.

``test_vllm_target.py`` runs every case on 0.31.0: a deviation that is gone, or whose message changed, fails there. What
whole surveys say of this and other releases is in ``VERDICTS.md``. Imports ``fuzz.case``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Row, Sizes, Step

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
