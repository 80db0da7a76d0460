"""Steps of one-token rows on metadata that was captured for their shape, as a CUDA graph replays them, rehearsed on a CPU."""

from __future__ import annotations

import pytest
import torch
from graphs import GraphAudit, Taps
from serving import tokens


@pytest.fixture(scope="module")
def tapped(engines):
    """An engine whose decodes see what was staged, through objects that were made for another batch."""
    with Taps(simulate=True) as taps:
        yield engines(max_num_batched_tokens=256, seed=3), taps  # the seed makes it an engine of its own


def life(engine) -> list[list[int]]:
    """Fresh prompts of one token among decodes, blocks that fill up, rows that come and go; the tokens of each."""
    prompts = [tokens(20, 130), [7], tokens(21, 60), tokens(20, 130), [9], tokens(22, 63)]
    answers = engine.generate(*prompts, generate=12)
    answers += [engine.one(tokens(20, 130) + answers[0].tokens[:-1] + tokens(23, 5), generate=60)]
    return [a.tokens for a in answers]


def test_replays_are_right(tapped, engines):
    """Every row that was replayed, against the oracle; every published state; and the tokens of an engine without any of it."""
    engine, taps = tapped
    engine.reset()
    with GraphAudit(engine, taps) as audit:
        made = life(engine)
        assert audit.published() > 0
    assert audit.replayed > 60
    assert made == life(engines(max_num_batched_tokens=256))


@pytest.mark.parametrize("attention", [False, True], ids=["no metadata", "metadata"])
def test_a_batch_of_padding_touches_nothing(tapped, attention):
    """What a data-parallel rank without work runs, and what is captured: no page changes, not even of blocks just freed."""
    engine, _ = tapped
    engine.reset()
    prompt = tokens(24, 150)
    cold = engine.generate(prompt, tokens(25, 70), generate=5)
    engine.llm.llm_engine.step()  # the runner hears of requests that ended
    before = [[t.clone() for t in layer.kv_cache] for layer in engine.gdn_layers]
    for rows in (1, 2, 5):
        engine.runner._dummy_run(rows, force_attention=attention, uniform_decode=True)
    for layer, pages in zip(engine.gdn_layers, before):
        assert all(torch.equal(a, b) for a, b in zip(layer.kv_cache, pages))
    warm = engine.one(prompt, generate=5)
    assert warm.hit == 128 and warm.tokens == cold[0].tokens


def test_a_replay_on_stale_slots_is_noticed(tapped, monkeypatch):
    """If a batch does not reach the buffers, the audit says so: it reads what another left there."""
    engine, taps = tapped
    engine.reset()
    builders = [g.get_metadata_builder() for groups in engine.runner.attn_groups for g in groups]
    staging = next(b.staging for b in builders if hasattr(b, "staging"))
    monkeypatch.setattr(staging, "stage", lambda blocks: staging.first[blocks.num_rows, blocks.num_tokens])
    with GraphAudit(engine, taps, numerics=(0,)), pytest.raises(Exception, match=r"reads slot|output|state"):
        engine.one(tokens(30, 100), generate=40)
