"""Seeded Qwen3.5-shaped dense models for measurements: a folder with a config, and weights made where the engine is.

A random model is right for timing, and for comparing a cache with itself. Weights are drawn on the engine's device while
it starts (``register``), so nothing large is written, carried or read, and every engine of a run has the same.
Imports torch; vLLM inside functions. ``run.py`` says how to exercise it.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch

COMMON = dict(
    linear_conv_kernel_dim=4,
    tie_word_embeddings=False,
    max_position_embeddings=65536,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
HEADS = dict(
    linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128
)
PATTERN = ["linear_attention"] * 3 + ["full_attention"]

MODELS = {
    # A quarter of a 9B model: its head shapes, widths and layer pattern, eight layers, a small vocabulary.
    "large": COMMON
    | HEADS
    | dict(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        layer_types=PATTERN * 2,
    ),
    # The same GDN heads in a narrow model with many key-value heads, so that a block is short: 192 tokens.
    "check": COMMON
    | HEADS
    | dict(
        vocab_size=256,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        layer_types=PATTERN,
    ),
    # For rehearsals on a CPU.
    "tiny": COMMON
    | dict(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        layer_types=PATTERN,
    ),
}


def write(folder: Path, name: str) -> Path:
    """Write the config of a model of ``MODELS``; returns its folder, to be served with ``load_format="seeded"``."""
    if name not in MODELS:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    config = (
        dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], dtype="bfloat16") | MODELS[name]
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def register() -> None:
    """Teach vLLM ``load_format="seeded"``: no files, weights by ``fill``."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader("seeded")
    class SeededLoader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            """There is nothing to download."""

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            fill(model)


@torch.no_grad()
def fill(model: torch.nn.Module, seed: int = 1) -> None:
    """Overwrite every weight in place: gates near 1, so that old tokens matter, and activations of order 1."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator(parameter.device).manual_seed(seed + zlib.crc32(name.encode()))
        for piece in parameter.data.split(4096):  # no fp32 copy of a whole matrix
            piece.copy_(_weight(name, piece, parameter.shape[-1], generator))


def _weight(name: str, like: torch.Tensor, fan_in: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(like.shape, generator=generator, device=like.device)
    if name.endswith("A_log"):
        return torch.log(torch.rand(like.shape, generator=generator, device=like.device) * 0.3 + 0.01)
    if name.endswith("dt_bias"):
        return noise * 0.5 - 2
    if "conv1d" in name:
        return noise * 0.5
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.1 * noise
    if "norm" in name:  # vLLM adds 1 to these
        return 0.1 * noise
    if "embed_tokens" in name:
        return noise
    return noise * 1.5 / fan_in**0.5
