"""A worker that finds a shared GPU full tries again, and gives back what it does not need."""

import itertools

import pytest
import torch

from gdn_apc.fuzz import memory

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 100 bytes with ``free`` of them left; ``emptied`` counts how often the cache was given up."""
    state = {"free": 50, "emptied": 0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state["free"], 100))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: state.update(emptied=state["emptied"] + 1))
    return state


def failing(times):
    """A run that finds no memory so often, then answers; and the list of its attempts."""
    attempts = []

    def run():
        attempts.append(None)
        if len(attempts) <= times:
            raise torch.cuda.OutOfMemoryError("no memory")
        return "answer"

    return run, attempts


@pytest.mark.parametrize("times", [0, 1, memory.ATTEMPTS - 1])
def test_tries_again_until_there_is_room(gpu, times):
    waits = []
    run, attempts = failing(times)
    assert memory.patiently(GPU, run, waits.append) == "answer"
    assert len(attempts) == times + 1 and len(waits) == times
    assert all(later > earlier for earlier, later in itertools.pairwise(waits))


def test_gives_up_after_the_last_attempt(gpu):
    run, attempts = failing(memory.ATTEMPTS)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        memory.patiently(GPU, run, lambda seconds: None)
    assert len(attempts) == memory.ATTEMPTS


@pytest.mark.parametrize(("free", "emptied"), [(50, 0), (25, 0), (24, 1)])
def test_the_cache_goes_when_little_is_free(gpu, free, emptied):
    gpu["free"] = free
    memory.patiently(GPU, lambda: None)
    assert gpu["emptied"] == emptied


def test_other_errors_pass_at_once(gpu):
    with pytest.raises(ValueError, match="wrong"):
        memory.patiently(GPU, lambda: (_ for _ in ()).throw(ValueError("wrong")))


def test_a_cpu_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: pytest.fail("asked a GPU"))
    assert memory.patiently(torch.device("cpu"), lambda: 3) == 3
