"""The target's block-index metadata against the brute-force builder's: every field of every batch that differs.

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_triage.py -k metadata``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.runner import make_batch
from gdn_apc.fuzz.targets.base import Target


@dataclass(frozen=True)
class Wrong:
    """A wrong field: the first row in which it is, and a sentence."""

    step: int
    row: int | None
    field: str
    says: str
    expected: str
    actual: str


def wrong_indices(target: Target, case: Case) -> list[Wrong]:
    """Every wrong field of the first batch that has any; empty if all batches are indexed rightly."""
    B, C = case.sizes.B, case.sizes.C
    for i, step in enumerate(case.steps):
        batch = make_batch(step.rows, B, C, target.device())
        got = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in target.metadata(batch).items()}
        want = oracle.block_indices(
            [(r.n, r.m, t) for r, t in zip(step.rows, batch.block_table.tolist())], B, C
        )
        wrong = [w for name in want if name in got and (w := _field(name, got[name], want, step.rows, i, B))]
        if wrong:
            return wrong
    return []


def _field(name: str, got: Any, want: dict[str, Any], rows: tuple, step: int, B: int) -> Wrong | None:
    expected = want[name]
    if got is None and name in ("chunk_offsets", "chunk_row") and want["max_query_len"] <= 1:
        return None
    if name == "chunk_row" and isinstance(got, list):
        expected = expected + [-1] * (len(got) - len(expected))
    if got == expected:
        return None
    at = (
        next((j for j, (a, e) in enumerate(zip(got, expected)) if a != e), None)
        if isinstance(got, list)
        else None
    )
    if at is None or at >= len(rows) or len(expected) != len(rows):
        return Wrong(step, None, name, f"{name} is {got}, expected {expected}", str(expected), str(got))
    row = rows[at]
    kind = "a padding row" if not row.m else f"n = {row.n}, m = {row.m}"
    says = f"{name} of row {at} is {got[at]}, expected {expected[at]} ({kind}, B = {B}{_why(row, B)})"
    return Wrong(step, at, name, says, str(expected[at]), str(got[at]))


def _why(row: Any, B: int) -> str:
    """What is special about a row's place."""
    if not row.m:
        return ""
    special = []
    if row.n and row.n % B == 0:
        special.append("it starts on a boundary")
    if (row.n + row.m) % B == 0:
        special.append("it ends on a boundary")
    if row.n == 0:
        special.append("it is fresh")
    return "; " + ", ".join(special) if special else ""
