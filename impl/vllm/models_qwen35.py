"""Qwen3.5, dense and MoE, text and multimodal wrapper, with ``mamba_cache_mode="all"``. Imports vLLM.

The wrappers (``ForConditionalGeneration``) are what published checkpoints name. They build the text model's class
directly, not through the registry, so each is wrapped here itself (vllm/model_executor/models/qwen3_5.py).
Exercise it with ``pytest -m vllm tests/vllm``.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models import qwen3_5
from vllm.model_executor.models.interfaces import SupportsMambaPrefixCaching

from gdn_apc.impl.vllm.touchpoints import hidden_all


class Qwen3_5All(qwen3_5.Qwen3_5ForCausalLM, SupportsMambaPrefixCaching):
    """Dense, text only."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with hidden_all(vllm_config.cache_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class Qwen3_5MoeAll(qwen3_5.Qwen3_5MoeForCausalLM, SupportsMambaPrefixCaching):
    """Mixture of experts, text only."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with hidden_all(vllm_config.cache_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class Qwen3_5WrapperAll(qwen3_5.Qwen3_5ForConditionalGeneration, SupportsMambaPrefixCaching):
    """Dense, as published."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        with hidden_all(vllm_config.cache_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class Qwen3_5MoeWrapperAll(qwen3_5.Qwen3_5MoeForConditionalGeneration, SupportsMambaPrefixCaching):
    """Mixture of experts, as published."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        with hidden_all(vllm_config.cache_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
