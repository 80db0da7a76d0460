"""One explicit case for each event of the ledger, as small as it can be, always run: the *reached* tier.

``witness(name, target)`` builds it inside what the target claims, for the property ``values``. Imports ``fuzz``.
Exercise it with ``pytest tests/fuzz/test_ledger.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Pool, Sizes
from gdn_apc.fuzz.ledger import DTYPES, EVENTS
from gdn_apc.fuzz.strategies.planner import Planner
from gdn_apc.fuzz.strategies.settings import Setting, pairs, scale_of
from gdn_apc.fuzz.targets.base import Claims, Target

Script = Callable[[Planner], None]


def witness(name: str, target: Target) -> Case:
    """The case that reaches an event.

    Raises ``ValueError`` for an unknown event, or one that the target's claims exclude.
    """
    if name not in EVENTS:
        raise ValueError(f"event: {name!r} is unknown, expected one of {', '.join(EVENTS)}")
    reason = EVENTS[name].missing(target.claims)
    if reason:
        raise ValueError(f"event: {name} cannot be reached on {target.name}: {reason}")
    setting = _setting(target, CHANGES.get(name, {}))
    plan = setting.planner()
    SCRIPTS.get(name, _hit_and_decode)(plan)
    return setting.case("values", plan, note=f"witness of {name}")


def needed(target: Target) -> dict[str, str | None]:
    """Every event, and why the target cannot reach it (None if it can)."""
    return {name: e.missing(target.claims) for name, e in EVENTS.items()}


def _setting(target: Target, change: dict[str, Any]) -> Setting:
    claims = target.claims
    C = min(claims.chunk_sizes)
    width = min(claims.head_sizes) if claims.head_sizes is not None else 16
    B = -(-C // claims.block_multiple) * claims.block_multiple
    sizes = dict(H=1, HV=2, K=width, V=width, W=4, B=B, C=C)
    for name, value in change.items():
        if name in sizes:
            sizes[name] = value(claims, sizes) if callable(value) else value
    wanted = change.get("pair", lambda pair: True)
    i, s = next(pair for pair in pairs(claims) if wanted(pair))
    level = next(x for x in change.get("levels", ("core", "delta", "conv")) if x in claims.seams)
    inputs = {k: change[k] for k in ("gates", "betas", "keys") if k in change}
    return Setting(
        level=level,
        sizes=Sizes(**sizes),
        dtypes=Dtypes(i, s, change.get("conv", i)),
        inputs=Inputs(seed=1, **inputs),
        options=Options(),
        pool=Pool(0, page_padding=64),
        scale=scale_of(target),
        claims=claims,
        slot_seed=1,
        trailing=0,
    )


def _then(plan: Planner, *batches: Callable[[], Any]) -> None:
    """Run batches one after the other."""
    for batch in batches:
        batch()
        plan.end_step()


def _hit_and_decode(p: Planner) -> None:
    """A donor, a reader of its block, and a decode of both: what events of sizes and numbers run through."""
    k = 2 if p.sizes.B == 1 else 1
    _then(
        p,
        lambda: p.admit(k * p.sizes.B + 2),
        lambda: p.hit(0, k, 3),
        lambda: (p.advance(0, 1), p.advance(1, 1)),
    )


def _hits(*rows: int) -> Script:
    """A donor of one block, then readers of it with so many tokens each, in one batch."""
    return lambda p: _then(p, lambda: p.admit(p.sizes.B), lambda: [p.hit(0, 1, m) for m in rows])


def _cut(at: Callable[[Sizes], int]) -> Script:
    """One prefill in two steps."""
    return lambda p: _then(p, lambda: p.admit(at(p.sizes)), lambda: p.advance(0, 3))


def _rows(*lengths: int) -> Script:
    """A first batch of two prompts, then one batch: 1 or more continues one, 0 is an empty row, −m starts a request."""

    def script(p: Planner) -> None:
        _then(p, lambda: (p.admit(3), p.admit(5), p.admit(2)))
        old = iter((0, 1, 2))
        for m in lengths:
            if m < 0:
                p.admit(-m)
            elif m == 0:
                p.zero(next(old))
            else:
                p.advance(next(old), m)

    return script


def _resume(k: int) -> Script:
    def script(p: Planner) -> None:
        _then(p, lambda: p.admit(p.sizes.B + 1), lambda: p.advance(0, 1))
        p.preempt(0, recycle=not k)
        p.resume(0, k, 1)

    return script


def _recycle(p: Planner) -> None:
    _then(p, lambda: p.admit(p.sizes.B))
    p.finish(0, recycle=True)
    p.admit(2)


SCRIPTS: dict[str, Script] = {
    "cold_prefill": lambda p: p.admit(3),
    "hit": _hits(3),
    "hit_then_one_token": _hits(1),
    "hit_then_two_tokens_below_window": _hits(2),
    "shared_block_two_readers": _hits(1, 3),
    "preempt_resume": _resume(0),
    "resumed_one_token_row": _resume(1),
    "recycled_slot": _recycle,
    "step_crosses_two_boundaries": lambda p: p.admit(2 * p.sizes.B + 1),
    "boundary_reached_by_decode": lambda p: _then(p, lambda: p.admit(p.sizes.B - 1), lambda: p.advance(0, 1)),
    "chunk_clipped_both_ends": lambda p: _then(p, lambda: p.admit(3), lambda: p.advance(0, 2)),
    "chunk_clipped_start": lambda p: _then(p, lambda: p.admit(3), lambda: p.advance(0, p.sizes.C)),
    "in_place_mid_block": lambda p: _then(p, lambda: p.admit(3), lambda: p.advance(0, 1)),
    "free_cut_boundary": _cut(lambda s: s.B),
    "free_cut_chunk_edge": _cut(lambda s: s.C),
    "unfree_cut": _cut(lambda s: 5),
    "null_write_column": lambda p: _then(
        p,
        lambda: p.admit(2),
        lambda: p.advance(0, 2 * p.sizes.B, null_interior=True),
        lambda: p.advance(0, 1),
    ),
    "fresh_one_token_row": lambda p: p.admit(1),
    "fresh_one_token_in_decode_batch": _rows(1, 1, -1),
    "mixed_prefill_decode": _rows(1, -4),
    "uniform_rows_of_both_kinds": lambda p: _then(
        p, lambda: p.admit(p.sizes.B), lambda: (p.hit(0, 1, 2), p.admit(2))
    ),
    "as_many_rows_as_tokens": _rows(1, -2),
    "zero_length_row": _rows(0, -2),
    "zero_length_row_between": _rows(1, 0, -2),
    "padding_row_stale": lambda p: _then(p, lambda: p.admit(3), lambda: (p.pad(7, 0), p.advance(0, 1))),
}
"""By event; the others run ``_hit_and_decode`` with their sizes, dtypes or regimes."""


def _other_width(claims: Claims, sizes: dict[str, int]) -> int:
    """A value width that is not the key width."""
    return 8 if claims.head_sizes is None else max(claims.head_sizes)


CHANGES: dict[str, dict[str, Any]] = {
    "hit_then_two_tokens_below_window": dict(levels=("core", "conv")),
    "free_cut_chunk_edge": dict(
        pair=lambda pair: pair[1] == "fp32",
        B=lambda claims, s: -(-3 * s["C"] // claims.block_multiple) * claims.block_multiple,
        levels=("core", "delta"),
    ),
    "block_size_one": dict(B=1),
    "block_smaller_than_window": dict(B=2, levels=("core", "conv")),
    "block_not_multiple_of_chunk": dict(B=lambda claims, s: s["C"] + s["C"] // 2),
    "chunk_not_multiple_of_block": dict(B=5),
    "grouped_value_heads": dict(levels=("core", "delta")),
    "k_ne_v": dict(V=_other_width, levels=("core", "delta")),
    "k_not_power_of_two": dict(K=24, levels=("core", "delta")),
    "window_wider_than_input": dict(pair=lambda p: p[0] != "fp32", conv="fp32", levels=("core", "conv")),
    "long_decay_zero_gate": dict(gates="zero", levels=("core", "delta")),
    "strong_decay": dict(gates="minus5", levels=("core", "delta")),
    "total_decay": dict(gates="total", levels=("core", "delta")),
    "mixed_decay": dict(gates="mixed", levels=("core", "delta")),
    "beta_zero": dict(betas="zero", levels=("core", "delta")),
    "beta_one": dict(betas="one", levels=("core", "delta")),
    "zero_key": dict(keys="zero", levels=("delta", "core")),
    "repeated_key": dict(keys="repeated", levels=("delta", "core")),
} | {
    f"dtypes_{i}_{s}": dict(pair=(i, s).__eq__, levels=("core", "delta"))
    for i, s in itertools.product(DTYPES, repeat=2)
}
"""What a witness changes of the default setting."""
