"""The catalogue: every planted fault by name, and the selection that a command line asks for.

Imports the standard library only. Exercise it with ``gdn-apc mutants --list``.
"""

from __future__ import annotations

from gdn_apc.fuzz.mutants import (
    faults_conv,
    faults_delta,
    faults_host,
    faults_metadata,
    faults_prepare,
    faults_scan,
)
from gdn_apc.fuzz.mutants.model import Mutant

MUTANTS = (
    *faults_metadata.FAULTS,
    *faults_conv.FAULTS,
    *faults_delta.FAULTS,
    *faults_scan.FAULTS,
    *faults_prepare.FAULTS,
    *faults_host.FAULTS,
)

CATALOGUE: dict[str, Mutant] = {m.name: m for m in MUTANTS}


def select(names: list[str] | None) -> list[Mutant]:
    """The mutants called ``names``, in the catalogue's order; all if none is named.

    ``core`` stands for all that belong to one of ``model.KINDS``. Raises ``ValueError`` for an unknown name.
    """
    unknown = sorted(set(names or ()) - set(CATALOGUE) - {"core"})
    if unknown:
        raise ValueError(
            f"mutant: {unknown[0]!r} is not in the catalogue; `gdn-apc mutants --list` shows its {len(MUTANTS)} names"
        )
    wanted = set(names or CATALOGUE)
    return [m for m in MUTANTS if m.name in wanted or ("core" in wanted and m.kind)]
