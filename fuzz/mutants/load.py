"""Plants a fault in a copy of ``impl`` and imports the copy under a name of its own, beside the real one.

Imports the standard library; torch and the kernels when a copy is imported. Exercise it with
``pytest tests/fuzz/test_mutants.py``.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gdn_apc.fuzz.mutants.model import Edit, Mutant

if TYPE_CHECKING:
    from gdn_apc.fuzz.targets.native import NativeTarget

PREFIX = "gdn_apc_mutant_"


class Stale(ValueError):
    """An edit's text is not found exactly once: the code has moved on, and the catalogue must follow."""


def source_of_impl() -> Path:
    """The folder of the installed ``gdn_apc.impl``; nothing of it is imported."""
    return Path(importlib.util.find_spec("gdn_apc.impl").origin).parent


def edited(edit: Edit, text: str, mutant: str) -> str:
    """``text`` with the edit applied. Raises :class:`Stale` unless what it looks for is there exactly once."""
    count = text.count(edit.find)
    if count != 1:
        raise Stale(
            f"mutant {mutant}: {edit.file} holds {edit.find!r} {count} times, expected once; "
            "follow the change in fuzz/mutants"
        )
    return text.replace(edit.find, edit.replace)


def sources(mutant: Mutant) -> dict[str, str]:
    """The edited files of a mutant, path inside ``impl`` → text. Raises :class:`Stale`."""
    found: dict[str, str] = {}
    for edit in mutant.edits:
        text = found.get(edit.file) or (source_of_impl() / edit.file).read_text()
        found[edit.file] = edited(edit, text, mutant.name)
    return found


def planted(mutant: Mutant) -> ModuleType:
    """The mutant's package, imported as ``gdn_apc_mutant_<name>`` from a folder that lives as long as the process.

    Triton reads the sources of kernels when it needs them, so the folder must stay. Raises :class:`Stale`.
    """
    name = PREFIX + mutant.name
    if name in sys.modules:
        return sys.modules[name]
    changed = sources(mutant)
    folder = Path(tempfile.mkdtemp(prefix="gdn-apc-mutant-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(source_of_impl(), folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in sorted((folder / name).rglob("*.py")):
        text = changed.get(file.relative_to(folder / name).as_posix()) or file.read_text()
        file.write_text(text.replace("gdn_apc.impl", name))
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def target_name(mutant: Mutant) -> str:
    """What ``gdn-apc replay`` and ``gdn-apc fuzz --target`` call the mutant."""
    return f"gdn_apc.fuzz.mutants.targets:{mutant.name}"


def target(mutant: Mutant) -> NativeTarget:
    """The mutant as a target, on the path that runs the edited code. Raises :class:`Stale`."""
    from gdn_apc.fuzz.targets.native import NativeTarget, NativeTorchTarget

    adapter = NativeTorchTarget if mutant.backend == "torch" else NativeTarget
    found = adapter(planted(mutant))
    found.name = target_name(mutant)
    return found
