"""``report.html``: complete, in one file, and never in disagreement with ``summary.md``."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from gdn_apc.fuzz import junit, page, plots, report
from gdn_apc.fuzz.ratios import Histogram
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import Totals

VOID = {"meta", "path", "rect"}


class Balanced(HTMLParser):
    """Raises where a tag is closed that is not the one open."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def totals():
    ratios = Histogram()
    ratios.add([0.0, 0.01, 0.5, 1.0])
    prop = {"name": "outputs", "kind": "kernel", "floor": 2, "doc": "x", "needs": None}
    where = {"property": "outputs", "shard": 0, "round": 0, "phase": "generate"}
    example = {"comparisons": 3, "ledger": {}, "size": [1, 2, 3], "dtypes": "bf16/bf16", "seconds": 0.1}
    return Totals.of(
        [
            {"event": "start", "properties": [prop], "selected": ["outputs"], "target": "toy"},
            {"event": "example", **where, **example},
            {"event": "ratios", "ratios": {"state bf16": ratios.to_json()}},
            {"event": "item", **where, "status": "failed", "seconds": 4.0, "replayed": 0},
            {
                "event": "failure",
                **where,
                "message": "a < b | <script>",
                "case": "c.json",
                "where": {},
                "shrunk": "",
            },
            {"event": "end", "reason": "finished", "seconds": 1.0},
        ]
    )


def write(tmp_path):
    run = RunFolder(tmp_path).create()
    report.write(totals(), run)
    return (tmp_path / "report.html").read_text(), page.render(totals(), run)


def test_the_report_is_one_well_formed_file(tmp_path):
    html, _ = write(tmp_path)
    parser = Balanced()
    parser.feed(html)

    assert parser.open == []
    assert not re.search(r"(src|href)=|url\(|@import|<script", html)
    assert "FAILED: outputs: a &lt; b | &lt;script&gt;" in html


def test_the_report_says_all_that_the_summary_says(tmp_path):
    html, summary = write(tmp_path)
    words = re.compile(r"[A-Za-z]{3,}")
    summary = re.sub(r"</?(details|summary)>", " ", summary)
    text = re.sub(r"<[^>]+>", " ", html).replace("&lt;", "<").replace("&#x27;", "'")

    assert set(words.findall(summary)) <= set(words.findall(text))


def test_the_plots_hold_the_numbers(tmp_path):
    html, _ = write(tmp_path)

    assert html.count("<svg") == 3
    assert ">1 / 2<" in html and ">4.0 s<" in html and "p99 1" in html


def test_cells_with_bars_stay_cells():
    assert (
        report.markdown("| a |\n| --- |\n| x\\|y |")
        == "<table><tr><th>a</th></tr><tr><td>x|y</td></tr></table>"
    )


def test_code_is_left_alone():
    assert report.markdown("```\n# <b> **x**\n```") == "<pre># &lt;b&gt; **x**</pre>"


# ---- what the plots and the other pages show ---------------------------------------------------------------------


def campaign(**changes):
    """Events of a campaign of two properties and one must-happen event."""
    properties = [
        {"name": name, "kind": "kernel", "floor": 2, "doc": "x", "needs": needs}
        for name, needs in (("outputs", None), ("cuts", None), ("hits", "no hits claimed"))
    ]
    hit = {"name": "hit", "doc": "a hit", "needs": None}
    where = {"property": "outputs", "shard": 0, "round": 0, "phase": "generate"}
    example = {
        "comparisons": 3,
        "ledger": {"hit": 1},
        "size": [1, 2, 3],
        "dtypes": "bf16/bf16",
        "seconds": 0.1,
    }
    ratios = Histogram()
    ratios.add([0.5, 0.625])
    start = {
        "properties": properties,
        "selected": ["outputs", "cuts"],
        "ledger": [hit],
        "target": "toy",
        "seed": 7,
    }
    return [
        {"event": "start", **start, **changes},
        {"event": "witness", "name": "hit", "reached": True, "at": 1.0},
        *({"event": "example", **where, **example, "digest": str(i), "at": 2.0 + i} for i in range(8)),
        {"event": "ratios", **where, "ratios": {"state bf16": ratios.to_json()}},
        {
            "event": "round",
            **where,
            "spent": {"target": 3.0, "oracle": 1.0, "generation": 0.5},
            "complete": True,
        },
        {"event": "item", **where, "status": "held", "seconds": 4.5, "replayed": 0},
        {"event": "floors", "floors": {"hit": 4}},
        {"event": "end", "reason": "finished", "seconds": 12.0, "at": 12.0},
    ]


def test_every_plot_is_there_and_holds_its_numbers(tmp_path):
    run = RunFolder(tmp_path).create()
    report.write(Totals.of(campaign()), run)
    html = (tmp_path / "report.html").read_text()

    assert html.count("<svg") == 6
    for text in (">8 examples<", ">24 comparisons<", ">12 s<", ">8 / 2<", ">4.5 s<", ">0.625<", ">8 / 4<"):
        assert text in html
    assert html.count("<rect") >= 3 + 2 + 2  # the parts of a property's time are bars of their own


def test_a_curve_grows_and_ends_at_the_top():
    drawn = plots.curves("x", Totals.of(campaign()))
    path = re.search(r'd="M0 160L([^"]*)L520 4"', drawn)[1]
    heights = [float(point.split()[1]) for point in path.split("L")]

    assert heights == sorted(heights, reverse=True) and heights[-1] == 4.0


def test_where_the_time_went_is_in_the_summary(tmp_path):
    text = page.render(Totals.of(campaign()), RunFolder(tmp_path))

    assert "Where the time went: generation 11%, target 67%, oracle 22%, comparison 0%, shrinking 0%" in text
    assert "| outputs | 4.5 | 1.8 | 0.5 | 3.0 | 1.0 | 0.0 | 0.0 |" in text


def test_what_a_target_says_cannot_become_a_part_of_the_page(tmp_path):
    """It may hold the end of a block of code, HTML, and more text than a comment can."""
    message = "wrong\n```\n# a heading\n<script>alert(1)</script>\n" + "x" * 100_000
    failure = {
        "property": "outputs",
        "shard": 0,
        "round": 0,
        "phase": "generate",
        "message": message,
        "case": "c.json",
    }
    run = RunFolder(tmp_path).create()
    totals = Totals.of([*campaign()[:-1], {"event": "failure", **failure}, campaign()[-1]])
    report.write(totals, run)
    text, html = page.render(totals, run), (tmp_path / "report.html").read_text()

    assert len(text) < 10_000 and "characters more in events.jsonl" in text
    assert "````\nwrong\n```\n# a heading\n" in text
    assert "<script" not in html and "<h1>a heading" not in html


def test_a_hundred_failures_still_fit_a_comment(tmp_path):
    where = {"round": 0, "phase": "generate", "message": "wrong\n" + "y" * 9000}
    failures = [
        {"event": "failure", "property": f"p{i}", "shard": 0, "case": f"p{i}.json", **where}
        for i in range(100)
    ]
    text = page.render(Totals.of([*campaign()[:-1], *failures]), RunFolder(tmp_path))

    assert len(text) < 65_536 and "And 92 more:" in text and "- p99: `p99.json`" in text


def test_the_picture_of_a_failure_is_in_the_report(tmp_path):
    run = RunFolder(tmp_path).create()
    (run.cases / "triage").mkdir()
    (run.cases / "triage" / "c.svg").write_text("<?xml version='1.0'?>\n<svg><script>1</script></svg>")
    report.write(totals(), run)
    html = (tmp_path / "report.html").read_text()
    data = re.search(r'<img alt="c.json" src="data:image/svg\+xml;base64,([^"]*)"', html)[1]

    assert base64.b64decode(data) == b"<svg><script>1</script></svg>"
    assert "<script" not in html


def test_junit_says_what_failed_and_what_could_not_be_asked():
    failure = {"property": "outputs", "shard": 0, "round": 0, "phase": "generate", "case": "c.json"}
    events = [
        *campaign()[:-1],
        {"event": "failure", **failure, "message": "bad \x00\x1b[31m & <b>"},
        campaign()[-1],
    ]
    root = ET.fromstring(junit.render(Totals.of(events)))
    suite = root.find("testsuite")
    cases = {c.get("name"): c for c in suite.iter("testcase")}

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "3")
    assert cases["outputs"].find("failure").text == "bad ??[31m & <b>\ncase: c.json"
    assert cases["hits"].find("skipped").get("message") == "the target cannot be asked: no hits claimed"
    assert cases["cuts"].find("skipped").get("message") == "did not run, or did not end"
    assert cases["hit"].find("*") is None and cases["canary"].find("skipped") is not None


def test_a_resumed_campaigns_time_is_that_of_all_its_legs(tmp_path):
    events = [
        *campaign()[:-1],
        {"event": "resumed", "at": 0.5},
        {"event": "end", "reason": "finished", "at": 3.5},
    ]
    found = Totals.of(events)

    assert (found.legs, found.duration) == (2, 12.5)  # 9.0 until the last example, 3.5 more
    assert ", 12 s, stopped and gone on with 1 time(s)." in page.render(found, RunFolder(tmp_path))
