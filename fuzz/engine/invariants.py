"""The nine invariants of DESIGN.md section 3, one function each, by the names that it gives them.

Each looks at a ``Life`` (``fuzz/engine/life.py``) at the moment that DESIGN.md says, and raises ``Violation``
with the invariant, step, request, block, slot, what was expected and what was found. They derive columns from
token positions and contents from labels, and share no formula with the engine.

Imports ``fuzz.engine``, ``fuzz.properties.base`` and the standard library. Exercise it with
``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from gdn_apc.fuzz.engine.labels import ATTENTION, NULL, STATE, Label
from gdn_apc.fuzz.engine.rows import Batch, EngineRow, Touch, contract, move_labels
from gdn_apc.fuzz.properties.base import Violation

if TYPE_CHECKING:
    from gdn_apc.fuzz.engine.life import Life
    from gdn_apc.fuzz.engine.scheduler import Live


def fail(life: Life, invariant: str, says: str, expected: object, actual: object, **where: Any) -> NoReturn:
    """Raise the ``Violation``: ``where`` has any of request, block and slot."""
    place = "".join(f", {name} {value}" for name, value in where.items() if value is not None)
    raise Violation(
        f"{invariant}: step {life.step}{place}: {says}; expected {expected}, found {actual}",
        invariant=invariant,
        step=life.step,
        expected=str(expected),
        actual=str(actual),
        **where,
    )


def planned(life: Life) -> list[Label]:
    """What every slot will hold after the batches in flight and the open one have run, by the contract."""
    contents, size = list(life.worker.contents), life.config.block_size
    for batch in (*life.engine.pipe, life.engine.open):
        move_labels(contents, batch, [contract(row, size) for row in batch.rows], life.streams, size)
    return contents


# When a row is scheduled


def SharedImmutable(life: Life, row: EngineRow) -> None:
    """No row is scheduled to write a slot that is published, or that another request refers to."""
    for kind, column, slot, _ in contract(row, life.config.block_size).writes:
        where = {"request": row.request, "block": column, "slot": slot}
        if slot in life.engine.pool.key_of:
            holds = life.label_of(life.engine.pool.key_of[slot])
            fail(
                life,
                "SharedImmutable",
                f"{row} writes a published slot",
                "a slot not published",
                holds,
                **where,
            )
        others = sorted({r for r, _, _ in life.referents(slot)} - {row.request})
        if others:
            says = f"{row} writes a {kind} slot that others refer to"
            fail(life, "SharedImmutable", says, "no other request", f"requests {others}", **where)


def WriteExclusive(
    life: Life, rows: list[EngineRow], touched: list[Touch], scheduled: EngineRow | None
) -> None:
    """A scheduled row's write slots have one referent, its request; no two rows of a batch write one slot."""
    writer: dict[int, EngineRow] = {}
    for row, touch in zip(rows, touched):
        allowed = contract(row, life.config.block_size).writes
        for kind, column, slot, end in touch.writes:
            where = {"request": row.request, "block": column, "slot": slot}
            if (kind, column, slot, end) not in allowed:
                fail(
                    life, "WriteExclusive", f"{row} writes a slot that is not its own", allowed, slot, **where
                )
            if slot in writer:
                says = f"two rows of a batch write one slot: {row}; {writer[slot]}"
                fail(life, "WriteExclusive", says, "one writer", "two", **where)
            writer[slot] = row
            referents = life.referents(slot) if row is scheduled else ()
            if row is scheduled and [(r, k, j) for r, k, j in referents] != [(row.request, kind, column)]:
                says = f"{row} writes a slot that its column alone does not refer to"
                fail(life, "WriteExclusive", says, [(row.request, kind, column)], referents, **where)


def HitLongest(life: Life, request: Live, blocks: int) -> None:
    """A lookup finds the longest prefix that is cached and leaves a token to compute: no less, and no more.

    The reference stores everything that was ever written: the labels of all slots. A slot given out again
    holds poison, so it is no longer among them.
    """
    have, size = set(planned(life)), life.config.block_size
    longest = 0
    for k in range(1, (request.known - 1) // size + 1):
        if life.config.attention and life.streams.label(ATTENTION, request.id, k * size) not in have:
            break
        if life.streams.label(STATE, request.id, k * size) in have:
            longest = k
    if blocks != longest:
        says = (
            "the lookup lost a hit"
            if blocks < longest
            else "the lookup returns more than is cached, or all tokens"
        )
        fail(
            life,
            "HitLongest",
            says,
            f"{longest} blocks",
            f"{blocks} blocks",
            request=request.id,
            block=longest,
        )


# When a batch runs


def StateTrue(life: Life, batch: Batch, touched: list[Touch]) -> None:
    """What the row of a live request reads is state(n) and window(n) (and attention blocks) of its own tokens."""
    for row, touch in zip(batch.rows, touched):
        if not life.engine.is_live(row):
            continue
        for kind, column, slot, n in contract(row, life.config.block_size).reads:
            right = life.streams.label(kind, row.request, n)
            where = {"request": row.request, "block": column, "slot": slot}
            if (kind, column, slot, n) not in touch.reads:
                instead = [read for read in touch.reads if read[0] == kind]
                fail(life, "StateTrue", f"{row} does not read its {kind}", right, f"reads {instead}", **where)
            if life.worker.contents[slot] != right:
                fail(
                    life,
                    "StateTrue",
                    f"{row} reads the wrong {kind}",
                    right,
                    life.worker.contents[slot],
                    **where,
                )


def FreshStart(life: Life, batch: Batch, touched: list[Touch]) -> None:
    """A row with n = 0 reads no state, whatever its slot holds, also when m = 1."""
    for row, touch in zip(batch.rows, touched):
        if row.request is not None and row.n == 0 and touch.reads:
            _, column, slot, _ = touch.reads[0]
            where = {"request": row.request, "block": column, "slot": slot}
            fail(
                life,
                "FreshStart",
                f"{row} reads a state",
                "nothing read",
                life.worker.contents[slot],
                **where,
            )


def NullUntouched(life: Life, batch: Batch, touched: list[Touch]) -> None:
    """No live row touches the null slot, and padding rows touch nothing."""
    for row, touch in zip(batch.rows, touched):
        for does, places in (("reads", touch.reads), ("writes", touch.writes)):
            for kind, column, slot, _ in places:
                where = {"request": row.request, "block": column, "slot": slot}
                if row.m == 0:
                    fail(
                        life,
                        "NullUntouched",
                        f"{row} {does} a {kind} slot",
                        "nothing",
                        f"slot {slot}",
                        **where,
                    )
                if slot == 0:
                    fail(
                        life,
                        "NullUntouched",
                        f"{row} {does} the null slot",
                        "another slot",
                        "slot 0",
                        **where,
                    )
    if life.worker.contents[0] != NULL:
        fail(life, "NullUntouched", "the null slot has changed", NULL, life.worker.contents[0], slot=0)


# After every event


def PublishTrue(life: Life) -> None:
    """Replaying the steps in flight leaves, in every published slot, the state that its hash names."""
    contents = planned(life)
    for slot, key in life.engine.pool.key_of.items():
        named = life.label_of(key)
        if contents[slot] != named:
            says = "a published slot will not hold what its hash names"
            where = {"request": named.owner, "block": (named.n - 1) // life.config.block_size, "slot": slot}
            fail(life, "PublishTrue", says, named, contents[slot], **where)


def CountsExact(life: Life) -> None:
    """A slot is in use while a table refers to it; counts say so exactly, and the free list has all the others."""
    pool = life.engine.pool
    count = Counter(slot for r in life.engine.requests for t in r.tables.values() for slot in t if slot)
    for slot in range(1, pool.num_slots):
        where = {"request": next((r for r, _, _ in life.referents(slot)), None), "slot": slot}
        if pool.refs[slot] != count[slot]:
            says = "the reference count is not the number of table entries"
            fail(life, "CountsExact", says, count[slot], pool.refs[slot], **where)
        if (slot in pool.free) != (count[slot] == 0):
            says = "the free list is wrong about a slot"
            expected, actual = ("free", "in use") if count[slot] == 0 else ("in use", "free")
            fail(life, "CountsExact", says, expected, actual, **where)
    if 0 in pool.free or len(pool.free) > pool.num_slots - 1:
        fail(life, "CountsExact", "the null slot is free", "never given out", list(pool.free), slot=0)


# At the end of a life


def Progress(life: Life, passes: int) -> None:
    """Under fair scheduling, with no abort and a pool that fits the largest request, every request finishes."""
    stuck = [r for r in life.engine.requests if r.status in ("waiting", "running")]
    if stuck:
        first = stuck[0]
        says = f"after {passes} fair passes {len(stuck)} requests are unfinished"
        actual = f"{first.status} at {first.computed} of {first.length} tokens"
        fail(life, "Progress", says, "finished", actual, request=first.id)
