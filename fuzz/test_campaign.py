"""What ``pytest -m fuzz`` runs: the canary, the witnesses of the ledger, and one item for each property and shard.

The items are thin; a campaign's work is in ``fuzz/session.py`` and ``fuzz/campaign.py``. A property's item fails
when the property does, with the case and the line that replays it.
"""

from __future__ import annotations

import pytest

from gdn_apc.fuzz.canary import Silent
from gdn_apc.fuzz.pytest_plugin import campaign_of
from gdn_apc.fuzz.session import Session

pytestmark = pytest.mark.fuzz


def pytest_generate_tests(metafunc):
    """A property's shards are items of their own: pytest-xdist spreads items, never the examples of one."""
    campaign_of(metafunc.config).parametrize(metafunc)


@pytest.fixture
def session(request) -> Session:
    """This process's part of the campaign."""
    return campaign_of(request.config).session_or_skip()


def test_canary(session):
    """A property that must fail does, and every report of it is there."""
    try:
        session.canary()
    except Silent as e:
        pytest.fail(str(e), pytrace=False)


def test_reached(session, gdn_event, request):
    """The witness of a must-happen event holds, and reaches the event."""
    campaign_of(request.config).run_witness(session, gdn_event, request.node)


def test_property(session, gdn_property, gdn_shard, request):
    """A property holds on everything that its budget or time allows to draw."""
    campaign_of(request.config).run_property(session, gdn_property, gdn_shard, request.node)
