"""How long a call takes, in four ways that answer four questions.

``ms``        on the device, with the host out of the way: calls are queued behind a pause of the device, an event on
              each side of each call; median, and the spread as the 10th and 90th percentile
``eager_ms``  wall time of a loop of calls, a call: what an eager layer pays, launches included
``host_ms``   what the host needs to issue a call: median
``graph_ms``  a replayed CUDA graph that holds one call of each set, a call

On a CPU only the loop makes sense: ``ms`` is its median, and ``eager_ms`` and ``host_ms`` say the same.
Calls rotate over sets of inputs that together exceed the L2. Imports torch. Exercise it with
``pytest tests/benchmarks/test_timing.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

CLOCK = 1.98e9
"""Cycles a second that the device's pause counts, at most."""


@dataclass
class Timing:
    """Milliseconds. ``samples`` are those behind ``ms``."""

    samples: list[float]
    eager_ms: float | None = None
    host_ms: float | None = None
    graph_ms: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """10th and 90th percentile."""
        ordered = sorted(self.samples)
        return ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]


def measure(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    *,
    budget_ms: float = 100.0,
    most: int = 100,
    least: int = 10,
    graph: bool = False,
) -> Timing:
    """Time ``calls`` in rotation, for about ``budget_ms`` in each of the ways. The first calls must have been compiled."""
    if device.type != "cuda":
        return _on_cpu(calls, budget_ms, most, least)
    estimate = _loop(calls, device, 3)
    repeats = max(least, min(most, int(budget_ms / estimate)))
    samples, host = _queued(calls, device, repeats, estimate)
    timing = Timing(samples, host_ms=median(host))
    timing.eager_ms = median(_loop(calls, device, max(3, repeats // 3)) for _ in range(3))
    if graph:
        try:
            timing.graph_ms = _graph(calls, device, repeats)
        except RuntimeError as e:
            timing.notes.append(f"no graph: {str(e).splitlines()[0]}")
    return timing


def _on_cpu(calls: Sequence[Callable[[], object]], budget_ms: float, most: int, least: int) -> Timing:
    samples: list[float] = []
    began = time.perf_counter()
    while len(samples) < most and (
        len(samples) < min(least, 5) or 1e3 * (time.perf_counter() - began) < budget_ms
    ):
        start = time.perf_counter()
        calls[len(samples) % len(calls)]()
        samples.append(1e3 * (time.perf_counter() - start))
    return Timing(samples, eager_ms=median(samples), host_ms=median(samples))


def _loop(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> float:
    """Wall time a call, ms, of a loop that waits at its end only."""
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for i in range(repeats):
        calls[i % len(calls)]()
    torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start) / repeats


def _queued(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int, estimate: float
) -> tuple[list[float], list[float]]:
    """Device and host times of calls that queue up behind a pause, so that the device never waits for the host."""
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    host = []
    for first in range(0, repeats, 20):  # a queue that is full makes the host wait, and the device with it
        part = events[first : first + 20]
        torch.cuda.synchronize(device)
        torch.cuda._sleep(int(CLOCK * min(0.1, 1e-3 * (2 + 1.5 * estimate * len(part)))))
        for i, (before, after) in enumerate(part, first):
            before.record()
            start = time.perf_counter()
            calls[i % len(calls)]()
            host.append(1e3 * (time.perf_counter() - start))
            after.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in events], host


def _graph(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> float:
    """Wall time a call, ms, of replays of a graph with one call of each set."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    replays = max(3, repeats // len(calls))
    return median(_loop([graph.replay], device, replays) for _ in range(3)) / len(calls)
