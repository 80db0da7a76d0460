"""What is measured: the engines, the jobs of each part in the order they run, and their sizes on a GPU and in a rehearsal.

Imports ``models`` (torch) only. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import models

ENGINES = ["align", "all", "off", "align-v2", "check", "invariant"]
"""Stock ``align``, the plugin, no cache (all on Model Runner V1), ``align`` on V2; the plugin audited, and the plugin
with ``VLLM_BATCH_INVARIANT=1``, under which a hit must change no bit however the steps are cut."""

AUDITED = ("check", "invariant")
"""Engines of the small model, for checks alone."""

PARTS = ["check", "siblings", "repeat", "prefill", "decode", "agreement", "workload", "steps"]
"""``steps`` comes last: a profiler may leave a process slower than it was."""

ON_ONE_CORE = ("decode", "steps")
"""Parts whose jobs are timed on one core, the same for all engines of a comparison."""


@dataclass(frozen=True)
class Job:
    """One thing to measure in one engine, and the seconds it may take."""

    part: str
    engine: str
    name: str
    seconds: float
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def again(self) -> bool:
        """Whether it repeats, with another seed, what was measured before."""
        return self.arguments.get("seed", 0) > (2 if self.part == "prefill" else 0)


@dataclass(frozen=True)
class Scale:
    """Sizes. Memory in bytes, lengths in tokens."""

    model: str
    check_model: str
    options: dict[str, Any]
    check_options: dict[str, Any]
    invariant: dict[str, str]  # environment
    warm: dict[str, Any]
    sibling_length: int
    shared: list[int]
    own: int
    repeat: dict[str, int]
    prefill: dict[str, int]
    decode: dict[str, Any]
    agreement: dict[str, int]
    load: dict[str, int]
    workload: str
    small_bytes: int
    rounds: int
    environment: dict[str, str]
    decode_rounds: int = 2
    step_count: int = 20
    steps_seconds: float = 25  # kept free for that part
    first_seconds: float = 300  # for the engine that finds nothing compiled: stock vLLM tunes for minutes
    start_seconds: float = 150


ENVIRONMENT = {
    "GDN_APC_PLUGIN": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
GRAPHS = dict(
    enforce_eager=False,
    block_size=None,
    load_format="seeded",
    additional_config={"gdn_prefill_backend": "triton"},
)


def _graphs(*sizes: int) -> dict[str, Any]:
    """CUDA graphs of decodes of these batch sizes, without torch.compile."""
    return {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(sizes)}


SCALES = {
    "gpu": Scale(
        model="large",
        check_model="check",
        options=GRAPHS
        | dict(
            max_model_len=32768,
            max_num_batched_tokens=8192,
            max_num_seqs=128,
            gpu_memory_utilization=0.2,  # what must be free when an engine starts; there are six
            kv_cache_memory_bytes=16 << 30,
            compilation_config=_graphs(1, 4, 32, 128),
        ),
        check_options=GRAPHS
        | dict(
            max_model_len=2048,
            max_num_batched_tokens=768,
            max_num_seqs=8,
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=2 << 30,
            async_scheduling=False,
            compilation_config=_graphs(1, 2, 4, 8),
        ),
        invariant={"VLLM_BATCH_INVARIANT": "1"},
        warm=dict(lengths=[9000, 31000, 700], rows=[1, 3, 32, 128]),
        sibling_length=15000,
        shared=[14000, 9000, 5000, 3000, 1500, 600],
        own=50,
        repeat=dict(length=31680, rounds=3, generate=10),
        prefill=dict(count=8, length=8000),
        decode=dict(rows=[1, 32, 128], context=500, steps=100),
        agreement=dict(length=5000, generate=16),
        load=dict(requests=15, most=12),
        workload="large",
        small_bytes=1 << 30,
        rounds=5,
        decode_rounds=6,
        environment={"OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "INFO"},
    ),
    "tiny": Scale(
        model="tiny",
        check_model="tiny",
        options=dict(
            block_size=64, load_format="seeded", max_model_len=1024, max_num_batched_tokens=512,
            kv_cache_memory_bytes=64 << 20,
        ),
        check_options=dict(
            block_size=64, load_format="seeded", max_model_len=1024, max_num_batched_tokens=256,
            kv_cache_memory_bytes=64 << 20,
        ),
        invariant={},
        warm=dict(lengths=[600], rows=[1, 3]),
        sibling_length=700,
        shared=[600, 400, 200, 100, 60],
        own=10,
        repeat=dict(length=900, rounds=3, generate=3),
        prefill=dict(count=2, length=300),
        decode=dict(rows=[1, 4], context=30, steps=6),
        agreement=dict(length=300, generate=4),
        load=dict(requests=9, most=8),
        workload="tiny",
        small_bytes=7 << 20,
        rounds=2,
        step_count=5,
        environment={"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    ),
}  # fmt: skip
SCALES["gpu-short"] = replace(
    SCALES["gpu"],
    options=SCALES["gpu"].options | dict(kernel_config={"enable_jit_warmup": False}),
)
"""The same sizes where every second counts: vLLM compiles what the jobs need when they need it, and that alone."""


def engine(name: str, scale: Scale, out: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What ``process.py`` is told, and its environment."""
    check = name in AUDITED
    shape = scale.check_model if check else scale.model
    options = dict(scale.check_options if check else scale.options)
    environment = ENVIRONMENT | scale.environment
    if name == "invariant":
        environment |= scale.invariant
        options |= dict(enforce_eager=True, compilation_config={})
    if name in ("all", *AUDITED):
        environment["GDN_APC_PLUGIN"] = "1"
    elif name == "off":
        options |= dict(enable_prefix_caching=False, mamba_cache_mode="none")
    else:
        options |= dict(mamba_cache_mode="align")
    if name == "align-v2":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    folder = models.write(out / f"model_{shape}", shape)
    return dict(model=str(folder), shape=shape, options=options, check=check), environment


def jobs(scale: Scale) -> list[Job]:
    """Everything, in order: what matters most first, then repetitions, the profiler last; engines in turns."""
    return sorted(_all(scale), key=lambda job: (job.part == "steps", job.again))


def _all(scale: Scale) -> Iterator[Job]:
    for eager in (True, False):
        yield Job("check", "check", "check", 60, dict(step="life", eager=eager))
        yield Job("check", "check", "check", 15, dict(step="warm_equals_cold", eager=eager))
    for step in ("replayed_cold", "corrupted"):
        yield Job("check", "check", "check", 20, dict(step=step, eager=True))
    yield Job("check", "check", "check", 25, dict(step="chunked", eager=True))
    yield Job("check", "check", "check", 30, dict(step="pressure", eager=False))
    yield Job("check", "check", "check", 15, dict(step="padding", eager=False))
    yield Job("check", "invariant", "check", 15, dict(step="any_cut", eager=True))
    yield Job("check", "all", "syncs", 20)
    yield Job("check", "all", "states_under_load", 30, scale.load)
    for seed in range(min(3, scale.rounds)):
        for name in ("all", "align", "off"):
            arguments = dict(length=scale.sibling_length, shared=scale.shared, own=scale.own, seed=seed)
            yield Job("siblings", name, "siblings", 20, arguments)
    for eager in (False, True):
        for name in ("all", "off", "align"):
            yield Job("repeat", name, "repeat", 20, scale.repeat | dict(eager=eager))
    stock = ("all", "align", "off", "align-v2")
    for seed in range(scale.rounds):
        for name in stock if seed % 2 == 0 else reversed(stock):
            yield Job("prefill", name, "prefill", 15, scale.prefill | dict(seed=seed))
    for rows in scale.decode["rows"]:
        for seed in range(scale.decode_rounds):
            for name in stock if seed % 2 == 0 else reversed(stock):
                yield Job("decode", name, "decode", 15, scale.decode | dict(rows=rows, seed=seed))
    for name in ("all", "align", "off"):
        yield Job("agreement", name, "agreement", 15, scale.agreement)
    for free in (None, scale.small_bytes):
        for seed in (0, 1):
            for name in ("all", "align", "off"):
                arguments = dict(shape=scale.workload, seed=seed, concurrency=4, free_bytes=free)
                yield Job("workload", name, "workload", 25, arguments)
    for rows in scale.decode["rows"]:
        for name in stock:
            arguments = dict(rows=rows, context=scale.decode["context"], count=scale.step_count)
            yield Job("steps", name, "steps", 10, arguments)
