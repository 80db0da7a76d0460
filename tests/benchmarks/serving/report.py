"""Makes a summary of the rows that ``run.py`` wrote: tables to paste, nothing that was not measured.

Every table is of one run. Where a later run measured only a part of what an earlier one did, both have their table.
Imports ``runs`` and the standard library. ``python tests/benchmarks/serving/run.py --report DIR/results.jsonl`` exercises it.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import runs
from runs import Row


def line(row: Row) -> str:
    """One row for the terminal."""
    arguments = ", ".join(f"{k}={v}" for k, v in row.get("arguments", {}).items() if not isinstance(v, list))
    result = row["result"]
    if "error" in result:
        shown = "ERROR " + result["error"].strip().splitlines()[-1]
    else:
        shown = ", ".join(f"{k}={_short(v)}" for k, v in result.items())
    return f"[{row['at']:6.1f} s] {row['engine']:8} {row['job']}({arguments}): {shown}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)


def status(rows: list[Row]) -> int:
    """0 if every job was answered and every check held."""
    bad = [r for r in rows if "error" in r["result"] or r["result"].get("ok") is False]
    return 1 if bad else 0


def summary(rows: list[Row], title: str = "The plugin in a real vLLM") -> str:
    """Markdown."""
    several = len({row.get("run", 1) for row in rows}) > 1
    parts = [f"# {title}\n"]
    for jobs, make in SECTIONS:
        for number, mine in tables(rows, jobs):
            made = make(mine)
            parts.append(re.sub(r"^(## .*)$", rf"\1 (run {number})", made, flags=re.M) if several else made)
    parts.append(_errors(rows))
    return "\n".join(part for part in parts if part)


def tables(rows: list[Row], jobs: tuple[str, ...]) -> Iterator[tuple[int, list[Row]]]:
    """(run, its answered rows of these jobs), the last run first; without runs that later ones repeat in whole."""
    by_run: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["job"] in jobs and "error" not in row["result"]:
            by_run[row.get("run", 1)].append(row)
    seen: set = set()
    for number in sorted(by_run, reverse=True):
        here = {runs.key(row) for row in by_run[number]}
        if not here <= seen:
            yield number, by_run[number]
        seen |= here


def _table(title: str, head: list[str], body: list[list[Any]]) -> str:
    if not body:
        return ""
    lines = [f"## {title}\n", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in body]
    return "\n".join(lines) + "\n"


def _engines(rows: list[Row]) -> str:
    body = []
    for row in rows:
        r = row["result"]
        if not r.get("ready"):
            body.append([row["engine"], "did not start", "", "", "", "", ""])
            continue
        body.append(
            [row["engine"], r["mode"], r["runner"].replace("vllm.v1.worker.", ""), r["layer"], r["block_size"],
             f"{r['blocks']:,} × {r['bytes_per_block']:,} B", f"{r['start_s']:.0f} s"]
        )  # fmt: skip
    return _table("Engines", ["engine", "mode", "runner", "layer", "B", "blocks", "start"], body)


def _checks(rows: list[Row]) -> str:
    body = []
    for row in rows:
        r, a = dict(row["result"]), row["arguments"]
        ok = {True: "holds", False: "FAILS", None: "not run"}[r.pop("ok", None)]
        r.pop("took", None)
        shown = ", ".join(f"{k} {_short(v)}" for k, v in r.items())
        body.append(
            [row["engine"], a.get("step", row["job"]), "eager" if a.get("eager") else "graphs", ok, shown]
        )
    return _table("Checks", ["engine", "check", "mode", "", ""], body)


def _siblings(rows: list[Row]) -> str:
    groups = defaultdict(list)
    for row in rows:
        groups[row["engine"]].append(row["result"])
    if not groups:
        return ""
    shared = rows[0]["arguments"]["shared"]
    body = []
    for name, results in groups.items():
        whole = [r for r in results if not r.get("cut")]
        for i, count in enumerate(shared):
            ms = [1e3 * r["seconds"][i] for r in whole]
            hits = sorted({r["hits"][i] for r in whole}, key=str)
            body.append([name, count, " ".join(map(str, hits)), f"{statistics.median(ms):.1f}"])
        cold = statistics.median(1e3 * r["cold"] for r in whole)
        body.append([name, "0, the first prompt", "0", f"{cold:.1f}"])
    title = f"Siblings of a prompt of {rows[0]['arguments']['length']:,} tokens"
    return _table(title, ["engine", "shared tokens", "hit tokens", "time to first token, ms (median)"], body)


def _repeat(rows: list[Row]) -> str:
    body = []
    for row in rows:
        a, r = row["arguments"], row["result"]
        seconds = " ".join(f"{s:.3f}" for s in r["seconds"])
        body.append(
            [row["engine"], "eager" if a["eager"] else "graphs", " ".join(map(str, r["hits"])), seconds]
        )
    title = "One prompt again and again"
    if rows:
        title += f": {rows[0]['arguments']['length']:,} tokens, {rows[0]['arguments']['generate']} generated"
    return _table(title, ["engine", "mode", "hit tokens", "seconds of each round"], body)


def _prefill(rows: list[Row]) -> str:
    return _rates("No-hit prefill, tokens a second", rows, "tokens_per_second", ())


def _decode(rows: list[Row]) -> str:
    return _rates("Decode, ms a step", rows, "mean_ms", ("rows",))


def _rates(title: str, rows: list[Row], key: str, split: tuple[str, ...]) -> str:
    groups: dict[tuple, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[tuple(row["arguments"][k] for k in split)][row["engine"]].append(row["result"][key])
    body = []
    for names, engines in groups.items():
        base = statistics.median(engines["align"]) if engines.get("align") else None
        for name, values in engines.items():
            middle = statistics.median(values)
            ratio = "" if base is None else f"{middle / base:.3f}"
            spread = f"{min(values):.5g} to {max(values):.5g}"
            body.append([*names, name, f"{middle:.5g}", spread, len(values), ratio])
    return _table(title, [*split, "engine", "median", "range", "n", "of align"], body)


def _agreement(rows: list[Row]) -> str:
    body = []
    for row in rows:
        r = row["result"]
        cells = [
            f"{r[k]['same_tokens']}/{r[k]['of']}, {r[k]['worst_logprob']:.3g}" for k in ("warm", "beside")
        ]
        body.append([row["engine"], r["hit"], *cells])
    head = ["engine", "hit", "again: equal tokens, worst log probability", "beside another prompt: the same"]
    return _table("A prompt again, and beside another, against itself cold and alone", head, body)


def _workload(rows: list[Row]) -> str:
    body = []
    for row in rows:
        r, a = row["result"], row["arguments"]
        pool = "ample" if a["free_bytes"] is None else f"{a['free_bytes'] / 2**30:.3g} GiB"
        body.append(
            [pool, a["seed"], row["engine"], f"{r['hit_rate']:.1%}",
             *(_short(r[k]) for k in ("mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "seconds", "preemptions")),
             f"{r['requests']}/{r['of']}" + (" (cut)" if r["cut"] else "")]
        )  # fmt: skip
    head = [
        "pool",
        "seed",
        "engine",
        "hit rate",
        "mean TTFT, ms",
        "median",
        "p90",
        "seconds",
        "preempted",
        "requests",
    ]
    return _table("Chats over shared system prompts and documents", head, body)


def _steps(rows: list[Row]) -> str:
    body = [
        [r["rows"], row["engine"], f"{r['wall_us']:.0f}", f"{r['host_us']:.0f}", f"{r['wait_us']:.0f}",
         *((f"{r['kernels']:.1f}", f"{r['kernel_us']:.0f}", f"{r['busy']:.0%}") if "kernels" in r else ("", "", ""))]
        for row in rows for r in [row["result"]]
    ]  # fmt: skip
    what = rows[0]["result"].get("on", "kernels")
    head = [
        "rows",
        "engine",
        "wall, µs",
        "processor, µs",
        "waits, µs",
        what,
        f"{what}, µs",
        "busy under the profiler",
    ]
    return "\n".join(
        [_table("Where a decode step's time goes", head, body), _host_parts(rows), _largest(rows)]
    )


def _host_parts(rows: list[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["result"]["parts"]))
    body = [
        [row["result"]["rows"], row["engine"], *(_short(row["result"]["parts"].get(name, "")) for name in names)]
        for row in rows
    ]  # fmt: skip
    return _table("The host's parts of a decode step, µs", ["rows", "engine", *names], body)


def _largest(rows: list[Row]) -> str:
    body = []
    for row in rows:
        shown = [f"{name} {us:g} ({calls:g})" for name, us, calls in row["result"].get("largest", [])]
        body.append([row["result"]["rows"], row["engine"], "<br>".join(shown)])
    return _table("The largest on the device: µs a step (calls a step)", ["rows", "engine", ""], body)


def _errors(rows: list[Row]) -> str:
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        if "error" in row["result"]:
            why = row["result"]["error"].strip().splitlines()[-1]
            groups[row["engine"], row["job"], why].append(row)
    body = [[engine, job, len(found), why] for (engine, job, why), found in groups.items()]
    return _table("Not measured", ["engine", "job", "times", "why"], body)


SECTIONS = [
    (("start",), _engines),
    (("check", "syncs", "states_under_load"), _checks),
    (("siblings",), _siblings),
    (("repeat",), _repeat),
    (("prefill",), _prefill),
    (("decode",), _decode),
    (("steps",), _steps),
    (("agreement",), _agreement),
    (("workload",), _workload),
]
"""Jobs, and what makes a part of the summary of their rows of one run; in the order of the page."""
