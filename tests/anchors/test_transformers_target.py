"""How transformers' functions are driven. What they do is asked in ``test_released.py``.

``pytest tests/anchors/test_transformers_target.py``; those marked ``anchor`` need transformers.
"""

from __future__ import annotations

import inspect

import pytest

from gdn_apc.fuzz import targets
from gdn_apc.fuzz.targets import transformers


def test_a_missing_transformers_is_unavailable(monkeypatch):
    """As a target it is missing, with what to install; the campaign's exit status is then 4."""
    monkeypatch.setattr(transformers, "MODULE", "no_such_package.modeling")
    with pytest.raises(
        targets.TargetUnavailable,
        match=r"'transformers' cannot run here: .*; pip install 'gdn-apc\[anchors\]'",
    ):
        targets.load("transformers")


@pytest.mark.anchor
def test_only_their_own_functions_run(qwen3_next):
    """Kernels that transformers would take from elsewhere are unwrapped: the fallback itself is asked."""
    target = targets.load("transformers")
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_update"):
        found = target._plain(name)
        assert inspect.getsourcefile(found) == qwen3_next.__file__
        assert not hasattr(found, "__wrapped__")
