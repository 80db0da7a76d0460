"""The matrix of claims: clause by clause, what a target claims, how many examples compared it, and whether it held.

A clause of the contract (CONTRIBUTING.md) is asked by some properties, on examples that show it: "any start" by steps
that begin inside a chunk, "bf16 inputs, fp32 state" by cases of that pair. A clause that is claimed is *held* once
``floor`` examples compared it and none failed, *broken* if a failure shows it, and *not shown* below the floor. A
clause that is not claimed is reported as that, never failed. A clause that holds because of what the adapter does
(``Claims.by_adapter``) says so: it is no merit of the target.

Imports ``fuzz.ledger``, ``fuzz.signatures`` and the standard library. Exercise it with ``pytest tests/fuzz/test_claims.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gdn_apc.fuzz.ledger import DTYPES
from gdn_apc.fuzz.signatures import groups, signature
from gdn_apc.fuzz.targets.base import Claims

FLOOR = 20
"""Compared examples that a verdict on a clause needs, where the clause names no other number."""

TRUTH = ("values", "far_slots", "hit_is_used", "index_movement")
"""Properties that compare with the oracle."""


@dataclass(frozen=True)
class Clause:
    """One clause. ``missing(claims)``: why it is not claimed, or None. Evidence: examples of ``properties`` that show all of

    ``event`` (of the ledger), ``pair`` (of dtypes) and ``level``, where these are given.
    """

    name: str
    doc: str
    properties: tuple[str, ...]
    missing: Callable[[Claims], str | None]
    event: str | None = None
    pair: str | None = None
    levels: tuple[str, ...] | None = None
    about: str = ""  # what a failure must be about, see `about`; anything if empty
    floor: int = FLOOR
    unit: str = "examples"

    def shows(self, e: dict[str, Any]) -> bool:
        """Whether an example or a failure (an event of ``events.jsonl``) is about this clause."""
        failed = e["event"] != "example"
        shown = {name for name, count in e.get("ledger", {}).items() if count} | set(e.get("smallest", ()))
        return (
            e["property"] in self.properties
            and (self.event is None or self.event in shown)
            and (self.pair is None or e.get("dtypes") == self.pair)
            and (self.levels is None or e.get("level") in self.levels)
            and (not failed or not self.about or self.about in about(e))
        )


def about(e: dict[str, Any]) -> set[str]:
    """What a failure is about: the convolution (its outputs alone, or a window) or the rule; "stale" where NaN was read."""
    message = e.get("message", "")
    found = {"conv" if e.get("level") == "conv" or "the window of" in message else "rule"}
    return found | ({"stale"} if "nan" in message else set())


def _flag(name: str) -> Callable[[Claims], str | None]:
    return lambda claims: None if getattr(claims, name) else "not claimed"


def _seams(*seams: str) -> Callable[[Claims], str | None]:
    return lambda claims: None if claims.seams & set(seams) else f"no {' or '.join(seams)}"


def _both(*conditions: Callable[[Claims], str | None]) -> Callable[[Claims], str | None]:
    return lambda claims: next((why for c in conditions if (why := c(claims))), None)


KERNELS = _seams("conv", "delta", "core")
RULE, CONV = _seams("delta", "core"), _seams("conv", "core")


def _pair(i: str, s: str) -> Clause:
    claimed = lambda c: None if i in c.input_dtypes and s in c.state_dtypes else "not claimed"  # noqa: E731
    return Clause(
        f"{i} inputs, {s} state",
        "the rule, with these dtypes",
        TRUTH,
        _both(RULE, claimed),
        pair=f"{i}/{s}",
        about="rule",
    )


CLAUSES: tuple[Clause, ...] = (
    Clause("rule", "outputs and written states are the delta rule's, within roundoff", TRUTH, RULE, levels=("delta", "core"), about="rule"),
    Clause("convolution", "outputs are the convolution's, windows copies of inputs", TRUTH, CONV, levels=("conv", "core"), about="conv"),
    Clause("reads", "a step depends on its own slot and inputs only", ("read_set",), KERNELS),
    Clause("writes", "a step changes its own slots only", ("write_set",), KERNELS),
    Clause("hit is used", "what a slot holds decides what follows", ("hit_is_used",), KERNELS),
    Clause("boundary_states", "every boundary that a step crosses is written", TRUTH, _both(KERNELS, _flag("boundary_states")), event="step_crosses_two_boundaries"),
    Clause("persisted_carry", "a hit changes no bit", ("warm_equals_cold",), _both(KERNELS, _flag("persisted_carry"))),
    Clause("boundary_grid", "no chunk lies across a boundary", ("warm_equals_cold",), _both(KERNELS, _flag("boundary_grid"))),
    Clause("absolute_grid", "a cut at a boundary or a chunk edge changes no bit", ("free_cuts",), _both(KERNELS, _flag("absolute_grid"))),
    Clause("batch_invariant", "a row's bits do not depend on the batch or on timing", ("batch_invariance", "program_order"), _both(KERNELS, _flag("batch_invariant"))),
    Clause("any_start", "a step may start inside a chunk", TRUTH, _both(KERNELS, _flag("any_start")), event="chunk_clipped_start"),
    Clause("skips_null", "null columns are passed over", ("write_set", "read_set", *TRUTH), _both(KERNELS, _flag("skips_null")), event="null_write_column"),
    Clause("packed_tail", "packed tensors may be longer than the batch", ("read_set",), _both(KERNELS, _flag("packed_tail"))),
    Clause("fresh_start", "a first step of one token reads no state", ("values", "read_set", "hit_is_used"), KERNELS, event="fresh_one_token_row", about="stale"),
    Clause("fresh_token_fp32", "a first step of one token is computed in fp32", ("values",), _both(RULE, _flag("fresh_token_fp32")), event="fresh_one_token_row", about="rule"),
    Clause("conv_fp32", "the convolution's products are not rounded", ("values", "hit_is_used"), _both(CONV, _flag("conv_fp32")), levels=("conv",)),
    Clause("fp16_range", "fp16 inputs do not lose small intermediate values", ("values",), _both(RULE, _flag("fp16_range")), pair="fp16/fp32", about="rule"),
    *(_pair(i, s) for i in DTYPES for s in DTYPES),
    Clause("any block size", "blocks are no multiples of anything", TRUTH, _both(KERNELS, lambda c: None if c.block_multiple == 1 else f"multiples of {c.block_multiple}"), event="chunk_not_multiple_of_block"),
    Clause("any head size", "K is no power of two", TRUTH, _both(RULE, lambda c: None if c.head_sizes is None else f"sizes {sorted(c.head_sizes)}"), event="k_not_power_of_two", about="rule"),
    Clause("block indices", "metadata equals a brute-force builder's", ("metadata",), _seams("metadata"), floor=20_000, unit="batches"),
    Clause("lives", "every step of a small engine's life is right", ("machine_kernels",), KERNELS, floor=200, unit="steps"),
)  # fmt: skip
"""Every clause, in the order of the report."""

COUNTED = ("metadata", "machine_kernels")
"""Properties whose evidence is counted in comparisons: one example is many batches, or many steps."""


def record(claims: Claims) -> list[dict[str, Any]]:
    """The clauses for a campaign's start event: name, why it is not claimed (or None), and whether the adapter makes it hold."""
    return [
        {"name": c.name, "missing": c.missing(claims), "by_adapter": c.name in claims.by_adapter}
        for c in CLAUSES
    ]


@dataclass(frozen=True)
class Row:
    """A line of the matrix. ``state``: held, broken, not shown, or not claimed."""

    clause: Clause
    state: str
    compared: int
    note: str = ""

    @property
    def verdict(self) -> str:
        """The state with what it rests on."""
        return f"{self.state} ({self.note})" if self.note else self.state


def matrix(start: dict[str, Any], events: Iterable[dict[str, Any]]) -> list[Row]:
    """The matrix from a campaign's events. Failures count with what their shrunk case shows, known ones too."""
    events = list(events)
    failures = [e for e in events if e["event"] in ("failure", "expected")]
    return judge(start.get("clauses", []), tally(events), failures)


def tally(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """How much was compared for each clause."""
    compared: Counter[str] = Counter()
    for e in events:
        if e["event"] == "example":
            amount = e["comparisons"] if e["property"] in COUNTED else 1
            compared.update({c.name: amount for c in CLAUSES if c.shows(e)})
    return compared


def judge(
    clauses: Iterable[dict[str, Any]], compared: Mapping[str, int], failures: Iterable[dict[str, Any]]
) -> list[Row]:
    """The matrix from what is claimed (:func:`record`), counts (:func:`tally`) and failures (events).

    Failures of one kind are judged together: a clause about an event or a pair of dtypes is broken if all of them show
    it, or the smallest of them does (``smallest``, its events). A failure that ``values`` shows as well says nothing against the clause of the property that met it.
    """
    failures = [common(kind) for kind in groups(failures)]
    plain = {signature(e["message"]) for e in failures if e["property"] == "values"}
    broken: dict[str, set[str]] = {}
    for e in failures:
        if e["property"] not in ("values", "machine_kernels") and signature(e["message"]) in plain:
            continue
        for c in CLAUSES:
            if c.shows(e):
                broken.setdefault(c.name, set()).add(e["property"])
    said = {c["name"]: c for c in clauses}
    return [
        _row(c, said[c.name], compared.get(c.name, 0), broken.get(c.name, set()))
        for c in CLAUSES
        if c.name in said
    ]


def common(failures: list[dict[str, Any]]) -> dict[str, Any]:
    """One failure for several of a kind: with the events that all of them show, and dtypes and level if they agree."""
    first = failures[0]
    shown = [{name for name, count in f.get("ledger", {}).items() if count} for f in failures]
    agreed = {key: first.get(key) for key in ("dtypes", "level") if len({f.get(key) for f in failures}) == 1}
    return {
        **first,
        "dtypes": None,
        "level": None,
        **agreed,
        "ledger": dict.fromkeys(set.intersection(*shown), 1),
    }


def _row(clause: Clause, said: dict[str, Any], compared: int, broken: set[str]) -> Row:
    if said["missing"] is not None:
        return Row(
            clause, "not claimed", compared, "" if said["missing"] == "not claimed" else said["missing"]
        )
    if broken:
        return Row(clause, "broken", compared, ", ".join(sorted(broken)))
    if compared < clause.floor:
        return Row(clause, "not shown", compared, f"{clause.floor:,} {clause.unit} needed")
    return Row(clause, "held", compared, "by the adapter" if said["by_adapter"] else "")


def table(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of the matrix for a report."""
    heads = ["clause", "claimed", "compared", "verdict", "what"]
    lines = []
    for r in rows:
        claimed = "no" if r.state == "not claimed" else "yes"
        unit = "" if r.clause.unit == "examples" else f" {r.clause.unit}"
        verdict = f"**{r.verdict}**" if r.state == "broken" else r.verdict
        lines.append([r.clause.name, claimed, f"{r.compared:,}{unit}", verdict, r.clause.doc])
    return heads, lines
