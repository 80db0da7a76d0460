"""A case: one self-contained, replayable example, as plain data.

A case says which requests exist, which rows every step runs, and from which seed the tensors come. Slots
and block tables are explicit, so running a case needs no allocator and a reviewer can read what happens.
It holds no tensors and no pickles; ``to_json``/``from_json`` round-trip it exactly.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_case.py``.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

LEVELS = ("conv", "delta", "core", "metadata")
"""What a case drives: the convolution alone, the delta rule alone, the whole GDN core, or the block indices.

A ``metadata`` case has steps only: each step is one batch to index, and no request is followed from one to the
next (a row's ``request`` only tells it from a padding row)."""


@dataclass(frozen=True)
class Sizes:
    """Every size of a layer and its cache, by DESIGN.md's letters."""

    H: int  # heads of q and k
    HV: int  # heads of v, a multiple of H
    K: int  # width of a q/k head
    V: int  # width of a v head
    W: int  # convolution width; a window holds W - 1 inputs
    B: int  # block size, tokens
    C: int  # chunk size, tokens

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.H * self.K + self.HV * self.V


@dataclass(frozen=True)
class Dtypes:
    """``bf16``, ``fp16`` or ``fp32`` for the inputs, the cached state and the cached window."""

    input: str
    state: str
    conv: str


@dataclass(frozen=True)
class Inputs:
    """How the tensors are drawn: a seed and one named regime for each ingredient (``fuzz/tensors.py``)."""

    seed: int
    gates: str = "mild"
    betas: str = "uniform"
    keys: str = "normal"
    values: str = "normal"


@dataclass(frozen=True)
class Options:
    """Options of the layer."""

    scale: float | None = None  # None: K ** -0.5
    use_qk_l2norm: bool = True
    conv_bias: bool = False
    activation: str | None = "silu"  # of the convolution


@dataclass(frozen=True)
class Request:
    """A request's tokens: ``length`` of them, the first ``shared`` equal to those of request ``parent``."""

    length: int
    parent: int | None = None
    shared: int = 0


@dataclass(frozen=True)
class Row:
    """A row of a batch: ``request`` goes from ``n`` computed tokens to ``n + m`` with this block table.

    ``request is None`` is a padding row: ``m`` is 0, while ``n`` and ``table`` may be stale and must not matter.
    ``m == 0`` with a request is a zero-length row, and touches nothing either.
    """

    request: int | None
    n: int
    m: int
    table: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One batch."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Pool:
    """The cache's pages: ``num_slots`` slots (slot 0 is the null block) laid out with gaps between their parts.

    A page holds the convolution state, then the recurrent state, then ``page_padding`` bytes that are nobody's.
    ``channel_major`` windows are stored ``[D, W - 1]``, else ``[W - 1, D]``.
    """

    num_slots: int
    page_padding: int = 0
    channel_major: bool = False


@dataclass(frozen=True)
class Case:
    """One example of one property. ``choice`` carries what only that property needs (which cut, which slot)."""

    property: str
    level: str
    sizes: Sizes
    dtypes: Dtypes
    inputs: Inputs
    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    pool: Pool
    options: Options = Options()
    choice: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    schema: int = SCHEMA

    def to_json(self, **extra: Any) -> str:
        """The case as JSON text; ``extra`` adds provenance (target, versions, seed) that is not part of the case."""
        record = dataclasses.asdict(self)
        if extra:
            record["provenance"] = extra
        return json.dumps(record, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Case:
        """The inverse of :meth:`to_json`. Raises ``ValueError`` for another schema or an unknown field."""
        record = json.loads(text)
        record.pop("provenance", None)
        found = record.get("schema")
        if found != SCHEMA:
            raise ValueError(
                f"schema: this version reads case schema {SCHEMA}, the file has {found!r}; "
                "replay it with the version of gdn-apc that wrote it"
            )
        try:
            return Case(
                property=record.pop("property"),
                level=record.pop("level"),
                sizes=Sizes(**record.pop("sizes")),
                dtypes=Dtypes(**record.pop("dtypes")),
                inputs=Inputs(**record.pop("inputs")),
                requests=tuple(Request(**r) for r in record.pop("requests")),
                steps=tuple(
                    Step(tuple(Row(r["request"], r["n"], r["m"], tuple(r["table"])) for r in s["rows"]))
                    for s in record.pop("steps")
                ),
                pool=Pool(**record.pop("pool")),
                options=Options(**record.pop("options")),
                **record,
            )
        except (KeyError, TypeError) as e:
            raise ValueError(f"case: not a case of schema {SCHEMA}: {e}") from e

    @property
    def num_tokens(self) -> int:
        """Tokens computed in all steps together, a measure of size."""
        return sum(row.m for step in self.steps for row in step.rows)
