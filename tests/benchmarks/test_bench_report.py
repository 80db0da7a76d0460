"""What is left behind: a page, a picture, and a file that pytest-benchmark reads."""

import json
import subprocess
import sys

import pytest

from gdn_apc.fuzz.bench import compare, plot, table
from gdn_apc.fuzz.bench.campaign import row as campaign_row
from tests.benchmarks.small import row

ROWS = [
    row("delta/16x32/1x8192/B1024"),
    row("delta/16x32/1x8192/B1024", "vllm", ms=2.0, version="0.31.0"),
    row("delta/16x32/1x8192/B1024", "fla", ms=None, wrong="state of row 0, column 1: relative error 0.5"),
    row("delta/16x32/1x8192/B1024", "flashinfer", ms=None, failed="ImportError: no"),
    row("decode/16x32/8x1", op="decode", graph_ms=0.0123, shape="8x1", variant="in place"),
]


def test_the_page():
    """Goals, a table an operation, and who has no time and why."""
    page = table.markdown(
        {"about": {"device": "NVIDIA H200", "revision": "abc"}, "plot": "p.png", "rows": ROWS}
    )
    assert "- device: NVIDIA H200" in page and "![time against length](p.png)" in page
    assert (
        "| 16/32 1x8192 | 1024 | bf16/fp32 | vllm 0.31.0 | 2 (0.9 to 1.1) | 20 | 1.5 | 0.2 |  | 0.004 |"
        in page
    )
    assert "| fla 1 | wrong |  |  |  |  | state of row 0, column 1: relative error 0.5 |" in page
    assert "| flashinfer 1 | failed |  |  |  |  | ImportError: no |" in page
    assert "## Decode" in page and "0.0123" in page and "## The convolution" not in page
    assert "None measured" in page
    judged = [row("delta/16x32/1x8192/B1024/bf16-fp32", ms=0.3)]
    page = table.markdown({"about": {}, "plot": None, "rows": judged})
    assert "1 met, 74 not measured." in page and "all states: at most 0.394 ms | met | 0.300 ms |" in page


def test_the_page_is_made_again(tmp_path):
    """From results.json alone."""
    (tmp_path / "results.json").write_text(json.dumps({"about": {"device": "x"}, "rows": ROWS}))
    command = [sys.executable, "-m", "gdn_apc.fuzz.bench.table", str(tmp_path / "results.json")]
    subprocess.run(command, check=True)
    assert (tmp_path / "RESULTS.md").read_text().startswith("# Results\n")


def lengths(impl, export, *points, **others):
    return [
        row(f"{impl}{t}{export}", impl, shape=f"1x{t}", tokens=t, ms=ms, export=export, **others)
        for t, ms in points
    ]


def test_the_picture(tmp_path):
    """A line a peer, ours with and without exports, the floor; other heads and ragged batches are left out."""
    rows = lengths("native", 1024, (1024, 0.1), (8192, 0.4)) + lengths(
        "native", None, (1024, 0.09), (8192, 0.39)
    )
    rows += lengths("native", 64, (1024, 0.2), (8192, 0.5)) + lengths("vllm", None, (8192, 2.0), (1024, 1.0))
    rows += lengths("native", 1024, (8192, 9.0), heads="4/8") + lengths("fla", None, (1024, 3.0))
    found = plot.lines(rows)
    assert found["native, all states, B = 1024"] == [(1024, 0.1), (8192, 0.4)]
    assert found["vllm"] == [(1024, 1.0), (8192, 2.0)]
    assert set(found) == {"native, all states, B = 1024", "native, the last state", "vllm", "floor"}
    pytest.importorskip("matplotlib")
    assert plot.draw(rows, tmp_path / "p.png") and (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert not plot.draw(rows[:1], tmp_path / "none.png") and not (tmp_path / "none.png").exists()


def test_pytest_benchmark_reads_it(tmp_path):
    """Its compare prints both implementations side by side, with the medians in their units."""
    pytest.importorskip("pytest_benchmark")
    rows = [ROWS[0] | {"samples": [1.0, 1.1, 0.9, 1.0, 5.0]}, ROWS[1] | {"samples": [2.0, 2.1, 1.9]}, ROWS[2]]
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(compare.document(rows, {"device": "NVIDIA H200"})))
    command = [sys.executable, "-c", "from pytest_benchmark.cli import main; main()"]
    command += ["compare", str(path), "--columns=median,iqr,rounds", "--group-by=group"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert "1 tests" not in out and "benchmark 'delta/16x32/1x8192/B1024': 2 tests" in out, out
    assert "[native]" in out and "[vllm]" in out and "fla" not in out


def test_one_sample_is_enough():
    """A row with a single time is no error."""
    [made] = compare.document([ROWS[0] | {"samples": [3.0]}], {})["benchmarks"]
    assert made["stats"]["median"] == made["stats"]["min"] == 3e-3 and made["stats"]["stddev"] == 0


EVENTS = [
    {
        "event": "start",
        "target": "native",
        "versions": {"gdn-apc": "0.1.0"},
        "properties": [{"name": "values", "kind": "kernel"}, {"name": "metadata", "kind": "metadata"}],
    },
    *({"event": "example", "property": "values", "seconds": s} for s in (0.1, 0.3, 0.2)),
    *({"event": "example", "property": "metadata", "seconds": 0.001} for _ in range(50)),
    {"event": "round", "property": "values", "spent": {"target": 4.0, "oracle": 1.0}},
    {"event": "round", "property": "values", "spent": {"target": 2.0, "generation": 3.0}},
    {"event": "item", "property": "values", "seconds": 12.0},
    {"event": "item", "property": "metadata", "seconds": 5.0},
]


def test_the_campaigns_numbers():
    """Kernel examples a minute of kernel time, where the time went, and the cheapest property first."""
    found = campaign_row(EVENTS, "NVIDIA H200", 2)
    assert found["examples"] == 3 and found["examples_a_minute"] == pytest.approx(3 / (12 / 60 / 2))
    assert found["ms"] == pytest.approx(2000) and found["shape"] == "2 workers"
    assert found["spent"] == {"target": 6.0, "generation": 3.0, "oracle": 1.0}
    assert list(found["properties"]) == ["metadata", "values"]
    assert found["properties"]["values"] == dict(kind="kernel", examples=3, seconds=12.0, median_ms=200.0)
    page = table.markdown({"about": {}, "rows": [found]})
    assert "| target | 6.0 | 60 |" in page and "3 kernel examples, 30 a minute." in page
