"""Faults of an engine or of its worker that the invariants must see: flags, and which invariant may name each.

Each is a mistake that engines have made (``upstream`` in the catalogue names reports). They are planted
in our own engine, so they measure the machine: how many lives until the fault is found.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_engine_faults.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """One flag a fault; all off is the engine as designed. ``CATALOGUE`` says what each does."""

    drop_published_row: bool = False
    keep_hash_of_dropped_row: bool = False
    no_same_step_guard: bool = False
    write_shared_block: bool = False
    no_clamp: bool = False
    wrong_block_size: bool = False
    keep_hash_of_recycled_slot: bool = False
    publish_partial_block: bool = False
    free_in_use: bool = False
    leak_reference: bool = False
    padding_writes: bool = False
    null_written: bool = False
    has_state_by_length: bool = False
    fresh_by_length: bool = False
    evict_referenced: bool = False
    lost_hit: bool = False
    lost_block: bool = False
    out_of_order: bool = False
    starve: bool = False


NONE = Faults()


@dataclass(frozen=True)
class Planted:
    """``doc`` says what goes wrong, ``caught_by`` which invariants may name it, ``upstream`` where it was seen."""

    doc: str
    caught_by: frozenset[str]
    upstream: str = ""


def _planted(doc: str, caught_by: str, upstream: str = "") -> Planted:
    return Planted(doc, frozenset(caught_by.split()), upstream)


CATALOGUE: dict[str, Planted] = {
    "drop_published_row": _planted(
        "rows in flight of an aborted or preempted request never run, while their hashes stay published",
        "PublishTrue StateTrue",
        "vllm#56525",
    ),
    "keep_hash_of_dropped_row": _planted(
        "a victim's row is taken out of the batch being built, while its hashes stay published",
        "PublishTrue StateTrue",
    ),
    "no_same_step_guard": _planted(
        "a hash that this batch publishes is hit by another row of it, which reads before the write",
        "StateTrue PublishTrue",
        "vllm#29387",
    ),
    "write_shared_block": _planted(
        "after a hit the request continues in the block that it hit instead of a block of its own",
        "SharedImmutable WriteExclusive",
        "vllm#56196",
    ),
    "no_clamp": _planted("a hit of the whole prompt leaves no token to compute", "HitLongest", "vllm#53706"),
    "wrong_block_size": _planted(
        "the read column is computed with another block size",
        "StateTrue NullUntouched PublishTrue",
        "vllm#55600",
    ),
    "keep_hash_of_recycled_slot": _planted(
        "a block's hash is not cleared when the block is given to another request",
        "PublishTrue SharedImmutable HitLongest",
    ),
    "publish_partial_block": _planted(
        "the block that a step ends in is published as if it were full",
        "PublishTrue HitLongest",
        "vllm#34587",
    ),
    "free_in_use": _planted(
        "a request that ends frees its blocks, whoever else refers to them", "CountsExact"
    ),
    "leak_reference": _planted(
        "a request that ends early keeps its reference to the block it hit", "CountsExact"
    ),
    "padding_writes": _planted(
        "a padding row writes through the stale table that it carries", "NullUntouched", "vllm#37728"
    ),
    "null_written": _planted("a padding row writes the null block", "NullUntouched", "vllm#39064"),
    "has_state_by_length": _planted(
        "a row of one token is taken for a decode, so a fresh one reads what its slot held",
        "FreshStart",
        "vllm#51562",
    ),
    "fresh_by_length": _planted(
        "a row of two tokens or more is taken for a fresh prefill, so a resumed one reads no state",
        "StateTrue PublishTrue",
        "transformers#45513",
    ),
    "evict_referenced": _planted(
        "a block that is hit stays in the free list, and is evicted while in use", "CountsExact"
    ),
    "lost_hit": _planted("a lookup returns one block less than is cached", "HitLongest"),
    "lost_block": _planted("a block that decode completes is never published", "HitLongest", "vllm#33706"),
    "out_of_order": _planted(
        "after an abort, the request's rows in flight run with the next batch",
        "StateTrue PublishTrue WriteExclusive",
    ),
    "starve": _planted("a preempted request is never scheduled again", "Progress", "vllm#52520"),
}
