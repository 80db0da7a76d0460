"""``gdn-apc bench``: what it measures, keeps, resumes and refuses."""

import json
import subprocess
import sys

import pytest

from gdn_apc.fuzz import cli
from gdn_apc.fuzz.bench.command import Results
from tests.benchmarks.small import interpreted, row

pytestmark = interpreted

CORE = ["prefill", "--only", "core/2x4/1x512", "--quick"]


def bench(*arguments: str) -> subprocess.CompletedProcess:
    """In a process of its own: this one interprets."""
    command = [
        sys.executable,
        "-c",
        "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())",
        "bench",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def test_a_run_leaves_results(tmp_path):
    """Rows with the keys that the issue names, a page, single times; a second run with --resume measures the rest."""
    done = bench(*CORE, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "core/2x4/1x512/B128/bf16-fp32" in done.stdout and "RESULTS.md" in done.stdout
    document = json.loads((tmp_path / "results.json").read_text())
    [found] = document["rows"]
    keys = {"op", "impl", "heads", "shape", "export", "dtype", "ms", "floor_ms", "device"}
    assert keys <= found.keys() and found["impl"] == "native-torch" and found["ms"] > 0
    assert document["about"]["device"] == "cpu" and "torch" in document["about"]
    assert (tmp_path / "RESULTS.md").read_text().startswith("# Results")
    assert (
        len(json.loads((tmp_path / "samples.json").read_text())["core/2x4/1x512/B128/bf16-fp32|native-torch"])
        >= 5
    )
    assert json.loads((tmp_path / "benchmark.json").read_text())["benchmarks"]

    more = ["prefill", "--only", "x512/B128", "--quick", "--out", str(tmp_path), "--resume"]
    done = bench(*more)
    assert done.returncode == 0 and "core/2x4" not in done.stdout and "conv/2x4" in done.stdout
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {r["op"] for r in rows} == {"core", "conv", "gates", "delta"}
    assert next(r for r in rows if r["op"] == "core")["ms"] == found["ms"], "the old row is as it was"


def test_the_kernels_answers_without_a_gpu(tmp_path):
    """Asked for by name, the Triton path is interpreted and checked, and the user is told what that is worth."""
    done = bench("metadata", "--impl", "native", "--only", "3 groups", "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Triton's kernels are interpreted, so their answers count and their times do not" in done.stdout
    assert {r["impl"] for r in json.loads((tmp_path / "results.json").read_text())["rows"]} == {"native"}


def test_the_list_measures_nothing():
    """Names only."""
    done = bench("--list", "--only", "slot to slot", "decode")
    assert done.returncode == 0 and done.stdout.splitlines() == [
        "decode/2x4/128x1/B1024/bf16-fp32/slot to slot",
        "decode/2x4/128x1/B1024/bf16-bf16/slot to slot",
    ]
    assert bench("--list").stdout.splitlines()[-1] == "fuzz"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["prefil"], "area: 'prefil' is not known, expected some of prefill, decode, metadata, fuzz"),
        (
            ["decode", "--only", "nothing"],
            "only: no problem has 'nothing' in its name; see gdn-apc bench --list",
        ),
    ],
)
def test_bad_usage(arguments, text, capsys):
    """Status 4, and what to do."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *arguments])
    assert stopped.value.code == 4 and text in capsys.readouterr().err


def test_an_unknown_peer(tmp_path):
    """Named by hand, a peer that is not there is bad usage."""
    done = bench("decode", "--impl", "mine", "--out", str(tmp_path))
    assert (
        done.returncode == 4
        and "peer: 'mine' is not known; choose some of native, native-torch, vllm" in done.stdout
    )


def test_a_row_takes_the_place_of_an_older_one(tmp_path):
    """Measured again, a problem has one row; the others stay; a half-written file is never the result."""
    results = Results(tmp_path, resume=False)
    results.add(row("a", ms=1.0, samples=[1.0]))
    results.add(row("b", ms=None, failed="ImportError"))
    results.add(row("a", ms=2.0, samples=[2.0]))
    assert [(r["name"], r["ms"]) for r in results.rows] == [("b", None), ("a", 2.0)]
    again = Results(tmp_path, resume=True)
    assert again.done == {("a", "native")}, "what failed is tried again"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
    assert Results(tmp_path, resume=False).rows == []
