"""The builder: vLLM's batch as block indices, without a look at the device, in buffers only where graphs need them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gdn_apc.oracle import block_indices

B = 64


class NoSync(TorchDispatchMode):
    """Fails on any operation that would wait for the device, except on the tensor that is already on the host."""

    def __init__(self, on_host: torch.Tensor) -> None:
        super().__init__()
        self.on_host = on_host.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name
        moves = "device" in (kwargs or {}) and name == "aten::_to_copy"
        if moves or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"):
            assert args[0].untyped_storage().data_ptr() == self.on_host, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def build(engines):
    """``build(rows, mode, padded_rows, padded_tokens)``: metadata of rows (n, m) by a builder of its own."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from gdn_apc.impl.vllm.metadata import GdnApcMetadataBuilder

    engine = engines()
    spec = next(
        g.kv_cache_spec
        for g in engine.scheduler.kv_cache_config.kv_cache_groups
        if engine.gdn_layers[0].prefix in g.layer_names
    )

    def builder(mode):
        compilation = dataclasses.replace(
            engine.config.compilation_config, cudagraph_mode=CUDAGraphMode[mode]
        )
        config = object.__new__(type(engine.config))
        config.__dict__ |= engine.config.__dict__ | {"compilation_config": compilation}
        return GdnApcMetadataBuilder(spec, [engine.gdn_layers[0].prefix], config, torch.device("cpu"))

    def common(rows, padded_rows=None, padded_tokens=None):
        padded = list(rows) + [(0, 0)] * ((padded_rows or len(rows)) - len(rows))
        n, m = (torch.tensor(column, dtype=torch.int32) for column in zip(*padded))
        starts = torch.cat([m.new_zeros(1), m.cumsum(0, dtype=torch.int32)])
        table = 1 + torch.arange(len(padded) * 16, dtype=torch.int32).view(-1, 16)
        table[len(rows) :] = 0
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.clone(),
            seq_lens=n + m,
            num_reqs=len(padded),
            num_actual_tokens=padded_tokens or int(m.sum()),
            max_query_len=int(m.max()),
            max_seq_len=int((n + m).max()),
            block_table_tensor=table,
            slot_mapping=torch.empty(0),
        )

    return builder, common


ROWS = [(0, 1), (64, 1), (63, 200), (0, 64), (128, 3), (10, 54)]


def test_indices_are_the_oracles(build):
    """A mixed batch: the same as the brute-force builder's, and no persistent buffer in it."""
    builder, common = build
    m = common(ROWS)
    made = builder("FULL_DECODE_ONLY")
    with NoSync(m.query_start_loc_cpu):
        step = made.build(0, m)
    tables = m.block_table_tensor.tolist()
    expected = block_indices([(n, k, t) for (n, k), t in zip(ROWS, tables)], B, 64)
    for name in (
        "block_idx_last_computed_token",
        "block_idx_first_scheduled_token",
        "read_slot",
        "write_slot",
    ):
        assert getattr(step.blocks, name).tolist() == expected[name], name
    assert step.blocks.chunk_offsets.tolist() == expected["chunk_offsets"]
    assert step.blocks.block_table is m.block_table_tensor
    buffers = {t.data_ptr() for t in vars(made.staging).values() if isinstance(t, torch.Tensor)}
    used = {t.data_ptr() for t in vars(step.blocks).values() if isinstance(t, torch.Tensor)}
    assert not buffers & used


def test_decodes_are_staged(build):
    """Full graphs: the same addresses step after step, padding rows of slot 0, and no look at the device."""
    builder, common = build
    made = builder("FULL_DECODE_ONLY")
    captured = made.build_for_cudagraph_capture(common([(0, 1)] * 4))
    assert captured.blocks.write_slot.tolist() == [0] * 4, (
        "a dummy row writes nothing, whatever its table says"
    )
    m = common([(5, 1), (0, 1), (64, 1)], padded_rows=4, padded_tokens=4)
    with NoSync(m.query_start_loc_cpu):
        step = made.build(0, m)
    for name in ("query_start_loc", "num_computed_tokens", "read_slot", "write_slot", "block_table"):
        assert getattr(step.blocks, name).data_ptr() == getattr(captured.blocks, name).data_ptr(), name
    assert step.blocks.read_slot.tolist() == [1, 0, 33, 0]
    assert step.blocks.write_slot.tolist() == [1, 17, 34, 0]
    assert step.blocks.num_scheduled_tokens.tolist() == [1, 1, 1, 0]


def test_eager_needs_no_buffers(build):
    """Without full graphs nothing is staged."""
    builder, common = build
    made = builder("NONE")
    assert made.staging.max_rows == 0
    step = made.build(0, common([(5, 1), (0, 1)], padded_rows=4, padded_tokens=4))
    assert step.blocks.num_scheduled_tokens.tolist() == [1, 1, 0, 0]
    assert step.blocks.block_size == B


@pytest.mark.parametrize("mode", ["NONE", "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("rows", [ROWS, [(5, 1), (0, 1), (64, 1)]], ids=["prefills", "decodes"])
def test_another_groups_table(build, rows, mode):
    """A second group gets what its own build would give; staged decodes lie at its own addresses, not the first's."""
    builder, common = build
    first, second, alone = (builder(mode) for _ in range(3))
    m = common(rows)
    step = first.build(0, m)
    table = m.block_table_tensor.flip(0) + 100
    with NoSync(m.query_start_loc_cpu):
        updated = second.update_block_table(step, table, m.slot_mapping)
    expected = alone.build(0, dataclasses.replace(m, block_table_tensor=table)).blocks
    for f in dataclasses.fields(expected):
        want, have = getattr(expected, f.name), getattr(updated.blocks, f.name)
        assert torch.equal(have, want) if isinstance(want, torch.Tensor) else have == want, f.name
    staged = mode != "NONE" and rows is not ROWS
    assert (updated.blocks.query_start_loc.data_ptr() == second.staging.starts.data_ptr()) == staged
    assert step.blocks.write_slot.tolist() != updated.blocks.write_slot.tolist()


def test_a_graph_that_cannot_be(build):
    """Rows of two tokens, or more rows than buffers, are refused at capture."""
    builder, common = build
    with pytest.raises(ValueError, match="4 rows of up to 2 tokens, expected at most 8 rows of one"):
        builder("FULL_DECODE_ONLY").build_for_cudagraph_capture(common([(0, 2)] * 2))
    with pytest.raises(ValueError, match="1 rows of up to 1 tokens, expected at most 0 rows of one"):
        builder("NONE").build_for_cudagraph_capture(common([(0, 1)]))


def test_padding_tokens_stay_zero(build, engines):
    """Real rows get what they get without padding; rows of padding tokens keep the zeros that vLLM put there."""
    from vllm.forward_context import set_forward_context

    builder, common = build
    engine = engines()
    layer, rows = engine.gdn_layers[0], [(0, 1), (0, 1), (0, 1)]
    D, HV, V = layer.kv_cache[0].shape[2], layer.num_v_heads, layer.head_v_dim
    generator = torch.Generator().manual_seed(0)
    x, b, a = (torch.randn(5, n, generator=generator).bfloat16() for n in (D, HV, HV))
    x[3:] = torch.nan

    def run(mode: str, **padding: int) -> torch.Tensor:
        step = builder(mode).build(0, common(rows, **padding))
        out = torch.zeros(5, HV, V, dtype=torch.bfloat16)
        with torch.inference_mode(), set_forward_context({layer.prefix: step}, engine.config):
            layer._forward_core(x, b, a, out)
        return out

    plain = run("NONE")
    assert plain[:3].abs().amin((1, 2)).isfinite().all() and plain[:3].any()
    for mode in ("NONE", "FULL_DECODE_ONLY"):
        padded = run(mode, padded_rows=5, padded_tokens=5)
        assert torch.equal(padded[:3], plain[:3]) and not padded[3:].any(), mode


def test_the_fused_norm_is_vllms_without_its_copies(build, engines, monkeypatch):
    """Core and gated norm from views of one projection: the bits of vLLM's own method, which copies b and a, and zeros in padding."""
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

    builder, common = build
    engine = engines()
    layer, seen = engine.gdn_layers[0], []
    D, HV, V = layer.kv_cache[0].shape[2], layer.num_v_heads, layer.head_v_dim
    generator = torch.Generator().manual_seed(0)
    qkvz, ba = (torch.randn(5, n, generator=generator).bfloat16() for n in (D + HV * V, 2 * HV))

    def norm(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
        seen.append(x.shape[0])
        out.copy_(layer.norm.forward_native(x.clone(), gate))

    monkeypatch.setattr(layer, "_rms_norm_gated_cuda", norm, raising=False)  # vLLM's is a Triton kernel

    def run(method, step) -> torch.Tensor:
        for pages in layer.kv_cache:
            pages.zero_()
        out = torch.zeros(5, HV, V, dtype=torch.bfloat16)
        gate, (b, a) = qkvz[:, D:].reshape(5, HV, V), ba.chunk(2, dim=1)
        with torch.inference_mode(), set_forward_context(step and {layer.prefix: step}, engine.config):
            method(layer, mixed_qkv=qkvz[:, :D], b=b, a=a, output_gate=gate, core_attn_out=out)
        return out

    for padding in ({}, dict(padded_rows=5, padded_tokens=5)):
        step = builder("NONE").build(0, common([(0, 1), (0, 1), (0, 1)], **padding))
        mine, theirs = (
            run(kind._forward_core_fused_norm, step) for kind in (type(layer), QwenGatedDeltaNetAttention)
        )
        assert torch.equal(mine, theirs) and mine[:3].any() and not mine[3:].any(), padding
    assert seen == [3, 3, 5, 5]
    assert not run(type(layer)._forward_core_fused_norm, None).any(), "profiling: no step, so no norm"
    assert len(seen) == 4


def test_a_repacked_weight_is_not_used(engines, monkeypatch):
    """On a CPU with AVX512-BF16 vLLM repacks the convolution's weight, and leaves the original beside it."""
    layer = engines().gdn_layers[0]
    weight = layer._conv_weight().detach().clone()
    assert weight.shape == (layer.kv_cache[0].shape[2], layer.conv_kernel_size)
    monkeypatch.setattr(layer.conv1d, "_cpu_unpacked_conv_weight", weight, raising=False)
    assert layer._conv_weight() is weight


@pytest.mark.parametrize("tokens", [1, 65, 300])
def test_the_warm_up_runs_the_core_on_pages_of_its_own(engines, monkeypatch, tokens):
    """What a GPU runs while vLLM measures memory: the whole core over that many tokens, and no page of the cache."""
    layer, calls = engines().gdn_layers[0], []
    before = [pages.clone() for pages in layer.kv_cache]
    core = layer._core
    monkeypatch.setattr(layer, "_core", lambda *a: calls.append((a[0].shape[0], core(*a))), raising=False)
    x = torch.randn(200, layer.kv_cache[0].shape[2]).bfloat16()
    layer._warm_up(x, tokens, layer.get_state_shape(), layer.get_state_dtype())
    [(count, out)] = calls
    assert count == tokens and out.shape[0] == tokens and out.isfinite().all() and out.any()
    for pages, untouched in zip(layer.kv_cache, before):
        torch.testing.assert_close(pages, untouched, rtol=0, atol=0, equal_nan=True)


def test_looking_is_noticed(build):
    """The guard can fail."""
    tensor = torch.ones(1)
    with pytest.raises(AssertionError, match="waits for the device"), NoSync(torch.ones(1)):
        int(tensor)
