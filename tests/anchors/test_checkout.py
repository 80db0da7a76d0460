"""A kernel developer's working tree is a target without edits. ``GDN_APC_VLLM=DIR pytest tests/anchors/test_checkout.py``"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from anchoring import anchored

from gdn_apc.fuzz.targets import _vllm_loader as loader

MAIN = "from gdn_apc.fuzz.cli import main; raise SystemExit(main())"


@pytest.mark.anchor
def test_vllm_from_its_checkout(tmp_path):
    """``gdn-apc fuzz --target vllm`` takes the ``vllm`` of the current directory, and none of its tests or settings."""
    loader.slim(anchored(loader.find), tmp_path)
    (tmp_path / "vllm" / "_version.py").unlink()  # as in a checkout that was never built
    (tmp_path / "conftest.py").write_text("raise RuntimeError('must not be collected')\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_theirs.py").write_text("raise RuntimeError('must not be collected')\n")

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "GDN_APC"))}
    command = [sys.executable, "-c", MAIN, "fuzz", "--target", "vllm", "--budget", "2", "-q"]
    done = subprocess.run(
        [*command, "--gdn-property", "write_set"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 5, said[-3000:]  # incomplete: one property, two examples
    assert "must not be collected" not in said
    page = next((tmp_path / ".gdn-apc" / "runs").glob("*/summary.md")).read_text()
    assert "vllm unknown" in page and "Target **vllm**" in page
    assert "| persisted_carry | yes | 0 | not shown (20 examples needed) | a hit changes no bit |" in page
