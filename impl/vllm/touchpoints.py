"""Every place where the plugin leans on something in vLLM 0.31 that is not a public hook, with the reason.

1. ``MODELS_CONFIG_MAP`` (vllm/model_executor/models/config.py): the one place that sees the whole configuration
   before the block size is computed. It has no registration function, so entries are replaced, each by a subclass
   of the entry that was there, which runs first. Here the plugin refuses, sets the retention, and the block rule.
2. ``hf_text_config.mamba_chunk_size`` (vllm/config/model.py, ``get_mamba_chunk_size``): GDN models have none, so
   ``all`` mode would round blocks up to lcm(2048, 16) tokens. vLLM reads it when it aligns the block size.
3. The constructors of Qwen3-Next and Qwen3.5 raise for ``all`` (qwen3_next.py, qwen3_5.py), before they build
   anything. ``hidden_all`` shows them ``align`` while they run; nothing in them keeps the mode.
4. ``QwenGatedDeltaNetAttention._forward_method`` (qwen_gdn_linear_attn.py): on a CPU it calls an operator that
   cannot be overridden; ``forward_cuda`` has nothing of CUDA in it but its name, and calls ``_forward_core``.
5. ``_forward_core``, ``_forward_core_fused_norm`` and ``_warmup_prefill_kernels`` (same file) are overridden by a
   subclass; the operators ``qwen_gdn_attention_core*`` call them. ``GDNAttentionMetadata`` is subclassed for their ``isinstance`` checks.
6. ``Scheduler._preempt_request`` (vllm/v1/core/sched/scheduler.py) is overridden by a subclass that ``scheduler_cls``
   names, for the ``priority`` policy alone; ``scheduler.py`` says why.
7. ``conv1d._cpu_unpacked_conv_weight`` (vllm/model_executor/layers/utils.py): on a CPU with AVX512-BF16 the weight
   itself is repacked for vLLM's own kernel.

``drift`` compares the signatures with those the plugin was written for; ``tests/vllm/test_drift.py`` runs it.
Imports vLLM inside functions only.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from gdn_apc.impl.vllm import settings
from gdn_apc.impl.vllm.refusals import refuse

_GDN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention"
SIGNATURES = {
    f"{_GDN}.__init__": "self, config, vllm_config, prefix, gqa_interleaved_layout, reduce_results",
    f"{_GDN}._forward_core": "self, mixed_qkv, b, a, core_attn_out",
    f"{_GDN}._forward_core_fused_norm": "self, mixed_qkv, b, a, output_gate, core_attn_out",
    f"{_GDN}._rms_norm_gated_cuda": "self, x, output_gate, out",
    f"{_GDN}._warmup_prefill_kernels": "self, qkv_or_qkvz, v_dim",
    f"{_GDN}.forward_cuda": "self, hidden_states",
    f"{_GDN}.get_attn_backend": "self",
    f"{_GDN}.bind_kv_cache": "self, kv_cache",
    f"{_GDN}.get_state_shape": "self",
    f"{_GDN}.get_state_dtype": "self",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.__init__": "self, kv_cache_spec, layer_names, vllm_config, device",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.build": "self, common_prefix_len, common_attn_metadata, fast_build",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.build_for_cudagraph_capture": "self, common_attn_metadata",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.update_block_table": "self, metadata, blk_table, slot_mapping",
    "vllm.config:MultiModalConfig.get_limit_per_prompt": "self, modality",
    "vllm.model_executor.models.config:VerifyAndUpdateConfig.verify_and_update_config": "vllm_config",
    "vllm.config:VllmConfig.try_verify_and_update_config": "self",
    "vllm.config:ModelConfig.get_mamba_chunk_size": "self",
    "vllm.model_executor.models.qwen3_next:Qwen3NextForCausalLM.__init__": "self, vllm_config, prefix",
    "vllm.model_executor.custom_op:PluggableLayer.register_oot": "_decorated_layer_cls, name",
    "vllm.v1.core.sched.scheduler:Scheduler._preempt_request": "self, request, timestamp, drop_stale_output",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.evict_blocks": "self, block_ids",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_block_ids": "self, request_id",
}
"""What is overridden, called or replaced, and the parameters it had in vLLM 0.31.0."""

FIELDS = {
    "vllm.v1.attention.backend:CommonAttentionMetadata": (
        "query_start_loc",
        "query_start_loc_cpu",
        "seq_lens",
        "num_reqs",
        "num_actual_tokens",
        "max_query_len",
        "block_table_tensor",
    ),
    "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadata": (
        "num_prefills",
        "num_prefill_tokens",
        "num_decodes",
        "num_decode_tokens",
        "num_spec_decodes",
        "num_spec_decode_tokens",
        "num_actual_tokens",
        "spec_sequence_masks",
    ),
    "vllm.config:CacheConfig": (
        "enable_prefix_caching",
        "kv_offloading_size",
        "mamba_block_size",
        "mamba_cache_mode",
        "prefix_cache_retention_interval",
        "prefix_match_unit",
        "user_specified_mamba_block_size",
    ),
}
"""Dataclasses and the fields of them that are read or set."""

_hidden: ContextVar[int | None] = ContextVar("gdn_apc_hidden", default=None)


def takes_over(cache_config: Any) -> bool:
    """Whether this engine's GDN layers are ours to run: prefix caching in ``all`` mode."""
    return cache_config.mamba_cache_mode == "all" or _hidden.get() == id(cache_config)


@contextlib.contextmanager
def hidden_all(cache_config: Any) -> Iterator[None]:
    """Show the model's constructor ``align`` in place of ``all``; ``takes_over`` still tells the truth."""
    if not takes_over(cache_config):
        yield
        return
    token = _hidden.set(id(cache_config))
    cache_config.mamba_cache_mode = "align"
    try:
        yield
    finally:
        cache_config.mamba_cache_mode = "all"
        _hidden.reset(token)


def install_config_hooks(architectures: Iterable[str]) -> None:
    """Put ``prepare`` behind whatever ``MODELS_CONFIG_MAP`` already does for these architectures."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

    for architecture in architectures:
        upstream = MODELS_CONFIG_MAP.get(architecture, VerifyAndUpdateConfig)
        MODELS_CONFIG_MAP[architecture] = _hook(upstream, defines=architecture in MODELS_CONFIG_MAP)


def _hook(upstream: type, defines: bool) -> type:
    def verify_and_update_config(vllm_config: Any) -> None:
        if defines:  # the base class only raises NotImplementedError
            upstream.verify_and_update_config(vllm_config)
        prepare(vllm_config)

    body = {"verify_and_update_config": staticmethod(verify_and_update_config), "upstream": upstream}
    return type(f"GdnApc{upstream.__name__}", (upstream,), body)


def prepare(vllm_config: Any) -> None:
    """Refuse what is not supported; set retention and block rule. Called before vLLM computes the block size.

    Raises:
        ValueError: a configuration that the plugin does not support, or a switch that it does not understand.
    """
    cache = vllm_config.cache_config
    if not cache.enable_prefix_caching or cache.mamba_cache_mode != "all":
        return
    refuse(vllm_config)
    chosen = settings.read(vllm_config.additional_config)
    if chosen.retention_is_set or cache.prefix_cache_retention_interval == 0:
        cache.prefix_cache_retention_interval = chosen.retention
    if vllm_config.scheduler_config.policy == "priority":
        vllm_config.scheduler_config.scheduler_cls = "gdn_apc.impl.vllm.scheduler.mended"
    text_config = vllm_config.model_config.hf_text_config
    if not cache.user_specified_mamba_block_size and getattr(text_config, "mamba_chunk_size", None) is None:
        text_config.mamba_chunk_size = settings.CHUNK_SIZE


def drift() -> list[str]:
    """How the installed vLLM differs from what the plugin leans on; empty if it does not."""
    found = []
    for path, expected in SIGNATURES.items():
        try:
            have = ", ".join(inspect.signature(_resolve(path)).parameters)
        except (ImportError, AttributeError) as e:
            found.append(f"{path}: missing ({e})")
            continue
        if have != expected:
            found.append(f"{path}: parameters are ({have}), expected ({expected})")
    for path, names in FIELDS.items():
        fields = _resolve(path).__dataclass_fields__
        found += [f"{path}: no field {name!r}" for name in names if name not in fields]
    return found


def _resolve(path: str) -> Any:
    module, _, rest = path.partition(":")
    thing = importlib.import_module(module)
    for name in rest.split("."):
        thing = getattr(thing, name)
    return thing
