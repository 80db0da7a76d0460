"""What is measured inside an engine's process, one function a job; each returns a dict that goes into the results.

``process.py`` calls them; every one looks at its deadline, and returns what it has when time is up (``"cut": True``).
Imports torch; vLLM inside functions. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from runs import placed
from workload import LARGE, TINY, Workload

Clock = Callable[[], float]  # seconds left

core: int | None = None
"""Where the serving thread runs while decodes are timed: ``run.py`` says, for each comparison anew; None: anywhere."""


def text(vocabulary: int, seed: int, length: int) -> list[int]:
    """``length`` random token ids, without the special ones."""
    draw = random.Random(seed)
    return [draw.randrange(3, vocabulary) for _ in range(length)]


def sampling(generate: int, logprobs: int | None = None) -> Any:
    """Greedy, never stopping early."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0, max_tokens=generate, detokenize=False, ignore_eos=True, logprobs=logprobs
    )


def wait(engine: Any) -> None:
    """Until the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ask(
    engine: Any, prompts: list[list[int]], generate: int, logprobs: int | None = None
) -> tuple[list, float]:
    """Outputs of prompts that arrive together, and the seconds that took."""
    wait(engine)
    start = time.perf_counter()
    done = engine.llm.generate(
        [{"prompt_token_ids": p} for p in prompts], sampling(generate, logprobs), use_tqdm=False
    )
    return done, time.perf_counter() - start


@contextlib.contextmanager
def eagerly(engine: Any, yes: bool = True) -> Iterator[None]:
    """Without CUDA graphs, in an engine that has them: vLLM's dispatcher then finds none."""
    if not yes:
        yield
        return
    dispatcher = engine.runner.cudagraph_dispatcher
    before = dispatcher.keys_initialized
    dispatcher.keys_initialized = False
    try:
        yield
    finally:
        dispatcher.keys_initialized = before


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """This thread on ``core``, the same for every engine of a comparison: a decode step is host time, and cores differ."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def info(engine: Any, left: Clock) -> dict:
    """What runs here."""
    cache, kv = engine.config.cache_config, engine.scheduler.kv_cache_config
    return dict(
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        runner=type(engine.runner).__module__,
        layer=type(engine.gdn_layers[0]).__name__ if engine.gdn_layers else None,
        mode=cache.mamba_cache_mode,
        prefix_caching=cache.enable_prefix_caching,
        block_size=cache.block_size,
        blocks=kv.num_blocks,
        bytes_per_block=engine.bytes_per_block,
        groups=len(kv.kv_cache_groups),
        scheduler=type(engine.scheduler).__name__,
        async_scheduling=engine.config.scheduler_config.async_scheduling,
        cudagraphs=str(engine.config.compilation_config.cudagraph_mode),
        state_dtype=str(cache.mamba_ssm_cache_dtype),
        gpu_bytes=torch.cuda.memory_allocated() if torch.cuda.is_available() else 0,
    )


def warm(engine: Any, left: Clock, lengths: list[int], rows: list[int]) -> dict:
    """Let every kernel be compiled and tuned that the other jobs use: these prefills, these decode batches."""
    seconds = []
    for i, length in enumerate(lengths):
        for _ in range(2):  # the second time what is cached hits
            _, took = ask(engine, [text(engine.vocabulary, 900 + i, length)], 2)
            seconds.append(took)
    for i, count in enumerate(rows):
        _, took = ask(engine, [text(engine.vocabulary, 950 + i * 1000 + j, 40) for j in range(count)], 4)
        seconds.append(took)
    engine.forget()
    return dict(seconds=[round(s, 4) for s in seconds])


def repeat(engine: Any, left: Clock, length: int, rounds: int, generate: int, eager: bool = False) -> dict:
    """Pull request #26807's scenario: one long prompt again and again; hits and seconds of each round."""
    engine.forget()
    prompt, hits, seconds = text(engine.vocabulary, 1, length), [], []
    with eagerly(engine, eager):
        for _ in range(rounds):
            if left() < 0:
                return dict(hits=hits, seconds=seconds, cut=True)
            [output], took = ask(engine, [prompt], generate)
            hits.append(output.num_cached_tokens)
            seconds.append(round(took, 4))
    return dict(hits=hits, seconds=seconds)


def siblings(engine: Any, left: Clock, length: int, shared: list[int], own: int, seed: int = 0) -> dict:
    """A cold prompt, then prompts that share its first tokens and go on by themselves: hits, time to first token."""
    engine.forget()
    base = text(engine.vocabulary, 2 + seed, length)
    _, cold = ask(engine, [base], 1)
    hits, seconds = [], []
    for i, count in enumerate(shared):
        if left() < 0:
            return dict(cold=cold, hits=hits, seconds=seconds, cut=True)
        branch = [base[count] ^ 1, *text(engine.vocabulary, 100 + i, own)]
        [output], took = ask(engine, [base[:count] + branch], 1)
        hits.append(output.num_cached_tokens)
        seconds.append(round(took, 4))
    [output], again = ask(engine, [base], 1)
    return dict(
        cold=round(cold, 4), shared=shared, hits=hits, seconds=seconds,
        repeated_hit=output.num_cached_tokens, repeated=round(again, 4),
    )  # fmt: skip


def prefill(engine: Any, left: Clock, count: int, length: int, seed: int) -> dict:
    """Prompts that share nothing, all at once, one token each: tokens a second."""
    engine.forget()
    prompts = [text(engine.vocabulary, 10_000 * seed + i, length) for i in range(count)]
    done, took = ask(engine, prompts, 1)
    assert all(not output.num_cached_tokens for output in done)
    return dict(seconds=took, tokens_per_second=count * length / took)


def decode(engine: Any, left: Clock, rows: int, context: int, steps: int, seed: int) -> dict:
    """``rows`` requests decoding together: milliseconds a step, over steps in which every request gets a token."""
    engine.forget()
    core, got = engine.llm.llm_engine, {}
    for i in range(rows):
        prompt = text(engine.vocabulary, 20_000 * seed + i, context)
        core.add_request(f"d{seed}/{i}", {"prompt_token_ids": prompt}, sampling(steps + 10))
    marks = []
    with on_one_core():
        while core.has_unfinished_requests():
            for output in core.step():
                got[output.request_id] = len(output.outputs[0].token_ids)
            if len(got) == rows and 3 <= min(got.values()) and max(got.values()) <= steps + 5:
                marks.append(time.perf_counter())
    each = [1e3 * (b - a) for a, b in itertools.pairwise(marks)]
    mean = 1e3 * (marks[-1] - marks[0]) / (len(marks) - 1)
    return dict(rows=rows, steps=len(each), mean_ms=mean, median_ms=statistics.median(each))


def agreement(engine: Any, left: Clock, length: int, generate: int) -> dict:
    """A prompt cold, again, and beside another prompt: how far apart the log probabilities of its answers are."""
    engine.forget()
    prompt, other = text(engine.vocabulary, 3, length), text(engine.vocabulary, 4, length // 3)
    [cold], _ = ask(engine, [prompt], generate, 1)
    [warm], _ = ask(engine, [prompt], generate, 1)
    engine.forget()
    (beside, _), _ = ask(engine, [prompt, other], generate, 1)
    return dict(
        hit=warm.num_cached_tokens,
        warm=_apart(cold, warm),
        beside=_apart(cold, beside),
        finite=all(map(_finite, (cold, warm, beside))),
    )


def _apart(one: Any, other: Any) -> dict:
    """Equal tokens before the first that differs, and the largest difference of log probabilities among them."""
    a, b = one.outputs[0], other.outputs[0]
    same, worst = 0, 0.0
    for x, y, p, q in zip(a.token_ids, b.token_ids, a.logprobs, b.logprobs):
        if x != y:
            break
        same, worst = same + 1, max(worst, abs(p[x].logprob - q[y].logprob))
    return dict(same_tokens=same, of=len(a.token_ids), worst_logprob=worst)


def _finite(output: Any) -> bool:
    made = output.outputs[0]
    return all(abs(p[t].logprob) < 1e4 for t, p in zip(made.token_ids, made.logprobs))


def workload(
    engine: Any, left: Clock, shape: str, seed: int, concurrency: int, free_bytes: int | None = None
) -> dict:
    """The structured workload, ``concurrency`` requests at a time: hit rate, time to first token, throughput.

    ``free_bytes`` makes the pool that small for it, by holding the other blocks.
    """
    engine.forget()
    work = Workload(LARGE if shape == "large" else TINY, engine.vocabulary, seed)
    with engine.holding(free_bytes) as blocks:
        run = Serving(engine, work, concurrency, left)
        run.all()
    prompt, ttft = sum(run.prompt_tokens), sorted(1e3 * t for t in run.first_token)
    return dict(
        requests=len(ttft), of=len(work), blocks=blocks,
        prompt_tokens=prompt, hit_tokens=sum(run.hits), hit_rate=sum(run.hits) / max(prompt, 1),
        mean_ttft_ms=statistics.fmean(ttft) if ttft else None,
        median_ttft_ms=statistics.median(ttft) if ttft else None,
        p90_ttft_ms=ttft[int(0.9 * len(ttft))] if ttft else None,
        seconds=run.seconds, preemptions=run.preemptions, cut=run.cut,
    )  # fmt: skip


class Serving:
    """A closed loop over a workload: a conversation's next turn is asked after its last was answered."""

    def __init__(self, engine: Any, work: Workload, concurrency: int, left: Clock) -> None:
        self.core, self.engine, self.work, self.left = engine.llm.llm_engine, engine, work, left
        self.waiting, self.concurrency = list(work.turns), concurrency
        self.asked: dict[str, tuple[int, float]] = {}  # request: conversation, time of arrival
        self.seen: set[str] = set()
        self.first_token, self.hits, self.prompt_tokens = [], [], []
        self.cut = False

    def all(self) -> None:
        """Serve everything, or what can be served in time."""
        before, start, i = self.engine.preemptions(), time.perf_counter(), 0
        while self.asked or (self.waiting and not self.cut):
            self.cut = self.cut or self.left() < 0
            while len(self.asked) < self.concurrency and not self.cut and (turn := self._next()) is not None:
                name = f"w{id(self)}/{i}"
                i += 1
                prompt = self.work.conversations[turn].ask()
                self.asked[name] = (turn, time.perf_counter())
                self.prompt_tokens.append(len(prompt))
                self.core.add_request(name, {"prompt_token_ids": prompt}, sampling(self.work.answer))
            for output in self.core.step():
                self._answer(output)
            if self.cut:
                self.core.abort_request(list(self.asked))
                self.asked.clear()
        self.seconds = time.perf_counter() - start
        self.preemptions = self.engine.preemptions() - before

    def _next(self) -> int | None:
        busy = {turn for turn, _ in self.asked.values()}
        place = next((k for k, turn in enumerate(self.waiting) if turn not in busy), None)
        return None if place is None else self.waiting.pop(place)

    def _answer(self, output: Any) -> None:
        if output.request_id not in self.asked:
            return
        turn, arrived = self.asked[output.request_id]
        made = output.outputs[0].token_ids
        if made and output.request_id not in self.seen:
            self.seen.add(output.request_id)
            self.first_token.append(time.perf_counter() - arrived)
        if output.finished:
            self.hits.append(output.num_cached_tokens or 0)
            said = self.work.conversations[turn]
            said.said = said.said + list(made)
            del self.asked[output.request_id]


def syncs(engine: Any, left: Clock) -> dict:
    """Where the host waits for the device while it serves, and whether any of that is the plugin's: by torch's own check."""
    if not torch.cuda.is_available():
        return dict(skipped="needs a GPU")
    places: Counter[str] = Counter()

    def note(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if "synchronizing" in str(message):
            frames = [
                f"{Path(f.filename).name}:{f.lineno}"
                for f in traceback.extract_stack()
                if "gdn_apc" in f.filename or "/impl/" in f.filename
            ]
            places[f"{placed(filename)}:{lineno}" + "".join(f" via {f}" for f in frames)] += 1

    engine.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            torch.ones(1, device="cuda").item()  # the check can see
            seen = sum(places.values())
            prompts = [text(engine.vocabulary, 700 + i, 600 + i) for i in range(5)]
            engine.llm.generate([{"prompt_token_ids": p} for p in prompts], sampling(12), use_tqdm=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    ours = sum(count for place, count in places.items() if " via " in place)
    return dict(seen=seen, places=dict(places), ours=ours, ok=seen > 0 and not ours)


JOBS = dict(
    info=info, warm=warm, repeat=repeat, siblings=siblings, prefill=prefill, decode=decode, agreement=agreement,
    workload=workload, syncs=syncs,
)  # fmt: skip
