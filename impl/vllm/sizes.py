"""What a cached state costs: block size, bytes of a state, and how many fit, from a model's config.json alone.

vLLM pads a state's page to the page of its attention layers, and hands out block ids that are good for one page in
each layer of a group; groups have as many layers as the model has attention layers. So the block size B is the
least multiple of the block rule whose attention page holds a state, and a boundary costs one block id in each GDN
group (vllm/platforms/interface.py, ``_align_hybrid_block_size``; vllm/v1/core/kv_cache_utils.py).

    python -m gdn_apc.impl.vllm.sizes MODEL_FOLDER --memory 40 --tp 2 --state-dtype float32

Imports the standard library only. Exercise it with ``pytest tests/vllm/test_sizes.py``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdn_apc.impl.vllm.settings import CHUNK_SIZE

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Sizes:
    """Of one tensor-parallel rank. A *boundary* is a position whose states are kept, in all GDN layers."""

    block_size: int
    state_bytes: int  # window and state of one layer
    page_bytes: int  # what vLLM allocates for it
    gdn_layers: int
    attention_layers: int

    @property
    def groups(self) -> int:
        """KV cache groups of GDN layers; there is one more, of attention layers."""
        return math.ceil(self.gdn_layers / self.attention_layers)

    @property
    def bytes_per_block(self) -> int:
        """Bytes behind one block id: a page in each layer of a group."""
        return self.page_bytes * self.attention_layers

    def boundaries(self, memory: int) -> int:
        """How many blocks of B tokens fit into ``memory`` bytes, each with its states and its attention keys."""
        return memory // self.bytes_per_block // (self.groups + 1)

    def report(self, memory: int | None = None) -> list[str]:
        """Lines for a person."""
        waste = 1 - self.state_bytes / self.page_bytes
        lines = [
            f"block size: {self.block_size} tokens; a state is kept at each multiple of it",
            f"a state: {self.state_bytes:,} bytes a layer, in a page of {self.page_bytes:,} ({waste:.1%} padding)",
            f"a boundary: {self.groups * self.bytes_per_block:,} bytes in {self.gdn_layers} GDN layers, "
            f"and {self.bytes_per_block:,} in {self.attention_layers} attention layers",
        ]
        if memory is not None:
            fit = self.boundaries(memory)
            lines.append(
                f"{memory / 2**30:.1f} GiB of cache: {fit:,} boundaries, {fit * self.block_size:,} tokens of prefixes"
            )
        return lines


def sizes(
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    state_dtype: str | None = None,
    model_dtype: str = "bfloat16",
    kernel_block: int = 16,
    block_rule: int = CHUNK_SIZE,
) -> Sizes:
    """Sizes of a model, given its config.json (the text part, or the whole with a ``text_config``).

    Args:
        tp: tensor-parallel ranks.
        state_dtype: ``mamba_ssm_cache_dtype``; None takes the config's ``mamba_ssm_dtype``, else the model's dtype.
        kernel_block: ``block_size``, or the attention backend's smallest (16 on CUDA).
        block_rule: ``mamba_block_size`` if given, else 64.

    Raises:
        ValueError: not a GDN hybrid, or heads that tp does not divide.
    """
    config = config.get("text_config", config)
    kinds = _layer_types(config)
    gdn, attention = kinds.count("linear_attention"), kinds.count("full_attention")
    if not gdn or not attention:
        raise ValueError(
            f"config: {gdn} linear_attention and {attention} full_attention layers, expected both; is this a GDN hybrid?"
        )
    H, HV = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if H % tp or HV % tp:
        raise ValueError(f"tp: {tp} does not divide {H} key and {HV} value heads")
    K, V = config["linear_key_head_dim"], config["linear_value_head_dim"]
    dtype = state_dtype or config.get("mamba_ssm_dtype") or model_dtype
    window = (config["linear_conv_kernel_dim"] - 1) * (2 * H * K + HV * V) // tp * BYTES[model_dtype]
    state = window + HV * V * K // tp * BYTES[dtype]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token = 2 * max(config["num_key_value_heads"] // tp, 1) * head_dim * BYTES[model_dtype]
    unit = math.lcm(block_rule, kernel_block)
    block = unit * math.ceil(math.ceil(state / token) / unit)
    return Sizes(block, state, block * token, gdn, attention)


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    if config.get("layer_types"):
        return list(config["layer_types"])
    every = config.get("full_attention_interval", 4)
    return [
        "full_attention" if (i + 1) % every == 0 else "linear_attention"
        for i in range(config["num_hidden_layers"])
    ]


def of_model(
    model: Path,
    memory: float | None = None,
    *,
    tp: int = 1,
    state_dtype: str | None = None,
    block_size: int = 16,
) -> list[str]:
    """The report of a model's folder or config.json; ``memory`` in GiB a rank.

    Raises ``ValueError`` as ``sizes``, and for a path without a config.json.
    """
    path = model / "config.json" if model.is_dir() else model
    if not path.is_file():
        raise ValueError(
            f"model: {str(model)!r} has no config.json; pass a model's folder, or its config.json"
        )
    config = json.loads(path.read_text())
    found = sizes(config, tp=tp, state_dtype=state_dtype, kernel_block=block_size)
    return found.report(None if memory is None else int(memory * 2**30))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gdn_apc.impl.vllm.sizes", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model", type=Path, help="a model's folder, or its config.json")
    parser.add_argument("--memory", type=float, help="GiB of KV cache on a rank")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks (1)")
    parser.add_argument("--state-dtype", choices=BYTES, help="mamba_ssm_cache_dtype (what the config says)")
    parser.add_argument("--block-size", type=int, default=16, help="vLLM's block_size (16)")
    given = parser.parse_args(arguments)
    options = dict(tp=given.tp, state_dtype=given.state_dtype, block_size=given.block_size)
    try:
        print("\n".join(of_model(given.model, given.memory, **options)))
    except ValueError as e:
        parser.error(str(e))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
