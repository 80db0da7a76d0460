"""``report.html``: complete, in one file, and never in disagreement with ``summary.md``."""

import re
from html.parser import HTMLParser

from gdn_apc.fuzz import page, report
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
