"""When an anchor's package is absent: a skip for people, a failure in CI (``GDN_APC_REQUIRE_ANCHORS=1``).

Imports pytest. Exercise it with ``pytest tests/anchors/test_loader.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


def anchored(load: Callable[[], Any], hint: str = "") -> Any:
    """What ``load`` returns. If it raises ``ImportError``: a skip that says what to install, or a failure in CI."""
    try:
        return load()
    except ImportError as e:
        if os.environ.get("GDN_APC_REQUIRE_ANCHORS") == "1":
            pytest.fail(f"GDN_APC_REQUIRE_ANCHORS=1, but {e}{hint}", pytrace=False)
        pytest.skip(f"{e}{hint}")
