"""The cache machine as properties: lives of a small engine, on labels and through a target's kernels.

``machine_symbolic`` moves labels, by the target's own block-index metadata where it has some: thousands of
steps in seconds. ``machine_kernels`` runs the same lives on real pages. Both check the nine invariants of DESIGN.md
section 3 after every event; ``comparisons`` counts the steps that ran.

Imports hypothesis and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_machine.py``.
"""

from __future__ import annotations

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.engine import Life, life_of, live_through
from gdn_apc.fuzz.engine.lives import kernel_lives, symbolic_lives
from gdn_apc.fuzz.engine.target_workers import KernelWorker, MetadataWorker
from gdn_apc.fuzz.properties.base import Checked, Property, register
from gdn_apc.fuzz.targets.base import Claims, Target


def _add(life: Life, checked: Checked) -> Checked:
    checked.comparisons += life.step
    checked.events += life.engine.events
    return checked


def check_symbolic(target: Target, case: Case) -> Checked:
    """Live through the case on labels, moved by the target's metadata if it has that seam."""
    claims = target.claims
    has_columns = "metadata" in claims.seams and Claims().metadata <= claims.metadata
    worker = MetadataWorker(target, case) if has_columns else None
    return _add(live_through(life_of(case, worker=worker), case.choice["events"]), Checked())


def check_kernels(target: Target, case: Case) -> Checked:
    """Live through the case on the target's kernels, each row compared with the oracle."""
    checked = Checked()
    worker = KernelWorker(target, case, checked)
    return _add(live_through(life_of(case, worker=worker), case.choice["events"]), checked)


def kernels_needed(target: Target) -> str | None:
    """Why a target's kernels cannot live in the machine, or None."""
    if not target.claims.seams & {"conv", "delta", "core"}:
        return "it has no kernels: none of the seams conv, delta and core"
    return None


register(
    Property(
        name="machine_symbolic",
        doc="long lives of an engine with prefix caching keep the nine invariants, on labels",
        kind="machine",
        strategy=lambda target: symbolic_lives("machine_symbolic"),
        check=check_symbolic,
        floor=5000,
    )
)

register(
    Property(
        name="machine_kernels",
        doc="the same lives through the kernels: every step equals the oracle's, and nothing else changes",
        kind="machine",
        strategy=lambda target: kernel_lives("machine_kernels", target),
        check=check_kernels,
        needs=kernels_needed,
        floor=200,
    )
)
