"""Traces of a life, for the design's model checker: what the engine decided and what its rows touched.

A trace is a list of plain dicts, a line of NDJSON each; ``spec/traces.py`` says what the events mean, and
``gdn-apc spec --trace FILE`` checks that they are a behaviour of the design. Requests are numbered from 1.

Imports ``fuzz.engine`` and the standard library. Exercise it with ``pytest tests/spec/test_traces.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from gdn_apc.fuzz.case import Request
from gdn_apc.fuzz.engine.faults import NONE, Faults
from gdn_apc.fuzz.engine.labels import ATTENTION, STATE
from gdn_apc.fuzz.engine.life import Life, live_through
from gdn_apc.fuzz.engine.rows import EngineRow
from gdn_apc.fuzz.engine.scheduler import EngineConfig, Live


class Recorder:
    """Listens to a life that has not begun, and keeps its ``events``.

    It wraps methods of this one engine and worker, so that neither pays for traces when no one listens.
    """

    def __init__(self, life: Life):
        self.life = life
        engine, config = life.engine, life.config
        self.events: list[dict[str, Any]] = [
            {
                "event": "start",
                "block_size": config.block_size,
                "slots": config.num_slots - 1,
                "depth": config.depth,
                "attention": config.attention,
                "order": "lru",
                "free": list(range(1, config.num_slots)),
                "requests": [
                    {
                        "tokens": [f"{owner}.{i}" for owner, i in life.streams.tokens(r.id)],
                        "prompt": r.prompt,
                    }
                    for r in engine.requests
                ],
            }
        ]
        self._around(engine, "_publish", after=self._scheduled)
        self._around(engine, "_free_skipped", before=self._behind, after=self._skipped)
        for name in ("preempt", "abort"):
            self._around(engine, name, before=partial(self._gone, name), after=self._taken_back)
        self._around(engine, "dispatch", after=self._sent)
        self._around(life.worker, "run", after=self._ran)
        self._around(engine, "retire", after=self._finished)

    def _around(
        self,
        thing: Any,
        name: str,
        before: Callable[..., Any] = lambda *_: None,
        after: Callable[..., Any] = lambda *_: None,
    ) -> None:
        method = getattr(thing, name)

        def listened(*arguments: Any) -> Any:
            before(*arguments)
            result = method(*arguments)
            after(*arguments)
            return result

        setattr(thing, name, listened)

    def _say(self, event: str, **what: Any) -> None:
        self.events.append({"event": event, **what})

    def _scheduled(self, request: Live, row: EngineRow) -> None:
        self._say(
            "schedule",
            request=request.id + 1,
            n=row.n,
            m=row.m,
            table=list(request.tables[STATE]),
            attention=list(request.tables.get(ATTENTION, ())),
            published=list(row.published),
        )

    def _behind(self, request: Live) -> None:
        self._table = list(request.tables[STATE])

    def _skipped(self, request: Live) -> None:
        freed = [was for was, now in zip(self._table, request.tables[STATE]) if was and not now]
        if freed:
            self._say("skip", request=request.id + 1, freed=freed)

    def _gone(self, event: str, request: Live) -> None:
        freed = [s for table in request.tables.values() for s in reversed(table) if s]
        self._say(event, request=request.id + 1, freed=freed, unpublished=[])
        self._named = set(self.life.engine.pool.key_of)

    def _taken_back(self, _: Live) -> None:
        lost = self._named - set(self.life.engine.pool.key_of)
        self.events[-1]["unpublished"] = sorted(lost)

    def _sent(self, *_: Any) -> None:
        rows = self.life.engine.pipe[-1].rows
        self._say("dispatch", requests=[row.request + 1 for row in rows if row.request is not None])

    def _ran(self, _: Life, batch: Any, touched: Any) -> None:
        rows = [
            {
                "request": 0 if row.request is None else row.request + 1,
                "reads": [slot for _, _, slot, _ in touch.reads],
                "writes": [slot for _, _, slot, _ in touch.writes],
            }
            for row, touch in zip(batch.rows, touched)
        ]
        self._say("execute", rows=rows, finished=[])

    def _finished(self) -> None:
        finished = {r.id + 1 for r in self.life.engine.requests if r.status == "finished"}
        told = {r for e in self.events if e["event"] == "execute" for r in e["finished"]}
        self.events[-1]["finished"] = sorted(finished - told)


CONFIGS = (
    EngineConfig(block_size=2, num_slots=8, depth=2, skip=True, stale=True),
    EngineConfig(block_size=3, num_slots=10, depth=3, attention=True),
)
"""The engines of ``random_trace``: few sizes, because the model checker takes traces of one size together."""


def random_trace(seed: int, faults: Faults = NONE) -> list[dict[str, Any]]:
    """The trace of a random life: five requests with shared prefixes, a small pool, every kind of event."""
    random, config = Random(seed), CONFIGS[seed % len(CONFIGS)]
    longest = 4 * config.block_size if not config.attention else 2 * config.block_size + 2
    requests: list[Request] = []
    for i in range(5):
        length = random.randint(config.block_size + 1, longest)
        parent = random.randrange(i) if i else None
        most = min(length, requests[parent].length) if parent is not None else 0
        requests.append(Request(length, parent, random.choice((most, random.randint(0, most)))))
    prompts = [random.randint(1, r.length) for r in requests]
    life = Life(config, requests, prompts, faults)
    recorder = Recorder(life)
    live_through(life, [_random_event(random) for _ in range(30)])
    return recorder.events


def _random_event(random: Random) -> list[Any]:
    """An event of ``fuzz.engine.life.EVENT_FORMS``."""
    cut = lambda: random.choice((1, 1, 2, 3, 5, 100))  # noqa: E731
    padding = random.choice(([], [], [0], [2]))
    return random.choice(
        (
            ["submit", random.randrange(5)],
            ["submit", random.randrange(5)],
            ["pass", 100, cut(), padding, 1],
            ["pass", 6, cut(), padding, 1],
            [
                "rows",
                [[random.randrange(5), cut()] for _ in range(random.randint(1, 3))],
                random.randrange(3),
            ],
            ["rows", [[random.randrange(5), cut()]], random.randrange(3)],
            ["dispatch", padding],
            ["execute"],
            ["execute"],
            random.choice((["abort", random.randrange(5)], ["preempt", random.randrange(5)], ["execute"])),
        )
    )
