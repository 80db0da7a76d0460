"""Measures: problem by problem, every peer in the same process, the answer first, then the time.

Rows are dicts with the keys of ``results.json``: ``op``, ``impl``, ``heads``, ``shape``, ``export`` (block size or None), ``dtype``,
``ms``, ``floor_ms``, ``device``, and more beside them. Each row is handed on as soon as it exists, so that a run that is
stopped leaves what it has. Imports torch and ``fuzz.bench``. Exercise it with ``pytest tests/benchmarks/test_bench_run.py``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from gdn_apc.fuzz.bench import check as checking
from gdn_apc.fuzz.bench.floors import floor_ms
from gdn_apc.fuzz.bench.inputs import make
from gdn_apc.fuzz.bench.peers.base import Peer, Run
from gdn_apc.fuzz.bench.problems import Problem
from gdn_apc.fuzz.bench.timing import Timing, measure

Row = dict[str, Any]


def device_name(device: torch.device) -> str:
    """``NVIDIA H200``, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def key(row: Row) -> tuple[str, str]:
    """What identifies a row: the problem's name and the implementation."""
    return row["name"], row["impl"]


def rows(
    problems: list[Problem],
    peers: list[Peer],
    device: torch.device,
    *,
    done: set[tuple[str, str]] = frozenset(),
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Row]:
    """A row for each problem and each peer that solves it, but for those ``done``."""
    seen: set[Problem] = set()
    for problem in problems:
        shape = replace(problem, block=None)
        able = [p for p in peers if p.solves(problem, device) and (p.exports or shape not in seen)]
        able = [p for p in able if (problem.name, p.name) not in done]
        seen.add(shape)
        if able:
            yield from _problem(problem, able, device, quick, say)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _problem(
    problem: Problem, peers: list[Peer], device: torch.device, quick: bool, say: Callable[[str], None]
) -> Iterator[Row]:
    seed = time.time_ns() % 2**31  # fresh numbers every time
    inputs = make(problem, device, seed)
    want = None
    for peer in sorted(peers, key=lambda peer: peer.ours):  # those that store one state leave room for ours
        began = time.perf_counter()
        row = describe(problem, peer, device)
        before = inputs.states.clone(), inputs.windows.clone()
        try:
            with torch.no_grad():
                want = want or checking.expected(inputs)
                run = peer.prepare(inputs)
                _poison(device)
                answer = run.answer(run.calls[0]())
                row["error"] = float(f"{checking.check(inputs, want, answer):.3g}")
                _warm(run, device, waits_are_wrong=peer.ours)
                budget, graph = 20 if quick else 60, _graphs(problem, peer)
                row |= numbers(measure(run.calls, device, budget_ms=budget, graph=graph))
                if device.type == "cuda":
                    row["ratio"] = row["ms"] / row["floor_ms"]
        except checking.Wrong as e:
            row["wrong"] = str(e)
        except Exception as e:  # a peer that breaks must not end the others' run
            if peer.ours:
                raise
            row["failed"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
        inputs.states.copy_(before[0])
        inputs.windows.copy_(before[1])
        row["took_s"] = round(time.perf_counter() - began, 2)
        say(line(row))
        yield row


def _graphs(problem: Problem, peer: Peer) -> bool:
    """Decodes replay graphs in an engine; of prefills those that never look at their inputs may be captured."""
    return problem.op == "decode" or (problem.op in ("delta", "core") and (peer.ours or peer.captured))


def _warm(run: Run, device: torch.device, waits_are_wrong: bool) -> None:
    """Two more calls; ours may not wait for the device, and raise if they do."""
    watched = waits_are_wrong and device.type == "cuda"
    if watched:
        torch.cuda.set_sync_debug_mode("error")
    try:
        for call in run.calls[1:3]:
            call()
    finally:
        if watched:
            torch.cuda.set_sync_debug_mode("default")


def _poison(device: torch.device) -> None:
    """Fill memory that the next allocations are likely to reuse, so that an unwritten output shows."""
    if device.type == "cuda":
        torch.full((64 << 20,), float("nan"), device=device)


def describe(problem: Problem, peer: Peer, device: torch.device) -> Row:
    """What a row says before anything was measured."""
    return dict(
        op=problem.op,
        impl=peer.name,
        heads=problem.heads,
        shape=problem.shape,
        export=problem.block if peer.exports else None,
        dtype=problem.dtypes,
        ms=None,
        floor_ms=floor_ms(problem),
        device=device_name(device),
        name=problem.name,
        variant=problem.variant,
        tokens=problem.tokens,
        version=peer.version(),
    )


def numbers(timing: Timing) -> Row:
    """What a timing adds to a row."""
    low, high = timing.spread
    return dict(
        ms=timing.ms,
        low_ms=low,
        high_ms=high,
        eager_ms=timing.eager_ms,
        host_ms=timing.host_ms,
        graph_ms=timing.graph_ms,
        repeats=len(timing.samples),
        samples=[round(s, 6) for s in timing.samples],
        **({"notes": timing.notes} if timing.notes else {}),
    )


def line(row: Row) -> str:
    """One line of progress."""
    head = f"{row['name']:58} {row['impl']:13}"
    if row.get("wrong"):
        return f"{head} WRONG, not timed: {row['wrong']}"
    if row.get("failed"):
        return f"{head} failed: {row['failed']}"
    graph = f"  graph {row['graph_ms']:7.4f}" if row.get("graph_ms") else ""
    ratio = f"x{row['ratio']:<6.3g} " if "ratio" in row else ""
    return (
        f"{head} {row['ms']:9.4f} ms  {ratio}eager {row['eager_ms']:8.4f}  host {row['host_ms']:7.4f}{graph}"
        f"  ({row['took_s']:.1f} s)"
    )
