"""What a step must compute and leave in the cache: one row of a batch, from the bits of the slot that it read.

A step takes a request from n to n + m tokens. It writes, for every block j that holds one of its tokens,
state(min((j+1)B, n+m)) and window(min((j+1)B, n+m)) (DESIGN.md, section 3), and carries on at each boundary from
the value that it stored, rounded to the cache's dtype (section 4.3).

Imports torch and ``oracle``. Exercise it with ``pytest tests/oracle/test_cache.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from gdn_apc.oracle.compare import FLOOR, output_tolerance, state_tolerance, stored
from gdn_apc.oracle.conv import causal_conv1d, window_after
from gdn_apc.oracle.delta_rule import advance, check_inputs, prepare, recurrence
from gdn_apc.oracle.dtypes import round_to
from gdn_apc.oracle.perturb import OPERAND, Copies, Inputs


class Write(NamedTuple):
    """What a step leaves in one column: ``state: [HV, V, K]`` before it is rounded to the cache's dtype, or None;
    ``window: [W − 1, D]``, an exact copy of inputs, or None."""

    state: torch.Tensor | None
    window: torch.Tensor | None


@dataclass
class StepResult:
    """A step's exact results, float64.

    ``o``: [m, HV, V], or ``y``'s [m, D] for a convolution, not rounded; ``o_tol``: its tolerance, same shape.
    ``writes``: what the step leaves in each column from first to last scheduled; ``state_tol``: tolerance of the
    states there, [HV, V, K] each. Tolerances include the rounding to the stored dtype; ``o_unstored_tol`` and
    ``state_unstored_tol`` do not, and judge values that have not been stored yet.
    """

    o: torch.Tensor
    o_tol: torch.Tensor
    writes: dict[int, Write] = field(default_factory=dict)
    state_tol: dict[int, torch.Tensor] = field(default_factory=dict)
    o_unstored_tol: torch.Tensor | None = None
    state_unstored_tol: dict[int, torch.Tensor] = field(default_factory=dict)


def segments(n: int, m: int, B: int, C: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """The step's columns and the chunks in each: (column, [(start, end), …]) in tokens of the step."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for p in range(n, n + m):
        column, offset = p // B, p % B
        if not found or found[-1][0] != column:
            found.append((column, []))
        chunks = found[-1][1]
        if not chunks or offset % C == 0:
            chunks.append((p - n, p - n + 1))
        else:
            chunks[-1] = (chunks[-1][0], p - n + 1)
    return found


def _check_step(n: int, m: int, block_size: int, chunk_size: int, carried: object, name: str) -> None:
    """Raise ``ValueError`` for impossible counts, or state or window where none may be (or none where one must)."""
    if n < 0 or m < 0 or block_size < 1 or chunk_size < 1:
        raise ValueError(
            f"n, m, block_size, chunk_size: are {n}, {m}, {block_size}, {chunk_size}; "
            "expected counts of 0 or more and sizes of 1 or more"
        )
    if (carried is not None) != (n > 0) and m > 0:
        raise ValueError(
            f"{name}: is {'given' if carried is not None else 'None'} with n = {n}; "
            "a row reads its slot exactly if n > 0"
        )


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    n: int,
    block_size: int,
    chunk_size: int,
    state: torch.Tensor | None,
    dtypes: tuple[str, str],
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    one_token_fp32: bool = True,
    operand: str | None = None,
) -> StepResult:
    """The delta rule of one row: m = q.shape[0] tokens after n.

    ``q, k: [m, H, K]``, ``v: [m, HV, V]``, ``g, beta: [m, HV]`` in their own dtypes, taken as exact;
    ``state: [HV, V, K]``, the bits that the row read, None if and only if n = 0; ``dtypes``: names of the input
    and the state dtype. ``one_token_fp32``: the contract's fp32 throughout for a step of one token; False allows it
    the rounded operands of a chunk, for a target that does not claim that clause. ``operand``: the dtype of its
    products' operands, ``perturb.OPERAND`` by default.
    """
    check_inputs(q, k, v, g, beta, state)
    m = v.shape[0]
    _check_step(n, m, block_size, chunk_size, state, "state")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = v.shape[1] // q.shape[1]
    raw_q, raw_k = (x.double().repeat_interleave(group, dim=1)[None] for x in (q, k))
    disturbed = Inputs(
        raw_q, raw_k, v.double()[None], g.double()[None], beta.double()[None], scale, use_qk_l2norm
    )
    exact = prepare(q, k, v, g, beta, scale, use_qk_l2norm, torch.float64)
    return disturbed_step(exact, disturbed, n, block_size, chunk_size, state, dtypes, one_token_fp32, operand)


def disturbed_step(
    exact: Sequence[torch.Tensor],
    disturbed: Inputs,
    n: int,
    block_size: int,
    chunk_size: int,
    state: torch.Tensor | None,
    dtypes: tuple[str, str],
    one_token_fp32: bool = True,
    operand: str | None = None,
) -> StepResult:
    """``delta_step`` of prepared inputs: the exact ones (``delta_rule.prepare``), and those of the disturbed copies."""
    q, k, v, g, beta = exact
    m, HV, V = v.shape
    S = v.new_zeros(HV, V, q.shape[-1]) if state is None else state.double().clone()
    o = torch.empty_like(v)
    if m == 0:
        return StepResult(o, o.clone())
    copies = Copies(disturbed, operand or OPERAND[dtypes[0]], S, one_token=m == 1 and one_token_fp32)
    result = StepResult(o, torch.empty_like(o))
    magnitude = torch.maximum(S.abs().amax((1, 2), keepdim=True), v.abs().amax((0, 2))[:, None, None])
    overflowed = dtypes[1] == "fp16" or not bool(S.isfinite().all())  # fp16: perhaps, at any boundary
    deviations, gross, turned = [], torch.empty_like(o), torch.empty_like(o)
    decay, beta = (x[:, :, None, None] for x in (torch.exp(g), beta))
    columns = [x[..., None] for x in (q, k, v)]
    for column, chunks in segments(n, m, block_size, chunk_size):
        for start, end in chunks:
            for t in range(start, end):
                o[t] = advance(S, *(x[t] for x in columns), decay[t], beta[t]).sum(-1)
            near, gross[start:end], turned[start:end] = (
                copies.token() if copies.one_token else copies.chunk(start, end)
            )
            deviations.append(near - o[start:end])
        spread = copies.deviation(S), copies.parts
        # A rounding may be turned where no copy turned it: turns are rare and large, so they have a bound of their own.
        tolerance = state_tolerance(*_defined(overflowed, *spread), copies.roundoff, magnitude) + copies.moved
        result.state_unstored_tol[column] = tolerance
        result.state_tol[column] = stored(tolerance, S, dtypes[1])
        result.writes[column] = Write(S.clone(), None)
        if chunks[-1][1] < m:
            copies.persist(S, dtypes[1])
            S = round_to(S, dtypes[1])
    spread = torch.cat(deviations, 1), gross, turned
    result.o_unstored_tol = output_tolerance(
        *_defined(overflowed, *spread), copies.roundoff, magnitude[None, :, :, 0]
    )
    result.o_tol = stored(result.o_unstored_tol, o, dtypes[0])
    return result


def _defined(overflowed: bool, *spread: torch.Tensor) -> Sequence[torch.Tensor]:
    """After a stored state may have overflowed: rows that are not defined must not spoil the head's tolerance."""
    return [torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in spread] if overflowed else spread


def conv_step(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    n: int,
    block_size: int,
    window: torch.Tensor | None,
    activation: str | None,
    dtype: str,
    products: str = "fp32",
) -> StepResult:
    """The convolution of one row. ``x: [m, D]``, ``window: [W − 1, D]``, None if and only if n = 0.

    ``products``: the dtype that each product is rounded to before it is summed. The contract says fp32; a target that
    does not claim that clause is held to what it does instead.
    """
    _check_step(n, x.shape[0], block_size, 1, window, "window")
    W = weight.shape[1]
    y = causal_conv1d(x, weight, bias, window, activation, products=products)
    tolerance = conv_tolerance(x, weight, bias, window, activation, y)
    result = StepResult(y, stored(tolerance, y, dtype), o_unstored_tol=tolerance)
    for column, chunks in segments(n, x.shape[0], block_size, block_size):
        result.writes[column] = Write(None, window_after(x, window, chunks[-1][1], W))
    return result


@dataclass
class Contents:
    """What a whole request computes and leaves: ``o: [T, HV, V]``, its blocks at the end, and after each step."""

    o: torch.Tensor
    blocks: dict[int, Write]
    after_step: list[dict[int, Write]]


def block_contents(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    steps: Sequence[int],
    block_size: int,
    persist: str | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    x: torch.Tensor | None = None,
    conv_width: int | None = None,
) -> Contents:
    """What every cache block of a request holds, computed from 0 in steps of ``steps`` tokens each.

    ``persist=None``: the exact states, the same for every list of steps. With a dtype's name the design's persisted
    rounding: whatever is stored, at a boundary or at the end of a step, is rounded, and the request goes on from it.
    With ``x: [T, D]``, the convolution's inputs, and ``conv_width`` the blocks hold windows too. Other arguments as
    ``recurrence``'s. Raises ``ValueError`` if the steps do not add up to the request's length.
    """
    T = v.shape[0]
    if sum(steps) != T or any(m < 0 for m in steps):
        raise ValueError(f"steps: are {list(steps)}; expected token counts that add up to the request's {T}")
    if x is not None and conv_width is None:
        raise ValueError("conv_width: is None; expected the convolution's width, to cut windows from x")
    state, position = None, 0
    outputs, blocks, after_step = [], {}, []
    for m in steps:
        end_of_step = position + m
        while position < end_of_step:
            column = position // block_size
            stop = min((column + 1) * block_size, end_of_step)
            part = slice(position, stop)
            o, states = recurrence(
                *(t[part] for t in (q, k, v, g, beta)),
                scale=scale,
                initial_state=state,
                use_qk_l2norm=use_qk_l2norm,
            )
            state = states[-1] if persist is None else round_to(states[-1], persist)
            window = None if x is None else window_after(x, None, stop, conv_width)
            blocks[column] = Write(state, window)
            outputs.append(o)
            position = stop
        after_step.append(dict(blocks))
    return Contents(torch.cat(outputs) if outputs else v.double(), blocks, after_step)


def conv_tolerance(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor | None,
    activation: str | None,
    y: torch.Tensor,
) -> torch.Tensor:
    """Tolerance of ``y`` before it is stored: W + 1 roundings of an fp32 sum, then SiLU's exp and division."""
    absolute = causal_conv1d(
        x.abs(), weight.abs(), None if bias is None else bias.abs(), None if window is None else window.abs()
    )
    tolerance = (weight.shape[1] + 1) * 2.0**-24 * absolute
    if activation == "silu":
        # |silu'| < 1.1; sigmoid(z) near e^z for very negative z, so its relative error grows with |z|.
        tolerance = 1.1 * tolerance + 2.0**-23 * (2 + absolute) * y.abs()
    return tolerance + FLOOR * (1 + absolute)
