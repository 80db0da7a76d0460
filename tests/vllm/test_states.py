"""What the cache holds: each published slot against the oracle, warm against cold to the bit, and tests that can fail."""

from __future__ import annotations

import pytest
import torch
from audit import Audit
from serving import KINDS, WRAPPERS, tokens

from gdn_apc.impl import build_metadata


def life(engine) -> None:
    """Cold, warm, siblings at every kind of cut, a conversation, a burst, one-token prompts."""
    prompt = tokens(20, 300)
    engine.one(prompt, generate=2)
    engine.one(prompt, generate=2)
    for i, shared in enumerate((64, 65, 127, 129, 131, 192, 255)):
        engine.one(prompt[:shared] + tokens(21 + i, 30), generate=2)
    answer = engine.one(tokens(30, 50), generate=90)
    engine.one(tokens(30, 50) + answer.tokens[:-1] + tokens(31, 10), generate=2)
    engine.generate(prompt[:100], *[tokens(32 + i, 1 + 40 * i) for i in range(6)], generate=6)


@pytest.mark.parametrize("kind", KINDS)
def test_published_states_are_what_their_hashes_name(engines, kind):
    """fp32 states: every row's outputs, states and windows, and every published slot replayed cold."""
    engine = engines(kind)
    with Audit(engine) as audit:
        life(engine)
        count = audit.published()
    assert audit.starts == {(False, False), (False, True), (True, False), (True, True)}
    assert audit.rows > 100 and count > 40
    print(f"{audit.rows} rows, {count} published states, worst error {audit.worst:.2f} of its tolerance")


def test_bf16_states(engines):
    """bf16 states at B = 32: every row against the oracle, from the bits that it read."""
    engine = engines(mamba_ssm_cache_dtype="bfloat16", block_size=32, mamba_block_size=32)
    assert engine.block_size == 32
    with Audit(engine) as audit:
        life(engine)
    assert 0 < audit.worst <= 1


def test_windows_stored_channel_by_channel(engines, monkeypatch):
    """vLLM's other layout of windows, [D, W - 1] a slot (``VLLM_SSM_CONV_STATE_LAYOUT=DS``): the same states and tokens."""
    from vllm.model_executor.layers.mamba import mamba_utils

    prompts = [tokens(25, 150), tokens(25, 140) + tokens(26, 20), [5], tokens(25, 64)]
    usual = engines()
    expected = [usual.one(p, generate=8) for p in prompts]
    monkeypatch.setattr(mamba_utils, "get_conv_state_layout", lambda: "DS")
    engine = engines(seed=4)  # of its own: it keeps this layout
    windows = engine.gdn_layers[0].kv_cache[0]
    assert windows.shape[1] > windows.shape[2] == 3
    with Audit(engine) as audit:
        answers = [engine.one(p, generate=8) for p in prompts]
        assert audit.published() > 0
    assert [a.hit for a in answers] == [0, 128, 0, 0] == [a.hit for a in expected]
    for ours, theirs in zip(answers, expected):
        assert ours.tokens == theirs.tokens and torch.equal(ours.logprobs, theirs.logprobs)


@pytest.mark.parametrize("kind", KINDS + WRAPPERS)
@pytest.mark.parametrize("budget", [64, 512])
def test_a_hit_changes_no_bit(engines, kind, budget):
    """Probabilities of a warm run equal the cold run's bitwise, and so do the states that each leaves.

    The publisher's steps end on block boundaries and the rest is one step in both runs: cuts that change no bit.
    """
    engine, prompt = engines(kind, max_num_batched_tokens=budget), tokens(40, 300)
    cold = engine.one(prompt, generate=8)
    states = published_states(engine)
    warm = engine.one(prompt, generate=8)
    assert (cold.hit, warm.hit) == (0, 256)
    assert torch.equal(cold.logprobs, warm.logprobs)
    again = published_states(engine)
    assert states and states.keys() <= again.keys()
    for name, state in states.items():
        assert torch.equal(state, again[name]), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [64, 512])
def test_layer_inputs_replayed_cold_leave_the_same_bits(engines, kind, budget):
    """What the cache holds equals, bit for bit, one cold step over the layer inputs that were captured.

    The engine cut the prompts at block boundaries, one at a time, and took hits; the replay has neither cut nor hit.
    """
    engine, prompt = engines(kind, max_num_batched_tokens=budget), tokens(45, 300)
    with Audit(engine, numerics=()) as audit:
        for request in (prompt, *[prompt[:n] + tokens(46 + n, 100) for n in (64, 130, 200)]):
            engine.one(request, generate=1)
        layers, groups = engine.gdn_layers, engine.scheduler.kv_cache_config.kv_cache_groups
        count = 0
        for (group, _), slots in engine.published().items():
            for i, layer in enumerate(layers):
                if layer.prefix in groups[group].layer_names:
                    expected = replay(layer, audit.lines[i, slots[0]].inputs, engine.block_size)
                    for pages, page in zip(layer.kv_cache, expected):
                        assert torch.equal(pages[slots[0]], page)
                    count += 1
    assert count >= 3 * (4 + 1 + 1 + 1)


def replay(layer, inputs, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Window and state after one cold step over captured inputs x, a, b of one request."""
    T, device = len(inputs[0]), inputs[0].device
    columns = -(-T // block_size)
    windows, states = (
        torch.zeros(columns + 1, *t.shape[1:], dtype=t.dtype, device=device) for t in layer.kv_cache
    )
    blocks = build_metadata(
        torch.tensor([T], dtype=torch.int32, device=device),
        torch.tensor([0, T], dtype=torch.int32, device=device),
        torch.arange(1, columns + 1, dtype=torch.int32, device=device)[None],
        block_size=block_size,
        max_query_len=T,
        num_tokens=T,
    )
    layer._core(*inputs, windows, states, blocks)
    return windows[columns], states[columns]


def published_states(engine) -> dict[tuple[int, bytes], torch.Tensor]:
    """State of each published block of the GDN groups."""
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    layers = {layer.prefix: layer for layer in engine.gdn_layers}
    return {
        key: torch.stack([layers[p].kv_cache[1][slots[0]] for p in groups[key[0]].layer_names])
        for key, slots in engine.published().items()
        if all(p in layers for p in groups[key[0]].layer_names)
    }


@pytest.mark.parametrize("part", [0, 1], ids=["window", "state"])
def test_a_corrupted_slot_is_noticed(engines, part):
    """Proof that the tests above see: one wrong number in one cached slot fails each of them."""
    engine, prompt = engines(), tokens(41, 300)
    with Audit(engine) as audit:
        cold = engine.one(prompt, generate=8)
        assert audit.published() > 0
        layer = engine.gdn_layers[1]
        group = group_of(engine, layer)
        slot = max(
            (len(audit.named[name]), slots[0])
            for (g, name), slots in engine.published().items() if g == group
        )[1]  # fmt: skip
        page = layer.kv_cache[part][slot]
        page.view(-1)[7] += 1.0
        with pytest.raises(AssertionError, match=r"published (state|window)"):
            audit.published()
    warm = engine.one(prompt, generate=8)
    assert warm.hit == 256 and not torch.equal(cold.logprobs, warm.logprobs)


def group_of(engine, layer) -> int:
    """The KV cache group of a layer."""
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    return next(i for i, g in enumerate(groups) if layer.prefix in g.layer_names)


def test_a_wrong_slot_is_noticed(engines):
    """A row that reads another request's slot is noticed by its label."""
    engine, prompt = engines(seed=1), tokens(42, 200)  # an engine of its own: it ends in the middle of a step
    with Audit(engine) as audit:
        engine.one(prompt, generate=1)
        for key, line in list(audit.lines.items()):
            audit.lines[key] = type(line)((*line.tokens[:-1], line.tokens[-1] ^ 1), line.inputs)
        with pytest.raises(Exception, match=r"reads slot .* the slot holds the state of"):
            engine.one(prompt, generate=1)
