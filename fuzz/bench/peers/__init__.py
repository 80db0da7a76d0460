"""Who is measured: our own kernels, and whatever else is installed, each behind a small adapter.

A peer says which problems it solves and prepares a *call* for each set of inputs: everything that an engine does once a
step (metadata, offsets) is prepared, everything that it does once a layer is in the call. Imports the standard library
until a peer is asked for. Exercise it with ``pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

import importlib

BUILTIN = {
    "native": "native:Native",
    "native-torch": "native:NativeTorch",
    "vllm": "vllm:Vllm",
    "fla": "fla:Fla",
    "flashqla": "flashqla:FlashQla",
    "flashinfer": "flashinfer:FlashInfer",
}
"""Name → module and class; another ``module:class`` may be named too."""


class Missing(ImportError):
    """The peer cannot run here; the message says why and what to do."""


def load(name: str) -> object:
    """The peer called ``name``. Raises :class:`Missing`."""
    spec = BUILTIN.get(name, name)
    module, colon, attribute = spec.partition(":")
    if not colon:
        raise Missing(
            f"peer: {name!r} is not known; choose some of {', '.join(BUILTIN)}, or module:class of your own "
            "(a gdn_apc.fuzz.bench.peers.base.Peer)"
        )
    full = f"{__name__}.{module}" if name in BUILTIN else module
    try:
        return getattr(importlib.import_module(full), attribute)()
    except Missing:
        raise
    except ImportError as e:
        raise Missing(f"peer: {name!r} cannot be imported: {e}") from e
