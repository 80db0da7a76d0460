"""Cases of block-index metadata: every small batch there is, and random large ones.

A metadata case has steps only, and each step is a batch of its own. Imports hypothesis and ``fuzz``.
Exercise it with ``pytest tests/fuzz/test_strategies.py -k metadata``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from gdn_apc.fuzz.case import Case, Dtypes, Inputs, Pool, Row, Sizes, Step
from gdn_apc.fuzz.targets.base import Claims, Target

BATCHES = 250
"""Batches of one exhaustive case."""

SMALL = (
    (1, 1, 4),
    (1, 4, 2),
    (2, 1, 3),
    (2, 2, 2),
    (2, 3, 3),
    (3, 2, 2),
    (3, 4, 2),
    (4, 2, 2),
    (4, 3, 2),
    (4, 16, 2),
)
"""(B, C, most rows) of the exhaustive part: all rows with n + m ≤ 2B + 1, in batches of up to so many rows."""


def metadata_case(B: int, C: int, batches: Iterable[tuple[Row, ...]], slots: int, note: str = "") -> Case:
    """A case of explicit batches."""
    return Case(
        property="metadata",
        level="metadata",
        sizes=Sizes(H=1, HV=1, K=16, V=16, W=4, B=B, C=C),
        dtypes=Dtypes("bf16", "fp32", "bf16"),
        inputs=Inputs(0),
        requests=(),
        steps=tuple(Step(tuple(rows)) for rows in batches),
        pool=Pool(slots),
        note=note,
    )


def exhaustive(claims: Claims) -> Iterator[Case]:
    """Every batch of up to 2 to 4 rows whose lengths are at most 2B + 1, for B ≤ 4, ``BATCHES`` to a case.

    A row with m = 0 is once a zero-length row and once a padding row whose n and table are stale. Slots differ
    everywhere, and columns that must not be looked at hold slots too.
    """
    for B, C, most in SMALL:
        if B % claims.block_multiple:
            continue
        shapes = [(n, m) for n in range(2 * B + 2) for m in range(2 * B + 2 - n)]
        batches = itertools.chain.from_iterable(
            itertools.product(shapes, repeat=r) for r in range(1, most + 1)
        )
        numbered = enumerate(batches)
        while chunk := list(itertools.islice(numbered, BATCHES)):
            rows = [tuple(_row(i, n, m, 3) for i, (n, m) in enumerate(batch)) for _, batch in chunk]
            yield metadata_case(B, C, rows, 64, f"exhaustive from batch {chunk[0][0]}")


def _row(i: int, n: int, m: int, columns: int) -> Row:
    """A row with ``columns`` slots of its own."""
    return Row(i if m else None, n, m, tuple(1 + i * columns + j for j in range(columns)))


@st.composite
def random_batches(draw: Any, target: Target) -> Case:
    """Up to 6 batches of up to 8 rows, of lengths up to thousands of tokens, padding rows anywhere."""
    multiple = target.claims.block_multiple
    B = draw(st.one_of(st.integers(1, 40), st.sampled_from((64, 100, 528, 544, 1088, 2048))))
    B = -(-B // multiple) * multiple
    C = draw(st.sampled_from((16, 64, 1, 3, 32, 100)))
    most = draw(st.sampled_from((3 * B, 40, 3000)))
    tokens = st.integers(0, max(1, most))
    one = st.tuples(
        tokens, st.one_of(st.sampled_from((0, 1, 1, 2)), tokens), st.integers(0, 3), st.integers(1, 10**6)
    )
    drawn = draw(st.lists(st.lists(one, min_size=1, max_size=8), min_size=1, max_size=6))
    batches, largest = [], 1
    for batch in drawn:
        rows = []
        for i, (n, m, spare, slot) in enumerate(batch):
            columns = -(-(n + m) // B) + spare
            table = tuple((slot + 7 * j) % (2**31 - 1) for j in range(columns)) or (0,)
            rows.append(Row(i if m else None, n, m, table))
            largest = max(largest, *table)
        batches.append(tuple(rows))
    return metadata_case(B, C, batches, largest + 1, "random")
