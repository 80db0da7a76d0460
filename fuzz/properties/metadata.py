"""``metadata``: the block indices of a batch equal the brute-force builder's, exactly, padded rows included.

Exhaustive for small sizes (``fixed``), random for large ones. Imports ``fuzz`` and ``oracle``.
Exercise it with ``pytest tests/fuzz/test_properties.py -k metadata``.
"""

from __future__ import annotations

from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.fuzz import clock
from gdn_apc.fuzz.case import Case, Row
from gdn_apc.fuzz.properties._shared import needs
from gdn_apc.fuzz.properties.base import Checked, Property, Violation, register
from gdn_apc.fuzz.runner import make_batch
from gdn_apc.fuzz.strategies.metadata import exhaustive, random_batches
from gdn_apc.fuzz.targets.base import Target

GRID = ("chunk_offsets", "chunk_row")
"""May be None where no row has two tokens."""


def check_metadata(target: Target, case: Case) -> Checked:
    """Each batch against ``oracle.block_indices``; one comparison a batch."""
    checked = Checked()
    B, C = case.sizes.B, case.sizes.C
    for i, step in enumerate(case.steps):
        batch = make_batch(step.rows, B, C, target.device())
        with clock.span("target"):
            got = _plain(target.metadata(batch))
        missing = sorted(name for name in target.claims.metadata if got.get(name) is None)
        if missing:
            raise Violation(f"the metadata lacks {', '.join(missing)}; it has {', '.join(got)}", step=i)
        columns = batch.block_table.shape[1]
        tables = [[*r.table] + [0] * (columns - len(r.table)) for r in step.rows]
        with clock.span("oracle"):
            want = oracle.block_indices([(r.n, r.m, t) for r, t in zip(step.rows, tables)], B, C)
        want |= {"seq_lens": [r.n + r.m for r in step.rows]}
        _compare(got, want, step.rows, i, B, C)
        checked.comparisons += 1
    return checked


def _compare(
    got: dict[str, Any], want: dict[str, Any], rows: tuple[Row, ...], step: int, B: int, C: int
) -> None:
    """Every field of both, or ``Violation`` with the batch."""
    for name in sorted(set(got) & set(want)):
        actual, expected = got[name], want[name]
        if actual is None and name in GRID and want["max_query_len"] <= 1:
            continue
        if name == "chunk_row" and isinstance(actual, list):
            expected = expected + [-1] * (len(actual) - len(expected))  # -1 beyond the last chunk
        if actual != expected:
            batch = ", ".join(f"(n {r.n}, m {r.m})" for r in rows)
            where = (
                next((i for i, (a, e) in enumerate(zip(actual, expected)) if a != e), None)
                if isinstance(actual, list)
                else None
            )
            raise Violation(
                f"{name} is {actual}, expected {expected}, for the rows {batch} with B = {B}, C = {C} (step {step})",
                step=step,
                row=where,
                field=name,
            )


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Tensors as lists. All of a device's integers come over at once: a GPU is asked once, not once for each field."""
    tensors = {name: t for name, t in fields.items() if isinstance(t, torch.Tensor)}
    plain = {name: value for name, value in fields.items() if name not in tensors}
    whole = {name: t for name, t in tensors.items() if t.is_cuda and not t.is_floating_point()}
    if whole:
        packed = torch.cat([t.reshape(-1).to(torch.int64) for t in whole.values()]).cpu()
        parts = packed.split([t.numel() for t in whole.values()])
        tensors |= {n: p.view(t.shape).to(t.dtype) for (n, t), p in zip(whole.items(), parts)}
    return plain | {name: t.tolist() for name, t in tensors.items()}


register(
    Property(
        name="metadata",
        doc="Block indices equal the brute-force builder's: all small batches, and random large ones.",
        kind="metadata",
        strategy=lambda target: random_batches(target),
        check=check_metadata,
        needs=needs(levels=("metadata",)),
        floor=45_000,  # 43,032 of them are the exhaustive ones
        fixed=lambda target: exhaustive(target.claims),
    )
)
