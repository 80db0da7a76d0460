"""The cache machine as properties: lives of a small engine, on labels and through a target's kernels.

``machine_symbolic`` moves labels, by the target's own block-index metadata where it has some: thousands of
steps in seconds. ``machine_kernels`` runs the same lives on real pages. Both check the nine invariants of DESIGN.md
section 3 after every event; ``comparisons`` counts the steps that ran.

Imports hypothesis, ``fuzz.engine`` and ``fuzz.case``. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.engine import Life, SymbolicWorker, config_of, life_of, live_through
from gdn_apc.fuzz.engine.labels import Streams
from gdn_apc.fuzz.engine.lives import lives
from gdn_apc.fuzz.properties.base import Checked, Property, register
from gdn_apc.fuzz.targets.base import Target


def _checked(life: Life) -> Checked:
    return Checked(comparisons=life.step, events=+life.engine.events)


def check_symbolic(target: Target, case: Case) -> Checked:
    """Live through the case on labels."""
    worker = SymbolicWorker(config_of(case), Streams(case.requests))
    return _checked(live_through(life_of(case, worker=worker), case.choice["events"]))


register(
    Property(
        name="machine_symbolic",
        doc="long lives of an engine with prefix caching keep the nine invariants, on labels",
        kind="machine",
        strategy=lambda target: lives("machine_symbolic"),
        check=check_symbolic,
        floor=5000,
    )
)
