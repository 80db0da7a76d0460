"""How kernels that know no blocks are driven: which calls a batch becomes, and where states go between them.

``pytest tests/fuzz/test_blockwise.py``
"""

from __future__ import annotations

import pytest
import torch
from asking import ask

from gdn_apc import oracle
from gdn_apc.fuzz.properties import load_all
from gdn_apc.fuzz.properties.base import Violation
from gdn_apc.fuzz.targets.base import Batch, Claims
from gdn_apc.fuzz.targets.blockwise import BY_ENGINE, Blockwise, Cache, Piece, offsets, rounds_of, tokens_of


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


BATCH = Batch(
    seq_lens=int32([9, 1, 77, 10]),
    query_start_loc=int32([0, 1, 2, 2, 9]),
    block_table=int32([[1, 2, 3], [4, 0, 0], [9, 9, 9], [5, 0, 6]]),
    block_size=4,
    chunk_size=64,
    max_query_len=7,
)
"""A decode, a fresh token, a padding row, and 7 tokens from position 3 over two boundaries with a null column."""

DECODE = Piece(0, 0, 1, 2, 3, 8, 1)
FRESH = Piece(1, 1, 2, None, 4, 0, 1)
FIRST, SECOND, THIRD = Piece(3, 2, 3, 5, 5, 3, 7), Piece(3, 3, 7, 5, 0, 4, 7), Piece(3, 7, 9, 0, 6, 8, 7)


class OracleKernels(Blockwise):
    """Kernels with the oracle inside, in float64: what a correct library would be."""

    name = "oracle kernels"
    fresh_recurrent = True
    claims = Claims(seams=frozenset({"conv", "delta", "core"}), absolute_grid=False, by_adapter=BY_ENGINE)

    def device(self):
        return torch.device("cpu")

    def conv_prefill(self, layer, x, windows, slots, cu, warm):
        y, bounds = torch.empty_like(x), cu.tolist()
        for i, slot in enumerate(slots.tolist()):
            part = x[bounds[i] : bounds[i + 1]]
            window = windows[slot].to(x.dtype) if warm[i] else None
            out = oracle.causal_conv1d(part, layer.conv_weight, layer.conv_bias, window, layer.activation)
            y[bounds[i] : bounds[i + 1]] = out.to(x.dtype)
            windows[slot] = oracle.window_after(part, window, len(part), layer.conv_weight.shape[1])
        return y

    def gates(self, layer, y, a, b):
        q, k, v = oracle.split_qkv(y, layer.H, layer.HV, layer.K, layer.V)
        return [q, k, v, *oracle.gates(a, b, layer.A_log, layer.dt_bias)], layer.use_qk_l2norm

    def chunk(self, layer, inputs, l2norm, states, cu):
        outputs, finals, bounds = [], [], cu.tolist()
        for i, state in enumerate(states):
            part = [t[bounds[i] : bounds[i + 1]] for t in inputs]
            o, found = oracle.recurrence(*part, scale=layer.scale, initial_state=state, use_qk_l2norm=l2norm)
            outputs.append(o.to(inputs[2].dtype))
            finals.append(found[-1])
        return torch.cat(outputs), torch.stack(finals)

    def recurrent(self, layer, inputs, l2norm, states):
        return self.chunk(layer, inputs, l2norm, states, torch.arange(len(states) + 1))


def test_rounds():
    """Round i holds the i-th piece of each row; pieces end at boundaries, padding rows have none."""
    assert rounds_of(BATCH) == [[DECODE, FRESH, FIRST], [SECOND], [THIRD]]


@pytest.mark.parametrize("fresh", [False, True])
def test_calls(fresh):
    """One-token rows first, new requests among them only where the target says so; then the rounds."""
    target = OracleKernels()
    target.fresh_recurrent = fresh
    one, rest = ([DECODE, FRESH], [FIRST]) if fresh else ([DECODE], [FRESH, FIRST])
    assert list(target.calls(BATCH)) == [(True, one), (False, rest), (False, [SECOND]), (False, [THIRD])]


def test_packed_tokens():
    """Which tokens a call gets, and where its rows begin."""
    cpu = torch.device("cpu")
    assert tokens_of([DECODE, SECOND], cpu).tolist() == [0, 3, 4, 5, 6]
    assert offsets([DECODE, SECOND], cpu).tolist() == [0, 1, 5]


def test_a_state_without_a_slot_stays_with_the_adapter():
    """A piece that ends in a null column leaves the pages alone, and the next piece of its row goes on from there."""
    pages = torch.arange(7.0).view(7, 1)
    cache = Cache(pages)
    assert cache.gather([SECOND]).tolist() == [[5.0]]
    cache.scatter([SECOND], torch.tensor([[50.0]]))
    assert pages.flatten().tolist() == list(range(7))
    assert cache.gather([THIRD]).tolist() == [[50.0]]


def test_in_place_rows_find_their_state_where_they_write():
    """A call that works in the pages gets each row's state in the slot that it goes to; nulls move it outside."""
    pages = torch.arange(7.0).view(7, 1)
    with Cache(pages).in_place([DECODE, FRESH]) as (states, slots):
        assert states is pages and slots.tolist() == [3, 4]
        assert states[3] == 2.0
    with Cache(pages).in_place([SECOND]) as (states, slots):
        assert states is not pages and slots.tolist() == [1] and states[1] == 5.0


@pytest.mark.parametrize("name", ["values", "write_set", "read_set", "index_movement", "hit_is_used"])
def test_correct_kernels_hold(name):
    """A library that computes the rule holds every property that it is asked through this adapter."""
    assert ask(OracleKernels(), name, 10) >= 8


def test_a_wrong_kernel_is_seen():
    """The adapter hides nothing: a kernel that forgets its state when it has one token fails."""

    class Forgets(OracleKernels):
        def recurrent(self, layer, inputs, l2norm, states):
            return super().recurrent(layer, inputs, l2norm, torch.zeros_like(states))

    with pytest.raises(Violation, match="is wrong at"):
        ask(Forgets(), "hit_is_used", 40)
    assert load_all()["free_cuts"].needs(OracleKernels()) == "does not claim absolute_grid"
