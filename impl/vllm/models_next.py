"""Qwen3-Next with ``mamba_cache_mode="all"`` (vllm/model_executor/models/qwen3_next.py). Imports vLLM.

Exercise it with ``pytest -m vllm tests/vllm``.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMambaPrefixCaching
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

from gdn_apc.impl.vllm.touchpoints import hidden_all


class Qwen3NextAll(Qwen3NextForCausalLM, SupportsMambaPrefixCaching):
    """The same model; the flag lets vLLM keep ``all``, the constructor is not shown it."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with hidden_all(vllm_config.cache_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
