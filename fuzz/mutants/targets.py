"""Every planted fault as an attribute, so that a case found on one can be replayed like any other::

    gdn-apc replay CASE.json --target gdn_apc.fuzz.mutants.targets:carry_not_persisted
    gdn-apc fuzz --target gdn_apc.fuzz.mutants.targets:carry_not_persisted

Imports a mutant when it is asked for. Exercise it with ``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The target of the mutant called ``name``."""
    from gdn_apc.fuzz.mutants import catalogue, load

    if name not in catalogue.CATALOGUE:
        raise AttributeError(f"{name!r} is no mutant; `gdn-apc mutants --list` shows their names")
    return load.target(catalogue.CATALOGUE[name])
