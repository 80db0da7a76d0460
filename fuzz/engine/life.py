"""A life: an engine, a worker and the invariants, driven by abstract events that are plain JSON.

Every event makes sense in every situation (it picks modulo what there is, or does nothing), so a shrinker may
drop any of them, and a life replays from a case alone. ``EVENT_FORMS`` lists them.

Imports ``fuzz.case``, ``fuzz.engine`` and the standard library. Exercise it with
``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from gdn_apc.fuzz.case import Case, Request, Step
from gdn_apc.fuzz.engine import invariants
from gdn_apc.fuzz.engine.faults import NONE, Faults
from gdn_apc.fuzz.engine.labels import Label, Streams
from gdn_apc.fuzz.engine.rows import Batch, EngineRow, contract
from gdn_apc.fuzz.engine.scheduler import NEW, RUNNING, WAITING, Engine, EngineConfig, Live
from gdn_apc.fuzz.engine.worker import SymbolicWorker

EVENT_FORMS = {
    "submit": '["submit", pick]: a request that is yet to come arrives',
    "pass": '["pass", budget, cut, [padding…], times]: running, then waiting requests get up to cut tokens; dispatch',
    "rows": '["rows", [[pick, cut]…], victim]: these requests, in this order, join the open batch',
    "dispatch": '["dispatch", [padding…]]: the open batch is sent, with padding rows at these positions',
    "execute": '["execute"]: the oldest batch in flight runs',
    "abort": '["abort", pick]: a waiting or running request is aborted',
    "preempt": '["preempt", pick]: a running request is preempted',
}
UNLIMITED = 1 << 30


class Life:
    """One engine from empty to drained. Raises ``Violation`` at the first event after which an invariant fails.

    ``step`` counts batches that ran, ``checks`` the times that the invariants were evaluated, ``steps`` keeps
    the batches as explicit case steps. ``log`` is the list of events applied.
    """

    def __init__(
        self,
        config: EngineConfig,
        requests: Sequence[Request],
        prompts: Sequence[int],
        faults: Faults = NONE,
        worker: SymbolicWorker | None = None,
    ):
        self.config, self.streams = config, Streams(requests)
        _check_fits(config, requests, prompts)
        self.worker = worker or SymbolicWorker(config, self.streams, faults)
        self.engine = Engine(config, self.streams, prompts, self, faults)
        self.step = self.checks = 0
        self.steps: list[Step] = []
        self.log: list[list[Any]] = []
        self._label_of: dict[Hashable, Label] = {}

    # What the invariants ask

    def referents(self, slot: int) -> list[tuple[int, str, int]]:
        """(request, kind, column) of every table entry that refers to the slot."""
        return [
            (r.id, kind, j)
            for r in self.engine.requests
            for kind, table in r.tables.items()
            for j, held in enumerate(table)
            if held == slot
        ]

    def label_of(self, key: Hashable) -> Label:
        """What a hash names: the chain of its tokens, unrolled, must be a prefix of its last token's owner."""
        if key not in self._label_of:
            kind, link = key
            tokens: list[tuple[int, int]] = []
            while link is not None:
                link, block = self.engine.chain[link]
                tokens[:0] = block
            owner, n = tokens[-1][0], len(tokens)
            prefix = self.streams.tokens(owner)[:n] == tokens
            self._label_of[key] = Label(kind, owner, n) if prefix else Label("no prefix", owner, n)
        return self._label_of[key]

    # What the engine says

    def looked_up(self, request: Live, blocks: int) -> None:
        """A lookup returned: it must be the longest."""
        self.check()
        invariants.HitLongest(self, request, blocks)

    def placed(self, row: EngineRow) -> None:
        """A row has its slots, and nothing is published yet: it may write them, and no one else's."""
        self.check()
        rows = [*self.engine.open.rows, row]
        touched = [contract(r, self.config.block_size) for r in rows]
        invariants.NullUntouched(self, Batch([row]), touched[-1:])
        invariants.SharedImmutable(self, row)
        invariants.WriteExclusive(self, rows, touched, row)

    # Events

    def apply(self, event: Sequence[Any]) -> None:
        """Apply one event and check the invariants. Raises ``ValueError`` for an event of no known form."""
        name, *arguments = event
        if name not in EVENT_FORMS:
            raise ValueError(f"event: {event!r} has no known form; expected one of {sorted(EVENT_FORMS)}")
        self.log.append(list(event))
        getattr(self, f"_{name}")(*arguments)
        self.check()

    def check(self) -> None:
        """The invariants that hold at all times."""
        self.checks += 1
        invariants.CountsExact(self)
        invariants.PublishTrue(self)

    def _submit(self, pick: int) -> None:
        new = [r for r in self.engine.requests if r.status == NEW]
        if new:
            self.engine.submit(new[pick % len(new)])

    def _rows(self, picks: Sequence[Sequence[int]], victim: int = 0) -> None:
        for pick, cut in picks:
            queue = self.engine.running + self.engine.waiting
            if queue:
                self.engine.schedule(queue[pick % len(queue)], cut, victim)

    def _pass(self, budget: int, cut: int, padding: Sequence[int] = (), times: int = 1) -> None:
        for _ in range(times):
            self._one_pass(budget, cut, padding)

    def _one_pass(self, budget: int, cut: int, padding: Sequence[int] = ()) -> bool:
        """What vLLM's scheduler does in a step: running requests first, then waiting ones in order."""
        engine, preempted = self.engine, self.engine.events["machine_preempt"]
        for request in list(engine.running):
            if request.status == RUNNING and budget > 0:
                row = engine.schedule(request, min(cut, budget))
                budget -= row.m if row else 0
        for request in list(engine.waiting):
            if budget <= 0 or engine.events["machine_preempt"] > preempted:
                break
            row = engine.schedule(request, min(cut, budget))
            if row is None:
                break
            budget -= row.m
        return self._dispatch(padding)

    def _dispatch(self, padding: Sequence[int] = ()) -> bool:
        if not self.engine.open.rows:
            return False
        while len(self.engine.pipe) >= self.config.depth:
            self._execute()
        return self.engine.dispatch(padding)

    def _execute(self) -> None:
        if not self.engine.pipe:
            return
        batch = self.engine.pipe[0]
        touched = self.worker.touches(batch)
        self.worker.start(batch)
        invariants.StateTrue(self, batch, touched)
        invariants.FreshStart(self, batch, touched)
        invariants.NullUntouched(self, batch, touched)
        invariants.WriteExclusive(self, batch.rows, touched, None)
        self.worker.run(self, batch, touched)
        self.steps.append(batch.as_step())
        self.engine.retire()
        self.step += 1

    def _abort(self, pick: int) -> None:
        queue = self.engine.running + self.engine.waiting
        if queue:
            self.engine.abort(queue[pick % len(queue)])

    def _preempt(self, pick: int) -> None:
        if self.engine.running:
            self.engine.preempt(self.engine.running[pick % len(self.engine.running)])

    def drain(self) -> None:
        """Run the engine fairly until nothing is left, within a bound; then every request must have finished.

        The first running request always advances by a token a pass, because no one preempts it: so a pass for
        each token to decode, and three more a request, are enough, and as many executions.
        """
        arrived = [r for r in self.engine.requests if r.status in (WAITING, RUNNING)]
        bound = 2 * sum(r.length - r.prompt + 3 for r in arrived) + 2 * self.config.depth + 2
        passes = 0
        while (self.engine.running or self.engine.waiting or self.engine.pipe) and passes < bound:
            if not self._one_pass(UNLIMITED, UNLIMITED):
                self._execute()
            self.check()
            passes += 1
        invariants.Progress(self, passes)
        while self.engine.pipe:
            self._execute()
        self.check()


def _check_fits(config: EngineConfig, requests: Sequence[Request], prompts: Sequence[int]) -> None:
    if len(prompts) != len(requests) or any(not 1 <= p <= r.length for p, r in zip(prompts, requests)):
        raise ValueError(
            f"prompts: {list(prompts)} must give each request 1 to its length tokens to start with"
        )
    most = max(config.columns(r.length) for r in requests) * len(config.kinds)
    if most > config.num_slots - 1:
        raise ValueError(
            f"num_slots: {config.num_slots} cannot hold the largest request; it needs {most} slots and the null slot"
        )


def life_of(case: Case, faults: Faults = NONE, worker: SymbolicWorker | None = None) -> Life:
    """The life that a machine case describes, before its first event."""
    return Life(config_of(case), case.requests, case.choice["prompts"], faults, worker)


def config_of(case: Case) -> EngineConfig:
    """The engine of a machine case: sizes from the case, habits from ``choice``."""
    habits = {name: case.choice[name] for name in ("depth", "attention", "skip", "stale")}
    habits["chunk_size"] = case.choice.get("chunk_size")
    return EngineConfig(case.sizes.B, case.pool.num_slots, **habits)


def live_through(life: Life, events: Sequence[Sequence[Any]]) -> Life:
    """Apply all events, drain, and return the life."""
    for event in events:
        life.apply(event)
    life.drain()
    return life
