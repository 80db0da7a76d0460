"""What hits: every full block of a shared prefix, for the first request that shares it, also over decoded tokens."""

from __future__ import annotations

import pytest
from serving import KINDS, WRAPPERS, tokens


def full_blocks(shared: int, length: int, block: int) -> int:
    """Tokens that a prompt of ``length`` may take from the cache: whole blocks, and one token is left to compute."""
    return min(shared, length - 1) // block * block


@pytest.mark.parametrize("kind", KINDS + WRAPPERS)
def test_a_repeated_prompt_hits_every_full_block(engines, kind):
    """300 tokens, B = 64: 256 of them, at the second sighting."""
    engine, prompt = engines(kind), tokens(1, 300)
    assert [engine.one(prompt).hit for _ in range(3)] == [0, 256, 256]


@pytest.mark.parametrize("kind", KINDS + WRAPPERS)
@pytest.mark.parametrize("shared", [1, 63, 64, 65, 127, 128, 150, 191, 192, 193, 256, 299])
def test_the_first_sibling_hits(engines, kind, shared):
    """Whatever the length of the shared prefix, the very first request that shares it hits its full blocks."""
    engine, prompt = engines(kind), tokens(2, 300)
    engine.one(prompt, generate=1)
    sibling = [*prompt[:shared], (prompt[shared] + 1) % 250 + 3, *tokens(3, 99)]
    assert engine.one(sibling, generate=1).hit == full_blocks(shared, len(sibling), 64)


@pytest.mark.parametrize("length", [64, 65, 128, 129, 130, 200])
def test_a_prefix_alone_hits_and_leaves_a_token(engines, length):
    """A prompt that is a prefix of a cached one: at least its last token is computed."""
    engine, prompt = engines(), tokens(4, 300)
    engine.one(prompt, generate=1)
    assert engine.one(prompt[:length], generate=1).hit == full_blocks(length, length, 64)


@pytest.mark.parametrize("kind", KINDS + WRAPPERS)
def test_a_conversation_hits_what_was_decoded(engines, kind):
    """Three turns: each hits the blocks of all turns before it, prompts and answers alike."""
    engine, text = engines(kind), tokens(5, 40)
    for turn in range(3):
        answer = engine.one(text, generate=100)
        assert answer.hit == (full_blocks(len(text) - 20, len(text), 64) if turn else 0)
        text = text + answer.tokens[:-1] + tokens(6 + turn, 20)  # the last token was never an input


def test_a_reset_forgets(engines):
    """After a reset nothing hits, then everything again."""
    engine, prompt = engines(), tokens(9, 300)
    engine.one(prompt)
    engine.reset()
    assert [engine.one(prompt).hit for _ in range(2)] == [0, 256]


@pytest.mark.parametrize("budget", [48, 64, 96])
def test_chunked_prefill_caches_every_block(engines, budget):
    """Budgets below, at and above a block: where a step ends has no influence on what is cached."""
    engine, prompt = engines(max_num_batched_tokens=budget), tokens(10, 300)
    engine.one(prompt, generate=1)
    assert [engine.one(prompt[:n] + tokens(11, 50), generate=1).hit for n in (280, 200, 150, 100, 70, 60)] == [
        256, 192, 128, 64, 64, 0,
    ]  # fmt: skip


def test_requests_of_one_step_wait_for_the_state(engines):
    """A burst of equal prompts: the second one is told to wait a step rather than to read an unwritten state."""
    engine, prompt = engines(), tokens(12, 200)
    answers = engine.generate(*[prompt + tokens(13 + i, 20) for i in range(6)], generate=2)
    assert sorted(a.hit for a in answers) == [0, 192, 192, 192, 192, 192]
