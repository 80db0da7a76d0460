"""Everything about a case except its schedule: level, sizes, dtypes, regimes, options, page layout.

Drawn inside what the target claims and what its device can afford: Triton's interpreter pays for each chunk of each
value head, so on a CPU heads are few and blocks short; on a GPU sizes are Qwen3-Next's and Qwen3.5's.
Simple values come first in every list, because Hypothesis shrinks towards them; a value stands several times in a
list to be drawn more often. Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Request, Sizes, Step
from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.targets.base import Claims, Target

Draw = Callable[[st.SearchStrategy[Any]], Any]

POOL_BYTES = 1 << 29
"""At most so large a pool: large heads in small blocks would fill gigabytes with a few hundred tokens."""

PAIRS = tuple(itertools.product(("fp32", "bf16", "fp16"), repeat=2))
"""(input dtype, state dtype), all nine."""


@dataclass(frozen=True)
class Scale:
    """What a device affords for one example."""

    heads: tuple[tuple[int, int], ...]  # (H, HV)
    widths: tuple[int, ...]  # of K and V
    chunk_sizes: tuple[int, ...]
    blocks: tuple[int, ...]
    budget: int  # value-head chunks
    tokens: int
    rows: int  # of a batch


SMALL = Scale(
    heads=((1, 1), (1, 2), (2, 2), (2, 4), (1, 3), (1, 2), (2, 2), (1, 4), (1, 8)),
    widths=(8, 16, 32, 24, 16, 64, 8, 32, 128),
    chunk_sizes=(16, 16, 16, 16, 32, 64),
    blocks=(4, 2, 3, 1, 5, 7, 8, 12, 15, 16, 20, 24, 32, 33, 40, 48, 70, 130, 1, 2, 2, 16, 20, 24),
    budget=80,
    tokens=400,
    rows=6,
)
LARGE = Scale(
    heads=((1, 1), (16, 32), (16, 48), (16, 64), (16, 32), (16, 48), (2, 4), (4, 4), (1, 8), (2, 6)),
    widths=(128, 128, 128, 128, 128, 128, 128, 64),  # few shapes: a GPU compiles kernels for each
    chunk_sizes=(64,),
    blocks=(64, 1, 1, 2, 2, 3, 5, 16, 48, 64, 100, 128, 192, 256, 528, 544, 800, 1088),
    budget=1 << 20,
    tokens=2600,
    rows=8,
)


@dataclass(frozen=True)
class Setting:
    """A case without requests and steps; ``planner`` starts its schedule and ``case`` completes it."""

    level: str
    sizes: Sizes
    dtypes: Dtypes
    inputs: Inputs
    options: Options
    pool: Pool
    scale: Scale
    claims: Claims
    slot_seed: int
    trailing: int

    def planner(self) -> Planner:
        """A planner with this setting's budget."""
        plan = Planner(
            self.sizes,
            budget=self.scale.budget,
            tokens=self.scale.tokens,
            max_rows=self.scale.rows,
            any_start=self.claims.any_start,
            nulls=self.claims.skips_null,
        )
        plan.trailing = self.trailing
        return plan

    def case(self, prop: str, plan: Planner, note: str = "", **choice: Any) -> Case:
        """The case of a finished schedule."""
        requests, steps, num_slots = plan.build(slot_seed=self.slot_seed)
        return self.complete(prop, requests, steps, num_slots, note, **choice)

    def complete(
        self,
        prop: str,
        requests: tuple[Request, ...],
        steps: tuple[Step, ...],
        num_slots: int,
        note: str = "",
        **choice: Any,
    ) -> Case:
        """The case of explicit requests and steps."""
        return Case(
            property=prop,
            level=self.level,
            sizes=self.sizes,
            dtypes=self.dtypes,
            inputs=self.inputs,
            requests=requests,
            steps=steps,
            pool=replace(self.pool, num_slots=num_slots),
            options=self.options,
            choice=choice,
            note=note,
        )


def pairs(claims: Claims) -> list[tuple[str, str]]:
    """The (input, state) dtype pairs that a target claims."""
    return [(i, s) for i, s in PAIRS if i in claims.input_dtypes and s in claims.state_dtypes]


def left_out(claims: Claims) -> dict[str, list[str]]:
    """What the strategies do not draw for a target, by kind, for the summary to print."""
    missing = {
        "dtype pairs": [f"{i}/{s}" for i, s in PAIRS if (i, s) not in pairs(claims)],
        "levels": [level for level in ("conv", "delta", "core", "metadata") if level not in claims.seams],
        "clauses": [
            name
            for name in ("any_start", "absolute_grid", "persisted_carry", "batch_invariant", "skips_null")
            if not getattr(claims, name)
        ],
    }
    return {kind: names for kind, names in missing.items() if names}


def scale_of(target: Target) -> Scale:
    """What the target's device affords, inside the sizes that it claims."""
    scale, claims = (LARGE if target.device().type == "cuda" else SMALL), target.claims
    allowed = {
        "widths": [w for w in scale.widths if claims.head_sizes is None or w in claims.head_sizes],
        "chunk_sizes": [c for c in scale.chunk_sizes if c in claims.chunk_sizes],
        "blocks": [b for b in scale.blocks if b % claims.block_multiple == 0],
    }
    return replace(
        scale,
        widths=tuple(allowed["widths"]) or tuple(sorted(claims.head_sizes or ())),
        chunk_sizes=tuple(allowed["chunk_sizes"]) or tuple(sorted(claims.chunk_sizes)),
        blocks=tuple(allowed["blocks"]) or (claims.block_multiple, 2 * claims.block_multiple),
    )


def draw_setting(
    draw: Draw,
    target: Target,
    *,
    levels: tuple[str, ...] = ("delta", "core", "conv", "delta", "core"),
    share: float = 1.0,
    exact: bool = False,
    lively: bool = False,
    blocks: int = 3,
) -> Setting:
    """Draw a setting.

    Args:
        levels: to choose from, those that the target does not claim left out.
        share: the part of the device's budget that one run of the case may cost.
        exact: integers and powers of two, so that results can be compared exactly.
        lively: no decay that makes an earlier state invisible at the end.
        blocks: how many blocks of one request the budget must pay for.
    """
    scale, claims = scale_of(target), target.claims
    scale = replace(scale, budget=int(scale.budget * share), tokens=int(scale.tokens * max(share, 0.5)))
    input_dtype, state_dtype = draw(st.sampled_from(pairs(claims)))
    level = draw(st.sampled_from([x for x in levels if x in claims.seams]))
    conv_dtype = (
        draw(st.sampled_from((input_dtype, input_dtype, "fp32"))) if level != "delta" else input_dtype
    )
    sizes = _sizes(draw, scale, level, blocks, chunky=state_dtype == "fp32")
    slots = max(2 * blocks, POOL_BYTES // (4 * sizes.HV * sizes.V * sizes.K))
    scale = replace(scale, tokens=min(scale.tokens, slots * sizes.B))
    return Setting(
        level=level,
        sizes=sizes,
        dtypes=Dtypes(input_dtype, state_dtype, conv_dtype),
        inputs=_inputs(draw, level, exact, lively),
        options=_options(draw, level, exact),
        pool=Pool(
            0,
            page_padding=draw(st.sampled_from((0, 0, 64, 192, 1024))),
            channel_major=level != "delta" and draw(st.booleans()),
        ),
        scale=scale,
        claims=claims,
        slot_seed=draw(st.integers(0, 999)),
        trailing=draw(st.sampled_from((0, 0, 1))),
    )


def _sizes(draw: Draw, scale: Scale, level: str, blocks: int, chunky: bool) -> Sizes:
    """``chunky``: rather blocks of several chunks, because only an fp32 state has free cuts between them."""
    C = draw(st.sampled_from(scale.chunk_sizes))
    # A head count is affordable if the budget pays for some blocks of one chunk.
    heads = [(h, hv) for h, hv in scale.heads if hv * blocks <= scale.budget] or [scale.heads[0]]
    H, HV = draw(st.sampled_from(heads))
    affordable = [
        b for b in scale.blocks if blocks * HV * -(-b // C) <= scale.budget and b * 2 <= scale.tokens
    ] or [scale.blocks[0]]
    if chunky:
        affordable += [b for b in affordable if b > C] * 3
    return Sizes(
        H=H,
        HV=HV,
        K=draw(st.sampled_from(scale.widths)),
        V=draw(st.sampled_from(scale.widths)),
        W=draw(st.sampled_from((4, 4, 4, 4, 3, 2))) if level != "delta" else 4,
        B=draw(st.sampled_from(affordable)),
        C=C,
    )


def _inputs(draw: Draw, level: str, exact: bool, lively: bool) -> Inputs:
    if exact:
        regimes = dict(gates="zero", betas="binary", keys="onehot", values="ints")
    elif level == "conv":
        regimes = dict(values=draw(st.sampled_from(("normal", "normal", "spread", "large"))))
    else:
        lasting = ("mild", "near_one", "zero", "near_one")
        gates = lasting if lively else (*lasting, "mild", "mixed", "minus3", "minus5", "total", "mixed")
        betas = (
            ("uniform", "mixed") if lively else ("uniform", "mixed", "one", "zero", "uniform", "mixed", "one")
        )
        regimes = dict(
            gates=draw(st.sampled_from(gates)),
            betas=draw(st.sampled_from(betas)),
            keys=draw(st.sampled_from(("normal", "normal", "repeated", "zero", "tiny"))),
            values=draw(st.sampled_from(("normal", "normal", "spread", "large"))),
        )
    return Inputs(seed=draw(st.integers(0, 2**31 - 1)), **regimes)


def _options(draw: Draw, level: str, exact: bool) -> Options:
    if exact:
        return Options(
            scale=draw(st.sampled_from((1.0, 0.5))) if level == "delta" else None,
            use_qk_l2norm=False,
            conv_bias=level == "conv" and draw(st.booleans()),
            activation=None,
        )
    if level == "conv":
        return Options(conv_bias=draw(st.booleans()), activation=draw(st.sampled_from(("silu", None))))
    return Options(
        scale=draw(st.sampled_from((None, None, None, 1.0, 0.0))),
        use_qk_l2norm=level == "core" or draw(st.sampled_from((True, True, False))),
        conv_bias=level == "core" and draw(st.booleans()),
    )
