"""What a planted fault is: edits of source text, where it comes from, and what must become of it.

Imports the standard library only. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    "off-by-one in an index",
    "boundary write dropped",
    "state transposed",
    "shared block written",
    "stale window",
    "carry not persisted",
    "null slot written",
    "beta rounded to bf16",
    "has-state by length",
    "chunk grid not absolute",
)
"""The faults that every default campaign must catch, whatever its seed."""

INDEX, BOUNDARY, TRANSPOSED, SHARED, WINDOW, CARRY, NULL, BETA, LENGTH, GRID = KINDS

DIES, NEUTRAL, UNSEEN = "dies", "neutral", "unseen"
"""What must become of a mutant. ``dies``: some property rejects it. ``neutral``: it is no fault (the edit changes
nothing that the contract defines), and must survive. ``unseen``: a fault that this machine cannot show; nothing is demanded."""


@dataclass(frozen=True)
class Edit:
    """``find``, which stands exactly once in ``file`` (a path inside ``impl``), becomes ``replace``."""

    file: str
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    ``fault`` is its class among the public bug reports (metadata, conv-state, dtype, …), ``says`` one sentence on what is
    wrong now and where it was seen, ``kind`` the one of :data:`KINDS` that it stands for, if any.
    """

    name: str
    fault: str
    says: str
    edits: tuple[Edit, ...]
    kind: str = ""
    fate: str = DIES

    @property
    def backend(self) -> str:
        """Which path runs the edited code: ``torch`` for the PyTorch path's own file, else ``triton``."""
        return "torch" if all(e.file == "torch_path.py" for e in self.edits) else "triton"

    @property
    def files(self) -> set[str]:
        """The files that are edited."""
        return {e.file for e in self.edits}


def plant(
    name: str,
    file: str,
    find: str,
    replace: str,
    fault: str,
    says: str,
    *,
    kind: str = "",
    fate: str = DIES,
    also: tuple[tuple[str, str], ...] = (),
) -> Mutant:
    """A mutant of one file. ``also``: more (find, replace) pairs, where one edit alone would not make the fault."""
    pairs = ((find, replace), *also)
    return Mutant(name, fault, says, tuple(Edit(file, *pair) for pair in pairs), kind, fate)
