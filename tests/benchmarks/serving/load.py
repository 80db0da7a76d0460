"""States that were published while the engine was busy, against cold runs of the same tokens: also under asynchronous scheduling.

The audit of ``check.py`` follows every step, which asynchronous scheduling does not let it do. Here nothing is hooked: a
pool too small, requests that share prefixes, are preempted and fill blocks while they decode; then each published
state is held against the one that a cold, quiet run of its tokens leaves. Matrix products of other shapes round
differently, so states agree to some per cent; one that is stale, unwritten or another prefix's is off by about its whole size.
Imports torch. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from jobs import sampling, text

NEAR = 0.2
"""Largest relative distance of a right state; a wrong one is near 1.4."""


def states_under_load(engine: Any, left: Callable[[], float], requests: int, most: int) -> dict:
    """``requests`` in a pool for a third of them; at most ``most`` prefixes are checked."""
    engine.forget()
    B, before = engine.block_size, engine.preemptions()
    groups = len(engine.scheduler.kv_cache_config.kv_cache_groups)
    with engine.holding(groups * requests * engine.bytes_per_block) as blocks:
        names, hits = _serve(engine, _prompts(engine, requests))
        held = {
            key: _states(engine, key[0], slots[0])
            for key, slots in engine.published().items()
            if bytes(key[1]) in names and _layers(engine, key[0])
        }
    preempted = engine.preemptions() - before
    prefixes = sorted({names[bytes(name)] for _, name in held}, key=len, reverse=True)
    chosen = prefixes[:: max(len(prefixes) // most, 1)][:most]
    distances, decoded = _compare(engine, left, names, held, chosen)
    wrong = _wrong(held, names)
    return dict(
        blocks=blocks, preemptions=preempted, hits=hits, prefixes=len(prefixes), checked=len(chosen),
        of_decoded_tokens=decoded, states=len(distances), worst=max(distances, default=None), of_other_prefixes=wrong,
        ok=bool(distances) and max(distances) < NEAR < wrong and preempted > 0 and decoded > 0, block_size=B,
    )  # fmt: skip


def _prompts(engine: Any, requests: int) -> list[list[int]]:
    """Prefixes of two texts, cut anywhere, and ends that lie a few tokens before a block is full."""
    B = engine.block_size
    bases = [text(engine.vocabulary, 300 + i, 3 * B) for i in range(2)]
    made = []
    for i in range(requests):
        shared, length = 2 * B // 5 + i % 5 * B // 2, B * (1 + i % 3) - 5 - i % 4
        shared = min(shared, length - 1)
        made.append(bases[i % 2][:shared] + text(engine.vocabulary, 310 + i, length - shared))
    return made


def _serve(engine: Any, prompts: list[list[int]]) -> tuple[dict[bytes, tuple[int, ...]], int]:
    """Serve them together; the tokens that each block hash names, and the tokens that hit."""
    core, B, names, hits = engine.llm.llm_engine, engine.block_size, {}, 0
    for i, prompt in enumerate(prompts):
        core.add_request(f"load{i}", {"prompt_token_ids": prompt}, sampling(24))
    while core.has_unfinished_requests():
        for request in engine.scheduler.requests.values():
            for i, name in enumerate(request.block_hashes):
                names.setdefault(bytes(name), tuple(request.all_token_ids[: (i + 1) * B]))
        hits += sum(output.num_cached_tokens or 0 for output in core.step() if output.finished)
    return names, hits


def _layers(engine: Any, group: int) -> list[Any]:
    """The GDN layers of a KV cache group."""
    layers = {layer.prefix: layer for layer in engine.gdn_layers}
    names = engine.scheduler.kv_cache_config.kv_cache_groups[group].layer_names
    return [layers[name] for name in names if name in layers]


def _states(engine: Any, group: int, slot: int) -> torch.Tensor:
    return torch.stack([layer.kv_cache[1][slot].float() for layer in _layers(engine, group)])


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two groups' states: the largest over layers, relative to the second."""
    return ((one - other).flatten(1).norm(dim=1) / other.flatten(1).norm(dim=1)).max().item()


def _compare(engine, left, names, held, chosen) -> tuple[list[float], int]:
    """Distances of every held state of the chosen prefixes from a cold run's, and how many prefixes hold decoded tokens."""
    distances, decoded = [], 0
    prompts = {tuple(p[: len(t)]) for p in _prompts(engine, 64) for t in chosen}
    for tokens in chosen:
        if left() < 0:
            break
        engine.forget()
        engine.llm.generate([{"prompt_token_ids": [*tokens, 5]}], sampling(1), use_tqdm=False)
        for key, slots in engine.published().items():
            if key in held and names[bytes(key[1])] == tokens:
                distances.append(_distance(held[key], _states(engine, key[0], slots[0])))
        decoded += tokens not in prompts
    return distances, decoded


def _wrong(held, names) -> float:
    """How far states of different prefixes are apart, at the least: what a wrong state would show."""
    by_group: dict[int, list[torch.Tensor]] = {}
    for (group, _), states in held.items():
        by_group.setdefault(group, []).append(states)
    return min(
        (_distance(a, b) for states in by_group.values() for a, b in itertools.pairwise(states)), default=0.0
    )
