"""A picture: time against the length of one sequence, for each peer, with the floor below. Imports matplotlib when asked.

Exercise it with ``pytest tests/benchmarks/test_bench_report.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdn_apc.fuzz.bench.problems import EXPORTS

Row = dict[str, Any]


def lines(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Name of a line → (tokens, ms) of one-sequence delta rules, by length: each peer, ours with and without exports,
    and the floor. Only the first heads measured."""
    single = [r for r in rows if r["op"] == "delta" and r.get("ms") and r["shape"].startswith("1x")]
    heads = single[0]["heads"] if single else None
    exports = {r["export"] for r in single} & {None, *EXPORTS[:1]} or {r["export"] for r in single}
    found: dict[str, dict[int, float]] = {}
    for r in single:
        if r["heads"] != heads or r["export"] not in exports:
            continue
        ours = r["impl"].startswith("native")
        name = f"{r['impl']}, " + (
            "the last state" if r["export"] is None else f"all states, B = {r['export']}"
        )
        found.setdefault(name if ours else r["impl"], {})[r["tokens"]] = r["ms"]
        if r["device"] != "cpu" and r["export"] is None:
            found.setdefault("floor", {})[r["tokens"]] = r["floor_ms"]
    return {name: sorted(points.items()) for name, points in found.items() if len(points) > 1}


def draw(rows: list[Row], path: Path) -> bool:
    """Write the picture; False if there is nothing to draw, or no matplotlib."""
    found = lines(rows)
    if not found:
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, points in found.items():
        style = dict(color="0.5", linestyle="--") if name == "floor" else dict(marker="o")
        axes.plot(*zip(*points), label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="tokens of one sequence", ylabel="ms")
    first = next(r for r in rows if r["op"] == "delta")
    axes.set_title(f"Gated delta rule, {first['heads']} heads, {first['dtype']}, {first['device']}")
    axes.set_xticks(sorted({x for points in found.values() for x, _ in points}))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)
    return True
