"""A small deterministic scheduler and allocator: abstract events in, explicit rows with block tables out.

Strategies draw events ("hit at block 2 of request 0, one token", "preempt request 1", …); the planner finds the
slots, keeps references, recycles, and leaves rows that are inside the contract (``fuzz/validity.py`` checks that on its
own). An event that cannot happen now is turned into one that can, so nothing is filtered while drawing.

It also keeps the cost of a case within a budget: the interpreter pays for each chunk of each value head, so rows
are cut short when the budget is spent. Imports the standard library, ``fuzz.case`` and ``fuzz.geometry``.
Exercise it with ``pytest tests/fuzz/test_strategies.py``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gdn_apc.fuzz.case import Request, Row, Sizes, Step
from gdn_apc.fuzz.geometry import chunks, on_grid, owner, state_end, write_columns

STEP_COST = 2
"""What launching a batch costs, in value-head chunks."""


@dataclass
class _Life:
    """A request while the planner runs it. ``table`` is by column; a running request refers to ``refs``."""

    parent: int | None = None
    shared: int = 0
    n: int = 0
    reach: int = 0  # the furthest it ever got; its length in the case
    table: list[int] = field(default_factory=list)
    refs: set[int] = field(default_factory=set)
    running: bool = True


class Planner:
    """Builds the requests and steps of a case.

    ``budget``: value-head chunks that all rows may cost together; ``tokens``: the same in tokens.
    ``any_start=False`` starts no row of two or more tokens off the chunk grid, and ``nulls=False`` lets no row write a
    null column, for targets that cannot.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        budget: int,
        tokens: int,
        max_rows: int = 6,
        any_start: bool = True,
        nulls: bool = True,
    ):
        self.sizes, self.budget, self.tokens = sizes, budget, tokens
        self.max_rows, self.any_start, self.nulls = max_rows, any_start, nulls
        self.lives: list[_Life] = []
        self._steps: list[Step] = []
        self._rows: list[Row] = []
        self._touched: set[int] = set()  # requests that have a row in this batch
        self._holds: dict[int, tuple[int, int]] = {}  # slot → (owner, tokens), as of the last finished batch
        self._written: dict[int, tuple[int, int]] = {}  # the same for the batch being built
        self._free: list[int] = []  # recycled slots, the longest free first
        self._next_slot = 1
        self.trailing = 0  # stale columns after the last one that a row needs

    # ---- events -----------------------------------------------------------------------------------------------

    def admit(
        self, m: int, *, twin_of: int | None = None, null_interior: bool = False, forget: bool = False
    ) -> int | None:
        """A new request runs its first ``m`` tokens. Returns its index, or None if the batch is full.

        ``twin_of``: it has the tokens of that request, as far as that one ever got; it must not run further.
        """
        if self._full():
            return None
        shared = 0 if twin_of is None else self.lives[twin_of].reach
        self.lives.append(_Life(twin_of, shared))
        return self._run(len(self.lives) - 1, m, null_interior, forget)

    def hit(
        self, donor: int, k: int, m: int, *, extra: int = 0, stale: str = "null", twin_of: int | None = None
    ) -> int | None:
        """A new request starts from the donor's column ``k - 1``, which must be one of ``hits(donor)``.

        It shares kB + ``extra`` tokens, or is a twin of another request that started there. ``stale`` says what its
        earlier columns hold: ``null``, ``real`` slots, or ``stale`` ones (any other slot).
        """
        if self._full() or k not in self.hits(donor):
            return None
        B, given = self.sizes.B, self.lives[donor]
        parent, shared = (donor, k * B + extra) if twin_of is None else (twin_of, self.lives[twin_of].reach)
        life = _Life(parent, min(shared, self.lives[parent].reach), n=k * B, reach=k * B)
        self._start_from(life, given.table, k, stale)
        self.lives.append(life)
        return self._run(len(self.lives) - 1, m)

    def advance(self, r: int, m: int, *, null_interior: bool = False, forget: bool = False) -> int | None:
        """A running request runs ``m`` more tokens. With ``null_interior``, new columns that it passes through are null.

        With ``forget`` all new columns are, the last one too: nothing of them is kept, and the request ends there.
        """
        if self._full() or not self.lives[r].running or r in self._touched:
            return None
        return self._run(r, m, null_interior, forget)

    def preempt(self, r: int, *, recycle: bool) -> None:
        """A running request loses its slots and its progress. They stay cached, where hits find them, or are recycled."""
        if self.lives[r].running and r not in self._touched:
            self._release(r, recycle)

    finish = preempt  # to the cache, a finished request is one that never resumes

    def resume(self, r: int, k: int, m: int, *, stale: str = "null") -> int | None:
        """A preempted request starts again from its own column ``k - 1``, or from nothing (``k = 0``)."""
        life = self.lives[r]
        if self._full() or life.running or r in self._touched or (k and k not in self.hits(r)):
            return None
        old, life.running, life.n, life.refs = life.table, True, k * self.sizes.B, set()
        if k:
            self._start_from(life, old, k, stale)
        else:
            life.table = []
        return self._run(r, m)

    def zero(self, r: int) -> None:
        """A zero-length row of a request: it is in the batch, and nothing is scheduled for it."""
        if not self._full() and r not in self._touched:
            self._touched.add(r)
            life = self.lives[r]
            self._rows.append(Row(r, life.n, 0, tuple(life.table)))

    def pad(self, n: int, pick: int) -> None:
        """A padding row with a stale n and a stale table."""
        if not self._full():
            known = range(1, self._next_slot)
            columns = -(-n // self.sizes.B) + 1 if n else 0
            table = tuple(known[(pick + i) % len(known)] for i in range(min(columns, 8))) if known else ()
            self._rows.append(Row(None, n, 0, table))

    def end_step(self) -> None:
        """The batch is complete; what it wrote may be hit from the next one on."""
        if self._rows:
            self._steps.append(Step(tuple(self._rows)))
            self.budget -= STEP_COST
        self._holds |= self._written
        self._rows, self._touched, self._written = [], set(), {}

    # ---- what may happen now ----------------------------------------------------------------------------------

    def hits(self, donor: int) -> list[int]:
        """Every k ≥ 1 such that state(kB) of the donor lies in its column k − 1, written in a finished batch."""
        B, life = self.sizes.B, self.lives[donor]
        return [
            k
            for k in range(1, life.reach // B + 1)
            if k <= len(life.table)
            and life.table[k - 1]
            and self._holds.get(life.table[k - 1]) == (owner(self.lives, donor, k * B), k * B)
            and life.table[k - 1] not in self._written
            and life.table[k - 1] not in self._free
        ]

    def running(self) -> list[int]:
        """Requests that may get a row in this batch."""
        return [r for r, life in enumerate(self.lives) if life.running and r not in self._touched]

    def paused(self) -> list[int]:
        """Requests that were preempted or have finished, and have no row in this batch."""
        return [r for r, life in enumerate(self.lives) if not life.running and r not in self._touched]

    # ---- the result -------------------------------------------------------------------------------------------

    def build(
        self, *, slot_seed: int = 0, spare: int = 1
    ) -> tuple[tuple[Request, ...], tuple[Step, ...], int]:
        """Requests, steps and number of slots. ``slot_seed`` renames the slots (0: as allocated)."""
        self.end_step()
        names = list(range(1, self._next_slot + spare))
        if slot_seed:
            random.Random(slot_seed).shuffle(names)
        rename = dict(zip(range(1, self._next_slot + spare), names)) | {0: 0}
        steps = tuple(
            Step(tuple(Row(r.request, r.n, r.m, tuple(rename[s] for s in r.table)) for r in step.rows))
            for step in self._steps
        )
        requests = tuple(
            Request(life.reach, life.parent, min(life.shared, life.reach)) for life in self.lives
        )
        return requests, steps, self._next_slot + spare

    # ---- inside -----------------------------------------------------------------------------------------------

    def _full(self) -> bool:
        return len(self._rows) >= self.max_rows

    def _run(self, r: int, m: int, null_interior: bool = False, forget: bool = False) -> int:
        """Append the row and account for what it will have written."""
        B, life = self.sizes.B, self.lives[r]
        null_interior, forget = null_interior and self.nulls, forget and self.nulls
        m = self._fit(life.n, max(m, 1))
        columns = write_columns(life.n, m, B)
        if forget and len(life.table) <= columns[-1]:
            life.running = False  # its slots stay referred to: this batch still reads one
        while len(life.table) <= columns[-1]:
            null = not life.running or (null_interior and len(life.table) != columns[-1])
            slot = 0 if null else self._allocate()
            life.table.append(slot)
            if slot:
                life.refs.add(slot)
        stale = (1,) * self.trailing
        self._rows.append(Row(r, life.n, m, tuple(life.table) + stale))
        self._touched.add(r)
        life.n += m
        life.reach = max(life.reach, life.n)
        for j in columns:
            if life.table[j]:
                tokens = state_end(j, life.n - m, m, B)
                self._written[life.table[j]] = (owner(self.lives, r, tokens), tokens)
        return r

    def _fit(self, n: int, m: int) -> int:
        """The most of m tokens that the budget pays for, at least one."""
        B, C = self.sizes.B, self.sizes.C
        if not self.any_start and not on_grid(n, B, C):
            m = 1
        m = max(1, min(m, self.tokens))
        grid = chunks(n, m, B, C)
        affordable = max(1, self.budget // self.sizes.HV)
        if len(grid) > affordable:
            m = max(1, grid[affordable - 1][1] - n)
            grid = grid[:affordable]
        self.budget -= len(grid) * self.sizes.HV
        self.tokens -= m
        return m

    def _start_from(self, life: _Life, table: list[int], k: int, stale: str) -> None:
        """Column k − 1 shared; what lies before it is never dereferenced."""
        read = table[k - 1]
        before = {
            "null": lambda j: 0,
            "real": lambda j: table[j],
            "stale": lambda j: (read + j) % max(self._next_slot - 1, 1) + 1,
        }[stale]
        life.table = [before(j) for j in range(k - 1)] + [read]
        life.refs = {read}

    def _allocate(self) -> int:
        """A slot that nobody refers to: the longest free first, else a new one."""
        if self._free:
            slot = self._free.pop(0)
        else:
            slot, self._next_slot = self._next_slot, self._next_slot + 1
        self._holds.pop(slot, None)
        return slot

    def _release(self, r: int, recycle: bool) -> None:
        life = self.lives[r]
        life.running, refs, life.refs = False, life.refs, set()
        if recycle:
            in_use = set().union(*(other.refs for other in self.lives))
            self._free += sorted(refs - in_use)
