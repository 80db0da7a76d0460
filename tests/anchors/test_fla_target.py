"""How fla-core is found and driven. What it does is asked in ``test_released.py``.

``pytest tests/anchors/test_fla_target.py``; those marked ``anchor`` need fla-core.
"""

from __future__ import annotations

import importlib.metadata

import pytest
import torch
from anchoring import anchored

from gdn_apc.fuzz import targets
from gdn_apc.fuzz.targets import fla


def test_a_missing_fla_is_unavailable(monkeypatch):
    """As a target it is missing, with what to install; the campaign's exit status is then 4."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(fla.importlib.metadata, "version", missing)
    with pytest.raises(
        targets.TargetUnavailable, match=r"'fla' cannot run here: .*; pip install --no-deps fla-core==0\.6\.0"
    ):
        targets.load("fla")


def test_the_oldest_column_of_its_cache_is_empty():
    """fla keeps W columns where a window has W - 1: the first is zero, the others the window, by channel."""
    windows = torch.arange(24.0).view(4, 3, 2)
    cache = fla._cache_of(windows, torch.tensor([2, 1], dtype=torch.int32))
    assert cache.shape == (2, 2, 4)
    assert cache[0].tolist() == [[0, 12, 14, 16], [0, 13, 15, 17]]


@pytest.mark.anchor
def test_an_old_fla_is_refused(monkeypatch):
    """Before 0.6 the kernels do not compute the gates."""
    anchored(lambda: __import__("fla.ops.gated_delta_rule"), "; pip install -e '.[anchors]'")
    monkeypatch.setattr(fla.importlib.metadata, "version", lambda name: "0.5.2")
    with pytest.raises(
        targets.TargetUnavailable, match=r"needs fla-core 0\.6 or newer, 0\.5\.2 is installed"
    ):
        targets.load("fla")
