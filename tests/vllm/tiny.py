"""Seeded tiny checkpoints with real safetensors: Qwen3-Next and Qwen3.5, the hybrid layout of the big ones in miniature.

Three GDN layers and one attention layer; gates near 1, so that old tokens still matter at the end of a prompt; 2 of 2
experts, so that rounding cannot flip a route; HV = 2 H and K ≠ V, so that no head or transpose error can cancel.
Imports transformers inside functions. ``python tests/vllm/tiny.py DIR [qwen3_next|qwen3_5|qwen3_5_moe]`` writes one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

SIZES = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=4096,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
EXPERTS = dict(
    num_experts=2, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64
)

# What published checkpoints are: a vision tower around the text model. The tower is there, and never runs.
WRAPPER = dict(image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253)
VISION = dict(
    depth=1,
    hidden_size=32,
    intermediate_size=32,
    num_heads=2,
    out_hidden_size=64,
    patch_size=16,
    spatial_merge_size=2,
    temporal_patch_size=2,
    num_position_embeddings=16,
)
ROPE = dict(
    rope_type="default",
    rope_theta=10000.0,
    mrope_section=[6, 5, 5],
    mrope_interleaved=True,
    partial_rotary_factor=0.25,
)


def build(kind: str) -> torch.nn.Module:
    """The model with its weights, bf16. ``-square`` after the kind makes V = K, which vLLM's CPU kernels need."""
    import transformers

    kind, _, square = kind.partition("-")
    common = SIZES | ({"linear_value_head_dim": 64} if square else {})
    if kind == "qwen3_next":  # vLLM wants at least one MoE layer
        config = transformers.Qwen3NextConfig(
            **common, **EXPERTS, mlp_only_layers=[0, 1, 2], decoder_sparse_step=1
        )
        model = transformers.Qwen3NextForCausalLM(config)
    elif kind == "qwen3_5":
        model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**common))
    elif kind == "qwen3_5_moe":
        model = transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**common, **EXPERTS))
    elif kind in ("qwen3_5_wrapper", "qwen3_5_moe_wrapper"):
        moe = "Moe" if "moe" in kind else ""
        config = getattr(transformers, f"Qwen3_5{moe}Config")(
            text_config=common | (EXPERTS if moe else {}) | {"rope_parameters": ROPE},
            vision_config=VISION,
            tie_word_embeddings=False,
            **WRAPPER,
        )
        model = getattr(transformers, f"Qwen3_5{moe}ForConditionalGeneration")(config)
    else:
        raise ValueError(f"kind: got {kind!r}, expected qwen3_next, qwen3_5 or qwen3_5_moe[_wrapper]")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, parameter, generator))
    return model.to(torch.bfloat16)


def _weight(name: str, old: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(old.shape, generator=generator)
    if name.endswith("A_log"):
        return torch.log(torch.rand(old.shape, generator=generator) * 0.3 + 0.01)  # slow decay
    if name.endswith("dt_bias"):
        return noise * 0.5 - 2
    if "norm" in name:
        return old + 0.1 * noise
    if "conv1d" in name:
        return noise * 0.5
    if "embed_tokens" in name:
        return noise
    return noise * 1.5 / old.shape[-1] ** 0.5


def write(folder: Path, kind: str = "qwen3_next") -> Path:
    """Write the checkpoint; returns the folder."""
    build(kind).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), *sys.argv[2:]))
