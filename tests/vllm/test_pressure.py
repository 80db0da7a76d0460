"""A pool too small, requests that go away, bursts, and prompts of one token: the cache stays true through all of it."""

from __future__ import annotations

import random

import pytest
import torch
from audit import Audit
from serving import tokens

TINY = 27  # blocks; one request of 1,024 tokens needs 16 in each of four groups


def add(engine, name: str, prompt: list[int], generate: int) -> None:
    """Queue a request."""
    engine.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, engine.sampling(generate))


def run(engine, at_step=None) -> dict[str, list[int]]:
    """Step until nothing is left; ``at_step(i)`` is called before step i. Returns each request's tokens."""
    done, i = {}, 0
    while engine.llm.llm_engine.has_unfinished_requests():
        if at_step is not None:
            at_step(i)
        for output in engine.llm.llm_engine.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
        i += 1
        assert i < 5000, "no progress"
    return done


def test_a_pool_too_small_preempts_and_stays_true(engines):
    """27 blocks for eight requests: they are preempted, resumed, evicted, and hit again; every state is right."""
    engine = engines(num_gpu_blocks_override=TINY, max_model_len=320)
    before = engine.preemptions()
    prompt = tokens(50, 150)
    with Audit(engine) as audit:
        for _ in range(2):
            engine.generate(*[prompt[: 20 + 18 * i] + tokens(51 + i, 25) for i in range(8)], generate=60)
        assert audit.published() > 0
    assert engine.preemptions() > before
    assert engine.pool.get_num_free_blocks() == TINY - 1


def test_an_abort_in_flight_leaves_true_states(engines):
    """Abort a long prefill between its steps, send its prompt again at once: what hits is right."""
    engine, prompt = engines(max_num_batched_tokens=96), tokens(60, 500)
    with Audit(engine) as audit:
        add(engine, "gone", prompt, 4)
        for _ in range(3):
            engine.llm.llm_engine.step()
        engine.llm.llm_engine.abort_request(["gone"])
        again = engine.one(prompt, generate=4)
        assert again.hit == 3 * 96 // 64 * 64
        assert audit.published() > 0
    engine.reset()
    assert engine.one(prompt, generate=4).tokens == again.tokens
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("budget", [96, 512])
def test_a_busy_engine(engines, budget):
    """Forty requests over three shared prefixes, arriving, growing and leaving in random order."""
    engine, draw = engines(max_num_batched_tokens=budget), random.Random(7)
    bases = [tokens(70 + i, 400) for i in range(3)]

    def at_step(i: int) -> None:
        if i % 2 == 0 and i < 80:
            base = draw.choice(bases)[: draw.choice([1, 63, 64, 65, 128, 130, 200, 256, 320, 399])]
            add(
                engine, f"r{i}", base + tokens(100 + i, draw.choice([1, 2, 3, 40, 90])), draw.randrange(1, 40)
            )
        if i % 17 == 16 and i < 80:
            engine.llm.llm_engine.abort_request([f"r{i - draw.choice([0, 2, 4])}"])

    with Audit(engine, numerics=(1,)) as audit:
        add(engine, "first", bases[0], 80)
        done = run(engine, at_step)
        assert audit.published() > 20
    assert len(done) > 30
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("longest", [320, 330])
def test_the_longest_request(engines, longest):
    """Up to the last token that the model may have, in the last column of the block table, full or not."""
    engine = engines(max_model_len=longest)
    prompt = tokens(90, longest - 40)
    with Audit(engine) as audit:
        first = engine.one(prompt, generate=40)
        again = engine.one(prompt + first.tokens[:-1], generate=1)
        assert audit.published() > 0
    assert len(first.tokens) == 40 and again.hit == (longest - 2) // 64 * 64
    assert again.tokens == first.tokens[-1:]


def test_fresh_prompts_of_one_token_among_decodes(engines):
    """A prompt of one token is a row like a decode's, but reads nothing, whatever its recycled slot holds."""
    engine = engines()
    alone = {t: engine.one([t], generate=5) for t in (11, 22, 33)}
    engine.reset()
    for layer in engine.gdn_layers:  # poison what is free: all of it
        for pages in layer.kv_cache:
            pages.fill_(torch.nan)
    decodes = {f"d{i}": tokens(80 + i, 70) for i in range(3)}
    with Audit(engine) as audit:
        for name, prompt in decodes.items():
            add(engine, name, prompt, 30)

        def at_step(i: int) -> None:
            if i in (3, 6, 9):
                token = (11, 22, 33)[i // 3 - 1]
                add(engine, str(token), [token], 5)

        done = run(engine, at_step)
    assert (False, False) in audit.starts
    assert {t: done[str(t)] for t in alone} == {t: answer.tokens for t, answer in alone.items()}
    for layer in engine.gdn_layers:
        assert all(pages[0].isnan().all() for pages in layer.kv_cache), "the null block was written"
