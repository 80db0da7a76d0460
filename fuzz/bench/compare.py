"""The results as a file of pytest-benchmark, for its ``compare``:

    pytest-benchmark compare .gdn-apc/bench/*/benchmark.json --group-by=param:problem --columns=median,iqr

A row becomes a benchmark whose group is the problem, so that peers stand side by side, and runs do too.
Imports the standard library. Exercise it with ``pytest tests/benchmarks/test_bench_report.py``.
"""

from __future__ import annotations

import platform
import statistics
import time
from typing import Any

Row = dict[str, Any]


def document(rows: list[Row], about: dict[str, Any]) -> dict[str, Any]:
    """What pytest-benchmark writes with ``--benchmark-json``, as far as it reads it again. Times in seconds."""
    return {
        "machine_info": {
            "node": "",
            "machine": platform.machine(),
            "system": platform.system(),
            "python_version": platform.python_version(),
            "cpu": {"brand_raw": about.get("device", "")},
        },
        "commit_info": {"id": about.get("revision", "unknown"), "dirty": False, "branch": "", "time": None},
        "benchmarks": [_benchmark(r) for r in rows if r.get("samples")],
        "datetime": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "version": "5.0.0",
    }


def _benchmark(r: Row) -> dict[str, Any]:
    name = f"{r['name']}[{r['impl']}]"
    return {
        "group": r["name"],
        "name": name,
        "fullname": name,
        "params": {"problem": r["name"], "impl": r["impl"]},
        "param": r["impl"],
        "extra_info": {
            k: r.get(k) for k in ("floor_ms", "ratio", "eager_ms", "host_ms", "graph_ms", "error")
        },
        "options": {
            "disable_gc": False,
            "timer": "cuda events",
            "min_rounds": 5,
            "max_time": 1.0,
            "min_time": 5e-6,
            "warmup": True,
        },
        "stats": _stats([s / 1e3 for s in r["samples"]]),
    }


def _stats(samples: list[float]) -> dict[str, Any]:
    ordered = sorted(samples)
    q1, q2, q3 = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    inside = [s for s in ordered if q1 - 1.5 * (q3 - q1) <= s <= q3 + 1.5 * (q3 - q1)]
    total, mean = sum(ordered), statistics.mean(ordered)
    deviation = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    return dict(
        min=ordered[0],
        max=ordered[-1],
        mean=mean,
        stddev=deviation,
        rounds=len(ordered),
        median=q2,
        iqr=q3 - q1,
        q1=q1,
        q3=q3,
        iqr_outliers=len(ordered) - len(inside),
        stddev_outliers=sum(abs(s - mean) > deviation for s in ordered),
        outliers=f"{sum(abs(s - mean) > deviation for s in ordered)};{len(ordered) - len(inside)}",
        ld15iqr=inside[0],
        hd15iqr=inside[-1],
        ops=1 / mean,
        total=total,
        iterations=1,
    )
