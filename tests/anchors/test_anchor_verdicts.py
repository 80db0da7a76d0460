"""The page of verdicts is its records', and every failure in it has a reason. ``pytest tests/anchors/test_anchor_verdicts.py``"""

from __future__ import annotations

import json
from pathlib import Path

import verdicts

from gdn_apc.fuzz import expectations
from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.claims import CLAUSES, FLOOR

EXPECTED = Path(__file__).parent / "expected"


def test_the_page_is_not_stale():
    """``python tests/anchors/verdicts.py`` writes what is committed."""
    assert verdicts.PAGE.read_text() == verdicts.render(verdicts.records())


def test_every_failure_has_its_reason():
    """What failed is known by an entry, whose reason is still the one on the page."""
    for name, record in verdicts.records().items():
        file = EXPECTED / f"{name}.toml"
        entries = {e.name: e for e in expectations.read(file)} if file.exists() else {}
        for kind in record["kinds"]:
            case = Case.from_json(json.dumps(kind["case"]))
            assert kind["entry"] in entries, f"{name}: {kind['property']}: {kind['message']}"
            assert kind["reason"] == entries[kind["entry"]].reason
            assert entries[kind["entry"]].matches(kind["property"], case, kind["message"])


def test_verdicts_rest_on_enough_examples():
    """Nothing is called held on fewer examples than the stated number."""
    floors = {c.name: c.floor for c in CLAUSES}
    held = [
        (floors[row.clause.name], row.compared)
        for record in verdicts.records().values()
        for row in verdicts.matrix(record)
        if row.state == "held"
    ]
    assert len(held) > 50 and all(count >= floor >= FLOOR for floor, count in held)


def test_a_record_of_another_kind_shows():
    """The page depends on what the records say."""
    found = verdicts.records()
    found["fla-0.6.0"]["versions"]["fla-core"] = "9.9"
    assert "fla-core 9.9" in verdicts.render(found) != verdicts.PAGE.read_text()
