"""Compiles ahead: every peer's kernels at every shape class, in many processes, into the compilers' caches on disk.

One process that compiles as it measures would spend ten minutes of a GPU on waiting: autotuned kernels (vLLM's, fla-core's)
compile a hundred configurations a shape class. So children take shares of the configurations, compile them on short rows
and time nothing; the measuring process then finds all of it on disk and tunes by itself. Rows are shortened such that what
kernels specialise on stays: the remainder of their lengths by 16, and the kind of their blocks.
Imports torch when it works. Exercise it with ``pytest tests/benchmarks/test_bench_ahead.py``.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

from gdn_apc.fuzz.bench.problems import Problem

SHARES = {"vllm": 4, "fla": 4}
"""How many children share a peer's configurations of one shape class."""
SHORT = 128
"""Longest row, about."""


@dataclass(frozen=True)
class Task:
    """One child's work: a peer on a short problem, and which share of the configurations."""

    peer: str
    problem: Problem
    share: int = 0
    shares: int = 1


def short(problem: Problem) -> Problem:
    """The same shape class with short rows."""
    if problem.op in ("decode", "metadata"):
        return problem
    lengths = tuple(m if m <= SHORT else SHORT + m % 16 for m in problem.lengths)
    return replace(problem, lengths=lengths)


def tasks(problems: list[Problem], peers: list[Any], device: Any) -> list[Task]:
    """Each once. How often a state is stored changes no kernel, and none at all of a peer that stores one; another's
    core runs the kernels of its parts."""
    found: dict[Task, None] = {}
    for peer in peers:
        solved = [short(p) for p in problems if peer.solves(p, device)]
        whole = {(p.heads, p.lengths) for p in solved if p.op == "core" and not peer.ours}
        for one in solved:
            if one.op in ("conv", "gates", "delta") and (one.heads, one.lengths) in whole:
                continue
            if one.op in ("delta", "core"):
                one = replace(one, block=1024 if peer.ours and one.block else None)
            shares = 1 if one.op == "decode" else SHARES.get(peer.name, 1)
            found.update({Task(peer.name, one, i, shares): None for i in range(shares)})
    return list(found)


def compile_one(task: Task) -> None:
    """One call of the peer, with its share of the configurations."""
    import torch

    from gdn_apc.fuzz.bench import inputs, peers

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peer = peers.load(task.peer)
    with torch.no_grad():
        made = inputs.make(task.problem, device, sets=1)
        run = peer.prepare(made)
        with _Share(task.share, task.shares):
            run.calls[0]()


class _Share:
    """Every autotuned kernel has only a share of its configurations inside, and none is timed."""

    def __init__(self, share: int, shares: int):
        self.share, self.shares = share, shares

    def __enter__(self) -> None:
        from triton.runtime.autotuner import Autotuner

        self.before = []
        for tuner in [o for o in gc.get_objects() if issubclass(type(o), Autotuner)]:
            self.before.append((tuner, tuner.configs, tuner._do_bench, tuner.__dict__.pop("do_bench", None)))
            tuner.configs = tuner.configs[self.share :: self.shares] or tuner.configs[:1]
            tuner._do_bench = once
            tuner.cache.clear()

    def __exit__(self, *exception: object) -> None:
        for tuner, configs, bench, cached in self.before:
            tuner.configs, tuner._do_bench = configs, bench
            tuner.__dict__.pop("do_bench", None)
            if cached is not None:
                tuner.__dict__["do_bench"] = cached
            tuner.cache.clear()


def once(call: Any, quantiles: tuple[float, ...] = (0.5, 0.2, 0.8)) -> list[float]:
    """A benchmark that only runs, and finds all alike."""
    call()
    return [1.0] * len(quantiles)
