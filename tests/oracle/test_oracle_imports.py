"""The oracle stands on torch and the standard library alone, so nothing under test can be part of the truth."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ORACLE = Path(__file__).parents[2] / "oracle"
ALLOWED = {"torch", *sys.stdlib_module_names}


def foreign_imports(source: str) -> list[str]:
    """Imports, anywhere in the source, of anything but torch, the standard library and the oracle itself."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + (node.module or ""))
    own = "gdn_apc.oracle"
    return [
        name
        for name in names
        if name.split(".")[0] not in ALLOWED and name != own and not name.startswith(own + ".")
    ]


@pytest.mark.parametrize("file", sorted(ORACLE.glob("*.py")), ids=lambda file: file.name)
def test_a_module_imports_torch_and_the_standard_library_only(file):
    """Functions included; so no Triton, no vLLM, nothing of ours but the oracle."""
    assert foreign_imports(file.read_text()) == []


def test_importing_the_oracle_loads_nothing_else_of_ours():
    """Also at run time, in a fresh process."""
    program = "import sys, gdn_apc.oracle; print([m for m in sys.modules if m.startswith('gdn_apc.')])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "gdn_apc.oracle.compare" in loaded
    assert [m for m in ast.literal_eval(loaded) if not m.startswith("gdn_apc.oracle")] == []


@pytest.mark.parametrize(
    "line",
    [
        "import numpy",
        "from triton import language",
        "def f():\n    import vllm.envs",
        "from gdn_apc.impl import ops",
        "import gdn_apc.oracles",
        "from . import cache",
    ],
)
def test_the_check_can_fail(line):
    """Each of these is found."""
    assert foreign_imports(line) != []
