"""Wrong computations that a row may have made: each is the recurrence with one thing changed, held against the row's bits.

"It started from nothing", "it went on from the unrounded state", "beta went through bf16": if such a model gives what the
target gave, within tolerance, and the right model does not, it explains the failure.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py -k explains``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.runner import RanRow, World
from gdn_apc.fuzz.triage.moves import Match
from gdn_apc.fuzz.triage.survey import Survey, View

MOST = 4_000_000
"""Elements of state times tokens up to which models are tried: a shrunk case is far below."""


@dataclass(frozen=True)
class Changes:
    """What a model does otherwise. ``state`` and ``window`` replace what is read, if ``reads`` names them."""

    reads: frozenset[str] = frozenset()
    state: torch.Tensor | None = None
    window: torch.Tensor | None = None
    carry: str = "stored"  # or "unrounded", "nothing", "start"
    beta: str = ""
    gate: str = ""
    late_decay: bool = False
    heads: str = "groups"
    scale: float | None = None
    norm: bool | None = None
    rounds: str = ""  # a dtype that the state passes through when it is stored


def prepared(
    world: World, r: RanRow, window: Any = "own", y: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """q, k, v, g, beta of a row, float64; at the level ``core`` by way of the exact convolution and gates.

    ``y``: take this for the convolution's output; the target's own one, where that is right, so that ties it rounded
    the other way do not hide what comes after.
    """
    if world.case.level == "delta":
        return [r.inputs[name].double() for name in ("q", "k", "v", "g", "beta")]
    layer, s = world.layer, world.case.sizes
    if y is None:
        held = r.window if isinstance(window, str) else window
        exact = oracle.causal_conv1d(
            r.inputs["x"], layer.conv_weight, layer.conv_bias, held, layer.activation
        )
        y = oracle.round_to(exact, world.case.dtypes.input)
    y = y.double()
    q, k, v = oracle.split_qkv(y, s.H, s.HV, s.K, s.V)
    g, beta = oracle.gates(r.inputs["a"], r.inputs["b"], layer.A_log, layer.dt_bias)
    return [q, k, v, g, beta]


def run(world: World, view: View, c: Changes) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """A model's outputs [m, HV, V] and the states that it leaves, by column; float64, not rounded at the end."""
    r, layer, s, d = view.r, world.layer, world.case.sizes, world.case.dtypes
    own = None if "window" in c.reads else view.y
    q, k, v, g, beta = prepared(world, r, c.window if "window" in c.reads else "own", own)
    start = c.state if "state" in c.reads else r.state
    norm = layer.use_qk_l2norm if c.norm is None else c.norm
    scale = layer.scale if c.scale is None else c.scale
    if norm:
        q, k = oracle.l2norm(q), oracle.l2norm(k)
    group = (
        [h % s.H for h in range(s.HV)] if c.heads == "in turn" else [h // (s.HV // s.H) for h in range(s.HV)]
    )
    q, k = q[:, group] * scale, k[:, group]
    if c.beta:
        beta = torch.ones_like(beta) if c.beta == "one" else oracle.round_to(beta, c.beta)
    if c.gate:
        g = _gate(g, c.gate, r.index)
    S = (
        torch.zeros_like(view.want.writes[min(view.want.writes)].state)
        if start is None
        else start.double().clone()
    )
    first = S.clone()
    outs, left = [], {}
    for t in range(r.row.m):
        p = r.row.n + t
        decay = torch.exp(g[t])[:, None, None]
        S = S if c.late_decay else S * decay
        u = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
        S = S + u[:, :, None] * k[t][:, None, :]
        S = S * decay if c.late_decay else S
        outs.append(torch.einsum("hvk,hk->hv", S, q[t]))
        if (p + 1) % s.B == 0 or t == r.row.m - 1:
            left[p // s.B] = oracle.round_to(S, c.rounds) if c.rounds else S
            if t < r.row.m - 1:
                S = {
                    "stored": oracle.round_to(S, d.state),
                    "nothing": torch.zeros_like(S),
                    "start": first,
                }.get(c.carry, S)
    return torch.stack(outs), left


def _gate(g: torch.Tensor, how: str, row: int) -> torch.Tensor:
    if how == "clipped":
        return g.clamp(max=-1e-5)
    if how == "row":
        return g[[min(row, len(g) - 1)] * len(g)]
    if how == "none":
        return torch.zeros_like(g)
    return oracle.round_to(g, how)


def explains(world: World, view: View, c: Changes) -> bool:
    """Whether a model gives the row's outputs and states, within tolerance."""
    o, left = run(world, view, c)
    d = world.case.dtypes
    pairs = [(o, view.r.out, view.want.o_tol, d.input)]
    for column, parts in view.r.writes.items():
        if "ssm" in parts:
            pairs.append((left[column], parts["ssm"], view.want.state_tol[column], d.state))
    for want, actual, tol, dtype in pairs:
        slack = tol.nan_to_num(0.0) * 1.5 + 2.0**-22 * want.abs()
        if not bool((oracle.ratios(want, actual, slack, dtype) <= 1).all()):
            return False
    return True


def explanation(found: Survey, view: View) -> tuple[str, Match] | None:
    """The first model that explains a row: (read, carry or compute; what it is). None if none does."""
    s = found.world.case.sizes
    if found.world.case.level == "conv" or view.r.row.m * s.HV * s.V * s.K > MOST:
        return None
    if explains(found.world, view, Changes()):
        return (
            None  # the difference is not in what the recurrence gives, or it is within 1.5 of the tolerance
        )
    for seam, match, changes in _models(found, view):
        if explains(found.world, view, changes):
            return seam, match
    return None


def _models(found: Survey, view: View) -> Iterator[tuple[str, Match, Changes]]:
    world, r = found.world, view.r
    start = r.row.n
    if r.state is not None:
        yield (
            "read",
            Match("nothing", f"it starts from nothing, though it has {start} computed tokens"),
            _reads(state=None),
        )
        yield (
            "read",
            Match("transposed", "it reads its state with keys and values exchanged"),
            _reads(state=r.state.mT.reshape(r.state.shape)),
        )
    once = _once_written(found, view)
    if once is not None:
        yield (
            "read",
            Match(
                "kept",
                "it starts from what was once written to its slot, not from what the slot holds: a copy is kept elsewhere",
            ),
            _reads(state=once),
        )
    for slot, state in _finite_slots(found, view):
        kind = "fresh" if start == 0 else "slot"
        yield (
            "read",
            Match(kind, f"it starts from what slot {slot} holds{_named(found, view, slot)}"),
            _reads(state=state),
        )
    if world.case.level == "core":
        yield "read", Match("window", "its convolution starts from zeros"), _reads(window=None)
    if len(view.want.writes) > 1:
        for carry, says in (
            ("unrounded", "after a boundary it goes on from the unrounded state, not from the stored one"),
            ("nothing", "after a boundary it goes on from nothing"),
            ("start", "after a boundary it goes on from the state that it started with"),
        ):
            yield "carry", Match(carry, says), Changes(carry=carry)
    yield from (("compute", m, c) for m, c in _numerics(world, r))


def _numerics(world: World, r: RanRow) -> Iterator[tuple[Match, Changes]]:
    layer, s, d = world.layer, world.case.sizes, world.case.dtypes
    for name in ("bf16", "fp16"):
        yield Match("operand", f"beta is rounded to {name}"), Changes(beta=name)
        yield Match("operand", f"the gate is rounded to {name}"), Changes(gate=name)
        if d.state == "fp32":
            yield Match("operand", f"states are rounded to {name} when they are stored"), Changes(rounds=name)
    yield Match("gate", "a gate of 0 is clipped to -1e-5"), Changes(gate="clipped")
    yield Match("gate", "the gate is ignored"), Changes(gate="none")
    yield Match("gate", "the decay comes after the update, not before"), Changes(late_decay=True)
    if r.index:
        yield (
            Match("neighbour", f"the gate is that of token {r.index}, the row's number"),
            Changes(gate="row"),
        )
    yield Match("operand", "beta is ignored"), Changes(beta="one")
    if s.HV > s.H > 1:
        yield Match("head", "value heads take key heads in turn, not in groups"), Changes(heads="in turn")
    yield (
        Match("norm", "the keys' norm is applied the other way round"),
        Changes(norm=not layer.use_qk_l2norm),
    )
    for scale in (s.K**-0.5, 1.0):
        if scale != layer.scale:
            yield Match("scale", f"the scale is {scale:g}, not {layer.scale:g}"), Changes(scale=scale)


def _reads(**what: Any) -> Changes:
    return Changes(reads=frozenset(what), **what)


def _finite_slots(found: Survey, view: View) -> Iterator[tuple[int, torch.Tensor]]:
    """Every slot with a finite state before the row's step, but the one that it should read."""
    from gdn_apc.fuzz.geometry import read_slot

    world, pages = found.world, found.world.pages
    if pages.num_slots > 64:
        return
    right = read_slot(view.r.row, world.case.sizes.B)
    now = pages.snapshot()
    try:
        pages.restore(found.ran[view.r.step].before)
        held = {slot: pages.ssm[slot].clone() for slot in range(pages.num_slots) if slot != right}
    finally:
        pages.restore(now)
    own = [slot for slot in view.r.row.table if slot in held]
    for slot in dict.fromkeys([*own, *held]):
        if bool(held[slot].isfinite().all()) and bool(held[slot].double().any()):
            yield slot, held[slot]


def _once_written(found: Survey, view: View) -> torch.Tensor | None:
    """What the last writer of the row's slot left there, if the slot holds something else by now."""
    from gdn_apc.fuzz.geometry import read_slot, write_slots

    B = found.world.case.sizes.B
    slot = read_slot(view.r.row, B)
    for other in reversed([v for v in found.views if v.r.step < view.r.step]):
        for column, s in write_slots(other.r.row, B):
            if s == slot and slot is not None:
                state = other.r.writes[column].get("ssm")
                return None if state is None or torch.equal(bits(state), bits(view.r.state)) else state
    return None


def _named(found: Survey, view: View, slot: int) -> str:
    """Which column of which row a slot is, for a sentence."""
    if slot == 0:
        return ", the null block"
    if slot in view.r.row.table:
        return f", column {view.r.row.table.index(slot)} of its table"
    for j, row in enumerate(found.world.case.steps[view.r.step].rows):
        if slot in row.table:
            return f", column {row.table.index(slot)} of row {j}"
    return ", which no row of the batch names"
