"""Drives kernels that know no cache blocks: one call a block, and between two calls the state moves to its slot.

Most libraries' kernels take a state and return the state after their last token. So the adapter plays the engine:
it cuts a prefill at every boundary, and before each call it puts a row's state where the call goes on, as vLLM's
``align`` mode does. What this makes true by construction (:data:`BY_ENGINE`) says nothing about the target, and the
report says so; what it shows is whether the kernels compute the rule, from any start and in any batch, and touch
nothing else.

A subclass overrides the calls of the seams that it claims: ``conv_prefill`` for ``conv``, ``chunk`` for ``delta``, and
``gates`` too for ``core``; ``conv_decode`` and ``recurrent`` if one-token rows have kernels of their own.
Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_blockwise.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from gdn_apc.fuzz.targets.base import Batch, Layer, Target

BY_ENGINE = frozenset({"boundary_states", "boundary_grid", "persisted_carry", "skips_null"})
"""Clauses that hold because calls end at boundaries and states move through the pages."""


@dataclass(frozen=True)
class Piece:
    """Part of a row between two boundaries: packed tokens ``[start, end)``, from slot ``source`` to ``destination``.

    ``position`` is the request's position of its first token; ``source`` is None where that is 0. A slot is 0 where
    its column is null: then the state stays with the adapter, in the cache's dtype. ``whole`` is the row's length.
    """

    row: int
    start: int
    end: int
    source: int | None
    destination: int
    position: int
    whole: int


class Blockwise(Target):
    """See the module. States are ``[N, HV, V, K]`` in the cache's dtype, windows ``[slots, W - 1, D]``."""

    # ---- what a subclass gives --------------------------------------------------------------------------------

    def conv_prefill(
        self,
        layer: Layer,
        x: torch.Tensor,
        windows: torch.Tensor,
        slots: torch.Tensor,
        cu: torch.Tensor,
        warm: torch.Tensor,
    ) -> torch.Tensor:
        """Rows of any length. ``x: [T, D]``, ``windows`` pages of which rows read (if ``warm``) and write ``slots`` in place."""
        raise NotImplementedError

    def conv_decode(
        self, layer: Layer, x: torch.Tensor, windows: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """One token a row, ``x: [N, D]``, in place in the pages. By default what ``conv_prefill`` does."""
        cu = torch.arange(len(x) + 1, dtype=torch.int32, device=x.device)
        return self.conv_prefill(layer, x, windows, slots, cu, torch.ones_like(slots, dtype=torch.bool))

    def gates(
        self, layer: Layer, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[list[torch.Tensor], bool]:
        """``[q, k, v, g, beta]`` of the delta rule from the convolution's y, and whether it must still normalise q and k."""
        raise NotImplementedError

    def chunk(
        self,
        layer: Layer,
        inputs: Sequence[torch.Tensor],
        l2norm: bool,
        states: torch.Tensor,
        cu: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of any length from ``states``: outputs [T, HV, V], states after them."""
        raise NotImplementedError

    def recurrent(
        self, layer: Layer, inputs: Sequence[torch.Tensor], l2norm: bool, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row from ``states``: outputs [N, HV, V], states after them. By default what ``chunk`` does."""
        cu = torch.arange(len(states) + 1, dtype=torch.int32, device=states.device)
        return self.chunk(layer, inputs, l2norm, states, cu)

    def is_decode(self, piece: Piece) -> bool:
        """Whether a piece takes the one-token path: it is a row of one token. ``fresh_recurrent`` takes new requests too."""
        return piece.whole == 1 and (piece.source is not None or self.fresh_recurrent)

    fresh_recurrent = False
    """Whether a request's first step of one token takes the one-token path."""

    # ---- the seams --------------------------------------------------------------------------------------------

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = torch.zeros_like(x)
        cache = Cache(conv_state)
        for decode, pieces in self.calls(batch):
            at = tokens_of(pieces, x.device)
            with cache.in_place(pieces) as (windows, slots):
                if decode and all(p.source is not None for p in pieces):
                    y[at] = self.conv_decode(layer, x[at].contiguous(), windows, slots)
                else:
                    warm = torch.tensor([p.source is not None for p in pieces], device=x.device)
                    cu = offsets(pieces, x.device)
                    y[at] = self.conv_prefill(layer, x[at].contiguous(), windows, slots, cu, warm)
        return y

    def delta(
        self,
        layer: Layer,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        ssm_state: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        o = torch.zeros_like(v)
        cache = Cache(ssm_state)
        for decode, pieces in self.calls(batch):
            at = tokens_of(pieces, q.device)
            inputs = [t[at].contiguous() for t in (q, k, v, g, beta)]
            o[at] = self.rule(layer, inputs, layer.use_qk_l2norm, cache, decode, pieces)
        return o

    def core(
        self,
        layer: Layer,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        conv_state: torch.Tensor,
        ssm_state: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        o = x.new_zeros(x.shape[0], layer.HV, layer.V)
        y = self.conv(layer, x, conv_state, batch)
        cache = Cache(ssm_state)
        for decode, pieces in self.calls(batch):
            at = tokens_of(pieces, x.device)
            o[at] = self.core_call(layer, *(t[at].contiguous() for t in (y, a, b)), cache, decode, pieces)
        return o

    def core_call(
        self,
        layer: Layer,
        y: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        cache: Cache,
        decode: bool,
        pieces: list[Piece],
    ) -> torch.Tensor:
        """One call's part of the core after the convolution: gates, then the delta rule."""
        inputs, l2norm = self.gates(layer, y, a, b)
        return self.rule(layer, inputs, l2norm, cache, decode, pieces)

    def rule(
        self,
        layer: Layer,
        inputs: Sequence[torch.Tensor],
        l2norm: bool,
        cache: Cache,
        decode: bool,
        pieces: list[Piece],
    ) -> torch.Tensor:
        """One call of the delta rule; the states of its rows go to their slots."""
        states = cache.gather(pieces)
        if decode:
            out, after = self.recurrent(layer, inputs, l2norm, states)
        else:
            out, after = self.chunk(layer, inputs, l2norm, states, offsets(pieces, states.device))
        cache.scatter(pieces, after)
        return out

    def calls(self, batch: Batch) -> Iterator[tuple[bool, list[Piece]]]:
        """(is it the one-token path?, pieces) of each call: one-token rows, then the i-th piece of every other row."""
        found = rounds_of(batch)
        decode = [p for p in found[0] if self.is_decode(p)] if found else []
        if decode:
            yield True, decode
        for pieces in found:
            others = [p for p in pieces if not self.is_decode(p)]
            if others:
                yield False, others


def rounds_of(batch: Batch) -> list[list[Piece]]:
    """Round i holds the i-th piece of every row that has so many."""
    rounds: list[list[Piece]] = []
    starts, lengths, tables = (t.tolist() for t in (batch.query_start_loc, batch.seq_lens, batch.block_table))
    for row, (start, end) in enumerate(pairwise(starts)):
        n = lengths[row] - (end - start)
        for i, piece in enumerate(pieces_of(row, start, n, end - start, tables[row], batch.block_size)):
            rounds += [[]] if i == len(rounds) else []
            rounds[i].append(piece)
    return rounds


def pieces_of(row: int, at: int, n: int, m: int, table: list[int], B: int) -> Iterator[Piece]:
    """The pieces of a row whose first token is packed at ``at``: cut at every boundary inside."""
    position = n
    while position < n + m:
        end = min((position // B + 1) * B, n + m)
        source = table[(position - 1) // B] if position else None
        yield Piece(row, at + position - n, at + end - n, source, table[position // B], position, m)
        position = end


def tokens_of(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """Indices of all tokens of these pieces among the packed ones."""
    return torch.tensor([t for p in pieces for t in range(p.start, p.end)], device=device)


def offsets(pieces: list[Piece], device: torch.device) -> torch.Tensor:
    """``cu_seqlens`` of a call over these pieces, int32 [N + 1]."""
    lengths = torch.tensor([0] + [p.end - p.start for p in pieces])
    return lengths.cumsum(0).int().to(device)


class Cache:
    """One part of the pages during one batch, and the states of rows whose column is null."""

    def __init__(self, pages: torch.Tensor):
        self.pages = pages
        self.kept: dict[int, torch.Tensor] = {}

    def read(self, piece: Piece) -> torch.Tensor:
        """The state that a piece starts from."""
        return self.pages[piece.source] if piece.source else self.kept[piece.row]

    def write(self, piece: Piece, state: torch.Tensor) -> None:
        """The state that a piece ends with, rounded to the cache's dtype."""
        if piece.destination:
            self.pages[piece.destination] = state.to(self.pages.dtype)
        else:
            self.kept[piece.row] = state.to(self.pages.dtype)

    def gather(self, pieces: list[Piece]) -> torch.Tensor:
        """The states of all pieces, zeros for those that start from nothing."""
        states = self.pages.new_zeros(len(pieces), *self.pages.shape[1:])
        for i, piece in enumerate(pieces):
            if piece.source is not None:
                states[i] = self.read(piece)
        return states

    def scatter(self, pieces: list[Piece], states: torch.Tensor) -> None:
        """The states that the pieces end with."""
        for piece, state in zip(pieces, states):
            self.write(piece, state)

    @contextmanager
    def in_place(self, pieces: list[Piece]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages with each row's state already in the slot that it goes to, and those slots (int32 [N]).

        If a column is null, all rows work in a copy outside the pages.
        """
        outside = any(p.destination == 0 for p in pieces)
        states = self.pages.new_zeros(len(pieces) + 1, *self.pages.shape[1:]) if outside else self.pages
        slots = list(range(1, len(pieces) + 1)) if outside else [p.destination for p in pieces]
        for slot, piece in zip(slots, pieces):
            if piece.source is not None and (outside or slot != piece.source):
                states[slot] = self.read(piece)
        yield states, torch.tensor(slots, dtype=torch.int32, device=states.device)
        if outside:
            for slot, piece in zip(slots, pieces):
                self.write(piece, states[slot].clone())
