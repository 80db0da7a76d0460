"""Cases from the model: every batch that a bounded model can run, with what the contract says of each of its rows.

TLC explores the models below, prints each batch once a state, and the distinct ones are kept in ``cases.json``. Code
that computes block-index metadata must agree with all of them exactly (``check``). Imports the standard library,
``gdn_apc.spec`` and ``gdn_apc.oracle``. Exercise it with ``gdn-apc spec --cases``, or ``pytest tests/spec/test_cases.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdn_apc.spec import MODULES, tlc
from gdn_apc.spec.configurations import Configuration, bounds, numbers, of, preempt, retention
from gdn_apc.spec.values import parse

STORED = Path(__file__).parent / "cases.json"
CHUNK_SIZES = (1, 2, 3)
"""The chunk sizes whose chunks the model counts."""

Row = tuple[int, int, Sequence[int]]
Builder = Callable[[list[Row], int, int], dict[str, Sequence[Any]]]
"""(rows of (n, m, block table), B, C) → lists by the names of ``impl.BlockIndexMetadata``."""


def _model(name: str, specification: str, constants: dict[str, Any], about: str) -> Configuration:
    """Slots are numbers, and the null block is 0, as in the code."""
    slots = {"Slots": numbers(1, len(constants["Slots"])), "Null": 0}
    every = retention(2, 2, 2, 2) | preempt(2, 2, 2, 2) | constants | slots
    return Configuration(name, "Cases", specification, every, about, ("Emit",))


MODELS = [
    _model("three-rows", "SpecCache", bounds(2, 4, 3, 5, Shares=of(4), Prompts=of(1, 5)), "three requests, B = 2"),
    _model("long-hits", "SpecCache", bounds(2, 5, 2, 7, Shares=of(4, 6)), "hits of three blocks, B = 2"),
    _model("every-token", "SpecCache", bounds(1, 5, 2, 5, Shares=of(2, 4)), "B = 1"),
    _model("blocks-of-three", "SpecCache", bounds(3, 4, 2, 10, Shares=of(6, 9), Prompts=of(1, 4, 10)), "B = 3"),
    _model("holes", "SpecRetention", retention(1, 5, 2, 6, Shares=of(4), Depth=1, Prompts=of(6), Padding=True),
           "columns let go, and padding rows"),
]  # fmt: skip


@dataclass(frozen=True)
class Cases:
    """The cases of a model. ``rows``: distinct rows with what is expected of them; ``batches``: indices of rows."""

    name: str
    B: int
    digest: str
    rows: tuple[tuple[Any, ...], ...]
    batches: tuple[tuple[int, ...], ...]

    def expected(self, batch: Sequence[int], C: int) -> tuple[list[Row], dict[str, list[Any]]]:
        """The rows of a batch, and the fields that the model expects of it."""
        fields: dict[str, list[Any]] = {
            "num_computed_tokens": [],
            "num_scheduled_tokens": [],
            "block_idx_last_computed_token": [],
            "block_idx_first_scheduled_token": [],
            "block_idx_last_scheduled_token": [],
            "read_slot": [],
            "write_slot": [],
            "has_initial_state": [],
            "query_start_loc": [0],
            "chunk_offsets": [0],
        }
        rows = []
        for index in batch:
            n, m, table, last_computed, first, last, read, write, chunks = self.rows[index]
            rows.append((n, m, table))
            values = (n, m, last_computed, first, last, read, write, n > 0 and m > 0)
            for name, value in zip(fields, values):
                fields[name].append(value)
            fields["query_start_loc"].append(fields["query_start_loc"][-1] + m)
            fields["chunk_offsets"].append(fields["chunk_offsets"][-1] + chunks[CHUNK_SIZES.index(C)])
        return rows, fields


def digest(model: Configuration) -> str:
    """Of all that the cases of ``model`` follow from: its bounds, and the modules."""
    found = hashlib.sha256(model.text().encode())
    for name in ("Contract", "Cache", "Pipeline", "Preempt", "Retention", "Cases"):
        found.update((MODULES / f"{name}.tla").read_bytes())
    return found.hexdigest()


def generate(
    model: Configuration,
    tools: tlc.Tools,
    timeout: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Cases, tlc.Result]:
    """Explore ``model`` with TLC. The same cases in the same order in every run."""
    result = tlc.run(model.module, model.text(), tools, coverage=False, timeout=timeout, progress=progress)
    batches = sorted({parse(parse(line))[1] for line in result.printed})
    rows = sorted({row for batch in batches for row in batch})
    index = {row: i for i, row in enumerate(rows)}
    made = tuple(tuple(index[row] for row in batch) for batch in batches)
    return Cases(model.name, model.constants["B"], digest(model), tuple(rows), made), result


def store(all_cases: Sequence[Cases]) -> None:
    """Write ``cases.json``, a line for each table."""
    lines = []
    for cases in all_cases:
        fields = {
            name: json.dumps(getattr(cases, name), separators=(",", ":")) for name in Cases.__annotations__
        }
        lines.append("{" + ",\n ".join(f'"{name}": {value}' for name, value in fields.items()) + "}")
    STORED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def load() -> list[Cases]:
    """The stored cases."""
    return [
        Cases(
            entry["name"],
            entry["B"],
            entry["digest"],
            tuple(_tuples(row) for row in entry["rows"]),
            tuple(_tuples(batch) for batch in entry["batches"]),
        )
        for entry in json.loads(STORED.read_text())
    ]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def stale(stored: Sequence[Cases]) -> list[str]:
    """Which models' stored cases do not follow from the modules as they are now."""
    found = {cases.name: cases.digest for cases in stored}
    wrong = [model.name for model in MODELS if found.get(model.name) != digest(model)]
    return wrong + sorted(set(found) - {model.name for model in MODELS})


def check(all_cases: Sequence[Cases], build: Builder) -> int:
    """Compare ``build`` with every case and every chunk size; return how many cases agreed.

    Raises ``AssertionError`` at the first field that differs, with the model, the rows, what was expected and found.
    """
    agreed = 0
    for cases in all_cases:
        for batch in cases.batches:
            for C in CHUNK_SIZES:
                rows, fields = cases.expected(batch, C)
                found = build(rows, cases.B, C)
                for name, expected in fields.items():
                    if list(found[name]) != expected:
                        raise AssertionError(
                            f"{cases.name}, B = {cases.B}, C = {C}, rows (n, m, table) {rows}: {name} should be "
                            f"{expected}, is {list(found[name])}"
                        )
            agreed += 1
    return agreed


def oracle(rows: list[Row], B: int, C: int) -> dict[str, Sequence[Any]]:
    """The oracle as a ``Builder``."""
    from gdn_apc.oracle import block_indices  # with it comes torch, which nothing else here needs

    return block_indices(rows, B, C)
