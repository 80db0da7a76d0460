"""The dependency rule: oracle imports nothing of ours, impl nothing outside impl, spec may import oracle; and
only ``impl/vllm``, ``fuzz/targets`` and ``fuzz/bench/peers`` name vLLM. Imports inside functions count too.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "oracle": {"oracle"},
    "impl": {"impl"},
    "spec": {"spec", "oracle"},
    "fuzz": {"fuzz", "oracle", "impl", "spec"},
}
FOREIGN = {"vllm", "fla", "transformers"}
MAY_BE_FOREIGN = ("impl/vllm/", "fuzz/targets/", "fuzz/bench/peers/")


def imports(source: str) -> set[str]:
    """Every dotted name that the source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def offences(path: str, source: str) -> list[str]:
    """The imports of a file that the rule forbids."""
    top = path.split("/")[0]
    found = []
    for name in imports(source):
        parts = name.split(".")
        if parts[0] == "gdn_apc" and parts[1] not in ALLOWED[top]:
            found.append(name)
        if parts[0] in FOREIGN and not path.startswith(MAY_BE_FOREIGN):
            found.append(name)
    return found


def sources():
    return [(str(p.relative_to(ROOT)), p) for top in ALLOWED for p in sorted((ROOT / top).rglob("*.py"))]


@pytest.mark.parametrize(("path", "file"), sources(), ids=[name for name, _ in sources()])
def test_a_module_imports_only_what_it_may(path, file):
    """No module breaks the rule."""
    assert offences(path, file.read_text()) == []


def test_the_rule_can_fail():
    """The check sees forbidden imports, at the top and inside functions."""
    assert offences("oracle/x.py", "from gdn_apc.impl import ops") == ["gdn_apc.impl.ops"]
    assert offences("impl/x.py", "def f():\n    import gdn_apc.fuzz.case") == ["gdn_apc.fuzz.case"]
    assert offences("fuzz/x.py", "import vllm") == ["vllm"]
    assert offences("fuzz/targets/x.py", "import vllm") == []


def commands(docstring: str) -> set[str]:
    """The files and folders that a docstring tells pytest to run."""
    return set(re.findall(r"pytest [^`\n]*?((?:tests|fuzz)/[\w/]+(?:\.py)?)", docstring))


@pytest.mark.parametrize(("path", "file"), sources(), ids=[name for name, _ in sources()])
def test_a_module_names_tests_that_exist(path, file):
    """The command that exercises a module can be typed as it stands."""
    assert [
        c for c in commands(ast.get_docstring(ast.parse(file.read_text())) or "") if not (ROOT / c).exists()
    ] == []


def test_the_commands_are_found():
    """The search sees a file, a folder, and options before them."""
    assert commands("Run ``pytest -m x tests/a/test_b.py`` or ``pytest fuzz/c``.") == {
        "tests/a/test_b.py",
        "fuzz/c",
    }


def test_every_module_says_what_it_is_for():
    """A module opens with a docstring."""
    silent = [path for path, file in sources() if not ast.get_docstring(ast.parse(file.read_text()))]
    assert silent == []
