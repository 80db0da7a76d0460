"""Known public bugs that the gate found again, on every release that is here: failing in the range that bisecting named.

``PUBLIC_BUGS.md`` tells the story. Exercise it with ``GDN_APC_VLLM=DIR pytest tests/anchors/test_public_bugs.py``; with
``GDN_APC_VLLM_RELEASES`` (``conftest.py``) it runs on more releases than one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from anchoring import anchored

from gdn_apc.fuzz.targets import _vllm_loader as loader
from gdn_apc.fuzz.triage import releases
from gdn_apc.fuzz.triage.trial import BAD, GOOD, UNTESTABLE, attempt

pytestmark = pytest.mark.anchor

CASES = Path(__file__).parent / "public_bugs"
FIRST_AFTER = {
    "beta_rounded": ("0.29.0", GOOD),
    "fresh_one_token": ("0.31.0", GOOD),
    "short_step": ("0.32.0", UNTESTABLE),
}
"""Case → the release in which it fails no more, and what it is then: right, or no longer there to be asked."""


def present() -> dict[str, Path]:
    """Every vLLM release that is here, by version."""
    found = {}
    several = os.environ.get("GDN_APC_VLLM_RELEASES")
    if several:
        found |= {p.name.removeprefix("vllm-"): p for p in Path(several).glob("vllm-*") if p.is_dir()}
    one = anchored(loader.find)
    return found | {one.version.split("+")[0]: one.root.parent}


@pytest.mark.parametrize("name", FIRST_AFTER)
def test_a_public_bug_fails_in_its_releases_and_no_others(name):
    """Replayed in a process of its own, as ``gdn-apc bisect`` does."""
    path, (first, after) = CASES / f"{name}.json", FIRST_AFTER[name]
    for version, folder in present().items():
        order = releases.ordered({version, first})
        expected = after if order[-1] == version else BAD
        target = json.loads(path.read_text())["provenance"]["target"]

        verdict = attempt(path, target, {**os.environ, "GDN_APC_VLLM": str(folder)})

        assert verdict.word == expected, f"vllm {version}: {verdict.says}"


def test_every_case_is_named():
    assert {p.stem for p in CASES.glob("*.json")} == set(FIRST_AFTER)
