"""Adapters for the implementations under test, one module each, and how one is found by name.

Imports the standard library only; an adapter is imported when it is asked for. Exercise it with
``pytest tests/fuzz/test_cli.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdn_apc.fuzz.targets.base import Target

BUILTIN = {
    "native": "gdn_apc.fuzz.targets.native:NativeTarget",
    "native-torch": "gdn_apc.fuzz.targets.native:NativeTorchTarget",
    "vllm": "gdn_apc.fuzz.targets.vllm:VllmTarget",
    "vllm-all": "gdn_apc.fuzz.targets.vllm:VllmAllTarget",
    "fla": "gdn_apc.fuzz.targets.fla:FlaTarget",
    "transformers": "gdn_apc.fuzz.targets.transformers:TransformersTarget",
    "vllm-metadata": "gdn_apc.fuzz.targets.vllm:VllmMetadataTarget",
}
"""Name of a target → ``module:attribute`` of its class."""

DEFAULT = "native"


class TargetUnavailable(Exception):
    """The target cannot run here: not installed, of an unsupported version, or no such name. Exit status 4."""


def names() -> list[str]:
    """The built-in targets whose adapter is part of this installation."""
    return [name for name, spec in BUILTIN.items() if importlib.util.find_spec(spec.partition(":")[0])]


def load(name: str = DEFAULT) -> Target:
    """The target called ``name``: a built-in one, or ``module:attribute``.

    The attribute is a :class:`~gdn_apc.fuzz.targets.base.Target`, a subclass, or a function without arguments
    that returns one. The module may lie in the current directory. Raises :class:`TargetUnavailable`.
    """
    spec = BUILTIN.get(name, name)
    module_name, colon, attribute = spec.partition(":")
    if name not in names() and (name in BUILTIN or not colon):
        raise TargetUnavailable(
            f"target: {name!r} is not known; choose one of {', '.join(names())}, or module:attribute of your own "
            "(a gdn_apc.fuzz.targets.base.Target)"
        )
    if name not in BUILTIN and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    prepare_triton(name)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        is_factory = isinstance(found, type) or (callable(found) and not hasattr(found, "claims"))
        target = found() if is_factory else found
    except TargetUnavailable:
        raise
    except Exception as e:
        raise TargetUnavailable(
            f"target: {name!r} ({spec}) could not be loaded: {type(e).__name__}: {e}; "
            "`gdn-apc doctor` says which targets can run here"
        ) from e
    return _checked(target, name, spec)


def _checked(target: object, name: str, spec: str) -> Target:
    from gdn_apc.fuzz.targets.base import Target

    if not isinstance(target, Target):
        raise TargetUnavailable(
            f"target: {name!r} ({spec}) is a {type(target).__name__}, expected a gdn_apc.fuzz.targets.base.Target; "
            "subclass it and override the seams that its claims name"
        )
    return target


def threads(count: int) -> int:
    """Let torch use ``count`` threads, and return how many it used before.

    A campaign and a replay use one: their tensors are small, waking threads takes longer than the work, and nothing
    that they find depends on how work was split.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


def prepare_triton(name: str) -> None:
    """Switch on the mended interpreter where kernels would otherwise need a GPU that is not there.

    Must come before any kernel module is imported. A target in plain PyTorch needs no Triton.
    """
    import torch

    if name == "native-torch" or torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return
    interpreter = importlib.import_module("gdn_apc.fuzz.interpreter")
    try:
        interpreter.activate()
    except Exception as e:
        raise TargetUnavailable(
            f"target: {name!r} needs Triton's interpreter, as there is no GPU: {type(e).__name__}: {e}"
        ) from e
