"""What of the measurements is committed: the rows, the page of tables, and the sentences of other pages that cite figures.

A sentence stands in its page between ``<!-- serving NAME -->`` and ``<!-- end -->``, and is made from the rows, so that no
figure is copied by hand. ``run.py --report … --keep`` writes all of it; a test holds the committed pages against the rows.
Imports ``report`` and ``runs``. ``pytest tests/benchmarks/serving`` exercises it.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import report
from runs import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CITING = (ROOT / "README.md", ROOT / "impl" / "vllm" / "UPSTREAM.md")
NAMES = {"all": "the plugin", "align": "`align`", "off": "no cache", "align-v2": "`align` on Model Runner V2"}
NOTHING = "not measured yet"


def write(rows: list[Row]) -> list[Path]:
    """Write everything; returns the files."""
    lines = [json.dumps(row) + "\n" for row in rows]
    (HERE / "results.jsonl").write_text("".join(lines))
    (HERE / "RESULTS.md").write_text(page(rows))
    for path in CITING:
        path.write_text(cited(path.read_text(), rows))
    return [HERE / "results.jsonl", HERE / "RESULTS.md", *CITING]


def page(rows: list[Row]) -> str:
    """RESULTS.md."""
    device = sorted({r["result"]["device"] for r in rows if "device" in r["result"]})
    head = f"""The plugin and stock vLLM 0.31.0 on {" and ".join(device) or "a device that was not recorded"}, with a seeded Qwen3.5-shaped
model of eight layers (`models.py`); bf16, fp32 states. Generated from `results.jsonl` by `run.py --report … --keep`; `plan.py` says
what is measured, and how often. Figures of one table come from one run, minutes apart at most; do not compare across
runs. `all` is the plugin, `align` stock vLLM, `off` stock vLLM without a cache: all three on Model Runner V1, which
`all` needs; `align-v2` is `align` on V2. Hits of at most full blocks are possible: B tokens in the first table.
"""
    title, _, rest = report.summary(rows, "Serving: measurements").partition("\n")
    return f"{title}\n\n{head}{rest}"


def cited(text: str, rows: list[Row]) -> str:
    """A page with its sentences made again. Raises ``KeyError`` for a name that no sentence has."""
    made = sentences(rows)
    return re.sub(
        r"(<!-- serving (\w+) -->).*?(<!-- end -->)", lambda m: m[1] + made[m[2]] + m[3], text, flags=re.S
    )


def sentences(rows: list[Row]) -> dict[str, str]:
    """Each sentence by its name; what was not measured is said to be so."""
    return dict(
        siblings=_siblings(rows),
        cost=_cost(rows),
        chats=_chats(rows),
        bits=_bits(rows),
        graphs=_graphs(rows),
        syncs=_syncs(rows),
        readme=_readme(rows),
    )


def _newest(rows: list[Row], *jobs: str) -> dict[str, list[Row]]:
    """Rows of these jobs by engine: of the last run that has them for the plugin and for another engine, else the last."""
    found: dict[str, list[Row]] = {}
    for _, mine in report.tables(rows, jobs):
        by = {name: [r for r in mine if r["engine"] == name] for name in {r["engine"] for r in mine}}
        if "all" in by and len(by) > 1:
            return by
        found = found or by
    return found


def _others(by: dict[str, Any]) -> list[str]:
    return [name for name in NAMES if name != "all" and name in by]


def _siblings(rows: list[Row]) -> str:
    by = _newest(rows, "siblings")
    if "all" not in by:
        return NOTHING
    shared = by["all"][0]["arguments"]["shared"]
    said = [
        f"{NAMES[name]} hits {_hits(by[name])} tokens, and the first token comes after {_first(by[name])} ms"
        for name in ("all", *_others(by))
    ]
    text = (
        f"of prompts that share the first {_list(shared)} of {by['all'][0]['arguments']['length']:,} tokens, "
        + "; ".join(said)
    )
    return text + ("" if "align" in by else "; `align` in the same run is still missing")


def _hits(rows: list[Row]) -> str:
    each = [sorted({row["result"]["hits"][i] for row in rows}) for i in range(len(rows[0]["result"]["hits"]))]
    return "0 each" if all(e == [0] for e in each) else _list(" or ".join(f"{n:,}" for n in e) for e in each)


def _first(rows: list[Row]) -> str:
    times = zip(*(row["result"]["seconds"] for row in rows))
    return _list(f"{1e3 * statistics.median(t):.1f}" for t in times)


def _list(values: Any) -> str:
    return " / ".join(v if isinstance(v, str) else f"{v:,}" for v in values)


def _medians(by: dict[str, list[Row]], key: str, **arguments: Any) -> dict[str, float]:
    """The median of a figure by engine."""
    found = {}
    for name, rows in by.items():
        values = [
            r["result"][key]
            for r in rows
            if arguments.items() <= r["arguments"].items() and key in r["result"]
        ]
        if values:
            found[name] = statistics.median(values)
    return found


def _compared(figures: dict[str, float], show: str) -> str:
    """``0.99 of align's`` and the like, with the figures."""
    if "all" not in figures:
        return NOTHING
    base = "align" if "align" in figures else next(iter(_others(figures)), None)
    text = f"{figures['all']:{show}}"
    if base:
        rest = ", ".join(f"{NAMES[name]} {figures[name]:{show}}" for name in _others(figures))
        text += f" ({rest}; {figures['all'] / figures[base]:.3f} of {NAMES[base]})"
    return text


def _cost(rows: list[Row]) -> str:
    prefill = _medians(_newest(rows, "prefill"), "tokens_per_second")
    decode = _newest(rows, "decode")
    if "all" not in prefill or "all" not in decode:
        return NOTHING
    counts = sorted({r["arguments"]["rows"] for r in decode["all"]})
    steps = [
        f"at {count} {'row' if count == 1 else 'rows'} {_compared(_medians(decode, 'mean_ms', rows=count), '.2f')}"
        for count in counts
    ]
    text = f"prefill where nothing hits, tokens a second: {_compared(prefill, ',.0f')}; decode, ms a step: {'; '.join(steps)}"
    missing = (
        []
        if "align" in prefill and "align" in decode
        else ["; `align` on Model Runner V1 in the same run is still missing"]
    )
    return text + "".join(missing)


def _chats(rows: list[Row]) -> str:
    by = _newest(rows, "workload")
    if "all" not in by:
        return NOTHING
    said = []
    for free in dict.fromkeys(r["arguments"]["free_bytes"] for r in by["all"]):
        pool = "ample memory" if free is None else f"a pool of {free / 2**30:g} GiB"
        engines = []
        for name in ("all", *_others(by)):
            mine = [r["result"] for r in by[name] if r["arguments"]["free_bytes"] == free]
            if mine:
                rate = sum(r["hit_tokens"] for r in mine) / sum(r["prompt_tokens"] for r in mine)
                ttft = statistics.fmean(r["mean_ttft_ms"] for r in mine)
                lost = sum(r["preemptions"] for r in mine)
                engines.append(f"{NAMES[name]} {rate:.1%} and {ttft:.1f} ms ({lost} preempted)")
        said.append(f"with {pool} {', '.join(engines)}")
    return "hit tokens and mean time to first token of chats: " + "; ".join(said)


def _check(rows: list[Row], step: str, **arguments: Any) -> dict[str, Any]:
    found = [
        r["result"] for r in rows
        if r["job"] == "check" and arguments.items() | {("step", step)} <= r["arguments"].items() and "error" not in r["result"]
    ]  # fmt: skip
    return found[-1] if found else {}


def _bits(rows: list[Row]) -> str:
    warm = [_check(rows, "warm_equals_cold", eager=e) for e in (True, False)]
    replayed = _check(rows, "replayed_cold")
    lives = [life for life in (_check(rows, "life", eager=e) for e in (True, False)) if life]
    cut = _check(rows, "any_cut")
    if not (all(warm) and replayed and lives and cut):
        return NOTHING
    return (
        f"whole distributions of a warm run and a cold one are {'bitwise equal' if all(w['bitwise'] for w in warm) else 'NOT equal'}, eager and in "
        f"graphs; {replayed['equal']} of {replayed['states']} cached states equal one cold step over the same layer inputs to the bit; "
        f"each of {sum(life['rows'] for life in lives)} rows lies within the oracle's tolerance (at most {max(life['worst_ratio'] for life in lives):.4f} of it); "
        f"under `VLLM_BATCH_INVARIANT=1` the largest difference over any cut of the steps is {max(cut['worst_logprob']):g}"
    )


def _graphs(rows: list[Row]) -> str:
    found = [r["result"] for r in rows if r["job"] == "check" and r["result"].get("replayed")]
    if not found:
        return NOTHING
    return (
        f"{sum(r['replayed'] for r in found)} rows of one token ran in replayed graphs, audited through taps, "
        f"{'all right' if all(r['ok'] for r in found) else 'NOT all right'}, rows resumed after preemption among them"
    )


def _syncs(rows: list[Row]) -> str:
    found = [r["result"] for r in rows if r["job"] == "syncs" and "ours" in r["result"]]
    return (
        f"{found[-1]['ours']} waits of ours by torch's own check, in prefills and decodes"
        if found
        else NOTHING
    )


def _readme(rows: list[Row]) -> str:
    by, again, decode = (_newest(rows, job) for job in ("siblings", "repeat", "decode"))
    if not all("all" in found for found in (by, again, decode)):
        return "the engine on a GPU has " + NOTHING
    shared, hits = by["all"][0]["arguments"]["shared"], by["all"][0]["result"]["hits"]
    ample = next(r for r in again["all"] if not r["arguments"]["eager"])
    one = _compared(
        _medians(decode, "mean_ms", rows=min(r["arguments"]["rows"] for r in decode["all"])), ".2f"
    )
    return (
        f"on an H200 prompts that share {shared[0]:,} to {shared[-1]:,} tokens with a cached one hit {hits[0]:,} to {hits[-1]:,}, "
        f"all full blocks; a prompt of {ample['arguments']['length']:,} tokens takes {ample['result']['seconds'][0]:.3f} s and, asked again, "
        f"{ample['result']['seconds'][-1]:.3f}; a decode step of one row takes, in ms, {one}"
    )
