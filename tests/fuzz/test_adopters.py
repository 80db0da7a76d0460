"""What adopters do: the README's adapter as printed, and a campaign from a checkout with tests of its own.

``pytest tests/fuzz/test_adopters.py``
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from asking import ask

from gdn_apc.fuzz import targets
from gdn_apc.fuzz.properties.base import Violation

README = Path(__file__).parents[2] / "README.md"

PROJECT = '''
import torch
from gdn_apc import oracle

def my_rule(q, k, v, g, beta, states, offsets, *, scale, l2norm):
    """A correct kernel, unless somebody sets WRONG."""
    bounds, outputs, finals = offsets.tolist(), [], []
    for i, state in enumerate(states):
        part = [t[bounds[i] : bounds[i + 1]] for t in (q, k, v, g, beta)]
        o, found = oracle.recurrence(*part, scale=scale, initial_state=state * FACTOR, use_qk_l2norm=l2norm)
        outputs.append(o.to(v.dtype))
        finals.append(found[-1])
    return torch.cat(outputs), torch.stack(finals)

FACTOR = {factor}
'''


def printed() -> str:
    """The adapter that the README prints."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    [found] = [b for b in blocks if "class Target(Blockwise)" in b]
    return found


def checkout(folder: Path, factor: float = 1.0) -> Path:
    """A project with a kernel, the README's adapter, and tests and settings that must not matter."""
    (folder / "myproject.py").write_text(PROJECT.format(factor=factor))
    (folder / "mykernels.py").write_text(printed())
    (folder / "conftest.py").write_text("raise RuntimeError('the checkout must not be collected')\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\npython_functions = check_*\n")
    tests = folder / "tests"
    tests.mkdir()
    (tests / "test_mine.py").write_text("raise RuntimeError('the checkout must not be collected')\n")
    (folder / "fuzz").mkdir()
    (folder / "fuzz" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    return folder


def test_the_readmes_adapter_is_short():
    """Ten lines of code, imports included, as promised."""
    code = [line for line in printed().splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) <= 10


@pytest.mark.parametrize("factor, holds", [(1.0, True), (1.01, False)])
def test_the_readmes_adapter_works_as_printed(tmp_path, monkeypatch, factor, holds):
    """A correct kernel holds, one that misreads its states fails."""
    monkeypatch.chdir(checkout(tmp_path, factor))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("myproject", "mykernels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    target = targets.load("mykernels:Target")
    try:
        if holds:
            assert ask(target, "values", 10) >= 8
        else:
            with pytest.raises(Violation, match="is wrong at"):
                ask(target, "hit_is_used", 30)
    finally:
        for name in ("myproject", "mykernels"):
            sys.modules.pop(name, None)


def test_a_campaign_from_a_checkout(tmp_path):
    """Its conftest, settings, tests, and a package that is called like ours are neither run nor collected."""
    folder = checkout(tmp_path)
    code = "from gdn_apc.fuzz.cli import main; raise SystemExit(main())"
    command = (
        [sys.executable, "-P", "-c", code] if sys.version_info >= (3, 11) else [sys.executable, "-c", code]
    )
    command += ["fuzz", "--target", "mykernels:Target", "--budget", "2", "--gdn-property", "write_set", "-q"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 5, said[-3000:]
    assert "must not be collected" not in said and "not ours" not in said
    page = next((folder / ".gdn-apc" / "runs").glob("*/summary.md")).read_text()
    assert "## Claims" in page and "| writes | yes |" in page
    assert "| absolute_grid | no | 0 | not claimed |" in page
