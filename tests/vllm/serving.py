"""A vLLM engine in this process, with what tests need to see: hits, probabilities, slots, the scheduler.

Imports vLLM inside functions only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

KINDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
WRAPPERS = ("qwen3_5_wrapper", "qwen3_5_moe_wrapper")
VOCABULARY = 256
DEFAULTS = dict(
    block_size=64,
    disable_log_stats=False,
    dtype="bfloat16",
    enable_prefix_caching=True,
    enforce_eager=True,
    kv_cache_memory_bytes=32 << 20,
    mamba_cache_mode="all",
    mamba_ssm_cache_dtype="float32",
    max_logprobs=VOCABULARY,
    max_model_len=1024,
    max_num_batched_tokens=512,
    max_num_seqs=8,
    seed=0,
)


def tokens(seed: int, count: int) -> list[int]:
    """``count`` random token ids, without the special ones."""
    draw = random.Random(seed)
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]


@dataclass(frozen=True)
class Answer:
    """What one request got."""

    tokens: list[int]
    logprobs: torch.Tensor  # [generated, vocabulary]
    hit: int  # tokens taken from the cache


class Engine:
    """One ``LLM`` with greedy sampling of whole distributions."""

    def __init__(self, model: Any, **options: Any) -> None:
        from vllm import LLM

        if "wrapper" in str(model):
            options = {"limit_mm_per_prompt": {"image": 0, "video": 0}} | options
        self.llm = LLM(model=str(model), skip_tokenizer_init=True, **(DEFAULTS | options))
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.config = self.llm.llm_engine.vllm_config
        self.block_size = self.config.cache_config.mamba_block_size

    def close(self) -> None:
        """Let go of the engine; its pages are small, and a collection with torch loaded takes seconds.

        vLLM takes its distributed groups down with it, which the process's other engines share: only at the end.
        """
        del self.llm, self.core, self.scheduler, self.runner

    def reset(self) -> None:
        """Forget every cached block."""
        assert self.llm.reset_prefix_cache(), "requests are still running"

    @property
    def gdn_layers(self) -> list[Any]:
        """The GDN layers, in the model's order."""
        context = self.config.compilation_config.static_forward_context
        return [layer for layer in context.values() if hasattr(layer, "gqa_interleaved_layout")]

    @property
    def pool(self) -> Any:
        """The scheduler's block pool."""
        return self.scheduler.kv_cache_manager.block_pool

    def preemptions(self) -> int:
        """How often a request was preempted since the engine started."""
        return sum(m.value for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")

    def sampling(self, generate: int) -> Any:
        """Greedy, whole distributions, never stopping early."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0, max_tokens=generate, logprobs=VOCABULARY, detokenize=False, ignore_eos=True
        )

    def generate(self, *prompts: list[int], generate: int = 4) -> list[Answer]:
        """Answers to prompts that arrive together."""
        done = self.llm.generate(
            [{"prompt_token_ids": p} for p in prompts], self.sampling(generate), use_tqdm=False
        )
        return [_answer(output) for output in done]

    def one(self, prompt: list[int], generate: int = 4) -> Answer:
        """The answer to one prompt."""
        return self.generate(prompt, generate=generate)[0]

    def published(self) -> dict[tuple[int, bytes], list[int]]:
        """(group, hash): slots of every published block."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        found = {}
        for key, blocks in self.pool.cached_block_hash_to_block._cache.items():
            blocks = blocks.values() if isinstance(blocks, dict) else [blocks]
            found[get_group_id(key), get_block_hash(key)] = [b.block_id for b in blocks]
        return found


def _answer(output: Any) -> Answer:
    made = output.outputs[0]
    rows = [[step[t].logprob for t in range(VOCABULARY)] for step in made.logprobs]
    return Answer(list(made.token_ids), torch.tensor(rows), output.num_cached_tokens)
