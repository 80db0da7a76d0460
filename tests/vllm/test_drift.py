"""What the plugin leans on in vLLM without a public hook is still there, with the same parameters."""

from __future__ import annotations

import inspect

import pytest


def test_nothing_has_drifted(vllm):
    """Every signature and field of ``touchpoints.py`` is as the plugin was written for."""
    from gdn_apc.impl.vllm import touchpoints

    assert touchpoints.drift() == []


def test_drift_is_noticed(vllm, monkeypatch):
    """The check can fail: another parameter, a missing method, a missing field."""
    from gdn_apc.impl.vllm import touchpoints

    path = "vllm.config:ModelConfig.get_mamba_chunk_size"
    monkeypatch.setitem(touchpoints.SIGNATURES, path, "self, model")
    monkeypatch.setitem(touchpoints.SIGNATURES, "vllm.config:ModelConfig.gone", "self")
    monkeypatch.setitem(touchpoints.FIELDS, "vllm.config:CacheConfig", ("gone",))
    found = touchpoints.drift()
    assert found[0] == f"{path}: parameters are (self), expected (self, model)"
    assert found[1].startswith("vllm.config:ModelConfig.gone: missing (")
    assert found[2] == "vllm.config:CacheConfig: no field 'gone'"


def test_constructors_still_raise_before_anything_else(vllm):
    """``hidden_all`` is needed, and hides only that: nothing else in the model modules asks for the mode."""
    from vllm.model_executor.models import qwen3_5, qwen3_next

    for module, count in ((qwen3_next, 1), (qwen3_5, 1)):
        assert inspect.getsource(module).count("mamba_cache_mode") == count


def test_operators_still_call_the_layer(vllm):
    """The operators look the layer up and call the methods that the plugin overrides."""
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as module

    source = inspect.getsource(module)
    assert "self._forward_core(\n            mixed_qkv=qkv_or_qkvz," in source
    body = inspect.getsource(module.QwenGatedDeltaNetAttention._forward_core_fused_norm)
    assert "self._forward_core(" in body and "_can_use_fused_gdn_mtp_decode" in body
    spec = inspect.getsource(module.QwenGatedDeltaNetAttention._can_use_fused_gdn_mtp_decode)
    assert "attn_metadata.spec_sequence_masks is not None" in spec


def test_forward_cuda_has_nothing_of_cuda(vllm):
    """It is what runs on a CPU: projections, ``qwen_gdn_attention_core``, norm, and nothing that needs a GPU."""
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

    source = inspect.getsource(QwenGatedDeltaNetAttention.forward_cuda)
    assert "torch.ops.vllm.qwen_gdn_attention_core(" in source and "torch.cuda" not in source


@pytest.mark.parametrize("method", ["find_longest_cache_hit", "get_num_blocks_to_allocate"])
def test_the_manager_still_serves_all(vllm, method):
    """vLLM's own manager allocates, publishes and finds a state a block; the plugin adds nothing to it."""
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    source = inspect.getsource(MambaManager)
    assert callable(getattr(MambaManager, method)) and 'if self.mamba_cache_mode != "align":' in source
