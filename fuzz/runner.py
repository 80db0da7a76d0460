"""Runs a case on a target, step by step, and compares each row with the oracle, locally.

Locally means: the oracle starts from the bits that the row's slot held when the step began. So tolerances do not
add up over steps, and the first wrong row is named. Together with the write set (a step changes what its rows
write and nothing else) this is a proof by induction: if every row is right given what it read, and reads what an
earlier row wrote, then the whole schedule is right.

    world = World(target, case)
    for i in range(len(case.steps)):
        ran = world.run(i)             # Ran: bits read, outputs, bits written, the pool before
        compare(world, ran, checked)   # raises Violation

Imports torch, ``oracle`` and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_runner.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.fuzz import clock, validity
from gdn_apc.fuzz.case import Case, Row
from gdn_apc.fuzz.geometry import read_slot, write_slots
from gdn_apc.fuzz.pool import Pages, Part, bits, fingerprint
from gdn_apc.fuzz.properties.base import Checked, Violation
from gdn_apc.fuzz.targets.base import Batch, Target
from gdn_apc.fuzz.tensors import STREAMS, TORCH, layer, sent, streams

PARTS_OF = {"conv": ("conv",), "delta": ("ssm",), "core": ("conv", "ssm")}
"""The parts of a page that a level reads and writes."""


@dataclass(frozen=True)
class How:
    """What surrounds the data that a target may look at. It must not matter.

    ``fill``: what every byte holds that nobody may read, ``"nan"`` or ``"zero"``. ``tail``: so many packed tokens
    after the last one, filled likewise. ``hide``: before a step, also overwrite every slot that the step's rows do not
    read (and put it back afterwards). ``spoil``: index of a live row of each batch whose inputs become NaN.
    ``widen``: so many columns more than the longest table needs.
    """

    fill: str = "nan"
    tail: int = 0
    hide: bool = False
    spoil: int | None = None
    widen: int = 0


@dataclass
class RanRow:
    """A live row of a step that ran: the bits it read and what it left. Tensors are copies, in the stored dtypes."""

    step: int
    index: int
    row: Row
    inputs: dict[str, torch.Tensor]  # [m, ...] each
    state: torch.Tensor | None  # [HV, V, K], or None where nothing is read
    window: torch.Tensor | None  # [W - 1, D]
    out: torch.Tensor = None  # [m, ...]
    written: dict[str, torch.Tensor] = field(default_factory=dict)  # part → bits, [columns, ...]
    writes: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)  # column → part → a view of that

    def place(self, **more: Any) -> dict[str, Any]:
        """Where this row is, for a ``Violation``."""
        return {"step": self.step, "row": self.index, "request": self.row.request, **more}

    def bits(self) -> dict[str, torch.Tensor]:
        """Everything that the row produced, by name."""
        found = {"output": self.out}
        for column, parts in self.writes.items():
            found |= {f"{NAMES[part]} of column {column}": t for part, t in parts.items()}
        return found

    def all_bits(self) -> list[torch.Tensor]:
        """The same in few tensors, for a first look at all of it at once."""
        return [self.out, *self.written.values()]


@dataclass
class Ran:
    """A step that ran: its live rows, and the pool's bytes before it."""

    rows: list[RanRow]
    before: tuple[torch.Tensor, ...]
    allowed: set[Part]  # what its rows may have written


NAMES = {"ssm": "state", "conv": "window"}


class World:
    """A case's layer, streams and pages on a target's device.

    Raises ``ValueError`` if the case is outside the contract. ``edit(step, world)`` may change the pages before a step.
    """

    def __init__(
        self,
        target: Target,
        case: Case,
        how: How = How(),
        edit: Callable[[int, World], None] | None = None,
    ):
        validity.check(case)
        self.target, self.case, self.how, self.edit = target, case, how, edit
        self.device = target.device()
        self.layer = layer(case, self.device)
        self.streams = streams(case, self.device)
        self.pages = Pages(case, self.device)
        self.pages.fill(how.fill)
        self.parts = PARTS_OF[case.level]
        self._seen: list[torch.Tensor] = []  # fingerprints, on the device

    def digest(self) -> str:
        """12 hex digits of every output and every written block so far."""
        seen = torch.stack(self._seen).tolist() if self._seen else []
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]

    def run_all(self) -> list[Ran]:
        """Every step, in order."""
        return [self.run(i) for i in range(len(self.case.steps))]

    def run(self, i: int) -> Ran:
        """Step ``i``. Raises ``Violation`` if the output's shape or dtype is wrong."""
        if self.edit is not None:
            self.edit(i, self)
        rows = self.case.steps[i].rows
        live = [self.before(i, j, row) for j, row in enumerate(rows) if row.request is not None and row.m]
        read = {
            (slot, part) for r in live for part in self.parts if (slot := read_slot(r.row, self.case.sizes.B))
        }
        allowed = {
            (slot, part)
            for r in live
            for part in self.parts
            for _, slot in write_slots(r.row, self.case.sizes.B)
        }
        before = self.pages.snapshot()
        if self.how.hide:
            self.pages.fill(self.how.fill, keep=read)
        ran = Ran(live, self.pages.snapshot() if self.how.hide else before, allowed)
        out = self._call(rows, live)
        if self.how.hide:
            self._reveal(before, ran)
        self._after(live, out)
        return ran

    def before(self, i: int, j: int, row: Row) -> RanRow:
        """A live row as it is about to run: its inputs, and the bits in the slot that it reads."""
        slot = read_slot(row, self.case.sizes.B)
        return RanRow(
            i,
            j,
            row,
            {name: t[row.n : row.n + row.m] for name, t in self.streams[row.request].items()},
            self.pages.ssm[slot].clone() if slot is not None and "ssm" in self.parts else None,
            self.pages.conv[slot].clone() if slot is not None and "conv" in self.parts else None,
        )

    def _call(self, rows: tuple[Row, ...], live: list[RanRow]) -> torch.Tensor:
        """The target's answer to this batch, tail included."""
        case = self.case
        packed = []
        for name in STREAMS[case.level]:
            like = self._like(name)
            parts = [r.inputs[name] for r in live]
            if self.how.spoil is not None and live:
                spoiled = self.how.spoil % len(live)
                parts[spoiled] = torch.full_like(parts[spoiled], torch.nan)
            tail = torch.full_like(like[:1], torch.nan if self.how.fill == "nan" else 0.0)
            packed.append(torch.cat([like[:0], *parts, tail.expand(self.how.tail, *like.shape[1:])]))
        states = [getattr(self.pages, part) for part in self.parts]
        batch = self.batch(rows)
        with clock.span("target"):
            out = getattr(self.target, case.level)(self.layer, *packed, *states, batch)
        width = (case.sizes.conv_dim,) if case.level == "conv" else (case.sizes.HV, case.sizes.V)
        want = (len(packed[0]), *width), TORCH[case.dtypes.input]
        if (tuple(out.shape), out.dtype) != want:
            raise Violation(
                f"the output has shape {tuple(out.shape)} and dtype {out.dtype}, expected {want[0]} and {want[1]}",
                step=live[0].step if live else None,
            )
        return out

    def _like(self, name: str) -> torch.Tensor:
        """A tensor [1, ...] with this stream's shape and dtype."""
        t = next((s[name] for s in self.streams if len(s[name])), None)
        return t[:1] if t is not None else torch.zeros(1, *self.streams[0][name].shape[1:])

    def batch(self, rows: tuple[Row, ...]) -> Batch:
        """The step as an engine hands it over. Columns that a row's table lacks are null."""
        return make_batch(rows, self.case.sizes.B, self.case.sizes.C, self.device, self.how.widen)

    def _after(self, live: list[RanRow], out: torch.Tensor) -> None:
        """Give each row its part of the output and the bits in its write columns."""
        at = 0
        for r in live:
            r.out = out[at : at + r.row.m].clone()
            at += r.row.m
            columns = list(write_slots(r.row, self.case.sizes.B))
            slots = sent(torch.tensor([slot for _, slot in columns], dtype=torch.long), self.device)
            r.written = {part: getattr(self.pages, part)[slots] for part in self.parts}
            for i, (column, _) in enumerate(columns):
                r.writes[column] = {part: t[i] for part, t in r.written.items()}
            self._seen += [fingerprint(t) for t in r.all_bits()]

    def _reveal(self, before: tuple[torch.Tensor, ...], ran: Ran) -> None:
        """Put back what was hidden, once it is known that nobody wrote to it."""
        check_write_set(self, ran)
        self.pages.restore(before, keep=ran.allowed)


def make_batch(rows: tuple[Row, ...], B: int, C: int, device: torch.device, widen: int = 0) -> Batch:
    """The ``Batch`` of explicit rows; tables are padded with null columns, to ``widen`` more than the longest."""
    columns = max(1, *(len(row.table) for row in rows)) + widen if rows else 1
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + row.m)

    def int32(values: list) -> torch.Tensor:
        return sent(torch.tensor(values, dtype=torch.int32), device)

    tables = int32([list(row.table) + [0] * (columns - len(row.table)) for row in rows])
    return Batch(
        seq_lens=int32([row.n + row.m for row in rows]),
        query_start_loc=int32(starts),
        block_table=tables.view(-1, columns),
        block_size=B,
        chunk_size=C,
        max_query_len=max((row.m for row in rows), default=0),
    )


@clock.span("oracle")
def truth(world: World, r: RanRow) -> oracle.StepResult:
    """What the oracle says of a row, from the bits it read, by the clauses on fp32 that its target claims."""
    s, d, layer_, claims = world.case.sizes, world.case.dtypes, world.layer, world.target.claims
    products = "fp32" if claims.conv_fp32 or d.conv != d.input else d.input
    token = dict(
        one_token_fp32=claims.fresh_token_fp32 or r.row.n > 0,
        operand="fp16" if d.input == "fp16" and not claims.fp16_range else None,
    )
    common = dict(n=r.row.n, block_size=s.B)
    if world.case.level == "conv":
        return oracle.conv_step(
            r.inputs["x"],
            layer_.conv_weight,
            layer_.conv_bias,
            window=r.window,
            activation=layer_.activation,
            dtype=d.input,
            products=products,
            **common,
        )
    common |= dict(chunk_size=s.C, state=r.state, dtypes=(d.input, d.state))
    if world.case.level == "delta":
        options = dict(scale=layer_.scale, use_qk_l2norm=layer_.use_qk_l2norm)
        return oracle.delta_step(*r.inputs.values(), **options, **common, **token)
    return oracle.core_step(
        *r.inputs.values(), layer_, window=r.window, conv_products=products, **common, **token
    )


def compare(world: World, ran: Ran, checked: Checked) -> None:
    """Every row's output and every block it wrote against the oracle. Raises ``Violation`` at the first wrong place."""
    for r in ran.rows:
        compare_row(world, r, truth(world, r), checked)


def compare_row(world: World, r: RanRow, want: oracle.StepResult, checked: Checked) -> None:
    """One row against what the oracle says of it. Blocks come first: they name the first wrong one."""
    B, dtypes = world.case.sizes.B, world.case.dtypes
    if _all_blocks_right(world, r, want, checked):
        return _compare_output(world, r, want, checked)
    for column, parts in r.writes.items():
        place = r.place(column=column, slot=r.row.table[column])
        if "conv" in parts:
            _same_window(parts["conv"], want.writes[column].window, place)
            checked.comparisons += 1
        if "ssm" in parts:
            found = oracle.check(
                want.writes[column].state,
                parts["ssm"],
                want.state_tol[column],
                what=f"state({min((column + 1) * B, r.row.n + r.row.m)})",
                axes=("head", "value", "key"),
                dtype=dtypes.state,
                **place,
            )
            _accept(found, f"state {dtypes.state}", checked)
    _compare_output(world, r, want, checked)


_AT_ONCE = 1 << 24


def _all_blocks_right(world: World, r: RanRow, want: oracle.StepResult, checked: Checked) -> bool:
    """Whether every block of a row is right, all looked at together: a GPU is asked once, not once for each."""
    dtype, columns = world.case.dtypes.state, list(r.writes)
    windows, states, worst = r.written.get("conv"), r.written.get("ssm"), []
    if windows is not None and columns:
        expected = torch.stack([want.writes[j].window for j in columns]).to(windows.device, windows.dtype)
        if bool((bits(windows) != bits(expected)).any()):
            return False
    if states is not None and columns:
        for some in torch.arange(len(columns)).split(max(1, _AT_ONCE // states[0].numel())):
            exact = torch.stack([want.writes[columns[i]].state for i in some])
            tol = torch.stack([want.state_tol[columns[i]] for i in some])
            ratio = oracle.ratios(exact, states[some[0] : some[-1] + 1], tol, dtype)
            worst += ratio.flatten(1).amax(1).tolist()
        if max(worst) > 1:
            return False
        checked.ratios.setdefault(f"state {dtype}", []).extend(worst)
    checked.comparisons += len(columns) * len(world.parts)
    return True


def _compare_output(world: World, r: RanRow, want: oracle.StepResult, checked: Checked) -> None:
    B, dtypes = world.case.sizes.B, world.case.dtypes
    axes = ("position", "channel") if world.case.level == "conv" else ("position", "head", "value")
    found = oracle.check(
        want.o,
        r.out,
        want.o_tol,
        what="the output",
        axes=axes,
        first=r.row.n,
        block_size=B,
        dtype=dtypes.input,
        **r.place(),
    )
    _accept(found, f"{world.case.level} output {dtypes.input}", checked)


def _same_window(actual: torch.Tensor, want: torch.Tensor, place: dict[str, Any]) -> None:
    """Windows are copies of inputs: the same bits, the sign of zero included."""
    wrong = (bits(actual) != bits(want.to(actual.device, actual.dtype))).nonzero()
    if len(wrong):
        tap, channel = (int(i) for i in wrong[0])
        raise Violation(
            f"the window of column {place['column']} is wrong at input {tap}, channel {channel}: expected "
            f"{float(want[tap, channel]):.9g}, actual {float(actual[tap, channel]):.9g} ({_text(place)}); "
            f"{len(wrong)} of {want.numel()} elements are wrong",
            what="window",
            tap=tap,
            channel=channel,
            **place,
        )


def _accept(found: oracle.Comparison, kind: str, checked: Checked) -> None:
    if not found.ok:
        raise Violation(found.message, **found.where)
    checked.comparisons += 1
    checked.ratios.setdefault(kind, []).append(found.ratio)


def check_write_set(world: World, ran: Ran) -> None:
    """Nothing in the pool changed but what this step's rows write. Raises ``Violation``."""
    allowed = set(ran.allowed)
    if not world.target.claims.skips_null:
        allowed |= {(0, part) for part in world.parts}
    change = world.pages.first_change(ran.before, allowed)
    if change is not None:
        step = ran.rows[0].step if ran.rows else None
        written = ", ".join(f"{slot} ({NAMES[part]})" for slot, part in sorted(allowed)) or "nothing"
        raise Violation(
            f"step {step} changed {change}; it may write the slots {written}",
            step=step,
            slot=change.slot,
            part=change.part,
            offset=change.offset,
        )


def _text(place: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in place.items())
