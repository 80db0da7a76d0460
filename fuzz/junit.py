"""``junit.xml`` of a campaign, made from its events: a test case for each property, each witness, and the canary.

Imports the standard library and ``fuzz.summary``. Exercise it with ``pytest tests/fuzz/test_report.py``.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

from gdn_apc.fuzz.summary import BROKEN, Totals, verdict

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, not even escaped."""


def render(totals: Totals) -> str:
    """The file's text."""
    found = verdict(totals)
    suite = ET.Element("testsuite", name="gdn-apc", time=f"{totals.duration:.1f}")
    properties = ET.SubElement(suite, "properties")
    for name in ("target", "device", "seed", "revision"):
        ET.SubElement(properties, "property", name=name, value=str(totals.start.get(name, "?")))
    ET.SubElement(properties, "property", name="verdict", value=f"{found.word}: {'; '.join(found.reasons)}")
    for prop in totals.start.get("properties", []):
        _property(suite, totals, prop)
    for event in totals.start.get("ledger", []):
        _witness(suite, totals, event)
    canary = ET.SubElement(suite, "testcase", classname="gdn_apc", name="canary", time="0")
    if totals.canary is None:
        ET.SubElement(canary, "skipped", message="did not run")
    elif not totals.canary["ok"]:
        _note(canary, "error", totals.canary["message"])
    if found.status == BROKEN or totals.broken:
        broken = ET.SubElement(suite, "testcase", classname="gdn_apc", name="infrastructure", time="0")
        for message in totals.broken:
            _note(broken, "error", message)
    for tag, name in (
        ("tests", "testcase"),
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(tag, str(sum(1 for _ in suite.iter(name))))
    root = ET.Element("testsuites")
    root.append(suite)
    for element in root.iter():
        element.text = FORBIDDEN.sub("?", element.text) if element.text else element.text
        element.attrib.update({k: FORBIDDEN.sub("?", v) for k, v in element.attrib.items()})
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _property(suite: ET.Element, totals: Totals, prop: dict[str, Any]) -> None:
    name = prop["name"]
    case = ET.SubElement(
        suite, "testcase", classname="gdn_apc.property", name=name, time=f"{totals.took(name):.2f}"
    )
    numbers = ET.SubElement(case, "properties")
    for key, counts in (("gdn_examples", totals.examples), ("gdn_comparisons", totals.comparisons)):
        ET.SubElement(numbers, "property", name=key, value=str(counts[name]))
    failures = [f for f in totals.failures if f["property"] == name and not f.get("witness")]
    for f in failures:
        _note(case, "failure", f"{f['message']}\ncase: {f['case']}")
    if prop["needs"]:
        ET.SubElement(case, "skipped", message=f"the target cannot be asked: {prop['needs']}")
    elif not failures and not any(n == name for n, _ in totals.status):
        ET.SubElement(case, "skipped", message="did not run, or did not end")


def _witness(suite: ET.Element, totals: Totals, event: dict[str, Any]) -> None:
    name = event["name"]
    case = ET.SubElement(suite, "testcase", classname="gdn_apc.witness", name=name, time="0")
    failure = next((f for f in totals.failures if f.get("witness") == name), None)
    if event["needs"]:
        ET.SubElement(case, "skipped", message=f"the target cannot reach it: {event['needs']}")
    elif failure is not None:
        _note(case, "failure", f"{failure['message']}\ncase: {failure['case']}")
    elif name not in totals.reached:
        ET.SubElement(case, "skipped", message="did not run")
    elif not totals.reached[name]:
        _note(case, "failure", f"the witness did not reach {name}: {event['doc']}")


def _note(case: ET.Element, tag: str, message: str) -> None:
    ET.SubElement(case, tag, message=message.splitlines()[0] if message else "").text = message
