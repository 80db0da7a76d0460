"""The campaign's clock: it counts from the command's start, and every second is charged once."""

import time

import pytest

from gdn_apc.fuzz import clock


@pytest.fixture(autouse=True)
def own_clock():
    """The clock of the session around this test goes on afterwards."""
    began = time.monotonic() - clock.elapsed()
    yield
    clock.start(began)


def test_it_counts_from_what_the_parent_says(monkeypatch):
    monkeypatch.setenv(clock.BEGAN, str(time.monotonic() - 50))
    clock.start()

    assert 50 <= clock.elapsed() < 60


@pytest.mark.parametrize("said", ["", "nonsense", "1e30", "-5", "nan"])
def test_it_believes_nothing_absurd(monkeypatch, said):
    """Another machine's clock, or a variable that outlived a reboot."""
    monkeypatch.setenv(clock.BEGAN, said)
    clock.start()

    assert 0 <= clock.elapsed() < 5


def test_the_time_of_day_may_jump(monkeypatch):
    clock.start()
    monkeypatch.setattr(time, "time", lambda: 0.0)

    assert 0 <= clock.elapsed() < 5


def test_spans_inside_spans_are_charged_once():
    clock.take()
    began = time.perf_counter()

    @clock.span("oracle")
    def oracle():
        time.sleep(0.03)

    with clock.span("comparison"):
        time.sleep(0.02)
        oracle()
        with pytest.raises(KeyError), clock.span("target"):
            time.sleep(0.01)
            raise KeyError
    spent, wall = clock.take(), time.perf_counter() - began

    assert 0.02 <= spent["comparison"] and 0.03 <= spent["oracle"] and 0.01 <= spent["target"]
    assert sum(spent.values()) <= wall + 0.001
    assert set(spent) <= set(clock.LABELS)
    assert clock.take().keys() <= {"generation"}
