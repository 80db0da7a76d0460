"""A batch of rows with its inputs and pools, for the tests of ``impl``; and its comparison with the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gdn_apc import oracle
from gdn_apc.impl import BlockIndexMetadata, build_metadata

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class Rows:
    """Rows (n, m) of a batch, each with a table of its own whose slots are shuffled over the pool."""

    rows: list[tuple[int, int]]
    B: int
    C: int
    seed: int = 0

    def __post_init__(self) -> None:
        columns = max([-(-(n + m) // self.B) for n, m in self.rows] + [1])
        self.num_slots = 1 + len(self.rows) * columns
        slots = 1 + torch.randperm(self.num_slots - 1, generator=torch.Generator().manual_seed(self.seed))
        self.table = slots.view(len(self.rows), columns).int()
        self.offsets = [0]
        for _, m in self.rows:
            self.offsets.append(self.offsets[-1] + m)

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]

    def metadata(self) -> BlockIndexMetadata:
        return build_metadata(
            torch.tensor([n + m for n, m in self.rows], dtype=torch.int32, device=DEVICE),
            torch.tensor(self.offsets, dtype=torch.int32, device=DEVICE),
            self.table.to(DEVICE),
            block_size=self.B,
            chunk_size=self.C,
            max_query_len=max(m for _, m in self.rows),
            num_tokens=self.num_tokens,
        )

    def live(self):
        """(row, packed slice, n, m, read slot or None, {column: slot}) of every row with tokens."""
        for i, (n, m) in enumerate(self.rows):
            if m:
                read = int(self.table[i, (n - 1) // self.B]) if n else None
                columns = range(n // self.B, (n + m - 1) // self.B + 1)
                yield (
                    i,
                    slice(self.offsets[i], self.offsets[i + 1]),
                    n,
                    m,
                    read,
                    {j: int(self.table[i, j]) for j in columns},
                )


def pool(shape: tuple[int, ...], dtype: torch.dtype, gen: torch.Generator) -> torch.Tensor:
    """A cache tensor [slots, …] whose slots lie 16-element multiples apart, with a gap of poison after each."""
    width = torch.Size(shape[1:]).numel()
    page = -(-width // 16) * 16 + 32
    backing = torch.full((shape[0], page), float("nan"), dtype=dtype)
    backing[:, :width] = torch.randn(shape[0], width, generator=gen).to(dtype)
    backing[0] = float("nan")
    strides, step = [], 1
    for size in reversed(shape[1:]):
        strides.append(step)
        step *= size
    return backing.to(DEVICE).as_strided(shape, (page, *reversed(strides)))


def assert_close(expected: torch.Tensor, actual: torch.Tensor, tol: torch.Tensor, **place) -> float:
    """Fail with the oracle's message; returns the worst ratio of error to tolerance."""
    found = oracle.check(expected, actual.cpu(), tol, **place)
    assert found.ok, found.message
    return found.ratio


def assert_delta_rows(
    rows: Rows,
    inputs: list[torch.Tensor],
    o: torch.Tensor,
    before: torch.Tensor,
    state: torch.Tensor,
    dtypes: tuple[str, str],
    use_qk_l2norm: bool = True,
) -> set[int]:
    """Every row's outputs and written states are the oracle's, from the bits that the row read; returns the slots written."""
    written = set()
    for i, part, n, _, read, columns in rows.live():
        want = oracle.delta_step(
            *(t[part].cpu() for t in inputs),
            n=n,
            block_size=rows.B,
            chunk_size=rows.C,
            state=None if read is None else before[read].cpu(),
            dtypes=dtypes,
            use_qk_l2norm=use_qk_l2norm,
        )
        assert_close(
            want.o, o[part], want.o_tol, what="o", axes=("position", "head", "row"), first=n, request=i
        )
        assert columns.keys() == want.writes.keys()
        for column, slot in columns.items():
            tol = want.state_tol[column]
            assert_close(want.writes[column].state, state[slot], tol, what="state", request=i, column=column)
        written |= set(columns.values())
    return written
