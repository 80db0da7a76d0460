"""A small engine with prefix caching, the nine invariants of the cache contract, and lives to drive both.

``labels`` what slots hold, ``rows`` batches and what the contract lets them touch, ``blocks`` the pool,
``scheduler`` the engine, ``invariants`` the nine, ``events`` what a life reached, ``faults`` what the machine
must see, ``life`` all of it driven by JSON events, ``kernels`` the same through a target's kernels.

May import ``oracle``, ``fuzz`` and, in ``kernels`` alone, torch. Exercise it with
``pytest tests/fuzz/test_engine.py tests/fuzz/test_machine.py``.
"""

from gdn_apc.fuzz.engine.events import EVENTS
from gdn_apc.fuzz.engine.faults import CATALOGUE, Faults
from gdn_apc.fuzz.engine.labels import Label, Streams
from gdn_apc.fuzz.engine.life import EVENT_FORMS, Life, config_of, life_of, live_through
from gdn_apc.fuzz.engine.scheduler import Engine, EngineConfig
from gdn_apc.fuzz.engine.worker import SymbolicWorker

__all__ = [
    "CATALOGUE",
    "EVENTS",
    "EVENT_FORMS",
    "Engine",
    "EngineConfig",
    "Faults",
    "Label",
    "Life",
    "Streams",
    "SymbolicWorker",
    "config_of",
    "life_of",
    "live_through",
]
