"""What only a GPU can show: graph replay, no synchronisation, offsets beyond 2³¹, the same bits every time.

pytest -m gpu tests/impl
"""

import pytest
import torch

from gdn_apc.impl import causal_conv1d, gated_delta_rule, gdn_core
from gdn_apc.impl.configs import Launch, override
from tests.impl.batches import DEVICE, DTYPES, Rows, assert_delta_rows, pool
from tests.impl.test_kernels import MIXED, delta_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

H, HV, K, V, W = 16, 32, 128, 128, 4
D = 2 * H * K + HV * V


class CoreBatch:
    """A batch of the whole core at Qwen3-Next's head shapes, with its pools."""

    def __init__(self, rows: Rows, seed: int = 0):
        gen = torch.Generator().manual_seed(seed)
        self.rows, T = rows, rows.num_tokens
        self.x, self.a, self.b = (torch.randn(T, w, generator=gen).bfloat16().to(DEVICE) for w in (D, HV, HV))
        self.weight = (torch.randn(D, W, generator=gen) / 2).bfloat16().to(DEVICE)
        self.A_log, self.dt_bias = torch.zeros(HV, device=DEVICE), torch.zeros(HV, device=DEVICE)
        self.windows = pool((rows.num_slots, W - 1, D), torch.bfloat16, gen)
        self.state = pool((rows.num_slots, HV, V, K), torch.float32, gen)

    def run(self, meta):
        """The core over this batch, by this metadata."""
        return gdn_core(
            self.x,
            self.a,
            self.b,
            self.weight,
            None,
            self.A_log,
            self.dt_bias,
            self.windows,
            self.state,
            meta,
            num_k_heads=H,
            head_k_dim=K,
        )


ONE_TOKEN = [(5, 1), (0, 1), (64, 1), (0, 0), (63, 1), (0, 0)]


def test_a_replayed_graph_leaves_the_eager_bits():
    """Captured on one batch, replayed on another: fresh prompts, boundary crossings and padding rows included."""
    fresh = Rows(ONE_TOKEN, 64, 64)
    eager = CoreBatch(Rows(ONE_TOKEN, 64, 64), seed=1)
    want = eager.run(eager.rows.metadata())

    buffers = CoreBatch(Rows([(9, 1)] * len(ONE_TOKEN), 64, 64))
    columns = max(buffers.rows.table.shape[1], fresh.table.shape[1])
    widen = lambda t: torch.nn.functional.pad(t, (0, columns - t.shape[1]))  # noqa: E731
    buffers.rows.table, fresh.table = widen(buffers.rows.table), widen(fresh.table)
    replayed = CoreBatch(fresh, seed=1)
    for name in ("windows", "state"):
        setattr(buffers, name, getattr(replayed, name))
    meta = buffers.rows.metadata()
    buffers.run(meta)  # compiles, and writes: restored below
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = buffers.run(meta)

    again = CoreBatch(Rows(ONE_TOKEN, 64, 64), seed=1)
    buffers.windows.copy_(again.windows)
    buffers.state.copy_(again.state)
    T = fresh.num_tokens
    for name in ("x", "a", "b"):
        getattr(buffers, name)[:T].copy_(getattr(again, name))
    buffers.weight.copy_(again.weight)
    meta.copy_(fresh.metadata())
    graph.replay()

    torch.cuda.synchronize()
    assert torch.equal(out[:T], want[:T])
    assert torch.equal(buffers.windows.nan_to_num(7), eager.windows.nan_to_num(7))
    assert torch.equal(buffers.state.nan_to_num(7), eager.state.nan_to_num(7))


def test_nothing_waits_for_the_host():
    """Metadata and kernels of a mixed batch, with synchronising calls forbidden."""
    batch = CoreBatch(Rows(MIXED, 6, 64))
    rows = batch.rows
    device = [
        t.to(DEVICE)
        for t in (
            torch.tensor([n + m for n, m in rows.rows], dtype=torch.int32),
            torch.tensor(rows.offsets, dtype=torch.int32),
            rows.table,
        )
    ]
    from gdn_apc.impl import build_metadata

    def step():
        meta = build_metadata(
            *device, block_size=6, chunk_size=64, max_query_len=21, num_tokens=rows.num_tokens
        )
        return batch.run(meta)

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_slots_beyond_two_billion_elements():
    """A slot whose first element lies beyond 2³¹ is read and written where it is."""
    HV_, far = 64, 2100
    rows = Rows([(5, 1), (3, 70)], 64, 64)
    state = torch.zeros(far + 4, HV_, V, K, device=DEVICE)
    assert state[far].storage_offset() > 2**31
    rows.table = torch.tensor([[far, 0], [far + 1, far + 2]], dtype=torch.int32)
    gen = torch.Generator().manual_seed(0)
    state[far:] = torch.randn(4, HV_, V, K, generator=gen).to(DEVICE)
    before = {slot: state[slot].clone() for slot in range(far, far + 4)}
    inputs = delta_inputs(rows, H, HV_, K, V, torch.bfloat16, gen)
    o = gated_delta_rule(*inputs, state, rows.metadata(), use_qk_l2norm=True)
    assert_delta_rows(rows, inputs, o, before, state, ("bf16", "fp32"))
    assert state[:far].abs().max() == 0


@pytest.mark.parametrize("repeat", range(5))
def test_the_same_bits_every_time(repeat):
    """Twenty runs of one batch: a race would show as different bits."""
    rows = Rows([(0, 700), (130, 65), (7, 1), (64, 2), (0, 129)], 100, 64, seed=repeat)
    first = None
    for _ in range(20):
        batch = CoreBatch(rows, seed=repeat)
        o = batch.run(rows.metadata())
        bits = [
            t.clone().view(torch.int16 if t.dtype == torch.bfloat16 else torch.int32)
            for t in (o, batch.state)
        ]
        if first is None:
            first = bits
        assert all(torch.equal(a, b) for a, b in zip(first, bits))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("state_dtype", ["fp32", "bf16"])
def test_every_scan_leaves_the_same_bits(dtype, state_dtype):
    """Another tile of V or another number of warps adds up nothing in another order: tuning changes no bit."""
    rows = Rows([(0, 700), (130, 65), (64, 2), (37, 300)], 100, 64)
    first = None
    for launch in (Launch(32, 4, 3), Launch(16, 4, 3), Launch(32, 8, 3), Launch(64, 4, 3)):
        gen = torch.Generator().manual_seed(0)
        state = pool((rows.num_slots, HV, V, K), DTYPES[state_dtype], gen)
        inputs = delta_inputs(rows, H, HV, K, V, DTYPES[dtype], gen, gates=0.1)
        with override(scan=launch):
            o = gated_delta_rule(*inputs, state, rows.metadata(), use_qk_l2norm=True)[: rows.num_tokens]
        bits = [t.contiguous().view(torch.uint8).clone() for t in (o, state)]
        first = first or bits
        assert all(torch.equal(a, b) for a, b in zip(first, bits)), launch


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("K", "V"), [(16, 16), (24, 16), (32, 32), (64, 32), (128, 32), (64, 128), (128, 256), (96, 192)]
)
def test_every_head_size(K, V, dtype):
    """Shapes below and above the tiles; a narrow tile of V was once miscompiled (``impl/configs.py``)."""
    rows = Rows(MIXED, 100, 64)
    gen = torch.Generator().manual_seed(K + V)
    state = pool((rows.num_slots, 4, V, K), torch.float32, gen)
    before = state.clone()
    inputs = delta_inputs(rows, 2, 4, K, V, DTYPES[dtype], gen, gates=0.1)
    o = gated_delta_rule(*inputs, state, rows.metadata(), use_qk_l2norm=True)
    assert_delta_rows(rows, inputs, o, before, state, (dtype, "fp32"))


def test_windows_of_a_long_prompt():
    """Every window of 200 blocks, at once."""
    rows = Rows([(0, 200 * 20)], 20, 64)
    x = torch.randn(rows.num_tokens, 256).bfloat16().to(DEVICE)
    windows = pool((rows.num_slots, W - 1, 256), torch.bfloat16, torch.Generator())
    causal_conv1d(x, torch.ones(256, W, device=DEVICE).bfloat16(), None, windows, rows.metadata())
    for column in range(200):
        boundary = (column + 1) * 20
        assert torch.equal(windows[int(rows.table[0, column])], x[boundary - 3 : boundary])
