"""The measuring command (``tests/benchmarks/serving``) from its start to its summary, with tiny models on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = Path(__file__).parents[1] / "benchmarks" / "serving" / "run.py"


def test_a_rehearsal(environment, tmp_path):
    """Every check holds, the first sibling hits with the plugin alone, and the workload is served, small pool and all."""
    chosen = [
        "--engines",
        "all",
        "align",
        "check",
        "--parts",
        "check",
        "siblings",
        "repeat",
        "decode",
        "workload",
        "steps",
    ]
    done = subprocess.run(
        [sys.executable, COMMAND, "--out", tmp_path, "--scale", "tiny", "--budget", "400", *chosen],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    results = {}
    for row in rows:
        results.setdefault((row["engine"], row["job"]), []).append(row["result"])
    assert all(r["ok"] for r in results["check", "check"]) and len(results["check", "check"]) == 9
    assert results["all", "states_under_load"][0]["ok"]
    assert results["all", "siblings"][0]["hits"] == [576, 384, 192, 64, 0]
    assert results["align", "siblings"][0]["hits"] == [0] * 5
    assert results["all", "repeat"][0]["hits"] == [0, 896, 896]
    for engine in ("all", "align"):
        for r in results[engine, "steps"]:
            assert (
                0 < r["parts"]["model_forward"] < r["parts"]["execute_model"]
                and r["kernel_us"] > 0 < r["host_us"]
            )
        assert all(r["requests"] == r["of"] and not r["cut"] for r in results[engine, "workload"])
    assert "## Siblings of a prompt of 700 tokens" in (tmp_path / "summary.md").read_text()
