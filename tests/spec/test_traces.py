"""Traces of the fuzzer's engine are behaviours of the design; lies and planted faults are not."""

import json
from collections import Counter

import pytest

from gdn_apc.fuzz.engine import invariants
from gdn_apc.fuzz.engine.faults import CATALOGUE, Faults
from gdn_apc.fuzz.engine.trace import random_trace
from gdn_apc.spec import cli, lies, traces
from gdn_apc.spec.configurations import SAFETY

SEEDS = range(20)


def write(path, events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(path)


def test_traces_tell_all_that_happens():
    """Every kind of event, in lives that are not all short."""
    lives = [random_trace(seed) for seed in range(20)]
    kinds = Counter(event["event"] for events in lives for event in events)
    assert set(kinds) == set(traces.FIELDS) and min(kinds.values()) >= 10
    assert sum(map(len, lives)) > 500 and lives[3] == random_trace(3)


def test_honest_traces_are_accepted_and_lies_rejected(tools):
    """Twenty of each. A lie is rejected where it is told, or where it comes out, and the event is named."""
    honest = [random_trace(seed) for seed in SEEDS]
    lying = [lies.lie(events, seed) for seed, events in enumerate(honest)]
    verdicts = traces.check(honest + lying, tools)
    assert [v.accepted for v in verdicts] == [True] * len(honest) + [False] * len(honest)
    at_once = 0
    for true, lie, verdict in zip(honest, lying, verdicts[len(honest) :]):
        told = next(i for i, (a, b) in enumerate(zip([*true, None], [*lie, None]), 1) if a != b)
        assert told <= verdict.line <= len(lie)
        assert lies.told(true, lie).startswith(f"line {told}")
        assert verdict.at(lie).startswith(f'rejected at line {verdict.line}: {{"event": "')
        at_once += told == verdict.line
    assert at_once >= 15


def test_a_trace_without_anything_to_falsify():
    """The error says so."""
    with pytest.raises(ValueError, match="events: of 1 none can be falsified; give a longer trace"):
        lies.lie(random_trace(0)[:1], 0)


def test_every_fault_of_the_engine_shows_in_its_traces(tools, monkeypatch):
    """With the engine's own invariants switched off. A starved request breaks no step, only Progress."""
    for name in (*SAFETY, "Progress"):
        monkeypatch.setattr(invariants, name, lambda *_, **__: None)
    lives, of = [], []
    for fault in sorted(set(CATALOGUE) - {"starve"}):
        faulty = ((seed, random_trace(seed, Faults(**{fault: True}))) for seed in range(0, 60, 2))
        met = [events for seed, events in faulty if events != random_trace(seed)][:2]
        assert met, f"no life met {fault}"
        lives += met
        of += [fault] * len(met)
    rejected = {fault for fault, verdict in zip(of, traces.check(lives, tools)) if not verdict.accepted}
    assert rejected == set(CATALOGUE) - {"starve"}


def test_the_command_tells_where_a_trace_leaves_the_design(tmp_path, capsys):
    """Status 1, the line, the state before it, and the event."""
    events = random_trace(0)
    at = next(i for i, event in enumerate(events) if event["event"] == "schedule" and event["n"] > 0)
    false = json.loads(json.dumps(events))
    false[at]["n"] -= 1
    good, bad = write(tmp_path / "good.ndjson", events), write(tmp_path / "bad.ndjson", false)
    assert cli.main(["--trace", good]) == 0
    assert f"all {len(events)} events are a behaviour of the design" in capsys.readouterr().out
    assert cli.main(["--trace", bad]) == 1
    said = capsys.readouterr().out
    assert f"bad.ndjson: REJECTED at line {at + 1}\nbefore line {at + 1} the design's state is\n" in said
    assert f"no step of the design fits line {at + 1}:\n  {json.dumps(false[at])}" in said


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (0, {"event": "stop"}, "line 1: event is 'stop'; expected start"),
        (1, {"event": "start"}, "line 2: event is 'start'; expected abort, dispatch, execute"),
        (0, {"slots": "7"}, "line 1: start has slots = '7'; expected int"),
        (0, {"order": "fifo"}, "line 1: order is 'fifo'; expected lru or vllm"),
        (0, {"free": [1, 1]}, "line 1: free is [1, 1]; expected each of 1 to 7 once"),
        (1, {"request": 9}, "line 2: request is 9; expected 1 to 5"),
    ],
)
def test_a_file_of_another_format_is_bad_usage(line, change, message, tmp_path, capsys):
    """Status 4; the message names file, line and field."""
    events = random_trace(0)
    events[line] = {**events[line], **change}
    assert cli.main(["--trace", write(tmp_path / "t.ndjson", events)]) == 4
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_json_is_bad_usage(tmp_path, capsys):
    """Also one that is not there."""
    (tmp_path / "t.ndjson").write_text("{}\n{\n")
    assert cli.main(["--trace", str(tmp_path / "t.ndjson")]) == 4
    assert "t.ndjson, line 2: not JSON" in capsys.readouterr().err
    assert cli.main(["--trace", str(tmp_path / "none.ndjson")]) == 4
    assert "none.ndjson" in capsys.readouterr().err
