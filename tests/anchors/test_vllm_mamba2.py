"""The oracle's block indices against vLLM's own builder of the Mamba2 ``all`` cache mode, from which they come.

Their builder clamps to 0 where the oracle says 0, counts the states that prefill rows write, and cuts chunks on an
absolute grid of its own (which needs C to divide B). Exercise it with ``pytest tests/anchors/test_vllm_mamba2.py``.
"""

import random
from types import SimpleNamespace

import pytest
import torch

from gdn_apc import oracle
from gdn_apc.fuzz.targets import _vllm_loader as loader

pytestmark = pytest.mark.anchor


@pytest.fixture(scope="module")
def modules(vllm):
    """Their builder's module and the one of its input."""
    return vllm(loader.MAMBA2, "vllm.v1.attention.backend")


def builder(modules, B: int, C: int):
    """Their builder, constructed by its own constructor, for block size B and chunk size C."""
    config = SimpleNamespace(
        speculative_config=None,
        num_speculative_tokens=0,
        cache_config=SimpleNamespace(mamba_cache_mode="all", use_replayssm=False, replayssm_buffer_len=0),
        mamba_config=SimpleNamespace(backend=None),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        compilation_config=SimpleNamespace(
            max_cudagraph_capture_size=None, cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: False)
        ),
        model_config=SimpleNamespace(max_model_len=4096, get_mamba_chunk_size=lambda: C),
    )
    spec = SimpleNamespace(block_size=B, num_speculative_blocks=0)
    return modules[0].Mamba2AttentionMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


def batch(modules, rows: list[tuple[int, int]], table: list[list[int]]):
    """Their description of a batch of rows (n, m): one-token rows with a state first, as their runner orders them."""
    starts = [0]
    for _, m in rows:
        starts.append(starts[-1] + m)

    def int32(values):
        return torch.tensor(values, dtype=torch.int32)

    return modules[1].CommonAttentionMetadata(
        query_start_loc=int32(starts),
        query_start_loc_cpu=int32(starts),
        seq_lens=int32([n + m for n, m in rows]),
        num_reqs=len(rows),
        num_actual_tokens=starts[-1],
        max_query_len=max(m for _, m in rows),
        max_seq_len=max(n + m for n, m in rows),
        block_table_tensor=int32(table),
        slot_mapping=int32([0] * starts[-1]),
        is_prefilling=torch.tensor([m > 1 or n == 0 for n, m in rows]),
        seq_lens_cpu_upper_bound=int32([n + m for n, m in rows]),
    )


def draw(rng: random.Random, B: int) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Random rows around boundaries, decode rows first, and a table of distinct slots."""

    def near(low: int) -> int:
        return max(low, rng.randrange(6) * B + rng.choice([-1, 0, 1, rng.randrange(B)]))

    decodes = [(near(1), 1) for _ in range(rng.randrange(4))]
    prefills = [(rng.choice([0, near(0)]), near(2)) for _ in range(rng.randrange(4))]
    fresh = [(0, 1)] * rng.randrange(2)
    rows = decodes + prefills + fresh or [(0, 1)]
    columns = max(-(-(n + m) // B) for n, m in rows)
    slots = iter(rng.sample(range(1, 1 + len(rows) * columns), len(rows) * columns))
    return rows, [[next(slots) for _ in range(columns)] for _ in rows]


SIZES = [(B, C) for B in (1, 2, 7, 16, 64, 528) for C in (1, 8, 64)]


@pytest.mark.parametrize("B, C", SIZES)
def test_block_indices(modules, B, C):
    """Every index of every row, what starts from a state, and how many states prefill rows write."""
    rng = random.Random(B * 100 + C)
    for _ in range(60):
        rows, table = draw(rng, B)
        theirs = builder(modules, B, C).build(0, batch(modules, rows, table))
        ours = oracle.block_indices([(n, m, t) for (n, m), t in zip(rows, table)], B, C)
        decodes = theirs.num_decodes
        assert decodes == sum(m == 1 and n > 0 for n, m in rows)
        for name in ("block_idx_last_computed_token", "block_idx_last_scheduled_token"):
            assert getattr(theirs, name).tolist() == ours[name], (name, rows)
        read = [
            t[j]
            for t, j in zip(theirs.state_indices_tensor_d.tolist(), ours["block_idx_last_computed_token"])
        ]
        assert read == ours["read_slot"][:decodes]
        assert theirs.seq_lens.tolist() == [
            n + m for n, m in zip(ours["num_computed_tokens"], ours["num_scheduled_tokens"])
        ]
        if theirs.num_prefills:
            first = ours["block_idx_first_scheduled_token"][decodes:]
            last = ours["block_idx_last_scheduled_token"][decodes:]
            assert theirs.block_idx_first_scheduled_token_p.tolist() == first, rows
            assert theirs.num_computed_tokens_p.tolist() == ours["num_computed_tokens"][decodes:]
            assert theirs.has_initial_states_p.tolist() == ours["has_initial_state"][decodes:]
            assert theirs.num_state_writes_p == sum(b - a for a, b in zip(first, last))
            written = [t[b] for t, b in zip(theirs.state_indices_tensor_p.tolist(), last)]
            assert written == ours["write_slot"][decodes:]


@pytest.mark.parametrize("B, C", [(B, C) for B, C in SIZES if B % C == 0])
def test_chunk_grid(modules, B, C):
    """Where C divides B, their chunks of prefill rows are the absolute grid's."""
    rng = random.Random(B + C)
    for _ in range(60):
        rows, table = draw(rng, B)
        theirs = builder(modules, B, C).build(0, batch(modules, rows, table))
        if not theirs.num_prefills:
            continue
        prefills = [(n, m, t) for (n, m), t in zip(rows, table)][theirs.num_decodes :]
        ours = oracle.block_indices(prefills, B, C)
        starts = [ours["query_start_loc"][row] + first - prefills[row][0] for row, first, _ in ours["chunks"]]
        assert theirs.cu_chunk_seqlen_p.tolist() == [*starts, ours["num_tokens"]], rows
        assert theirs.seq_idx_p.tolist() == ours["chunk_row"]
        assert theirs.last_chunk_indices_p.tolist() == [end - 1 for end in ours["chunk_offsets"][1:]]


def test_padding_rows(modules):
    """Rows of a padded batch (no tokens, length 0) give 0 everywhere, as the oracle says of m = 0."""
    rows, table = [(5, 1), (8, 1), (0, 0), (0, 0)], [[3, 4, 5]] * 2 + [[0, 0, 0]] * 2
    theirs = builder(modules, 4, 4)._compute_prefix_caching_block_indices(batch(modules, rows, table), 4)
    ours = oracle.block_indices([(n, m, t) for (n, m), t in zip(rows, table)], 4, 4)
    names = ("last_computed", "first_scheduled", "last_scheduled")
    assert [t.tolist() for t in theirs] == [ours[f"block_idx_{name}_token"] for name in names]


def test_the_comparison_can_fail(modules):
    """The indices of another block size are others."""
    rows, table = [(9, 1), (0, 30)], [[1, 2, 3, 4, 5, 6, 7, 8]] * 2
    theirs = builder(modules, 4, 4).build(0, batch(modules, rows, table))
    ours = oracle.block_indices([(n, m, t) for (n, m), t in zip(rows, table)], 5, 4)
    assert theirs.block_idx_last_scheduled_token.tolist() != ours["block_idx_last_scheduled_token"]
