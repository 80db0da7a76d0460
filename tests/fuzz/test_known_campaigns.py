"""Whole campaigns with known failures: gated on others only, failed by an entry that is stale.

``pytest tests/fuzz/test_known_campaigns.py``
"""

from __future__ import annotations

import json

import pytest
from test_exit_status import campaign, summary  # noqa: F401 (fixtures)

pytest_plugins = ["pytester"]

KNOWN = '[[expect]]\nproperty = "{}"\nkind = "# tokens: block # is wrong"\nreason = "issue 7"\n'


@pytest.fixture
def known(pytester):
    """Writes a file of known failures and gives its name."""

    def write(text, name="known.toml"):
        (pytester.path / name).write_text(text)
        return name

    return write


@pytest.mark.parametrize("option", ["expect", "baseline"])
def test_a_known_failure_does_not_fail_a_campaign(campaign, summary, known, option):  # noqa: F811
    """It is passed over and counted; what compares is counted as ever."""
    campaign("holds", "fails", options=[f"--gdn-{option}={known(KNOWN.format('fails'))}"])
    assert "FAILED" not in summary()
    assert f"| known.toml[1] | {'expected' if option == 'expect' else 'baseline'} | fails |" in summary()
    assert "issue 7" in summary()


def test_another_failure_does(campaign, summary, known):  # noqa: F811
    """What no entry knows fails the campaign."""
    other = KNOWN.format("fails").replace("block # is wrong", "block # is late")
    assert campaign("holds", "fails", options=[f"--gdn-expect={known(other)}"]).ret == 1
    assert "block 3 is wrong" in summary()


def test_a_stale_entry_fails_a_campaign(campaign, summary, known):  # noqa: F811
    """The property holds, and compared as many examples as a campaign needs: the entry must go."""
    assert campaign("holds", options=[f"--gdn-expect={known(KNOWN.format('holds'))}"]).ret == 1
    stale = "known.toml[1] no longer fails: no example of holds matched it (issue 7); remove it"
    assert stale in summary()


def test_a_mended_entry_of_a_baseline_does_not(campaign, summary, known):  # noqa: F811
    """Whoever mends a target need not touch its baseline in the same change."""
    assert campaign("holds", options=[f"--gdn-baseline={known(KNOWN.format('holds'))}"]).ret == 0
    assert "| known.toml[1] | baseline | holds | 0 examples | issue 7 |" in summary()


def test_a_file_that_cannot_be_used_is_bad_usage(campaign, known):  # noqa: F811
    """Status 4, before anything runs."""
    result = campaign("holds", options=[f"--gdn-expect={known('x = 1')}"])
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*known.toml: has 'x' at its top, expected*"])


def test_a_baseline_is_written_and_then_gates(campaign, summary, pytester):  # noqa: F811
    """Every kind that is met goes into the file; with it, the same target passes."""
    campaign("holds", "fails", options=["--gdn-write-baseline=base.toml"])
    text = (pytester.path / "base.toml").read_text()
    assert 'property = "fails"' in text and 'kind = "# tokens: block # is wrong"' in text
    assert "base.toml holds 1 kinds of failure" in summary()
    campaign("holds", "fails", options=["--gdn-baseline=base.toml", "--gdn-run-dir=again"])
    page = (pytester.path / "again" / "summary.md").read_text()
    assert "FAILED" not in page and "base.toml[1]" in page


def test_failures_of_one_kind_are_one_section(pytester):
    """A foreign target fails many witnesses in one way: the page shows the first, and names the others."""
    from gdn_apc.fuzz import page
    from gdn_apc.fuzz.runs import RunFolder
    from gdn_apc.fuzz.summary import Totals, verdict

    run = RunFolder(pytester.path / "run").create()
    run.append("start", target="vllm", seed=1, properties=[], versions={})
    for i in range(4):
        more = {"witness": f"event_{i}", "phase": "witness", "shard": 0, "round": 0}
        run.append(
            "failure", property="values", message=f"state({i}) is wrong", case=f"values-{i}.json", **more
        )
    run.append("end", reason="finished", seconds=1.0)
    totals = Totals.of(run.events())
    assert verdict(totals).reasons == ["values: state(0) is wrong (and 3 more of this kind)"]
    text = page.render(totals, run)
    assert text.count("### values") == 1
    assert "3 more of this kind: `values-1.json` (witness of event_1), `values-2.json`" in text
    assert sum("replay:" in line for line in page.lines_of(totals, run)) == 1
    assert json.loads(run.events_path.read_text().splitlines()[0])["event"] == "start"
