"""The ways of timing on a device, with a stand-in for the device that counts; and on the device where there is one."""

import time
from contextlib import contextmanager

import pytest
import torch

from gdn_apc.fuzz.bench.timing import measure

CUDA = torch.device("cuda")


class Event:
    """Knows when it was recorded."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


class Graph:
    """Calls again what was called while it was captured."""

    def __init__(self):
        self.log.append("graph")

    def replay(self):
        self.log.append("replay")


@pytest.fixture
def device(monkeypatch):
    """A CUDA device that does nothing; returns the log of what it was asked."""
    log = []
    Graph.log = log

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            pass

    @contextmanager
    def inside(what):
        log.append("capture" if isinstance(what, Graph) else "stream")
        yield
        log.append("end")

    for name, value in dict(
        Event=Event,
        Stream=Stream,
        CUDAGraph=Graph,
        graph=inside,
        stream=inside,
        current_stream=lambda device=None: Stream(),
        synchronize=lambda device=None: log.append("sync"),
        _sleep=lambda cycles: log.append(("sleep", cycles)),
    ).items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log


def test_calls_are_queued_behind_a_pause(device):
    """Twenty at a time; an event on each side of each; the host's own time beside; calls rotate."""
    seen = []
    calls = [lambda i=i: (seen.append(i), time.sleep(0.001)) for i in range(3)]
    timing = measure(calls, CUDA, budget_ms=30, most=25, least=5)
    assert 5 <= len(timing.samples) <= 25 and all(s >= 1 for s in timing.samples)
    assert timing.host_ms >= 1 and timing.eager_ms >= 1 and timing.graph_ms is None
    pauses = [entry[1] for entry in device if isinstance(entry, tuple)]
    assert len(pauses) == -(-len(timing.samples) // 20) and all(0 < p < 0.2e9 * 1.98 for p in pauses)
    assert set(seen) == {0, 1, 2}


def test_a_graph_holds_a_call_of_each_set(device):
    """Captured once, all sets inside; the time is a call's, not a replay's."""
    seen = []
    calls = [lambda i=i: seen.append((i, list(device).count("capture"))) for i in range(4)]
    timing = measure(calls, CUDA, budget_ms=0.01, most=8, least=8, graph=True)
    captured = [i for i, captures in seen if captures]
    assert captured == [0, 1, 2, 3] and device.count("replay") >= 1 + 3 * 3
    assert timing.graph_ms is not None and timing.notes == []


def test_what_cannot_be_captured_is_said(device, monkeypatch):
    """The other times stay."""

    @contextmanager
    def refuse(graph):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
        yield

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    timing = measure([lambda: None], CUDA, budget_ms=0.01, graph=True)
    assert timing.graph_ms is None and timing.samples
    assert timing.notes == ["no graph: operation not permitted when stream is capturing"]


@pytest.mark.gpu
def test_on_a_gpu():
    """A copy of 1 GB takes between its floor and a hundred times that, in every way of timing it."""
    source = torch.randn(1 << 27, device="cuda")
    target = torch.empty_like(source)
    timing = measure([lambda: target.copy_(source)] * 2, CUDA, graph=True)
    for ms in (timing.ms, timing.eager_ms, timing.graph_ms):
        assert 0.1 < ms < 25
    assert timing.host_ms < timing.ms
