"""The kinds of fault that public reports name, in our words, and the evidence that leads to each.

A *class* says what was wrong with the code (an index, a copy, a dtype, …); a *kind* is a narrower pattern within it, with reports
that looked the same. The kinds are tried in order of how much their evidence says; the first one that fits is the diagnosis, the
others that fit are mentioned.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLASSES = {
    "metadata": "the batch is described wrongly: an index, a length, a flag or an order that a kernel then believes",
    "kernel-indexing": "a kernel reads or writes the wrong place: slot, column, head, position, or beyond what it may touch",
    "kernel-numerics": "the right numbers are combined wrongly: order, chunking, overflow, a race, memory nobody wrote",
    "conv-state": "the convolution's window holds other inputs than the last W - 1 before its position",
    "dtype": "a value passes through a dtype that the contract does not allow there, or misses one that it demands",
    "manager": "blocks are handed out, published, shared or freed wrongly; the kernels do as they are told",
    "scheduler": "the cut of a request into steps breaks a rule; the batches themselves are sound",
    "spec-decode": "rejected tokens leave a trace; no case here has any, so this is never the diagnosis",
    "cudagraph": "a row that must be inert, such as padding, acts; seen here without a graph",
    "resource": "the target gives up: an exception, a dead process, memory or a table that is too small",
}
"""Each class of the catalogue of public bugs, in a sentence."""


@dataclass(frozen=True)
class Evidence:
    """What localising found. ``kinds``: keywords of ``moves``, ``models``, ``seams`` and ``twins``."""

    layer: str
    kernel: str
    seam: str
    kinds: frozenset[str]
    property: str
    fresh: bool = False  # the wrong row has no computed tokens
    short: bool = False  # it has fewer tokens than a window
    nan: bool = False  # a value is not finite that must be
    far: bool = False  # slots lie gigabytes apart


@dataclass(frozen=True)
class Kind:
    """A pattern: its class, what it says, reports that looked like it, and whether evidence fits."""

    name: str
    fault: str
    says: str
    like: tuple[str, ...]
    fits: Callable[[Evidence], bool]


def _has(*kinds: str) -> Callable[[Evidence], bool]:
    return lambda e: bool(e.kinds & set(kinds))


KINDS = (
    Kind("fickle", "kernel-numerics", "two runs of the same call give other bits: a race, or memory that nobody wrote",
         ("fla 945", "fla 1158", "vllm 57267"), _has("fickle")),
    Kind("crash", "resource", "the target raises or dies on a batch within its claims",
         ("fla 103", "vllm 34871"), _has("raised")),
    Kind("wrong indices", "metadata", "the target's own block indices differ from the definition",
         ("vllm 57278", "ascend 11807"), lambda e: e.layer == "metadata"),
    Kind("broken bookkeeping", "manager", "an invariant of the cache breaks although every batch is indexed rightly",
         ("vllm 56525", "vllm 34587"), lambda e: e.layer == "manager"),
    Kind("padding acts", "cudagraph", "a padding row writes where its stale table points",
         ("vllm 37728", "ascend 15510"), _has("padding")),
    Kind("null block written", "kernel-indexing", "a null column, or padding, is stored in slot 0",
         ("vllm 39064", "flashinfer 2810"), _has("null")),
    Kind("short step writes where it read", "conv-state", "a step of fewer tokens than a window overwrites the block that it read, which others share",
         ("vllm 56196",), lambda e: "shared" in e.kinds and e.short and "conv" in e.kernel),
    Kind("shared block written", "kernel-indexing", "a step overwrites a block that it reads and that others share",
         ("vllm 56196", "ascend 15408"), _has("shared")),
    Kind("offset too narrow", "kernel-indexing", "with slots gigabytes apart another place is touched: an offset wraps",
         ("vllm 35275", "flashinfer 3230"), lambda e: e.far and e.layer == "indexing"),
    Kind("writes outside", "kernel-indexing", "bytes are written that belong to no block of the batch",
         ("vllm 50021", "ascend 15408"), _has("outside", "foreign")),
    Kind("fresh row reads a state", "metadata", "a row without computed tokens starts from what its slot held",
         ("vllm 51562", "tpu-inference 2431"),
         lambda e: e.fresh and bool(e.kinds & {"fresh", "reads the slot that it writes", "reads a foreign slot"})),
    Kind("state ignored", "metadata", "a row starts from nothing although it has computed tokens",
         ("transformers 45513", "mlxcel 1749"), _has("nothing")),
    Kind("transposed state", "kernel-indexing", "keys and values of the state are exchanged on the way to or from the cache",
         ("vllm 41292",), _has("transposed")),
    Kind("another slot is read", "kernel-indexing", "a row starts from the state of another column or row",
         ("vllm 53142", "sglang 33515"), lambda e: "slot" in e.kinds or (not e.fresh and "reads the slot that it writes" in e.kinds)),
    Kind("state kept elsewhere", "manager", "the pool is not what is read: a copy of it is, which does not follow", (), _has("kept")),
    Kind("window forgets", "conv-state", "zeros stand where inputs from before the step belong",
         ("fla 546", "transformers 48256"), _has("forgets", "window")),
    Kind("another row's bytes", "kernel-indexing", "a value of a neighbouring row of the batch arrives in this one",
         ("vllm 51812", "sglang 31833"), _has("neighbour")),
    Kind("another block's state", "kernel-indexing", "a block holds the state or window of another column",
         ("vllm 57278", "sglang 31833"), _has("column")),
    Kind("boundary not written", "kernel-indexing", "a block that the step must fill keeps what it held",
         ("sglang 31474", "vllm 49918"), _has("stale", "start")),
    Kind("state of another position", "kernel-indexing", "a block holds the state or window of a place before or after its boundary",
         ("sglang 33515", "vllm 34587"), _has("position")),
    Kind("heads mixed", "kernel-indexing", "a head computes with another head's operands or state",
         (), _has("head")),
    Kind("carry not persisted", "dtype", "after a boundary the step goes on from another value than the one it stored",
         ("sglang 33515", "vllm 57267"), _has("unrounded")),
    Kind("carry lost", "kernel-numerics", "chunks after a boundary do not go on from the state before it",
         ("flashinfer 3889", "vllm 23279"), lambda e: e.seam == "carry"),
    Kind("grid from the start", "kernel-numerics", "chunks count from where the step starts, so bits depend on the cut",
         ("vllm 38561",), _has("grid")),
    Kind("operand rounded", "dtype", "an operand or the stored state passes through a narrower dtype",
         ("vllm 53877", "ollama 15865"), _has("operand", "narrow")),
    Kind("gate corner", "kernel-numerics", "the decay is clipped, left out, or applied in the wrong order",
         ("fla 104", "cudnn-frontend 1017"), _has("gate")),
    Kind("option misread", "kernel-numerics", "scale or norm is taken for another one",
         ("flashinfer 3165",), _has("scale", "norm")),
    Kind("sign of zero", "conv-state", "a copy of inputs is not bit for bit: -0 became 0", (), _has("sign")),
    Kind("order of programs", "kernel-numerics", "programs of one launch meet in memory, or their order shows in the bits",
         ("fla 945",), _has("race", "order")),
    Kind("poison gets through", "kernel-indexing", "a place that must not be read reaches the result, perhaps through a mask that multiplies",
         ("vllm 57158", "llama.cpp 23606"), _has("exposed")),
    Kind("depends on its neighbours", "kernel-numerics", "a row's bits change with the batch around it",
         ("vllm 38561",), _has("batch", "tail")),
    Kind("depends on where it lies", "kernel-indexing", "a row's bits change with slot numbers or the layout of pages",
         ("vllm 25743",), _has("slots", "layout")),
    Kind("not finite", "kernel-numerics", "NaN or infinity comes out where the recurrence is finite",
         ("fla 99", "vllm 54308"), lambda e: e.nan),
    Kind("wrong window", "conv-state", "the window is none that any position has",
         ("vllm 25743",), lambda e: e.kernel == "conv" and e.seam == "write"),
    Kind("wrong numbers", "kernel-numerics", "values are off by more than rounding allows, and no simpler explanation fits",
         (), lambda e: e.layer == "numerics"),
    Kind("wrong place", "kernel-indexing", "what is wrong moved rather than was computed, in no pattern known here",
         (), lambda e: e.layer == "indexing"),
)  # fmt: skip
"""Every kind, those whose evidence says most first."""


def classify(evidence: Evidence) -> list[Kind]:
    """The kinds that fit, the diagnosis first; empty if nothing does."""
    return [kind for kind in KINDS if kind.fits(evidence)]
