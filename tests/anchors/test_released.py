"""What released libraries do: nothing fails but what ``expected/`` knows, and the bugs that it names are met.

A few examples of each property and every witness; ``VERDICTS.md`` comes from longer runs. Exercise it with
``GDN_APC_VLLM_RELEASES=DIR pytest tests/anchors/test_released.py -m anchor``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gdn_apc.fuzz import expectations
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.verdicts import Surveyor

pytestmark = pytest.mark.anchor
EXPECTED = Path(__file__).parent / "expected"

RELEASES = [
    # target, version, words of the reasons that must be met
    ("vllm", "0.25.1", {"51562", "53877"}),
    ("vllm", "0.31.0", set()),
    ("vllm", "0.33.0", set()),
    ("vllm-all", "0.31.0", {"56196", "packed tokens"}),
    ("vllm-metadata", "0.25.1", {"51562"}),
    ("vllm-metadata", "0.33.0", set()),
    ("fla", "0.6.0", {"sign of zero"}),
    ("transformers", "5.17.0", {"before SiLU"}),
]


@pytest.mark.parametrize("name, version, met", RELEASES, ids=[f"{n} {v}" for n, v, _ in RELEASES])
def test_nothing_fails_but_what_is_known(released, name, version, met):
    """Unknown failures are named; the known ones that these few examples must meet are met."""
    target = released(name, version)
    file = EXPECTED / f"{name}-{version}.toml"
    known = expectations.load([str(file)] if file.exists() else [])
    examples = 40 if "metadata" in target.claims.seams else 4  # a batch of indices costs little
    survey = Surveyor(target, known, shrink_seconds=0).run(examples, fixed=False)

    assert [f"{k.property}: {k.message}" for k in survey.new] == []
    reasons = " ".join(k.reason for k in survey.kinds)
    assert {word for word in met if word not in reasons} == set()
    assert list(known.mended(load_all(), target)) == []  # cases of rare failures still fail
    assert sum(survey.compared().values()) > 30
