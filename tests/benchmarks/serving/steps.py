"""Where the time of a decode step goes: the host by part, the device by kernel. Says why one engine is slower than another.

Three windows over the same running requests, so that no instrument is in another's figures: plain steps (wall, the host's
own time); steps with timers around the parts of vLLM and the metadata builders; steps under torch's profiler.
``run.py`` asks for this last, since a profiler may leave a process slower. Imports torch. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jobs import on_one_core, sampling, text, wait

PARTS = {
    "scheduler": ("schedule", "update_from_output"),
    "runner": (
        "execute_model", "_update_states", "_prepare_inputs", "_build_attention_metadata", "_model_forward",
        "sample_tokens", "update_requests", "prepare_inputs", "prepare_attn",
    ),
}  # fmt: skip
"""Methods that are timed, where an engine has them (the two model runners differ). Parts may lie inside one another."""
BUILDER = ("build", "update_block_table")
LARGEST = 10


def steps(engine: Any, left: Callable[[], float], rows: int, context: int, count: int) -> dict:
    """``count`` steps a window, while ``rows`` requests decode. Times are µs a step; medians on the host, means on the device."""
    engine.forget()
    core = engine.llm.llm_engine
    names = [f"s{rows}/{i}" for i in range(rows)]
    for i, name in enumerate(names):
        prompt = text(engine.vocabulary, 30_000 + i, context)
        core.add_request(name, {"prompt_token_ids": prompt}, sampling(4 * count + 60))
    got: dict[str, int] = {}
    while len(got) < rows or min(got.values()) < 8:
        got |= {o.request_id: len(o.outputs[0].token_ids) for o in core.step()}
    with on_one_core():
        found = dict(rows=rows, steps=count) | _host(engine, core, count)
        found |= dict(parts=_parts(engine, core, count))
    if left() > 0:
        found |= _device(engine, core, count)
    core.abort_request(names)
    while core.has_unfinished_requests():
        core.step()
    return found


def _host(engine: Any, core: Any, count: int) -> dict:
    """Wall and processor time of the thread that serves (vLLM's events let it sleep), and the wall time it waits to prepare a step."""
    wall, busy, waits = [], [], []
    with _waiting(engine) as waited:
        for _ in range(count):
            waited[0], began, ran = 0.0, time.perf_counter(), time.thread_time()
            core.step()
            wall.append(1e6 * (time.perf_counter() - began))
            busy.append(1e6 * (time.thread_time() - ran))
            waits.append(1e6 * waited[0])
    return {
        f"{name}_us": statistics.median(values)
        for name, values in (("wall", wall), ("host", busy), ("wait", waits))
    }


class _Event:
    """An event that counts the seconds somebody waits for it."""

    def __init__(self, event: Any, waited: list[float]) -> None:
        self.event, self.waited = event, waited

    def synchronize(self) -> None:
        """As the event's own."""
        began = time.perf_counter()
        self.event.synchronize()
        self.waited[0] += time.perf_counter() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self.event, name)


@contextlib.contextmanager
def _waiting(engine: Any) -> Iterator[list[float]]:
    """Counts what the runner waits for its event of prepared inputs, where it has one."""
    waited, event = [0.0], getattr(engine.runner, "prepare_inputs_event", None)
    if event is not None:
        engine.runner.prepare_inputs_event = _Event(event, waited)
    try:
        yield waited
    finally:
        if event is not None:
            engine.runner.prepare_inputs_event = event


def _parts(engine: Any, core: Any, count: int) -> dict[str, float]:
    """Median µs a step of each part."""
    spent: dict[str, float] = defaultdict(float)
    per_step: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        for holder, methods in PARTS.items():
            for method in methods:
                stack.enter_context(_timed(getattr(engine, holder), method, method.lstrip("_"), spent))
        for builder in _builders(engine):
            for method in BUILDER:
                stack.enter_context(_timed(builder, method, type(builder).__name__, spent))
        for _ in range(count):
            spent.clear()
            core.step()
            for name, seconds in spent.items():
                per_step[name].append(1e6 * seconds)
    return {name: round(statistics.median(values), 1) for name, values in per_step.items()}


def _builders(engine: Any) -> list[Any]:
    """The metadata builders of all KV cache groups."""
    groups = [g for of_group in getattr(engine.runner, "attn_groups", []) for g in of_group]
    return [builder for group in groups for builder in group.metadata_builders]


@contextlib.contextmanager
def _timed(holder: Any, method: str, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Adds the seconds in a method of one object to ``spent``; nothing for an object without it."""
    real = getattr(holder, method, None)
    if real is None:
        yield
        return

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - began

    setattr(holder, method, timed)
    try:
        yield
    finally:
        delattr(holder, method)


def _device(engine: Any, core: Any, count: int) -> dict:
    """Kernels a step and their time by torch's profiler; operators of the host in a rehearsal without a GPU."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    wait(engine)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            core.step()
        wait(engine)
    events = profiler.profiler.kineto_results.events()
    host = torch.autograd.DeviceType.CPU
    events = [e for e in events if (e.device_type() != host) == on_gpu and e.duration_ns() > 0]
    return dict(on="kernels" if on_gpu else "operators") | summed(
        [(e.name(), e.start_ns(), e.duration_ns()) for e in events], count
    )


def summed(events: list[tuple[str, int, int]], count: int) -> dict:
    """(name, start, duration in ns) of ``count`` steps: kernels a step, µs a step, share of the span, the largest by name."""
    if not events:
        return dict(kernels=0, kernel_us=0.0, busy=0.0, largest=[])
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, _, duration in events:
        spent[short(name)] += duration
        calls[short(name)] += 1
    total = sum(spent.values())
    span = max(start + duration for _, start, duration in events) - min(start for _, start, _ in events)
    largest = [
        [name, round(ns / 1e3 / count, 2), round(calls[name] / count, 2)]
        for name, ns in spent.most_common(LARGEST)
    ]
    return dict(
        kernels=len(events) / count, kernel_us=total / 1e3 / count, busy=total / span, largest=largest
    )


def short(name: str) -> str:
    """A kernel's name without types and arguments."""
    name = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name)[0][:60]
