"""Watches every GDN layer of an engine, and holds what the cache contains against the oracle.

Three independent looks, for every row of every step of every layer:

- *labels*: a slot is labelled with the tokens whose state was last written to it; a row that starts at n > 0 must read
  a slot labelled with its own first n tokens;
- *steps*: outputs, states and windows of the row against ``oracle.core_step``, from the bits that the row read;
- *lineage*: the layer inputs that led to each slot are kept, so that at the end every published slot can be replayed
  cold, in one step from token 0, by the oracle, and must hold that state; its hash must name those very tokens.

Works on the engine's own tensors, from captured layer inputs. Imports vLLM's modules inside functions only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from gdn_apc import oracle
from gdn_apc.oracle import compare, dtype_name

CHUNK_SIZE = 64


@dataclass
class Line:
    """What led to a slot's contents: the tokens, and the layer inputs (x, a, b) of each."""

    tokens: tuple[int, ...] = ()
    inputs: tuple[torch.Tensor, ...] = ()

    def then(self, tokens: list[int], *inputs: torch.Tensor) -> Line:
        """This line and what a step added to it."""
        joined = tuple(torch.cat(pair) for pair in zip(self.inputs, inputs)) if self.inputs else inputs
        return Line((*self.tokens, *tokens), joined)


@dataclass
class Audit:
    """``with Audit(engine) as audit: …; audit.published()``. ``numerics`` names the layers that the oracle checks."""

    engine: Any
    numerics: tuple[int, ...] = (0, 1, 2)
    lines: dict[tuple[int, int], Line] = field(default_factory=dict)  # (layer, slot)
    named: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # hash: the tokens that it names
    rows: int = 0
    starts: set[tuple[bool, bool]] = field(default_factory=set)  # (n > 0, m > 1) of the rows seen
    worst: float = 0.0

    def __enter__(self) -> Audit:
        from gdn_apc.impl.vllm import layer

        self._module, self._core = layer, layer.gdn_core
        # By a weight: layers of different groups share one tensor of pages.
        self._layers = {each.A_log.data_ptr(): i for i, each in enumerate(self.engine.gdn_layers)}
        layer.gdn_core = self._watch
        return self

    def __exit__(self, *_: Any) -> None:
        self._module.gdn_core = self._core

    def _watch(self, x, a, b, weight, bias, A_log, dt_bias, windows, states, blocks, **options):
        """Stands in for ``gdn_core`` in the layer's module."""
        index = self._layers[A_log.data_ptr()]
        rows = Step(blocks, self.engine).rows
        before = {row.index: (states[row.read].clone(), windows[row.read].clone()) for row in rows}
        o = self._core(x, a, b, weight, bias, A_log, dt_bias, windows, states, blocks, **options)
        self._look(index, rows, (x, a, b), o, before, (windows, states))
        return o

    def _look(self, index, rows, inputs, o, before, pages) -> None:
        """Check one layer's step: what each row read, what it wrote, and what came out."""
        windows, states = pages
        self._name_hashes()
        for row in rows:
            part = slice(row.start, row.start + row.m)
            own = tuple(t[part].clone() for t in inputs)
            self._follow(index, row, own)
            if index in self.numerics:
                params = parameters(self.engine.gdn_layers[index])
                self._compare(row, own, params, before[row.index], o[part], states, windows)

    def _follow(self, layer: int, row: Row, inputs: tuple[torch.Tensor, ...]) -> None:
        """Check the label of what was read; label what was written."""
        self.rows += layer == 0
        self.starts.add((row.n > 0, row.m > 1))
        line = Line()
        if row.n:
            line = self.lines.get((layer, row.read), Line())
            assert line.tokens == tuple(row.tokens[: row.n]), (
                f"layer {layer}, request {row.request}: reads slot {row.read} for its first {row.n} tokens, "
                f"the slot holds the state of {len(line.tokens)} others"
            )
        for slot, end in row.writes:
            new = end - row.n
            self.lines[layer, slot] = line.then(row.tokens[row.n : end], *(t[:new] for t in inputs))

    def _compare(self, row, inputs, params, before, o, states, windows) -> None:
        dtypes = dtype_name(inputs[0].dtype), dtype_name(states.dtype)
        state, window = before if row.n else (None, None)
        expected = oracle.core_step(
            *inputs,
            params,
            n=row.n,
            block_size=self.engine.block_size,
            chunk_size=CHUNK_SIZE,
            state=state,
            window=window,
            dtypes=dtypes,
        )
        place = dict(request=row.request, n=row.n, m=row.m)
        self._check(expected.o, o, expected.o_tol, "output", **place)
        for slot, end in row.writes:
            column = (end - 1) // self.engine.block_size
            write, tol = expected.writes[column], expected.state_tol[column]
            self._check(write.state, states[slot], tol, "state", slot=slot, **place)
            assert torch.equal(windows[slot].double(), write.window.double()), (
                f"window of slot {slot}, {place}"
            )

    def _check(self, expected, actual, tol, what, **place) -> None:
        result = compare.check(expected, actual, tol, what=what, **place)
        assert result.ok, result.message
        self.worst = max(self.worst, result.ratio)

    def _name_hashes(self) -> None:
        """Remember which tokens each block hash of a live request names."""
        B = self.engine.block_size
        for request in self.engine.scheduler.requests.values():
            for i, name in enumerate(request.block_hashes):
                if bytes(name) not in self.named:
                    self.named[bytes(name)] = tuple(request.all_token_ids[: (i + 1) * B])

    def published(self, layers: tuple[int, ...] | None = None) -> int:
        """Check every published slot of every GDN layer, or of some, against a cold replay; returns how many there were."""
        groups = self.engine.scheduler.kv_cache_config.kv_cache_groups
        index = {layer.prefix: i for i, layer in enumerate(self.engine.gdn_layers)}
        count = 0
        for (group, name), slots in self.engine.published().items():
            for layer in (index[p] for p in groups[group].layer_names if p in index):
                if layers is not None and layer not in layers:
                    continue
                for slot in slots:
                    self._replay(layer, slot, self.named[bytes(name)])
                    count += 1
        return count

    def _replay(self, layer: int, slot: int, tokens: tuple[int, ...]) -> None:
        module, line = self.engine.gdn_layers[layer], self.lines.get((layer, slot), Line())
        windows, states = pages(module)
        assert line.tokens == tokens, (
            f"layer {layer}: slot {slot} is published for other tokens than it holds"
        )
        expected = oracle.core_step(
            *line.inputs,
            parameters(module),
            n=0,
            block_size=self.engine.block_size,
            chunk_size=CHUNK_SIZE,
            state=None,
            window=None,
            dtypes=(dtype_name(line.inputs[0].dtype), dtype_name(states.dtype)),
        )
        last = max(expected.writes)
        write, tol = expected.writes[last], expected.state_tol[last]
        self._check(write.state, states[slot], tol, "published state", layer=layer, slot=slot)
        assert torch.equal(windows[slot].double(), write.window.double()), f"published window of slot {slot}"


def pages(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A GDN layer's windows [slots, W - 1, D], however they are stored, and states [slots, HV, V, K]."""
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    windows, states = module.kv_cache
    return (windows.transpose(1, 2) if is_conv_state_dim_first() else windows), states


def parameters(module: Any) -> SimpleNamespace:
    """A GDN layer's parameters, as the oracle takes them."""
    return SimpleNamespace(
        H=module.num_k_heads,
        HV=module.num_v_heads,
        K=module.head_k_dim,
        V=module.head_v_dim,
        conv_weight=module._conv_weight(),
        conv_bias=module.conv1d.bias,
        A_log=module.A_log.data,
        dt_bias=module.dt_bias.data,
        scale=None,
        use_qk_l2norm=True,
        activation="silu",
    )


@dataclass(frozen=True)
class Row:
    """One row of a step."""

    index: int
    request: str
    start: int
    n: int
    m: int
    read: int
    writes: list[tuple[int, int]]  # (slot, tokens whose state it gets)
    tokens: list[int]


class Step:
    """The live rows of a step, with the requests that the runner says they are."""

    def __init__(self, blocks: Any, engine: Any) -> None:
        batch = engine.runner.input_batch
        starts, n, m, read, table = (
            t.tolist()
            for t in (
                blocks.query_start_loc,
                blocks.num_computed_tokens,
                blocks.num_scheduled_tokens,
                blocks.read_slot,
                blocks.block_table,
            )
        )
        self.rows = []
        for i in range(blocks.num_rows):
            if m[i] <= 0:
                continue
            end, B = n[i] + m[i], blocks.block_size
            writes = [(table[i][j], min((j + 1) * B, end)) for j in range(n[i] // B, (end - 1) // B + 1)]
            known = batch.token_ids_cpu[i, :end].tolist()
            self.rows.append(Row(i, batch.req_ids[i], starts[i], n[i], m[i], read[i], writes, known))
