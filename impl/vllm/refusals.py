"""What the plugin refuses at start, each with what to do instead: better no server than a wrong one.

Takes a ``VllmConfig`` (duck-typed; this module imports vLLM only to ask for the platform). Exercise it with
``pytest -m vllm tests/vllm/test_refusals.py``.
"""

from __future__ import annotations

from typing import Any

MAX_K = 128
"""Widest head of q and k that the Triton kernels take (``impl/triton_path.py``)."""


def refuse(vllm_config: Any) -> None:
    """Raise ``ValueError`` for the first thing that the plugin does not support."""
    for reason in reasons(vllm_config):
        raise ValueError(f"gdn-apc (mamba_cache_mode='all'): {reason}")


def reasons(vllm_config: Any) -> list[str]:
    """Everything in this configuration that the plugin does not support, in words."""
    return [*_features(vllm_config), *_parallelism(vllm_config.parallel_config), *_model(vllm_config)]


def _features(vllm_config: Any) -> list[str]:
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    found = []
    if vllm_config.speculative_config is not None:
        found.append(
            "speculative_config is set, and a rejected token cannot be taken out of a stored state; "
            "remove it, or use mamba_cache_mode='align'"
        )
    if vllm_config.kv_transfer_config is not None:
        found.append(
            "kv_transfer_config is set, and connectors do not know states at every block; remove it, or use 'align'"
        )
    if cache.kv_offloading_size is not None:
        found.append(
            f"kv_offloading_size={cache.kv_offloading_size}, and offloading does not know states at every block; "
            "remove it, or use 'align'"
        )
    if scheduler.policy == "priority" and scheduler.scheduler_cls is not None:
        found.append(
            "scheduling policy 'priority' leaves blocks published with states that were never written (vLLM issue "
            f"#57580), which the plugin's own scheduler mends, but scheduler_cls={scheduler.scheduler_cls!r} is set; "
            "remove one of the two"
        )
    if cache.prefix_match_unit is not None:
        found.append(
            f"prefix_match_unit={cache.prefix_match_unit}, but states exist at block boundaries only; remove it"
        )
    if cache.kv_sharing_fast_prefill:
        found.append("kv_sharing_fast_prefill rewrites the batch between layers; remove it")
    if vllm_config.model_config.runner_type != "generate":
        found.append(
            f"runner {vllm_config.model_config.runner_type!r} was never tried with it; use mamba_cache_mode='align'"
        )
    if vllm_config.lora_config is not None:
        found.append("LoRA was never tried with it; remove enable_lora, or use 'align'")
    if vllm_config.mamba_config.enable_stochastic_rounding:
        found.append("stochastic rounding of states makes a hit differ from a miss; remove it")
    return found


def _parallelism(parallel: Any) -> list[str]:
    found = [
        f"{name}={getattr(parallel, name)}, and states are not split over context ranks; set it to 1"
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size")
        if getattr(parallel, name) > 1
    ]
    if parallel.pipeline_parallel_size > 1:
        found.append(
            f"pipeline_parallel_size={parallel.pipeline_parallel_size} was never tried with it; use tensor parallelism"
        )
    if parallel.use_ubatching:
        found.append("dual batch overlap (micro-batches) was never tried with it; remove enable_dbo")
    return found


def _model(vllm_config: Any) -> list[str]:
    from vllm.platforms import current_platform

    found = []
    config, cache = vllm_config.model_config.hf_text_config, vllm_config.cache_config
    if not (current_platform.is_cuda() or current_platform.is_cpu()):
        found.append(
            f"platform {current_platform.device_name!r}: the kernels were tried on CUDA and on CPUs only"
        )
    if current_platform.is_cuda() and config.linear_key_head_dim > MAX_K:
        found.append(f"linear_key_head_dim={config.linear_key_head_dim}, the kernels take at most {MAX_K}")
    multimodal = vllm_config.model_config.multimodal_config
    taken = [m for m in ("image", "video") if multimodal and multimodal.get_limit_per_prompt(m)]
    if taken:
        found.append(
            f"{' and '.join(taken)} inputs were never tried with it; pass --language-model-only to serve text alone"
        )
    if config.hidden_act not in ("silu", "swish"):
        found.append(f"hidden_act={config.hidden_act!r}: the convolution's activation must be 'silu'")
    model_dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
    if cache.mamba_cache_dtype not in ("auto", model_dtype, "float32"):
        found.append(
            f"mamba_cache_dtype={cache.mamba_cache_dtype!r} cannot hold the convolution's {model_dtype} inputs "
            "exactly; use 'auto', and mamba_ssm_cache_dtype for the states"
        )
    return found
