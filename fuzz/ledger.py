"""Must-happen events: what a campaign must have run through before green means anything.

Two tiers. *Reached*: every event has an explicit witness (``fuzz/witnesses.py``) that always runs. *Discovered*: the
random phase is counted, after the property's comparison passed, and must reach a floor (``fuzz/floors.py``).
Events are computed from the case alone, by the oracle's view of it, so a target cannot claim them.

Imports the standard library and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_ledger.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdn_apc.fuzz import geometry
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.facts import Fact, facts
from gdn_apc.fuzz.targets.base import Claims

DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Event:
    """An event: what it is, whether a case shows it, and why a target with these claims cannot (None if it can)."""

    name: str
    doc: str
    holds: Callable[[Case, list[Fact]], bool]
    missing: Callable[[Claims], str | None]


EVENTS: dict[str, Event] = {}


def event(missing: Callable[[Claims], str | None] = lambda claims: None) -> Callable:
    """Register a predicate over (case, facts) under its name and docstring."""

    def add(f: Callable) -> Callable:
        EVENTS[f.__name__] = Event(f.__name__, f.__doc__.strip(), f, missing)
        return f

    return add


def events_of(case: Case) -> Counter[str]:
    """The events that a case shows, each counted once."""
    if case.level == "metadata":
        return Counter()
    live = facts(case)
    return Counter(name for name, e in EVENTS.items() if e.holds(case, live))


def shown(case: Case) -> dict[str, object]:
    """What a case is about, for the record of a failure: its level, dtypes and events."""
    dtypes = f"{case.dtypes.input}/{case.dtypes.state}"
    return {"level": case.level, "dtypes": dtypes, "ledger": dict(events_of(case))}


def _batches(live: list[Fact]) -> Iterable[list[Fact]]:
    for step in {f.step for f in live}:
        yield [f for f in live if f.step == step]


def _cuts(case: Case, live: list[Fact]) -> Iterable[int]:
    """Where one prefill step ended and the next one of the same request began."""
    return (f.n for f in live if f.before and f.n == f.before.n + f.before.m and min(f.m, f.before.m) > 1)


def _delta(case: Case) -> bool:
    return case.level in ("delta", "core")


def _needs_delta(claims: Claims) -> str | None:
    return None if claims.seams & {"delta", "core"} else "no delta rule claimed"


def _needs_window(claims: Claims) -> str | None:
    return None if claims.seams & {"conv", "core"} else "no convolution claimed"


def _needs_any_start(claims: Claims) -> str | None:
    return None if claims.any_start else "no start off the chunk grid claimed"


def _needs_any_block(claims: Claims) -> str | None:
    return None if claims.block_multiple == 1 else f"block sizes are multiples of {claims.block_multiple}"


# ---- how requests live ----------------------------------------------------------------------------------------------


@event()
def cold_prefill(case, live):
    """a request's first step has two tokens or more"""
    return any(f.n == 0 and f.m > 1 for f in live)


@event()
def hit(case, live):
    """a request starts from a block that another request wrote"""
    return any(f.hit for f in live)


@event()
def hit_then_one_token(case, live):
    """the first step after a hit has one token"""
    return any(f.hit and f.m == 1 for f in live)


@event(_needs_window)
def hit_then_two_tokens_below_window(case, live):
    """the first step after a hit has two tokens, fewer than the window holds"""
    return case.level != "delta" and any(f.hit and f.m == 2 < case.sizes.W - 1 for f in live)


@event()
def shared_block_two_readers(case, live):
    """two requests start from one block"""
    read = Counter(geometry.read_slot(f.row, case.sizes.B) for f in live if f.hit)
    return any(count > 1 for count in read.values())


@event()
def preempt_resume(case, live):
    """a request loses its place and starts again"""
    return any(f.resumed for f in live)


@event()
def resumed_one_token_row(case, live):
    """the first step after a hit or a preemption has one token and reads a state"""
    return any((f.hit or f.resumed) and f.n > 0 and f.m == 1 for f in live)


@event()
def recycled_slot(case, live):
    """a slot is written that held another request's state"""
    return any(f.recycled for f in live)


# ---- what steps do --------------------------------------------------------------------------------------------------


@event()
def step_crosses_two_boundaries(case, live):
    """one step reaches two boundaries or more"""
    return any(f.end // case.sizes.B - f.n // case.sizes.B >= 2 for f in live)


@event()
def boundary_reached_by_decode(case, live):
    """a one-token step ends on a boundary"""
    return any(f.n > 0 and f.m == 1 and f.end % case.sizes.B == 0 for f in live)


@event(_needs_any_start)
def chunk_clipped_both_ends(case, live):
    """a prefill step begins and ends inside one chunk"""
    B, C = case.sizes.B, case.sizes.C
    return any(
        f.m > 1
        and len(geometry.chunks(f.n, f.m, B, C)) == 1
        and not geometry.on_grid(f.n, B, C)
        and not geometry.on_grid(f.end, B, C)
        for f in live
    )


@event(_needs_any_start)
def chunk_clipped_start(case, live):
    """a prefill step begins inside a chunk"""
    return any(f.m > 1 and not geometry.on_grid(f.n, case.sizes.B, case.sizes.C) for f in live)


@event()
def in_place_mid_block(case, live):
    """a step reads and writes one slot"""
    return any(f.n % case.sizes.B for f in live)


@event()
def free_cut_boundary(case, live):
    """a prefill goes on in the next step from a boundary"""
    return any(n % case.sizes.B == 0 for n in _cuts(case, live))


@event(lambda c: _needs_delta(c) or ("no fp32 state claimed" if "fp32" not in c.state_dtypes else None))
def free_cut_chunk_edge(case, live):
    """a prefill with an fp32 state goes on from a chunk edge inside a block"""
    B, C = case.sizes.B, case.sizes.C
    return (
        _delta(case)
        and case.dtypes.state == "fp32"
        and any(n % B and geometry.on_grid(n, B, C) for n in _cuts(case, live))
    )


@event(_needs_any_start)
def unfree_cut(case, live):
    """a prefill goes on from a place that is not a free cut"""
    s = case.sizes
    return any(not geometry.is_free_cut(n, s.B, s.C, case.dtypes.state) for n in _cuts(case, live))


@event(lambda c: None if c.skips_null else "null slots are not skipped")
def null_write_column(case, live):
    """a step passes through a column whose slot is null"""
    B = case.sizes.B
    return any(0 in (f.row.table[j] for j in geometry.write_columns(f.n, f.m, B)) for f in live)


# ---- what batches hold ----------------------------------------------------------------------------------------------


@event()
def fresh_one_token_row(case, live):
    """a request's first step has one token"""
    return any(f.n == 0 and f.m == 1 for f in live)


@event()
def fresh_one_token_in_decode_batch(case, live):
    """a request's first token runs among decodes, no row longer"""
    return any(
        all(f.m == 1 for f in batch) and {True, False} == {f.n > 0 for f in batch} for batch in _batches(live)
    )


@event()
def mixed_prefill_decode(case, live):
    """a batch has a prefill row and a decode row"""
    return any(
        any(f.m > 1 for f in batch) and any(f.m == 1 and f.n for f in batch) for batch in _batches(live)
    )


@event()
def uniform_rows_of_both_kinds(case, live):
    """all rows of a batch have one length of two or more, some fresh and some not"""
    return any(
        {f.m for f in batch} == {batch[0].m} and batch[0].m > 1 and len({f.n > 0 for f in batch}) == 2
        for batch in _batches(live)
    )


@event()
def as_many_rows_as_tokens(case, live):
    """the longest row of a batch has as many tokens as the batch has rows, two or more"""
    return any(
        len(step.rows) > 1 and max(row.m for row in step.rows) == len(step.rows) for step in case.steps
    )


@event()
def zero_length_row(case, live):
    """a request is in a batch with nothing scheduled"""
    return any(row.request is not None and row.m == 0 for _, _, row in geometry.rows(case))


@event()
def zero_length_row_between(case, live):
    """an empty row lies between two rows with tokens"""
    lengths = ([row.m for row in step.rows] for step in case.steps)
    return any(m == 0 and any(ms[:i]) and any(ms[i:]) for ms in lengths for i, m in enumerate(ms))


@event()
def padding_row_stale(case, live):
    """a padding row has a stale length and a stale table"""
    return any(row.request is None and row.n and any(row.table) for _, _, row in geometry.rows(case))


# ---- sizes ----------------------------------------------------------------------------------------------------------


@event(_needs_any_block)
def block_size_one(case, live):
    """B = 1"""
    return case.sizes.B == 1


@event(lambda c: _needs_window(c) or _needs_any_block(c))
def block_smaller_than_window(case, live):
    """1 < B < W − 1 inputs of a window"""
    return case.level != "delta" and 1 < case.sizes.B < case.sizes.W - 1


@event(_needs_any_block)
def block_not_multiple_of_chunk(case, live):
    """B > C and B is not a multiple of C"""
    return case.sizes.B > case.sizes.C and case.sizes.B % case.sizes.C > 0


@event(_needs_any_block)
def chunk_not_multiple_of_block(case, live):
    """1 < B < C and C is not a multiple of B"""
    return 1 < case.sizes.B < case.sizes.C and case.sizes.C % case.sizes.B > 0


@event(_needs_delta)
def grouped_value_heads(case, live):
    """more value heads than key heads"""
    return _delta(case) and case.sizes.HV > case.sizes.H


@event(
    lambda c: _needs_delta(c) or (None if c.head_sizes is None or len(c.head_sizes) > 1 else "one head size")
)
def k_ne_v(case, live):
    """K ≠ V"""
    return _delta(case) and case.sizes.K != case.sizes.V


@event(lambda c: _needs_delta(c) or (None if c.head_sizes is None else f"head sizes {sorted(c.head_sizes)}"))
def k_not_power_of_two(case, live):
    """K is not a power of two"""
    return _delta(case) and case.sizes.K & (case.sizes.K - 1) > 0


# ---- numbers --------------------------------------------------------------------------------------------------------


def _regime(
    ingredient: str, regime: str, doc: str, extra: Callable[[Case], bool] = lambda case: True
) -> Callable:
    def holds(case, live):
        return _delta(case) and getattr(case.inputs, ingredient) == regime and extra(case)

    holds.__doc__ = doc
    return holds


for _name, _holds in {
    "long_decay_zero_gate": _regime("gates", "zero", "gates of exactly 0: nothing decays"),
    "strong_decay": _regime("gates", "minus5", "gates of −5: exp of a chunk's sum is 0 in fp32"),
    "total_decay": _regime("gates", "total", "gates of log(1e-12)"),
    "mixed_decay": _regime("gates", "mixed", "all kinds of gates in one chunk"),
    "beta_zero": _regime("betas", "zero", "beta = 0: nothing is written"),
    "beta_one": _regime("betas", "one", "beta = 1: a key's old value is replaced"),
    "zero_key": _regime(
        "keys", "zero", "keys of length 0", lambda c: not (c.level == "core" and c.options.conv_bias)
    ),
    "repeated_key": _regime("keys", "repeated", "a key that stands in a chunk several times"),
}.items():
    EVENTS[_name] = Event(_name, _holds.__doc__, _holds, _needs_delta)


@event(lambda c: _needs_window(c) or (None if c.input_dtypes - {"fp32"} else "only fp32 inputs"))
def window_wider_than_input(case, live):
    """an fp32 window of 16-bit inputs"""
    return case.level != "delta" and case.dtypes.conv != case.dtypes.input


def _pair(i: str, s: str) -> Event:
    def missing(claims: Claims) -> str | None:
        claimed = i in claims.input_dtypes and s in claims.state_dtypes
        return _needs_delta(claims) or (None if claimed else f"{i}/{s} is not claimed")

    return Event(
        f"dtypes_{i}_{s}",
        f"{i} inputs, {s} state",
        lambda case, live: _delta(case) and (case.dtypes.input, case.dtypes.state) == (i, s),
        missing,
    )


EVENTS |= {e.name: e for e in (_pair(i, s) for i in DTYPES for s in DTYPES)}
