"""The arithmetic of ``sizes.py``: published models, the command line, and what a real engine allocates."""

from __future__ import annotations

import json

import pytest

from gdn_apc.impl.vllm.sizes import main, sizes

QWEN3_NEXT = dict(  # 80B-A3B
    num_hidden_layers=48, full_attention_interval=4, num_key_value_heads=2, head_dim=256, linear_conv_kernel_dim=4,
    linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "tp", "block", "state"),
    [("float32", 1, 1088, 2146304), ("bfloat16", 1, 576, 1097728), ("float32", 2, 1088, 1073152)],
)
def test_qwen3_next(dtype, tp, block, state):
    """The block sizes of the 80B model, by hand: ceil(2,146,304 / 2,048) = 1,048 tokens, to 1,088 = 17 · 64."""
    found = sizes(QWEN3_NEXT, tp=tp, state_dtype=dtype)
    assert (found.block_size, found.state_bytes, found.groups) == (block, state, 3)
    assert found.boundaries(4 * found.bytes_per_block * 10 + 1) == 10


def test_wrapped_config():
    """A published checkpoint's text part, with the state dtype that it names."""
    assert sizes({"text_config": QWEN3_NEXT | {"mamba_ssm_dtype": "float32"}}).block_size == 1088


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        (QWEN3_NEXT | {"layer_types": ["full_attention"] * 4}, {}, "0 linear_attention and 4 full_attention layers"),
        (QWEN3_NEXT, {"tp": 3}, "tp: 3 does not divide 16 key and 32 value heads"),
    ],
)  # fmt: skip
def test_refused(config, options, text):
    """What has no answer says why."""
    with pytest.raises(ValueError, match=text):
        sizes(config, **options)


def test_the_command(tmp_path, capsys):
    """What it prints."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_NEXT))
    assert main([str(tmp_path), "--memory", "40", "--state-dtype", "float32"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "block size: 1088 tokens; a state is kept at each multiple of it",
        "a state: 2,146,304 bytes a layer, in a page of 2,228,224 (3.7% padding)",
        "a boundary: 80,216,064 bytes in 36 GDN layers, and 26,738,688 in 12 attention layers",
        "40.0 GiB of cache: 401 boundaries, 436,288 tokens of prefixes",
    ]


def test_the_doctor(tmp_path, capsys, monkeypatch):
    """``gdn-apc doctor --model`` says it too, beside whether the plugin is active."""
    from gdn_apc.fuzz import cli, doctor

    monkeypatch.setattr(doctor, "probe", lambda name: "yes")
    monkeypatch.setattr(doctor.targets, "BUILTIN", {doctor.targets.DEFAULT: ""})
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_NEXT | {"mamba_ssm_dtype": "float32"}))
    assert cli.main(["doctor", "--model", str(tmp_path), "--memory", "40", "--tp", "2"]) == 0
    printed = capsys.readouterr().out
    assert "  a state: 1,073,152 bytes a layer, in a page of 1,114,112" in printed
    assert "  40.0 GiB of cache: 803 boundaries" in printed
    assert cli.main(["doctor", "--model", str(tmp_path / "none")]) == 4
    assert "has no config.json; pass a model's folder" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_real_engine_allocates_that(engines, checkpoints, dtype):
    """Block size, page, block ids and the capacity that vLLM itself reports."""
    memory = 32 << 20
    engine = engines(mamba_ssm_cache_dtype=dtype)
    config = json.loads((checkpoints("qwen3_next") / "config.json").read_text())
    found = sizes(config, state_dtype=dtype, kernel_block=64)
    kv = engine.scheduler.kv_cache_config
    group = next(g for g in kv.kv_cache_groups if engine.gdn_layers[0].prefix in g.layer_names)
    gdn = group.kv_cache_spec
    assert (gdn.block_size, gdn.page_size_bytes) == (found.block_size, found.page_bytes)
    assert gdn.real_page_size_bytes == found.state_bytes
    assert kv.num_blocks == memory // found.bytes_per_block
    assert len(kv.kv_cache_groups) == found.groups + 1
    assert engine.config.cache_config.kv_cache_size_tokens == found.boundaries(memory) * found.block_size
