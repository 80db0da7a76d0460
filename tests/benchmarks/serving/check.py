"""Correctness inside a real engine on the device at hand, eager and with CUDA graphs: hits, states, probabilities.

The audit of ``tests/vllm`` looks at every row of every step (graph replays through taps), and replays what the cache
holds by the oracle. Imports torch and ``tests/vllm``. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jobs import eagerly, text

LAYER = 1  # whose numerics are compared; labels and slots of all layers are


def start(engine_class: type, setup: dict[str, Any]) -> Any:
    """The engine with taps in its graphs."""
    from graphs import Taps

    with Taps(simulate=not torch.cuda.is_available()) as taps:
        engine = engine_class(setup["model"], **setup["options"])
    engine.taps = taps
    return engine


def run(engine: Any, left: Callable[[], float], step: str, eager: bool) -> dict:
    """One of ``STEPS``, eager or with graphs."""
    engine.forget()
    engine.captures = engine.taps.captures
    with eagerly(engine, eager):
        return STEPS[step](engine, left)


def life(engine: Any, left: Callable[[], float]) -> dict:
    """Cold, warm, siblings at every kind of cut, a conversation, a burst, one-token prompts; then every published slot."""
    from graphs import GraphAudit

    B = engine.block_size
    with GraphAudit(engine, engine.taps, numerics=(LAYER,)) as audit:
        wrong, asked = [], 0
        for what, hit, expected in _life(engine, B):
            asked += 1
            if hit != expected:
                wrong.append((what, hit, expected))
            if left() < 0:
                break
        count = 0 if left() < 0 else audit.published((LAYER,))
    return dict(
        block_size=B, asked=asked, wrong_hits=wrong, rows=audit.rows, replayed=audit.replayed,
        published=count, worst_ratio=audit.worst, cut=left() < 0,
        ok=not wrong and count > 0,
    )  # fmt: skip


def _life(engine: Any, B: int) -> Iterator[tuple[str, int, int]]:
    """Asks; yields what it asked, the hit, and what a cache that forgets nothing would hit."""
    prompt = text(256, 20, 3 * B + B // 2)
    full = 3 * B
    yield "cold", engine.one(prompt, generate=2).hit, 0
    yield "warm", engine.one(prompt, generate=3).hit, full
    for i, shared in enumerate((1, B - 1, B, B + 1, 2 * B + 1, 3 * B - 1, full)):
        branch = [prompt[shared] ^ 1, *text(256, 21 + i, B // 4)]
        yield f"sibling {shared}", engine.one(prompt[:shared] + branch, generate=1).hit, shared // B * B
    start = text(256, 40, B - 20)
    answer = engine.one(start, generate=30)
    yield "conversation", answer.hit, 0
    again = engine.one(start + answer.tokens[:-1] + text(256, 41, 10), generate=2)
    yield "its next turn", again.hit, B
    burst = [prompt[: B + 8], *[text(256, 50 + i, n) for i, n in enumerate((1, 2, B // 2, 1))]]
    for i, one in enumerate(engine.generate(*burst, generate=8)):
        yield f"burst {i}", one.hit, B if i == 0 else 0
    for one in engine.generate([7], [9], [11], generate=3):  # fresh rows in a graph of decodes
        yield "a prompt of one token", one.hit, 0


def warm_equals_cold(engine: Any, left: Callable[[], float]) -> dict:
    """Whole distributions of a warm run against the cold run's, whose steps ended on boundaries: to the bit.

    The budget of a step is a multiple of the block, so that the last step is the same in both runs.
    """
    budget, B = engine.config.scheduler_config.max_num_batched_tokens, engine.block_size
    assert budget % B == 0
    prompt = text(256, 60, budget + B // 2 + 9)
    cold, warm = engine.one(prompt, generate=6), engine.one(prompt, generate=6)
    apart = (cold.logprobs - warm.logprobs).abs().max().item()
    uneven = engine.one(
        prompt[: budget - 5], generate=1
    )  # its cold run would be one step: other matrix products
    engine.forget()
    cold_uneven = engine.one(prompt[: budget - 5], generate=1)
    return dict(
        hit=warm.hit, bitwise=torch.equal(cold.logprobs, warm.logprobs), worst_logprob=apart,
        spread=cold.logprobs.max().item() - cold.logprobs.median().item(),
        finite=bool(cold.logprobs.isfinite().all()), uneven_hit=uneven.hit,
        uneven_worst_logprob=(uneven.logprobs - cold_uneven.logprobs).abs().max().item(),
        ok=warm.hit == budget and torch.equal(cold.logprobs, warm.logprobs),
    )  # fmt: skip


def replayed_cold(engine: Any, left: Callable[[], float]) -> dict:
    """What the cache holds, against one cold step over the layer inputs that led to it: to the bit, all GDN layers."""
    from graphs import GraphAudit
    from test_states import replay

    B = engine.block_size
    prompt = text(256, 70, 3 * B + 30)
    with GraphAudit(engine, engine.taps, numerics=()) as audit:
        for request in (prompt, *[prompt[:n] + text(256, 71 + n, B) for n in (B, 2 * B + 5)]):
            engine.one(request, generate=1)
    groups, count, equal = engine.scheduler.kv_cache_config.kv_cache_groups, 0, 0
    for (group, _), slots in engine.published().items():
        for i, layer in enumerate(engine.gdn_layers):
            if layer.prefix in groups[group].layer_names:
                made = replay(layer, audit.lines[i, slots[0]].inputs, B)
                equal += all(torch.equal(pages[slots[0]], page) for pages, page in zip(layer.kv_cache, made))
                count += 1
    return dict(states=count, equal=equal, ok=count == equal > 0)


def corrupted(engine: Any, left: Callable[[], float]) -> dict:
    """One wrong number in one cached state: the audit notices, and so do the probabilities."""
    from graphs import GraphAudit
    from test_states import group_of

    prompt = text(256, 80, 2 * engine.block_size + 40)
    with GraphAudit(engine, engine.taps, numerics=()) as audit:
        cold = engine.one(prompt, generate=2)
        layer = engine.gdn_layers[LAYER]
        group = group_of(engine, layer)
        slot = max(
            (len(audit.named[name]), slots[0])
            for (g, name), slots in engine.published().items()
            if g == group
        )[1]
        with torch.inference_mode():
            layer.kv_cache[1][slot].view(-1)[7] += 1.0
        try:
            audit.published((LAYER,))
            noticed = ""
        except AssertionError as e:
            noticed = str(e)
    warm = engine.one(prompt, generate=2)
    changed = not torch.equal(cold.logprobs, warm.logprobs)
    return dict(
        noticed=noticed[:300], probabilities_changed=changed, ok="published state" in noticed and changed
    )


def padding(engine: Any, left: Callable[[], float]) -> dict:
    """Rows beside padding get what they get alone: batches that graphs pad, against the same rows one by one."""
    prompts = [text(256, 90 + i, 20 + 7 * i) for i in range(5)]
    alone = [engine.one(p, generate=12) for p in prompts]
    engine.forget()
    together = engine.generate(*prompts, generate=12)
    worst, same = 0.0, 0
    for a, b in zip(alone, together):
        common = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens)) if x != y), len(a.tokens))
        steps = slice(0, common + 1)  # the first that differs still had the same inputs
        worst = max(worst, (a.logprobs[steps] - b.logprobs[steps]).abs().max().item())
        same += common == len(a.tokens)
    return dict(same_answers=same, of=len(prompts), worst_logprob=worst, ok=worst < 0.25)


def chunked(engine: Any, left: Callable[[], float]) -> dict:
    """Steps that end inside blocks, on their edges, and after several: the first sibling hits every full block."""
    from graphs import GraphAudit

    B, config, wrong, published = engine.block_size, engine.scheduler.scheduler_config, [], 0
    prompt = text(256, 10, 3 * B + 20)
    cuts = (B // 2 + 5, B, B + B // 2)
    for cut in cuts:
        engine.forget()
        config.long_prefill_token_threshold = cut
        with GraphAudit(engine, engine.taps, numerics=(LAYER,)) as audit:
            engine.one(prompt, generate=1)
            for shared in (3 * B + 5, 2 * B, B + 1, B - 1):
                hit = engine.one(prompt[:shared] + text(256, 11, B // 4), generate=1).hit
                if hit != shared // B * B:
                    wrong.append((cut, shared, hit))
            published += audit.published((LAYER,))
        if left() < 0:
            break
    config.long_prefill_token_threshold = 0
    return dict(
        cuts=cuts, wrong_hits=wrong, published=published, ok=not wrong and published > 0, cut=left() < 0
    )


def pressure(engine: Any, left: Callable[[], float]) -> dict:
    """A pool too small for its requests: they are preempted, resumed, evicted and hit again; every state is right."""
    from graphs import GraphAudit

    B, before = engine.block_size, engine.preemptions()
    # Each is about to need a second block, and there is none.
    prompts = [text(256, 50 + i, B - 8) for i in range(7)]
    groups = len(engine.scheduler.kv_cache_config.kv_cache_groups)
    with engine.holding(groups * len(prompts) * engine.bytes_per_block) as blocks:
        with GraphAudit(engine, engine.taps, numerics=(LAYER,)) as audit:
            first = engine.generate(*prompts, generate=24)
            again = [p + a.tokens[:-1] + text(256, 60, 9) for p, a in zip(prompts, first)]
            engine.generate(*again, generate=4)
            hits = [engine.one(p, generate=2).hit for p in reversed(again)]
            count = audit.published((LAYER,))
        free = engine.pool.get_num_free_blocks()
    preempted = engine.preemptions() - before
    return dict(
        blocks=blocks, free_after=free, preemptions=preempted, hits=hits, rows=audit.rows, replayed=audit.replayed,
        published=count, worst_ratio=audit.worst, ok=preempted > 0 and count > 0 and free == blocks and any(hits),
    )  # fmt: skip


def any_cut(engine: Any, left: Callable[[], float]) -> dict:
    """However the steps are cut: a hit against a cold run in one step, and a row beside others against it alone."""
    budget, B = engine.config.scheduler_config.max_num_batched_tokens, engine.block_size
    prompt = text(256, 61, budget - 5)
    cold, warm = engine.one(prompt, generate=6), engine.one(prompt, generate=6)
    engine.forget()
    engine.one(prompt[: B + 3], generate=1)
    part = engine.one(prompt, generate=6)
    engine.forget()
    beside, *_ = engine.generate(prompt[: B + 7], text(256, 62, B), generate=6)
    engine.forget()
    alone = engine.one(prompt[: B + 7], generate=6)
    pairs = (cold, warm), (cold, part), (beside, alone)
    apart = [(a.logprobs - b.logprobs).abs().max().item() for a, b in pairs]
    return dict(hits=(warm.hit, part.hit), worst_logprob=apart, ok=warm.hit > part.hit > 0 and not any(apart))


STEPS = dict(
    life=life, warm_equals_cold=warm_equals_cold, replayed_cold=replayed_cold, corrupted=corrupted, padding=padding,
    chunked=chunked, pressure=pressure, any_cut=any_cut,
)  # fmt: skip
