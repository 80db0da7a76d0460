"""The engine: requests, block tables, hits, and the batches that it builds and keeps in flight.

It follows vLLM where vLLM decides: hashes are published when a row is scheduled; a hash that the open batch
published cannot be hit by it (the request waits a step); freed blocks keep their hash until they are given
out; a request that ends, is aborted or preempted frees its blocks at once, while its rows in flight still run,
in order. It departs where vLLM's way breaks PublishTrue: a row taken out of the open batch takes back what it
published. Time has three phases: rows join the *open* batch, ``dispatch`` moves it into the *pipe* (at most
``depth`` batches), ``retire`` takes the oldest out once it has run.

Imports ``fuzz.engine`` and the standard library. Exercise it with ``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gdn_apc.fuzz.engine import events
from gdn_apc.fuzz.engine.blocks import BlockPool
from gdn_apc.fuzz.engine.faults import NONE, Faults
from gdn_apc.fuzz.engine.labels import ATTENTION, STATE, Streams
from gdn_apc.fuzz.engine.rows import Batch, EngineRow

NEW, WAITING, RUNNING, FINISHED, ABORTED = "new", "waiting", "running", "finished", "aborted"


@dataclass(frozen=True)
class EngineConfig:
    """Sizes and habits of an engine.

    ``attention``: a second group of blocks in the same pool, as in a hybrid model; a hit needs its blocks too.
    ``skip``: state blocks before the last computed token are freed while the request runs (vLLM does so).
    ``stale``: columns that a request does not hold carry stale slot numbers in the kernels' table, else 0.
    ``chunk_size``: rows of two tokens or more start on its grid only, for kernels that cannot start anywhere.
    """

    block_size: int
    num_slots: int
    depth: int = 1
    attention: bool = False
    skip: bool = False
    stale: bool = False
    chunk_size: int | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The groups of blocks."""
        return (ATTENTION, STATE) if self.attention else (STATE,)

    def columns(self, tokens: int) -> int:
        """ceil(tokens / B)."""
        return -(-tokens // self.block_size)

    def cut(self, n: int, m: int) -> int:
        """The row that may start at n: ``m`` tokens, or one if that is all that kernels can do there."""
        off_grid = self.chunk_size is not None and n % self.block_size % self.chunk_size
        return 1 if off_grid and m > 1 else m


@dataclass(eq=False)
class Live:
    """A request in the engine. ``known`` tokens may be scheduled, ``computed`` are (in flight or done)."""

    id: int
    length: int
    known: int
    prompt: int
    status: str = NEW
    computed: int = 0
    epoch: int = 0
    hit: int = 0  # blocks hit when this epoch was admitted
    tables: dict[str, list[int]] = field(default_factory=dict)


class Watcher(Protocol):
    """Who is told what the engine decides, at the moment it decides, before anything is published."""

    def looked_up(self, request: Live, blocks: int) -> None:
        """A lookup for ``request`` returned a hit of ``blocks``."""

    def placed(self, row: EngineRow) -> None:
        """``row`` has its slots and is about to join the open batch and to publish."""


class Engine:
    """``requests`` are known by their number; ``prompts[i]`` of request i's tokens are there when it arrives."""

    def __init__(
        self,
        config: EngineConfig,
        streams: Streams,
        prompts: Sequence[int],
        watcher: Watcher,
        faults: Faults = NONE,
    ):
        self.config, self.watcher, self.faults = config, watcher, faults
        self.events: Counter[str] = Counter()
        self.pool = BlockPool(config.num_slots, faults, self.events)
        self.requests = [
            Live(i, r.length, known=p, prompt=p) for i, (r, p) in enumerate(zip(streams.requests, prompts))
        ]
        self._tokens = [streams.tokens(i) for i in range(len(self.requests))]
        self.waiting: list[Live] = []
        self.running: list[Live] = []
        self.open = Batch()
        self.pipe: list[Batch] = []
        self.published_now: set[int] = set()
        self.chain: list[tuple[int | None, tuple]] = []  # block hash → (hash of the block before, its tokens)
        self._hash_of: dict[tuple[int | None, tuple], int] = {}
        self._hashes: list[list[int]] = [[] for _ in self.requests]
        self._stale_rows: list[EngineRow] = [EngineRow(None, 0, 0, 0, (0,), ())]

    # Hashes and lookups

    def key(self, kind: str, request: Live, block: int) -> Hashable:
        """The hash of a full block: its group, and its tokens chained to those of the blocks before it."""
        hashes, size = self._hashes[request.id], self.config.block_size
        for j in range(len(hashes), block + 1):
            tokens = tuple(self._tokens[request.id][j * size : (j + 1) * size])
            link = (hashes[-1] if hashes else None, tokens)
            if link not in self._hash_of:
                self._hash_of[link] = len(self.chain)
                self.chain.append(link)
            hashes.append(self._hash_of[link])
        return (kind, hashes[block])

    def lookup(self, request: Live) -> tuple[int, list[int]]:
        """The longest hit that leaves a token to compute: its blocks, and the slots to refer to (state last)."""
        find = self.pool.find
        most = (request.known - (0 if self.faults.no_clamp else 1)) // self.config.block_size
        attention: list[int] = []
        if self.config.attention:
            for j in range(most):
                slot = find(self.key(ATTENTION, request, j))
                if slot is None:
                    break
                attention.append(slot)
            most = len(attention)
        for k in range(most, 0, -1):
            state = find(self.key(STATE, request, k - 1))
            if state is not None:
                if self.faults.lost_hit and k > 1:
                    continue
                return k, [*attention[:k], state]
        return 0, []

    # Scheduling

    def submit(self, request: Live) -> None:
        """A new request arrives."""
        request.status = WAITING
        self.waiting.append(request)

    def schedule(self, request: Live, cut: int, victim: int = 0) -> EngineRow | None:
        """Give ``request`` a row of at most ``cut`` ≥ 1 tokens in the open batch, or None if it gets none now.

        A running request that finds no room preempts: ``victim`` counts from the back of the running queue.
        """
        if request.status not in (WAITING, RUNNING) or self.row_in_open(request) or cut < 1:
            return None
        if request.status == WAITING:
            return self._admit(request, cut)
        m = self.config.cut(request.computed, min(cut, request.known - request.computed))
        if m < 1:
            return None
        if self.config.skip:
            self._free_skipped(request)
        need = self._need(request, request.computed + m)
        while need > len(self.pool.free):
            loser = self.running[-1 - victim % len(self.running)]
            self.preempt(loser)
            if loser is request:
                return None
        return self._place(request, request.computed, m)

    def _admit(self, request: Live, cut: int) -> EngineRow | None:
        if self.faults.starve and request.epoch > 0:
            return None
        blocks, slots = self.lookup(request)
        self.watcher.looked_up(request, blocks)
        if not self.faults.no_same_step_guard and not self.published_now.isdisjoint(slots):
            self.events["machine_same_step_guard"] += 1
            return None
        n = blocks * self.config.block_size
        m = self.config.cut(n, min(cut, request.known - n))
        need = (self.config.columns(n + m) - blocks) * len(self.config.kinds)
        if need > sum(slot not in slots for slot in self.pool.free):
            self.events["machine_admission_waits"] += 1
            return None
        events.count_hit(self, request, blocks, slots)
        self.pool.touch(slots)
        request.tables = {kind: [] for kind in self.config.kinds}
        if blocks:
            request.tables[STATE] = [0] * (blocks - 1) + slots[-1:]
            if self.config.attention:
                request.tables[ATTENTION] = slots[:-1]
        request.status, request.hit = RUNNING, blocks
        self.waiting.remove(request)
        self.running.append(request)
        return self._place(request, n, m)

    def _need(self, request: Live, end: int) -> int:
        have = len(request.tables[STATE])
        return max(0, self.config.columns(end) - have) * len(self.config.kinds)

    def _place(self, request: Live, n: int, m: int) -> EngineRow:
        size, end = self.config.block_size, n + m
        for kind, table in request.tables.items():
            if (
                self.faults.write_shared_block
                and kind == STATE
                and request.hit == len(table) == n // size > 0
            ):
                table.append(table[-1])
                self.pool.touch(table[-1:])
            new = self.pool.allocate(max(0, self.config.columns(end) - len(table)), kind)
            table += new
            self.open.fresh += new
        table = tuple(s or self._stale(request, j) for j, s in enumerate(request.tables[STATE]))
        row = EngineRow(request.id, request.epoch, n, m, table, tuple(request.tables.get(ATTENTION, ())))
        self.watcher.placed(row)
        events.count_row(self, request, row)
        self._publish(request, row)
        self.open.rows.append(row)
        request.computed = end
        if end == request.known < request.length:
            request.known, row.sampled = request.known + 1, True
        return row

    def _publish(self, request: Live, row: EngineRow) -> None:
        size = self.config.block_size
        full = row.end // size
        if self.faults.publish_partial_block and row.end % size and full < request.length // size:
            full += 1
        if self.faults.lost_block and row.m == 1:
            return
        for kind, table in request.tables.items():
            for column in range(row.n // size, full):
                self.pool.publish(table[column], self.key(kind, request, column))
                self.published_now.add(table[column])
                row.published.append(table[column])

    def _stale(self, request: Live, column: int) -> int:
        """What the kernels' table holds where the request holds nothing: it must never matter."""
        return 1 + (7 * request.id + 3 * column) % (self.config.num_slots - 1) if self.config.stale else 0

    def _free_skipped(self, request: Live) -> None:
        table = request.tables[STATE]
        last = self.config.columns(request.computed) - 1
        held = [j for j in range(last) if table[j]]
        self.pool.release([table[j] for j in held])
        for j in held:
            table[j] = 0
            self.events["machine_skipped_block_freed"] += 1

    # Ends of a request's life, or of a part of it

    def preempt(self, request: Live) -> None:
        """Take everything from a running request and queue it first; its rows in flight still run."""
        if self.row_in_open(request):
            self.events["machine_victim_of_same_step"] += 1
        if self.rows_in_pipe(request):
            self.events["machine_preempt_in_flight"] += 1
        self._stop(request, WAITING)
        self.waiting.insert(0, request)
        self.events["machine_preempt"] += 1

    def abort(self, request: Live) -> None:
        """End a waiting or running request; its rows in flight still run, a row in the open batch does not."""
        if request.status == WAITING:
            self.waiting.remove(request)
            request.status = ABORTED
            return
        if self.row_in_open(request):
            self.events["machine_abort_before_dispatch"] += 1
        if self.rows_in_pipe(request):
            self.events["machine_abort_in_flight"] += 1
        self._stop(request, ABORTED)
        if self.faults.out_of_order:
            late = [row for batch in self.pipe for row in batch.rows if row.request == request.id]
            for batch in self.pipe:
                batch.rows = [row for row in batch.rows if row.request != request.id]
            self.open.rows += late

    def _stop(self, request: Live, status: str) -> None:
        row = self.row_in_open(request)
        if row:
            self.open.rows.remove(row)
            request.known -= row.sampled
            if not self.faults.keep_hash_of_dropped_row:
                for slot in row.published:
                    self.pool.unpublish(slot)
        if self.faults.drop_published_row:
            for batch in self.pipe:
                batch.rows = [row for row in batch.rows if row.request != request.id]
        kept = request.hit - 1 if self.faults.leak_reference and request.hit else None
        self._release(request, kept)
        self.running.remove(request)
        request.status, request.computed, request.epoch = status, 0, request.epoch + 1

    def _release(self, request: Live, kept: int | None = None) -> None:
        """Free a request's blocks from the tail, so that the LRU list evicts long prefixes before short ones."""
        for kind, table in request.tables.items():
            skip = kept if kind == STATE else None
            self.pool.release(s for j, s in reversed(list(enumerate(table))) if s and j != skip)
        request.tables = {}

    # Batches

    def dispatch(self, padding: Sequence[int] = ()) -> bool:
        """Send the open batch into the pipe, with a stale padding row at each position; False if it has no rows."""
        if not self.open.rows:
            return False
        if len(self.pipe) >= self.config.depth:
            raise RuntimeError(
                f"depth: {len(self.pipe)} batches are in flight; retire one before dispatching"
            )
        batch, self.open = self.open, Batch()
        self.published_now.clear()
        events.count_batch(self, batch, padding)
        real = list(batch.rows)
        for at in padding:
            stale = self._stale_rows[at % len(self._stale_rows)]
            batch.rows.insert(at % (len(batch.rows) + 1), EngineRow(None, 0, stale.end, 0, stale.table))
        self._stale_rows = real
        self.pipe.append(batch)
        return True

    def retire(self) -> Batch:
        """The oldest batch in flight has run: requests whose last token it computed finish."""
        batch = self.pipe.pop(0)
        for row in batch.rows:
            if self.is_live(row) and row.end == self.requests[row.request].length:
                request = self.requests[row.request]
                self._release(request)
                self.running.remove(request)
                request.status = FINISHED
                self.events["machine_finish"] += 1
        return batch

    def is_live(self, row: EngineRow) -> bool:
        """Whether the row's request still runs, in the life that scheduled the row."""
        if row.request is None:
            return False
        request = self.requests[row.request]
        return request.status == RUNNING and request.epoch == row.epoch

    def row_in_open(self, request: Live) -> EngineRow | None:
        """The request's row in the open batch, if it has one."""
        return next((r for r in self.open.rows if r.request == request.id and r.epoch == request.epoch), None)

    def rows_in_pipe(self, request: Live) -> list[EngineRow]:
        """The rows in flight of the request's present life."""
        return [r for b in self.pipe for r in b.rows if r.request == request.id and r.epoch == request.epoch]
