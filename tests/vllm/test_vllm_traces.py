"""Traces of the real engine, with our plugin, are behaviours of the design; with one lie in them they are not.

``tracing.py`` writes them; the model checker needs Java and TLC (``pip install -e '.[spec]'``).
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
from collections import Counter

import pytest
import tracing
from serving import Engine, tokens

from gdn_apc.spec import MODULES, cli, lies, tlc, traces

SMALL = dict(
    max_model_len=320,
    max_num_batched_tokens=160,
    max_num_seqs=4,
    num_gpu_blocks_override=12,
    long_prefill_token_threshold=80,
)
"""11 slots: a request of 320 tokens needs five of states and five of attention. Prompts are cut at 80 tokens."""


@pytest.fixture(scope="module")
def tools():
    """Java and the jar."""
    try:
        return tlc.find_tools()
    except tlc.ToolsMissing as missing:
        if os.environ.get("GDN_APC_REQUIRE_VLLM") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, vllm):
    """One GDN layer and one attention layer."""
    return tracing.two_layers(tmp_path_factory.mktemp("two-layers"))


LIVES = {"fcfs": (2, 8), "priority": (5, 7)}
"""Seeds whose lives are full of events: all with preemptions."""
UNMENDED = 5
"""One with a victim of the same step, whose row fills blocks."""


@pytest.fixture(scope="module")
def recorded(checkpoint):
    """Traces by (policy, seed)."""
    found = {}
    for policy, seeds in LIVES.items():
        engine = Engine(checkpoint, **SMALL, scheduling_policy=policy)
        for seed in seeds:
            engine.reset()
            found[policy, seed] = life(engine, seed)
        engine.close()
    return found


def life(engine, seed: int) -> list[traces.Event]:
    """Nine requests over two shared prefixes arrive, are cut, hit, preempted and resumed; two are aborted.

    Every other one is long and not urgent; the others end just before a boundary, and need another block soon. One of
    the aborts comes while a step runs, as a client's that goes away: vLLM hears of it before it takes the step's results.
    """
    draw, core = random.Random(seed), engine.llm.llm_engine
    bases = [tokens(10 + seed, 250), tokens(30 + seed, 250)]
    with tracing.Tracing(engine) as trace:
        for i in range(9):
            long = i % 2 == 0
            prompt = draw.choice(bases)[: draw.choice((129, 150, 192, 230) if long else (60, 63, 64, 124))]
            own = tokens(50 + 10 * seed + i, draw.choice((0, 1, 20) if long else (0, 1, 3)))
            sampling = engine.sampling(draw.choice((1, 3)) if long else draw.choice((6, 9)))
            priority = 9 if long else draw.randrange(3)
            core.add_request(f"r{i}", {"prompt_token_ids": prompt + own}, sampling, priority=priority)
            for _ in range(draw.choice((0, 1, 1, 2))):
                core.step()
            if i == 3:
                core.abort_request([draw.choice(list(engine.scheduler.requests))], internal=True)
            if i == 6 and engine.scheduler.running:
                gone = [engine.scheduler.running[0].request_id]
                engine.core.aborts_queue.put(core.output_processor.abort_requests(gone, internal=True))
        for _ in range(500):
            if not engine.scheduler.requests:
                break
            core.step()
        return trace.trace()


def met(events: list[traces.Event]) -> Counter:
    """What happens in a trace, counted."""
    found, open_, sent, started = Counter(), [], [], set()
    for event in events[1:]:
        kind, request = event["event"], event.get("request")
        found[kind] += 1
        if kind == "schedule":
            found["hit"] += request not in started and event["n"] > 0
            found["cut prefill"] += event["n"] + event["m"] < events[0]["requests"][request - 1]["prompt"]
            found["publish"] += bool(event["published"])
            started.add(request)
            open_.append(request)
        elif kind == "dispatch":
            sent, open_ = event["requests"], []
        elif kind == "execute":
            found["finish"] += len(event["finished"])
            sent = []
        elif kind in ("preempt", "abort"):
            found["abort in flight"] += kind == "abort" and request in sent
            found["victim of the same step"] += kind == "preempt" and request in open_
            found["hash taken back"] += bool(event["unpublished"])
            started.discard(request)
    return found


def test_lives_meet_all_there_is(recorded):
    """Every event of the format, chunked prefills, hits, aborts in flight, victims of the same step and their hashes."""
    every = sum((met(events) for events in recorded.values()), Counter())
    assert set(traces.FIELDS) - {"start"} <= set(every)
    assert every["hit"] >= 8 and every["cut prefill"] >= 8 and every["publish"] >= 15, every
    assert every["finish"] >= 20 and every["preempt"] >= 4 and every["abort in flight"] >= 4, every
    assert every["victim of the same step"] >= 1 and every["hash taken back"] >= 1, every
    assert max(map(len, recorded.values())) < 300


def test_traces_are_accepted_and_lies_rejected(recorded, tools):
    """By TLC, with all invariants at each event; and each trace with one lie in it is not, and the event is named."""
    honest = list(recorded.values())
    lying = [lies.lie(events, seed) for seed, events in enumerate(honest)]
    verdicts = traces.check(honest + lying, tools)
    for key, events, verdict in zip(recorded, honest, verdicts):
        assert verdict.accepted, f"{key}: {traces.explained(events, verdict, tools)}"
    for true, lie, verdict in zip(honest, lying, verdicts[len(honest) :]):
        assert not verdict.accepted, lies.told(true, lie)
        told = next(i for i, (a, b) in enumerate(zip([*true, None], [*lie, None]), 1) if a != b)
        assert told <= verdict.line <= len(lie)
        assert verdict.at(lie).startswith(f'rejected at line {verdict.line}: {{"event": "')


def test_the_command_names_the_event(recorded, tools, tmp_path, capsys):
    """Written as NDJSON and checked from files: the trace, and copies with one slot of one event changed."""
    events = recorded["priority", 5]
    files, told = [str(tracing.write(tmp_path / "true.ndjson", events))], []
    for kind in ("schedule", "execute", "preempt"):
        at = max(i for i, event in enumerate(events) if event["event"] == kind)
        false = json.loads(json.dumps(events))
        rows = false[at].get("rows", [{}])
        slots = false[at].get("table") or rows[-1].get("writes") or false[at]["freed"]
        slots[-1] = slots[-1] % events[0]["slots"] + 1
        files.append(str(tracing.write(tmp_path / f"{kind}.ndjson", false)))
        told += [f"{kind}.ndjson: REJECTED at line {at + 1}\n", json.dumps(false[at])]
    given = ["--java", str(tools.java), "--jar", str(tools.jar)]
    assert cli.main(["--trace", *files, *given]) == 1
    said = capsys.readouterr().out
    assert f"true.ndjson: accepted\nall {len(events)} events are a behaviour of the design" in said
    assert [words for words in told if words not in said] == []


def test_without_the_mend_the_trace_is_rejected(checkpoint, tools, monkeypatch):
    """vLLM's own preemption under the priority policy leaves hashes that the design takes back: its event is named."""
    from vllm.v1.core.sched.scheduler import Scheduler

    engine = Engine(checkpoint, **SMALL, scheduling_policy="priority")
    monkeypatch.setattr(type(engine.scheduler), "_preempt_request", Scheduler._preempt_request)
    events = life(engine, UNMENDED)
    engine.close()
    (verdict,) = traces.check([events], tools)
    assert not verdict.accepted
    at = events[verdict.line - 1]
    assert at["event"] == "preempt" and not at["unpublished"] and met(events)["victim of the same step"] == 1


def test_the_map_of_the_design_names_what_vllm_has(vllm):
    """Every class, method and field in the last column of the table in spec/README.md."""
    text = (MODULES.parent / "README.md").read_text()
    found = re.findall(r"`((?:v1|model_executor)/[\w/]+\.py): ([\w., ]+)`", text)
    assert len(found) > 15
    for file, names in found:
        module = importlib.import_module("vllm." + file.removesuffix(".py").replace("/", "."))
        for name in names.split(", "):
            owner, _, attribute = name.partition(".")
            assert attribute in {name for base in getattr(module, owner).__mro__ for name in vars(base)}, (
                f"{file}: {name}"
            )
