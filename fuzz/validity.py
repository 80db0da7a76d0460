"""Is a case within the contract? If not, a failure on it says nothing about the target.

The rules come from DESIGN.md section 3, read off the case's explicit rows by following what each slot holds:
a live row with ``n > 0`` reads a slot that holds the state after its own first ``n`` tokens; in one batch no slot is
written by two rows, nor written by one and read by another; whatever a later row reads was not overwritten in
between (so no shared or published slot is written while anyone needs it).

Used by the strategies' own tests, by replay, and by anyone who edits a case by hand. Imports the standard library,
``fuzz.case`` and ``fuzz.geometry``. Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdn_apc.fuzz.case import LEVELS, Case, Row
from gdn_apc.fuzz.geometry import owner, read_column, read_slot, state_end, write_columns, write_slots

DTYPES = ("bf16", "fp16", "fp32")

Held = tuple[int, int]
"""What a slot holds: (request that its tokens come from, number of tokens)."""


def problems(case: Case) -> list[str]:
    """Every reason why a case is outside the contract, each with its place; empty for a valid case."""
    found = [*_sizes(case), *_requests(case)]
    if found or case.level == "metadata":
        return found + list(_metadata_rows(case) if case.level == "metadata" else ())
    held: dict[int, Held] = {}
    for i, step in enumerate(case.steps):
        for j, row in enumerate(step.rows):
            found += (f"step {i}, row {j}: {problem}" for problem in _row(case, row, held))
        if found:
            return found
        found += (f"step {i}: {problem}" for problem in _batch(case, step.rows))
        for row in step.rows:
            for column, slot in write_slots(row, case.sizes.B):
                n = state_end(column, row.n, row.m, case.sizes.B)
                held[slot] = (owner(case.requests, row.request, n), n)
    return found


def check(case: Case) -> None:
    """Raises ``ValueError`` with every problem of an invalid case."""
    found = problems(case)
    if found:
        raise ValueError("case: outside the contract, so it cannot judge a target:\n  " + "\n  ".join(found))


def _sizes(case: Case) -> Iterator[str]:
    s = case.sizes
    for name in ("H", "HV", "K", "V", "B", "C"):
        if getattr(s, name) < 1:
            yield f"sizes.{name}: {getattr(s, name)}, expected at least 1"
    if s.W < 2:
        yield f"sizes.W: {s.W}, expected at least 2: a width of 1 has no window to cache"
    if s.H > 0 and s.HV % s.H:
        yield f"sizes.HV: {s.HV}, expected a multiple of H = {s.H}"
    for name in ("input", "state", "conv"):
        if getattr(case.dtypes, name) not in DTYPES:
            yield f"dtypes.{name}: {getattr(case.dtypes, name)!r}, expected one of {', '.join(DTYPES)}"
    if case.dtypes.conv not in (case.dtypes.input, "fp32"):
        yield f"dtypes.conv: {case.dtypes.conv} cannot hold {case.dtypes.input} inputs exactly"
    if case.level not in LEVELS:
        yield f"level: {case.level!r}, expected one of {', '.join(LEVELS)}"


def _requests(case: Case) -> Iterator[str]:
    for r, request in enumerate(case.requests):
        if request.parent is None:
            if request.shared:
                yield f"requests[{r}].shared: {request.shared} without a parent"
        elif not 0 <= request.parent < r:
            yield f"requests[{r}].parent: {request.parent}, expected an earlier request"
        elif request.shared > min(request.length, case.requests[request.parent].length):
            yield f"requests[{r}].shared: {request.shared} is longer than the request or its parent"


def _metadata_rows(case: Case) -> Iterator[str]:
    for i, step in enumerate(case.steps):
        for j, row in enumerate(step.rows):
            if row.m < 0 or row.n < 0:
                yield f"step {i}, row {j}: n = {row.n}, m = {row.m}, expected no negative count"
            elif row.m and len(row.table) <= write_columns(row.n, row.m, case.sizes.B)[-1]:
                yield f"step {i}, row {j}: {len(row.table)} columns for {row.n + row.m} tokens"


def _row(case: Case, row: Row, held: dict[int, Held]) -> Iterator[str]:
    """Problems of one row, given what every slot holds before its step."""
    B = case.sizes.B
    stray = [slot for slot in row.table if not 0 <= slot < case.pool.num_slots]
    if stray:
        yield f"slot {stray[0]} is outside the pool of {case.pool.num_slots}"
    if row.request is None or row.m == 0:
        if row.m:
            yield f"a padding row with m = {row.m}"
        return
    if not 0 <= row.request < len(case.requests):
        yield f"request {row.request} does not exist"
        return
    if min(row.n, row.m) < 0 or row.n + row.m > case.requests[row.request].length:
        yield f"n + m = {row.n} + {row.m}, but request {row.request} has {case.requests[row.request].length} tokens"
        return
    last = write_columns(row.n, row.m, B)[-1]
    if len(row.table) <= last:
        yield f"the table has {len(row.table)} columns, column {last} is written"
        return
    if row.n:
        slot, want = row.table[read_column(row.n, B)], (owner(case.requests, row.request, row.n), row.n)
        if slot == 0:
            yield f"reads column {read_column(row.n, B)}, which is null"
        elif held.get(slot) != want:
            yield f"reads slot {slot} for state({want[1]}) of request {want[0]}, but it holds {held.get(slot)}"


def _batch(case: Case, rows: tuple[Row, ...]) -> Iterator[str]:
    """Problems between the rows of one batch."""
    B, writer = case.sizes.B, {}
    live = [(j, row) for j, row in enumerate(rows) if row.request is not None and row.m]
    for j, row in live:
        for _, slot in write_slots(row, B):
            if slot in writer:
                yield f"rows {writer[slot]} and {j} both write slot {slot}"
            writer[slot] = j
    for j, row in live:
        slot = read_slot(row, B)
        if slot in writer and writer[slot] != j:
            yield f"row {j} reads slot {slot}, which row {writer[slot]} writes in the same batch"
    for request in {row.request for _, row in live}:
        if sum(row.request == request for _, row in live) > 1:
            yield f"request {request} has two rows"
