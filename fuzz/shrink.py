"""Makes a failing case small by editing its explicit rows: fewer batches, rows, tokens, simpler sizes and numbers.

Hypothesis shrinks the draws that made a case; here the case itself is edited, which removes what a scenario's code
would always put there, and costs a check a candidate. A candidate counts only if it is within the contract
(``fuzz/validity.py``), within the target's claims, and still fails; the order of the edits is the order of what a
reader wants to be rid of first.

    small = minimise(case, lambda c: violation(prop, target, c) is not None, target.claims, seconds=30.0)

Imports the standard library and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_shrink.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Options, Request, Row, Step
from gdn_apc.fuzz.geometry import read_column, rows, write_columns
from gdn_apc.fuzz.properties.base import Property, Violation
from gdn_apc.fuzz.targets.base import Claims, Target
from gdn_apc.fuzz.validity import problems


def minimise(case: Case, fails: Callable[[Case], bool], claims: Claims, seconds: float) -> Case:
    """The smallest case that was found to fail, within so many seconds; ``case`` itself if none smaller did."""
    deadline, tried = time.monotonic() + seconds, {case.to_json()}

    def accept(candidate: Case) -> bool:
        text = candidate.to_json()
        if text in tried:
            return False
        tried.add(text)
        return claimed(candidate, claims) and not problems(candidate) and fails(candidate)

    progress = True
    while progress:
        progress = False
        for edit in EDITS:
            candidates = edit(case)
            while time.monotonic() < deadline and (candidate := next(candidates, None)) is not None:
                if accept(candidate):
                    case, progress = candidate, True
                    candidates = edit(case)
    return case


def violation(prop: Property, target: Target, case: Case) -> Violation | None:
    """How a case violates a property, an exception of the target included; None if it does not, or cannot be judged."""
    from gdn_apc.fuzz.campaign import Broken, check

    try:
        check(prop, target, case)
    except Violation as e:
        return e
    except Broken as e:
        if isinstance(e.__cause__, ValueError):
            return None
        raise
    return None


def claimed(case: Case, claims: Claims) -> bool:
    """Whether a target with these claims may be asked."""
    s, d = case.sizes, case.dtypes
    return (
        (case.num_tokens > 0 or "events" in case.choice)
        and case.level in claims.seams
        and d.input in claims.input_dtypes
        and d.state in claims.state_dtypes
        and (claims.head_sizes is None or {s.K, s.V} <= claims.head_sizes)
        and s.B % claims.block_multiple == 0
        and (s.C in claims.chunk_sizes or case.level == "metadata")
    )


def drop_steps(case: Case) -> Iterator[Case]:
    """Without half of the batches, a quarter, …, one; the last first."""
    count = size = len(case.steps)
    while size > 1:
        size = (size + 1) // 2
        for i in reversed(range(0, count, size)):
            yield replace(case, steps=case.steps[:i] + case.steps[i + size :])


def drop_rows(case: Case) -> Iterator[Case]:
    """Without one row, the last first."""
    for i, j, _ in reversed(list(rows(case))):
        yield with_row(case, i, j, None)


def drop_tokens(case: Case) -> Iterator[Case]:
    """A row of fewer tokens. Rows after it, if any, move with it, as far as that stays within the contract."""
    for i, j, row in reversed(list(rows(case))):
        for m in dict.fromkeys((1, 2, row.m // 2, row.m - 1)):
            if 0 < m < row.m:
                shorter = with_row(case, i, j, replace(row, m=m))
                yield shorter
                yield _moved(shorter, i, row, m - row.m)
    if case.level == "metadata":
        for i, j, row in reversed(list(rows(case))):
            yield from (
                with_row(case, i, j, replace(row, n=n))
                for n in dict.fromkeys((0, row.n // 2, row.n - 1))
                if 0 <= n < row.n
            )


def drop_unused(case: Case) -> Iterator[Case]:
    """No tokens that no row computes, and no requests without tokens."""
    reach = [0] * len(case.requests)
    for _, _, row in rows(case):
        if row.request is not None and case.level != "metadata":
            reach[row.request] = max(reach[row.request], row.n + row.m)
    for r, request in reversed(
        list(enumerate(case.requests))
    ):  # children first: they share their parent's tokens
        if request.parent is not None:
            reach[request.parent] = max(reach[request.parent], min(request.shared, reach[r]))
    requests = [Request(n, r.parent, min(r.shared, n)) for n, r in zip(reach, case.requests)]
    yield replace(case, requests=tuple(requests))
    yield _renumbered(replace(case, requests=tuple(requests)))


def own_tokens(case: Case) -> Iterator[Case]:
    """A request that shares a prefix gets tokens of its own, where no row hits what the other one left."""
    for r, request in enumerate(case.requests):
        if request.parent is not None:
            alone = replace(request, parent=None, shared=0)
            yield replace(case, requests=(*case.requests[:r], alone, *case.requests[r + 1 :]))


def drop_events(case: Case) -> Iterator[Case]:
    """A life of the cache machine without half of its events, a quarter, …, one; the last first."""
    events = case.choice.get("events", ())
    count = len(events)
    size = count + (count > 0)
    while size > 1:
        size = (size + 1) // 2
        for i in reversed(range(0, count, size)):
            yield _living(case, events=[*events[:i], *events[i + size :]])


def simpler_life(case: Case) -> Iterator[Case]:
    """Fewer and shorter requests, plain habits of the engine, one step in flight, a pool that is just large enough."""
    if "events" not in case.choice:
        return
    requests, prompts = case.requests, case.choice["prompts"]
    for r in reversed(range(len(requests))):
        if len(requests) > 1 and all(q.parent != r for q in requests):
            moved = [
                replace(q, parent=q.parent - (q.parent > r)) if q.parent is not None else q for q in requests
            ]
            yield _living(
                replace(case, requests=tuple(moved[:r] + moved[r + 1 :])),
                prompts=[*prompts[:r], *prompts[r + 1 :]],
            )
    for habit, plain in (("depth", 1), ("attention", False), ("skip", False), ("stale", False)):
        if case.choice.get(habit, plain) != plain:
            yield _living(case, **{habit: plain})
    for r, request in reversed(list(enumerate(requests))):
        for length in dict.fromkeys((1, request.length // 2, request.length - 1)):
            if 0 < length < request.length:
                cut = [
                    replace(q, shared=min(q.shared, length)) if r in (i, q.parent) else q
                    for i, q in enumerate(requests)
                ]
                cut[r] = replace(cut[r], length=length)
                fewer = [min(p, length) if i == r else p for i, p in enumerate(prompts)]
                yield _living(replace(case, requests=tuple(cut)), prompts=fewer)
    for slots in dict.fromkeys((2, case.pool.num_slots // 2, case.pool.num_slots - 1)):
        if 1 < slots < case.pool.num_slots:
            yield replace(case, pool=replace(case.pool, num_slots=slots))
    for i, event in enumerate(case.choice["events"]):
        if event[0] == "pass" and event[4] > 1:
            once = [*event[:4], 1]
            yield _living(case, events=[*case.choice["events"][:i], once, *case.choice["events"][i + 1 :]])


def _living(case: Case, **choice: object) -> Case:
    return replace(case, choice={**case.choice, **choice})


def narrow(case: Case) -> Iterator[Case]:
    """One narrow head, plain dtypes, all at once: what follows is then checked in a fraction of the time."""
    s, plain = case.sizes, replace(case.sizes, H=1, HV=1, K=8, V=8)
    if s != plain:
        yield replace(case, sizes=plain, dtypes=Dtypes("fp32", "fp32", "fp32"))
        yield replace(case, sizes=plain)
        yield replace(case, sizes=replace(s, H=1, HV=1))
        yield replace(case, sizes=replace(s, K=min(s.K, 16), V=min(s.V, 16)))


def join_rows(case: Case) -> Iterator[Case]:
    """A request's next row does the work of a row too."""
    for i, j, row in rows(case):
        if row.request is None or not row.m:
            continue
        for i2, j2, later in rows(case):
            if i2 > i and later.request == row.request and later.n == row.n + row.m and later.m:
                joined = with_row(case, i2, j2, replace(later, n=row.n, m=row.m + later.m))
                yield with_row(joined, i, j, None)
                break


def drop_first_blocks(case: Case) -> Iterator[Case]:
    """A request begins some blocks later in its text: its rows lose their first columns, and a hit may go."""
    B = case.sizes.B
    for r in sorted({row.request for _, _, row in rows(case) if row.request is not None}):
        most = min(row.n for _, _, row in rows(case) if row.request == r) // B
        for k in sorted({most, 1} - {0}, reverse=True) if most else ():
            steps = tuple(
                Step(
                    tuple(
                        replace(row, n=row.n - k * B, table=row.table[k:]) if row.request == r else row
                        for row in step.rows
                    )
                )
                for step in case.steps
            )
            requests = tuple(
                replace(request, length=request.length - k * B, parent=None, shared=0) if i == r else request
                for i, request in enumerate(case.requests)
            )
            yield replace(case, requests=requests, steps=steps)


def _renumbered(case: Case) -> Case:
    """Without requests that have no tokens and no children. Others get new numbers, and with them other tensors.

    A zero-length row of a request that goes becomes a padding row.
    """
    parents = {r.parent for r in case.requests if r.length}
    kept = [i for i, r in enumerate(case.requests) if r.length or i in parents]
    new = {old: i for i, old in enumerate(kept)} | {None: None}
    requests = tuple(replace(case.requests[i], parent=new.get(case.requests[i].parent)) for i in kept)
    steps = tuple(
        Step(
            tuple(
                replace(row, request=new.get(row.request, row.request if row.m else None))
                for row in step.rows
            )
        )
        for step in case.steps
    )
    choice = {k: new.get(v, v) if k in ("warm", "cold", "one", "cut") else v for k, v in case.choice.items()}
    return replace(case, requests=requests, steps=steps, choice=choice)


def smaller_blocks(case: Case) -> Iterator[Case]:
    """Smaller blocks, with every position at the same place of its block as far as there is room.

    Boundaries stay boundaries, so columns, tables and hits stay what they are.
    """
    B = case.sizes.B

    def at(p: int, b: int) -> int:
        return p // B * b + min(p % B, b - 1)

    for b in dict.fromkeys((2, 3, 4, 8, B // 2, B - 1)):
        if not 1 < b < B:
            continue
        choice = {k: at(v, b) if k in ("start", "end") else v for k, v in case.choice.items()}
        if "prompts" in choice:  # a life of the cache machine
            choice["prompts"] = [at(p, b) for p in choice["prompts"]]
        steps = tuple(
            Step(tuple(replace(r, n=at(r.n, b), m=at(r.n + r.m, b) - at(r.n, b)) for r in step.rows))
            for step in case.steps
        )
        requests = tuple(Request(at(r.length, b), r.parent, at(r.shared, b)) for r in case.requests)
        yield replace(case, sizes=replace(case.sizes, B=b), requests=requests, steps=steps, choice=choice)


def simpler_numbers(case: Case) -> Iterator[Case]:
    """Plain regimes, options and pages; fp32; one head, narrow heads, small blocks."""
    for field, value in (
        ("betas", "uniform"),
        ("keys", "normal"),
        ("values", "normal"),
        ("gates", "mild"),
        ("seed", 0),
    ):
        yield replace(case, inputs=replace(case.inputs, **{field: value}))
    yield replace(case, inputs=Inputs(0))
    yield replace(
        case, options=Options(use_qk_l2norm=case.options.use_qk_l2norm, activation=case.options.activation)
    )
    yield replace(case, pool=replace(case.pool, page_padding=0, channel_major=False))
    for change in (dict(conv=case.dtypes.input), dict(state="fp32"), dict(input="fp32", conv="fp32")):
        yield replace(case, dtypes=replace(case.dtypes, **change))
    s = case.sizes
    for change in (
        dict(H=1, HV=1),
        dict(H=1, HV=2),
        dict(H=1),
        dict(K=8),
        dict(V=8),
        dict(K=16),
        dict(V=16),
        dict(W=4),
    ):
        if any(getattr(s, name) > value for name, value in change.items()):
            yield replace(case, sizes=replace(s, **change))
    if case.level == "metadata":
        yield from (replace(case, sizes=replace(s, B=B)) for B in (1, 2) if B < s.B)
    smallest = (1, 2, 4, 16, 32) if case.level == "metadata" else (16, 32)
    yield from (replace(case, sizes=replace(s, C=C)) for C in smallest if C < s.C)


def plain_tables(case: Case) -> Iterator[Case]:
    """Columns that are not used become null or go; slots are numbered as they appear."""
    B, names = case.sizes.B, {0: 0}
    steps = []
    for step in case.steps:
        plain = []
        for row in step.rows:
            used = set(write_columns(row.n, row.m, B)) | (
                {read_column(row.n, B)} if row.m and row.n else set()
            )
            table = [
                slot if j in used else 0 for j, slot in enumerate(row.table[: max(used, default=-1) + 1])
            ]
            plain.append(replace(row, table=tuple(names.setdefault(slot, len(names)) for slot in table)))
        steps.append(Step(tuple(plain)))
    yield replace(case, steps=tuple(steps), pool=replace(case.pool, num_slots=len(names) + 1))


EDITS = (
    narrow,
    drop_events,
    simpler_life,
    drop_steps,
    drop_rows,
    drop_first_blocks,
    join_rows,
    smaller_blocks,
    drop_tokens,
    own_tokens,
    drop_unused,
    simpler_numbers,
    plain_tables,
)
"""Each yields candidates for one kind of simplification; after a success it starts again from the new case."""


def with_row(case: Case, i: int, j: int, row: Row | None) -> Case:
    """The case with one row replaced or left out; a batch that becomes empty goes too."""
    batch = (*case.steps[i].rows[:j], *([row] if row else []), *case.steps[i].rows[j + 1 :])
    steps = (*case.steps[:i], *([Step(batch)] if batch else []), *case.steps[i + 1 :])
    return replace(case, steps=steps)


def _moved(case: Case, after: int, row: Row, by: int) -> Case:
    """Rows of the same request in later batches start earlier, if they went on from where ``row`` ended."""
    end, steps = row.n + row.m, list(case.steps)
    for i in range(after + 1, len(steps)):
        steps[i] = Step(
            tuple(
                replace(r, n=r.n + by)
                if r.request == row.request and r.request is not None and r.n >= end
                else r
                for r in steps[i].rows
            )
        )
    return replace(case, steps=tuple(steps))
