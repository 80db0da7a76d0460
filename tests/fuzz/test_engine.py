"""The engine and its nine invariants. ``pytest tests/fuzz/test_engine.py``."""

from __future__ import annotations

import pytest

from gdn_apc.fuzz.case import Request
from gdn_apc.fuzz.engine import (
    EngineConfig,
    Faults,
    Label,
    Life,
    Streams,
    invariants,
)
from gdn_apc.fuzz.engine.blocks import BlockPool
from gdn_apc.fuzz.engine.labels import ATTENTION, STATE
from gdn_apc.fuzz.engine.lives import ALL
from gdn_apc.fuzz.engine.rows import EngineRow, contract
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.oracle.metadata import block_indices


def life(*requests: Request, slots: int = 12, faults: Faults | None = None, prompts=None, **habits) -> Life:
    """A life with blocks of four tokens; prompts are whole requests unless given."""
    config = EngineConfig(block_size=4, num_slots=slots, **habits)
    return Life(config, requests, prompts or [r.length for r in requests], faults or Faults())


def run(it: Life, *events) -> Life:
    for event in events:
        it.apply(event)
    return it


# Labels and rows


def test_a_shared_prefix_has_one_label_however_long_the_chain():
    """Request 2 shares with 1 what 1 shares with 0."""
    streams = Streams([Request(8), Request(8, 0, 6), Request(8, 1, 7)])
    assert [streams.label(STATE, 2, n) for n in (6, 7, 8)] == [
        Label(STATE, 0, 6),
        Label(STATE, 1, 7),
        Label(STATE, 2, 8),
    ]


@pytest.mark.parametrize(
    "requests, text",
    [
        ([Request(4, 0, 1)], "parent: request 0 has parent 0; name an earlier request"),
        ([Request(4), Request(4, None, 2)], "parent: request 1 has parent None; name an earlier request"),
        ([Request(4), Request(9, 0, 5)], "shared: request 1 shares 5 tokens with request 0; expected 0 to 4"),
    ],
)
def test_streams_refuse_impossible_sharing(requests, text):
    with pytest.raises(ValueError, match=text):
        Streams(requests)


def test_the_contract_from_tokens_agrees_with_the_oracles_metadata():
    """Every row with n + m ≤ 12 and B ≤ 5: read slot, write columns, write slot."""
    for size in range(1, 6):
        for n in range(12):
            for m in range(13 - n):
                table = tuple(range(1, 14))
                touch = contract(EngineRow(0, 0, n, m, table), size)
                meta = block_indices([(n, m, table)], size, 16)
                assert [slot for _, _, slot, _ in touch.reads] == [s for s in meta["read_slot"] if s]
                assert [column for _, column, _, _ in touch.writes] == meta["write_columns"][0]
                assert [(slot, end) for _, _, slot, end in touch.writes][-1:] == [
                    (s, n + m) for s in meta["write_slot"] if s
                ]


def test_attention_rows_read_every_block_behind_them():
    row = EngineRow(0, 0, 5, 2, (1, 2), (3, 4))
    assert contract(row, 4).reads == [(STATE, 1, 2, 5), (ATTENTION, 0, 3, 4), (ATTENTION, 1, 4, 5)]


# The pool


def test_a_freed_block_keeps_its_hash_until_it_is_given_out():
    pool = BlockPool(4)
    first, second = pool.allocate(2, STATE)
    pool.publish(first, "a")
    pool.release([second, first])
    assert pool.find("a") == first
    assert pool.allocate(2, STATE) == [3, second]  # least recently freed first
    assert pool.find("a") == first
    assert pool.allocate(1, STATE) == [first]
    assert pool.find("a") is None and pool.events["machine_eviction"] == 1


def test_two_slots_may_hold_one_hash():
    pool = BlockPool(4)
    first, second = pool.allocate(2, STATE)
    pool.publish(first, "a")
    pool.publish(second, "a")
    pool.unpublish(first)
    assert pool.find("a") == second


def test_a_pool_needs_a_slot_besides_the_null_block():
    with pytest.raises(
        ValueError, match="num_slots: 1 leaves no slot besides the null block; give at least 2"
    ):
        BlockPool(1)


# The engine, one situation a test


def test_a_resent_prompt_hits_all_but_its_last_block():
    """Eight tokens are two blocks; the hit leaves one token to compute, so it is one block."""
    it = run(
        life(Request(8), Request(8, 0, 8)),
        ["submit", 0],
        ["pass", ALL, ALL, []],
        ["submit", 0],
        ["pass", ALL, ALL, []],
    )
    (row,) = it.engine.pipe[-1].rows
    assert (row.request, row.n, row.m) == (1, 4, 4)
    assert it.engine.events["machine_full_prompt_hit_clamped"] == 1


def test_a_hit_inside_a_longer_prefix_shares_one_state_block():
    """Earlier state columns are null, or stale if the engine leaves them so; attention blocks are all shared."""
    for stale in (False, True):
        it = life(Request(12), Request(12, 0, 9), slots=20, attention=True, stale=stale)
        run(it, ["submit", 0], ["pass", ALL, ALL, []], ["execute"], ["submit", 0], ["rows", [[0, 3]], 0])
        (row,) = it.engine.open.rows
        first = it.engine.requests[1].tables[STATE][0]
        assert (row.n, row.m, first, row.table[0] > 0) == (8, 3, 0, stale)
        assert it.engine.events["machine_hit_at_depth"] == 1 and len(row.attention) == 3


def test_a_hash_of_the_open_batch_is_not_hit_by_it():
    """The second request waits a step, then hits what the first one's step wrote."""
    it = run(life(Request(9), Request(9, 0, 9)), ["submit", 0], ["submit", 0], ["pass", ALL, ALL, []])
    assert [row.request for row in it.engine.pipe[-1].rows] == [0]
    assert it.engine.events["machine_same_step_guard"] == 1
    run(it, ["pass", ALL, ALL, []])
    assert [(row.request, row.n) for row in it.engine.pipe[-1].rows] == [(1, 8)]


def test_an_aborted_writer_still_writes_what_another_request_hits():
    """Its row is in flight: it runs, in order, before the row that reads."""
    it = life(Request(9), Request(9, 0, 9), depth=2)
    run(it, ["submit", 0], ["pass", ALL, ALL, []], ["abort", 0], ["submit", 0], ["pass", ALL, ALL, []])
    assert it.step == 0 and it.engine.events["machine_hit_on_aborted_writer"] == 1
    it.drain()
    assert it.engine.requests[1].status == "finished"


def test_a_victim_of_the_same_step_takes_its_hashes_back():
    """Its row never runs, so nobody may hit what it would have written."""
    it = life(Request(8), Request(4), slots=5, prompts=[8, 4])
    run(it, ["submit", 0], ["rows", [[0, 8]], 0])
    published = [s for s in it.engine.pool.key_of]
    run(it, ["preempt", 0])
    assert published and not it.engine.pool.key_of
    assert it.engine.events["machine_victim_of_same_step"] == 1


def test_a_preempted_request_resumes_from_its_own_blocks():
    it = life(Request(11), prompts=[6])
    run(it, ["submit", 0], ["pass", ALL, ALL, [], 4], ["preempt", 0], ["pass", ALL, ALL, []])
    assert [(row.n, row.m) for row in it.engine.pipe[-1].rows] == [(8, 2)]
    assert it.engine.events["machine_resume_after_output"] == 1


def test_a_running_request_takes_room_from_the_last_one():
    """Two requests of three blocks in a pool of four: the second is preempted, and both finish."""
    it = run(life(Request(12), Request(12), slots=5), ["submit", 0], ["submit", 0], ["pass", ALL, 5, [], 3])
    assert it.engine.events["machine_preempt"] == 1
    it.drain()
    assert [r.status for r in it.engine.requests] == ["finished", "finished"]


def test_skipped_blocks_are_freed_while_the_request_runs():
    """Only the block that the next step reads is held; the others can be hit or evicted."""
    it = run(life(Request(20), skip=True), ["submit", 0], ["pass", ALL, 6, [], 3])
    assert it.engine.requests[0].tables[STATE] == [0, 0, 3, 4, 5]
    assert it.engine.events["machine_skipped_block_freed"] == 2


def test_padding_rows_carry_a_stale_row():
    it = run(life(Request(9), Request(5)), ["submit", 0], ["pass", ALL, 5, []], ["pass", ALL, 5, [0, 2]])
    assert [(row.request, row.n, row.m) for row in it.engine.pipe[-1].rows] == [
        (None, 5, 0),
        (0, 5, 4),
        (None, 5, 0),
    ]
    assert it.engine.pipe[-1].rows[0].table == (1, 2)


def test_an_engine_refuses_what_it_cannot_hold():
    with pytest.raises(
        ValueError, match="num_slots: 3 cannot hold the largest request; it needs 3 slots and the null"
    ):
        life(Request(9), slots=3)
    with pytest.raises(ValueError, match=r"prompts: \[0\] must give each request 1 to its length tokens"):
        life(Request(9), prompts=[0])


def test_an_unknown_event_is_refused():
    with pytest.raises(
        ValueError, match=r"event: \['explode', 1\] has no known form; expected one of \['abort'"
    ):
        life(Request(4)).apply(["explode", 1])


# The invariants can fail, and say where


def broken(it: Life) -> Violation:
    with pytest.raises(Violation) as caught:
        it.check()
    return caught.value


def test_counts_exact_names_the_slot_that_leaks():
    it = run(life(Request(4)), ["submit", 0], ["pass", ALL, ALL, []])
    it.engine.pool.refs[1] += 1
    assert broken(it).where == {
        "invariant": "CountsExact",
        "step": 0,
        "expected": "1",
        "actual": "2",
        "request": 0,
        "slot": 1,
    }


def test_counts_exact_sees_a_slot_that_is_free_and_in_use():
    it = run(life(Request(4)), ["submit", 0], ["pass", ALL, ALL, []])
    it.engine.pool.free[1] = None
    assert "the free list is wrong about a slot; expected in use, found free" in str(broken(it))


def test_publish_true_says_what_the_slot_will_hold():
    it = run(life(Request(9)), ["submit", 0], ["pass", ALL, ALL, []])
    it.engine.pipe[0].rows.clear()
    assert str(broken(it)) == (
        "PublishTrue: step 0, request 0, block 0, slot 1: a published slot will not hold what its hash names; "
        "expected state(4) of request 0, found poison"
    )


def test_state_true_says_what_the_row_reads():
    it = run(life(Request(9)), ["submit", 0], ["pass", ALL, 3, []], ["execute"], ["pass", ALL, 3, []])
    it.worker.contents[1] = Label("state", 7, 3)
    with pytest.raises(Violation) as caught:
        it.apply(["execute"])
    assert str(caught.value) == (
        "StateTrue: step 1, request 0, block 0, slot 1: request 0, 3 → 6, table [1, 2] reads the wrong state; "
        "expected state(3) of request 0, found state(3) of request 7"
    )


def test_write_exclusive_sees_two_writers_of_one_slot():
    it = run(life(Request(3), Request(3)), ["submit", 0], ["submit", 0], ["pass", ALL, ALL, []])
    rows = it.engine.pipe[0].rows
    rows[1].table = rows[0].table
    with pytest.raises(
        Violation, match=r"WriteExclusive.*two rows of a batch write one slot: request 1, 0 → 3"
    ):
        it.apply(["execute"])


def test_shared_immutable_sees_a_slot_that_another_request_refers_to():
    it = run(life(Request(9)), ["submit", 0], ["pass", ALL, ALL, []])
    row = EngineRow(7, 0, 8, 1, (0, 0, 3))
    with pytest.raises(Violation) as caught:
        invariants.SharedImmutable(it, row)
    assert str(caught.value) == (
        "SharedImmutable: step 0, request 7, block 2, slot 3: request 7, 8 → 9, table [0, 0, 3] writes a state slot "
        "that others refer to; expected no other request, found requests [0]"
    )


def test_shared_immutable_sees_a_published_slot_that_nobody_refers_to():
    it = run(life(Request(9)), ["submit", 0], ["pass", ALL, ALL, []], ["abort", 0])
    with pytest.raises(
        Violation, match=r"SharedImmutable.*slot 2: .* a published slot; .* found state.8. of request 0"
    ):
        invariants.SharedImmutable(it, EngineRow(7, 0, 4, 2, (0, 2)))


def test_write_exclusive_sees_a_slot_that_its_own_request_does_not_refer_to():
    it = run(life(Request(9)), ["submit", 0], ["pass", ALL, ALL, []], ["abort", 0])
    row = EngineRow(0, 1, 8, 1, (0, 0, 5))
    with pytest.raises(
        Violation, match=r"WriteExclusive.*slot 5: .* its column alone does not refer to; .* found ..$"
    ):
        invariants.WriteExclusive(it, [row], [contract(row, 4)], row)


def test_hit_longest_counts_what_was_lost_and_what_was_invented():
    it = run(life(Request(9), Request(9, 0, 9)), ["submit", 0], ["pass", ALL, ALL, []], ["submit", 0])
    request = it.engine.requests[1]
    invariants.HitLongest(it, request, 2)
    for blocks, text in ((1, "the lookup lost a hit"), (3, "returns more than is cached")):
        with pytest.raises(
            Violation, match=f"HitLongest.*{text}.*; expected 2 blocks, found {blocks} blocks"
        ):
            invariants.HitLongest(it, request, blocks)


def test_fresh_start_names_what_the_slot_held():
    it = run(life(Request(1), faults=Faults(has_state_by_length=True)), ["submit", 0], ["pass", ALL, ALL, []])
    with pytest.raises(
        Violation, match=r"FreshStart: step 0, request 0, block 0, slot 1: .*nothing read, found poison"
    ):
        it.apply(["execute"])


def test_progress_names_the_first_request_that_is_stuck():
    it = run(life(Request(9)), ["submit", 0])
    with pytest.raises(Violation) as caught:
        invariants.Progress(it, 3)
    assert str(caught.value) == (
        "Progress: step 0, request 0: after 3 fair passes 1 requests are unfinished; "
        "expected finished, found waiting at 0 of 9 tokens"
    )


def test_null_untouched_sees_a_changed_null_slot():
    it = run(life(Request(3)), ["submit", 0], ["pass", ALL, ALL, []])
    it.worker.contents[0] = Label("state", 0, 1)
    with pytest.raises(
        Violation, match="NullUntouched: step 0, slot 0: the null slot has changed; expected null"
    ):
        it.apply(["execute"])
