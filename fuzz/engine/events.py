"""What a life of the engine reached: the ledger's events of the machine, counted where they happen.

``EVENTS`` names them all, so that the ledger can demand them. Nothing here changes the engine.

Imports ``fuzz.engine`` and the standard library. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdn_apc.fuzz.engine.labels import STATE

if TYPE_CHECKING:
    from gdn_apc.fuzz.engine.rows import Batch, EngineRow
    from gdn_apc.fuzz.engine.scheduler import Engine, Live

EVENTS = {
    "machine_hit": "a request starts from a cached block",
    "machine_hit_part_of_prefix": "a hit inside a prefix that another request carried further",
    "machine_hit_at_depth": "a hit of two blocks or more, whose earlier state columns the request does not hold",
    "machine_hit_on_aborted_writer": "the block hit is still to be written, by a row of a request that is gone",
    "machine_hit_in_flight": "the block hit is still to be written, by a row in flight",
    "machine_full_prompt_hit_clamped": "every block of the tokens is cached: the hit is one block less",
    "machine_one_token_after_hit": "the first step after a hit computes one token",
    "machine_one_token_fresh": "a fresh request's first step computes one token",
    "machine_preempt": "a request loses its blocks to another",
    "machine_preempt_in_flight": "a request is preempted while rows of it are in flight",
    "machine_victim_of_same_step": "a victim was already in the batch that its block is needed for",
    "machine_preempt_resume": "a preempted request runs again",
    "machine_resume_after_output": "a request preempted after it sampled tokens runs again",
    "machine_resume_hit": "a preempted request starts again from a hit",
    "machine_abort_in_flight": "a request is aborted while rows of it are in flight",
    "machine_abort_before_dispatch": "a request is aborted while its row is in the batch being built",
    "machine_recycled_slot": "a slot is given to another owner",
    "machine_slot_changes_kind": "a slot goes from attention to state, or back",
    "machine_eviction": "a cached block is given out",
    "machine_same_step_guard": "a request waits, because this batch published the block that it would hit",
    "machine_admission_waits": "a request waits for room",
    "machine_skipped_block_freed": "a running request frees a state block behind it",
    "machine_decode_publishes_block": "a decode step reaches a boundary",
    "machine_prefill_crosses_boundaries": "one step passes two boundaries or more",
    "machine_resumes_inside_block": "a step starts inside a block: it reads and writes the same slot",
    "machine_mixed_batch": "a batch holds a decode and a prefill",
    "machine_padding_row": "a batch holds a padding row with a stale table",
    "machine_batches_in_flight": "two batches or more are in flight",
    "machine_finish": "a request finishes",
}


def count_hit(engine: Engine, request: Live, blocks: int, slots: Sequence[int]) -> None:
    """Count what an admission was: called before the request gets its slots."""
    count = engine.events
    if request.epoch:
        count["machine_preempt_resume"] += 1
        count["machine_resume_after_output"] += request.known > request.prompt
        count["machine_resume_hit"] += blocks > 0
    if not blocks:
        return
    count["machine_hit"] += 1
    count["machine_hit_at_depth"] += blocks > 1
    size = engine.config.block_size
    if request.known % size == 0 and blocks == request.known // size - 1:
        whole = engine.pool.find(engine.key(STATE, request, blocks))
        count["machine_full_prompt_hit_clamped"] += whole is not None
    others = (r for r in engine.requests if r is not request and max(r.computed, r.known) > blocks * size)
    key = engine.key(STATE, request, blocks - 1)
    further = any(
        r.length >= (blocks + 1) * size
        and engine.key(STATE, r, blocks - 1) == key
        and (
            request.length < (blocks + 1) * size
            or engine.key(STATE, r, blocks) != engine.key(STATE, request, blocks)
        )
        for r in others
    )
    count["machine_hit_part_of_prefix"] += further
    writers = [r for b in engine.pipe for r in b.rows if slots[-1] in r.published]
    count["machine_hit_in_flight"] += bool(writers)
    count["machine_hit_on_aborted_writer"] += any(not engine.is_live(r) for r in writers)


def count_row(engine: Engine, request: Live, row: EngineRow) -> None:
    """Count what a scheduled row is: called before it publishes."""
    count, size = engine.events, engine.config.block_size
    count["machine_one_token_after_hit"] += row.m == 1 and row.n == request.hit * size > 0
    count["machine_one_token_fresh"] += row.m == 1 and row.n == 0
    count["machine_decode_publishes_block"] += row.m == 1 and row.n > 0 and row.end % size == 0
    count["machine_prefill_crosses_boundaries"] += row.end // size - row.n // size > 1
    count["machine_resumes_inside_block"] += row.n % size > 0


def count_batch(engine: Engine, batch: Batch, padding: Sequence[int]) -> None:
    """Count what a batch is: called as it is dispatched."""
    count = engine.events
    count["machine_padding_row"] += len(padding) > 0
    count["machine_mixed_batch"] += any(r.m == 1 and r.n for r in batch.rows) and any(
        r.m > 1 for r in batch.rows
    )
    count["machine_batches_in_flight"] += len(engine.pipe) > 0
