"""What is measured: the shapes of issue 5's table, the exports, the decode batches, and small ones for a CPU.

A *problem* is an operation on a shape; every implementation that can solve it is timed on it. Operations:
``conv``, ``gates``, ``delta`` (the delta rule alone, from q, k, v, g, beta), ``core`` (all of it, as a layer calls it),
``decode`` (the core on rows of one token) and ``metadata``. Imports the standard library only.
Exercise it with ``pytest tests/benchmarks/test_problems.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch

K = V = 128
W = 4
CHUNK = 64

ONLY_THE_LAST = 1 << 30
"""A block beyond every length: the same kernel, and only the state at the end is stored."""

AREAS = {"prefill": ("delta", "conv", "gates", "core"), "decode": ("decode",), "metadata": ("metadata",)}
"""What a person asks for, and its operations. ``fuzz`` is measured by ``campaign.py``."""

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Problem:
    """One operation on one shape.

    ``lengths``: tokens of each row; ``computed``: how many every row had before; ``block``: tokens between two stored
    states, None for the last one only; ``variant``: what else tells two problems apart.
    """

    op: str
    H: int
    HV: int
    lengths: tuple[int, ...]
    computed: int = 0
    block: int | None = None
    dtype: str = "bf16"
    state: str = "fp32"
    variant: str = ""
    K: int = K
    V: int = V
    W: int = W

    @property
    def heads(self) -> str:
        """Key and value heads: ``16/32``."""
        return f"{self.H}/{self.HV}"

    @property
    def shape(self) -> str:
        """``8x4096``, or the lengths of a ragged batch."""
        if len(set(self.lengths)) == 1:
            return f"{len(self.lengths)}x{self.lengths[0]}"
        return ",".join(map(str, self.lengths)) if len(self.lengths) <= 8 else f"{len(self.lengths)} rows"

    @property
    def dtypes(self) -> str:
        """Inputs and states: ``bf16/fp32``."""
        if self.op == "metadata":
            return "int32"
        return f"{self.dtype}/{self.state}"

    @property
    def name(self) -> str:
        """What ``--only`` matches: ``delta/16x32/1x8192/B64/bf16-fp32``."""
        export = "last" if self.block is None else f"B{self.block}"
        parts = [
            self.op,
            f"{self.H}x{self.HV}",
            self.shape,
            export,
            f"{self.dtype}-{self.state}",
            self.variant,
        ]
        return "/".join(part for part in parts if part)

    @property
    def tokens(self) -> int:
        """Tokens of the batch."""
        return sum(self.lengths)

    @property
    def D(self) -> int:
        """Channels of the convolution: q, k, v."""
        return 2 * self.H * self.K + self.HV * self.V

    @property
    def block_size(self) -> int:
        """B as the kernels take it."""
        return self.block or ONLY_THE_LAST

    @property
    def columns(self) -> int:
        """Columns of the widest row's block table."""
        return max(-(-(self.computed + m) // self.block_size) for m in self.lengths)

    @property
    def states_written(self) -> int:
        """States that the batch stores."""
        B, n = self.block_size, self.computed
        return sum((n + m - 1) // B - n // B + 1 for m in self.lengths if m)

    def matches(self, patterns: list[str]) -> bool:
        """Whether any pattern is part of the name, or matches it as a glob; no pattern matches everything."""
        return not patterns or any(p in self.name or fnmatch(self.name, p) for p in patterns)


RAGGED = (1, 63, 64, 1000, 5000, 2068)
SHAPES = (
    (16, 32, (8192,)),
    (16, 32, (32768,)),
    (16, 32, (4096,) * 8),
    (16, 32, RAGGED),
    (16, 48, (8192,)),
    (16, 64, (8192,)),
    (4, 8, (8192,)),
)
"""(H, HV, lengths) of the issue's table."""

LENGTHS = (1024, 2048, 4096, 16384)
"""More lengths of one sequence at 16/32, for the plot."""

EXPORTS = (1024, 64, 576, 1088, None)
"""Block sizes; the first is the one that every other operation is measured with."""

BATCHES = (1, 8, 32, 64, 128, 256, 512)
IN_PLACE, SLOT_TO_SLOT = "in place", "slot to slot"


def prefill(quick: bool = False) -> Iterator[Problem]:
    """Every shape with every export for the delta rule; convolution, gates and core with one."""
    for H, HV, lengths in SHAPES[:1] if quick else SHAPES:
        for block in EXPORTS[:1] + EXPORTS[-1:] if quick else EXPORTS:
            yield Problem("delta", H, HV, lengths, block=block)
        for op in ("conv", "gates", "core"):
            yield Problem(op, H, HV, lengths, block=EXPORTS[0])
    if not quick:
        for length in LENGTHS:
            for block in (EXPORTS[0], None):
                yield Problem("delta", 16, 32, (length,), block=block)


def decode(quick: bool = False) -> Iterator[Problem]:
    """Rows of one token: in the middle of a block, and just after a boundary, where another slot is written."""
    for batch in (8, 128) if quick else BATCHES:
        for state in ("fp32",) if quick else ("fp32", "bf16"):
            for variant, computed in ((IN_PLACE, 1000), (SLOT_TO_SLOT, 1024)):
                yield Problem(
                    "decode", 16, 32, (1,) * batch, computed, block=1024, state=state, variant=variant
                )


GROUPS = 3
"""Groups of GDN layers in a step: Qwen3-Next's 36 layers beside 12 of attention make three."""


def metadata(quick: bool = False) -> Iterator[Problem]:
    """256 rows: decodes only, and decodes beside prefills; for one group of layers, and for all of them."""
    for lengths in ((1,) * 256, (1,) * 240 + (512,) * 16):
        for groups in (1, GROUPS):
            yield Problem(
                "metadata", 16, 32, lengths, 1000, block=1024, variant=f"{groups} group{'s' * (groups > 1)}"
            )


def on_cpu(problem: Problem) -> Problem | None:
    """The same question at a size that a CPU answers in a moment; None where another problem asks it already."""
    if problem.op == "metadata":
        return problem
    if (problem.H, problem.HV) != (16, 32) or len(problem.lengths) == 8 or problem.tokens > 8192 + 4:
        return None
    small = dict(H=2, HV=4, K=32, V=32)
    if problem.op == "decode":
        batch = len(problem.lengths)
        return replace(problem, **small) if batch in (8, 128) else None
    lengths = tuple(max(1, m // 16) for m in problem.lengths)
    return replace(problem, **small, lengths=lengths, block=problem.block and max(16, problem.block // 8))


def problems(areas: list[str], *, cpu: bool, quick: bool, only: list[str]) -> list[Problem]:
    """The problems of these areas, in the order in which they are measured; each once."""
    made: dict[str, Problem] = {}
    for area, source in (("prefill", prefill), ("decode", decode), ("metadata", metadata)):
        for problem in source(quick) if area in areas else ():
            found = on_cpu(problem) if cpu else problem
            if found is not None and found.matches(only):
                made.setdefault(found.name, found)
    return list(made.values())
