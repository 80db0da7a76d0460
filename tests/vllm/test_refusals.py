"""What is refused at start, and in which words."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def config(vllm, checkpoints):
    """A configuration that is not refused."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(checkpoints("qwen3_next")), skip_tokenizer_init=True, mamba_cache_mode="all", block_size=64
    ).create_engine_config()


CASES = [
    ("speculative_config", SimpleNamespace(num_speculative_tokens=2), "speculative_config is set, and a rejected token"),
    ("kv_transfer_config", SimpleNamespace(), "kv_transfer_config is set, and connectors do not know"),
    ("model_config.runner_type", "pooling", "runner 'pooling' was never tried with it"),
    ("lora_config", SimpleNamespace(), "LoRA was never tried with it"),
    ("cache_config.kv_offloading_size", 4.0, "kv_offloading_size=4.0, and offloading does not know"),
    ("cache_config.prefix_match_unit", 16, "prefix_match_unit=16, but states exist at block boundaries only"),
    ("cache_config.kv_sharing_fast_prefill", True, "kv_sharing_fast_prefill rewrites the batch"),
    ("cache_config.mamba_cache_dtype", "float16", "mamba_cache_dtype='float16' cannot hold the convolution's bfloat16"),
    ("mamba_config.enable_stochastic_rounding", True, "stochastic rounding of states"),
    ("parallel_config.decode_context_parallel_size", 2, "decode_context_parallel_size=2, and states are not split"),
    ("parallel_config.prefill_context_parallel_size", 2, "prefill_context_parallel_size=2, and states are not split"),
    ("parallel_config.pipeline_parallel_size", 2, "pipeline_parallel_size=2 was never tried"),
    ("model_config.hf_text_config.hidden_act", "gelu", "hidden_act='gelu': the convolution's activation must be"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "text"), CASES, ids=[path for path, _, _ in CASES])
def test_refused(config, path, value, text):
    """Each unsupported thing alone is one reason, raised with the plugin's name before it."""
    from gdn_apc.impl.vllm import refusals

    assert refusals.reasons(config) == []
    *parts, name = path.split(".")
    changed = copy.copy(config)
    owner = changed
    for part in parts:
        inner = copy.copy(getattr(owner, part))
        owner.__dict__[part] = inner
        owner = inner
    owner.__dict__[name] = value
    assert len(refusals.reasons(changed)) == 1
    with pytest.raises(ValueError, match=r"gdn-apc \(mamba_cache_mode='all'\): .*" + text):
        refusals.refuse(changed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            dict(limit_mm_per_prompt={}),
            "image and video inputs were never tried with it; pass --language-model-only",
        ),
        (dict(limit_mm_per_prompt={"image": 0}), r"\): video inputs were never tried with it"),
        (dict(limit_mm_per_prompt={}, language_model_only=True), None),
        (dict(limit_mm_per_prompt={"image": 0, "video": 0}), None),
    ],
    ids=["usual", "video", "text alone", "limits"],
)
def test_images(checkpoints, options, text):
    """Published checkpoints take images; with this they are served for text, and say so at start."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = dict(skip_tokenizer_init=True, mamba_cache_mode="all", block_size=64) | options
    arguments = EngineArgs(model=str(checkpoints("qwen3_5_wrapper")), **arguments)
    if text is None:
        assert arguments.create_engine_config().cache_config.mamba_cache_mode == "all"
    else:
        with pytest.raises(ValueError, match=text):
            arguments.create_engine_config()


def test_the_other_model_runner(checkpoints, monkeypatch):
    """Model Runner V2 does not know the mode in 0.31, and vLLM says so itself, even if VLLM_USE_V2_MODEL_RUNNER=1."""
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setattr("vllm.envs.VLLM_USE_V2_MODEL_RUNNER", True, raising=False)  # read once a process
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)  # it would refuse a CPU first
    arguments = dict(skip_tokenizer_init=True, mamba_cache_mode="all", block_size=64)
    with pytest.raises(ValueError, match="mamba cache mode 'all'"):
        EngineArgs(model=str(checkpoints("qwen3_next")), **arguments).create_engine_config()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            dict(scheduling_policy="priority", scheduler_cls="vllm.v1.core.sched.scheduler.Scheduler"),
            "scheduling policy 'priority' leaves .* #57580.* but scheduler_cls='vllm.v1.core.*' is set; remove one",
        ),
        (
            dict(speculative_config=dict(method="ngram", num_speculative_tokens=2, prompt_lookup_max=3)),
            "speculative_config is set",
        ),
        (dict(additional_config={"gdn_apc": {"retention": "some"}}), "got 'some', expected 'dense'"),
    ],
    ids=["priority", "speculation", "retention"],
)
def test_the_engine_does_not_start(checkpoints, options, text):
    """The refusal comes from vLLM's own start, before any weight is loaded."""
    import serving

    with pytest.raises(ValueError, match=text):
        serving.Engine(checkpoints("qwen3_next"), **options)


def test_align_is_not_refused(vllm, checkpoints):
    """In another mode the plugin has no say: priority is vLLM's own business."""
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=str(checkpoints("qwen3_next")), skip_tokenizer_init=True, scheduling_policy="priority"
    ).create_engine_config()
    assert config.cache_config.mamba_cache_mode == "align"
    assert config.cache_config.prefix_cache_retention_interval == 0
