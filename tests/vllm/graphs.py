"""The audit of steps that replay a CUDA graph, in which no Python of ours runs: what the layers saw is tapped.

``Taps`` stands in for the layer's ``gdn_core`` before the engine starts. While a graph is captured it adds copies
of each layer's inputs and outputs to it, so that a replay leaves them in buffers; ``GraphAudit`` looks there after every
step that it was not called in. On a CPU nothing is captured; ``Taps(simulate=True)`` keeps Python out of the steps of
one-token rows there, runs them on metadata that was captured for their shape, and so rehearses both.
Imports vLLM's modules inside functions only. Exercise it with ``pytest -m vllm tests/vllm/test_graphs.py``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from audit import Audit, Step, pages


class Taps:
    """``with Taps() as taps: engine = Engine(…)``; the taps stay in the graphs."""

    def __init__(self, simulate: bool = False) -> None:
        self.simulate = simulate
        self.buffers: dict[
            tuple[int, int], tuple[torch.Tensor, ...]
        ] = {}  # (address of A_log, rows): x, a, b, o
        self.captures = 0

    def __enter__(self) -> Taps:
        from gdn_apc.impl.vllm import layer, metadata

        self._layer, self._core = layer, layer.gdn_core
        self._metadata, self._staging = metadata, metadata.Staging
        layer.gdn_core = self.core
        if self.simulate:
            metadata.Staging = _captured(metadata.Staging)
        return self

    def __exit__(self, *_: Any) -> None:
        self._layer.gdn_core = self._core
        self._metadata.Staging = self._staging

    def core(self, x, a, b, weight, bias, A_log, *rest, **options):
        """``gdn_core``, with copies of what goes in and out of a step that is captured."""
        blocks = rest[-1]
        o = self._core(x, a, b, weight, bias, A_log, *rest, **options)
        if blocks.only_one_token_rows:
            key = A_log.data_ptr(), blocks.num_rows
            if key not in self.buffers:  # vLLM runs each shape once before it captures it
                self.buffers[key] = tuple(torch.empty_like(t) for t in (x, a, b, o))
            if self.simulate or torch.cuda.is_current_stream_capturing():
                self.captures += 1
                for buffer, tensor in zip(self.buffers[key], (x, a, b, o)):
                    buffer.copy_(tensor)
        return o


def _captured(staging: type) -> type:
    """Staging with buffers where there are no graphs, which hands out what it made of the first batch of a shape.

    That is what a graph knows: a later batch reaches it through the buffers, or not at all.
    """

    class Captured(staging):
        def __init__(self, max_rows: int, device: torch.device) -> None:
            super().__init__(64, device)
            self.first = {}

        def stage(self, blocks):
            staged = super().stage(blocks)
            return self.first.setdefault((blocks.num_rows, blocks.num_tokens), staged)

    return Captured


def staged(staging: Any, rows: int) -> SimpleNamespace:
    """The batch of that many rows, padding included, which lies in the buffers."""
    from gdn_apc.impl.vllm.staging import ONE_COLUMN

    return SimpleNamespace(
        num_rows=rows,
        block_size=ONE_COLUMN,
        query_start_loc=staging.starts[: rows + 1],
        num_computed_tokens=staging.n[:rows],
        num_scheduled_tokens=staging.m[:rows],
        read_slot=staging.read[:rows],
        block_table=staging.write[:rows, None],
    )


class GraphAudit(Audit):
    """An audit that also looks at steps which replayed a graph; ``replayed`` counts their rows."""

    def __init__(self, engine: Any, taps: Taps, **options: Any) -> None:
        super().__init__(engine, **options)
        self.taps, self.replayed = taps, 0

    def __enter__(self) -> GraphAudit:
        super().__enter__()
        self._core = self.taps.core
        runner = self.engine.runner
        self._execute = runner.execute_model
        runner.execute_model = self._executed
        return self

    def __exit__(self, *_: Any) -> None:
        del self.engine.runner.execute_model
        super().__exit__()

    def _watch(self, *arguments: Any, **options: Any):
        if self.taps.simulate and arguments[-1].only_one_token_rows:
            return self._core(*arguments, **options)
        self._called = True
        return super()._watch(*arguments, **options)

    def _executed(self, scheduler_output: Any, *rest: Any, **options: Any):
        self._called = False
        layers = [self.engine.gdn_layers[i] for i in self.numerics]
        before = {layer.prefix: tuple(t.clone() for t in pages(layer)) for layer in layers}
        result = self._execute(scheduler_output, *rest, **options)
        if not self._called and scheduler_output.total_num_scheduled_tokens:
            self._replay_of_graph(before)
        return result

    def _replay_of_graph(self, before: dict[str, tuple[torch.Tensor, ...]]) -> None:
        for index, layer in enumerate(self.engine.gdn_layers):
            rows_padded = self._padded_rows()
            rows = Step(staged(self._builder(layer.prefix).staging, rows_padded), self.engine).rows
            *inputs, o = self.taps.buffers[layer.A_log.data_ptr(), rows_padded]
            held = {}
            if index in self.numerics:
                windows, states = before[layer.prefix]
                held = {row.index: (states[row.read], windows[row.read]) for row in rows}
            self._look(index, rows, inputs, o, held, pages(layer))
            self.replayed += len(rows) * (index == 0)

    def _padded_rows(self) -> int:
        runner = self.engine.runner
        if self.taps.simulate:
            return runner.input_batch.num_reqs
        return runner.cudagraph_dispatcher._bs_to_padded_graph_size[runner.input_batch.num_reqs]

    def _builder(self, prefix: str) -> Any:
        for groups in self.engine.runner.attn_groups:
            for group in groups:
                if prefix in group.layer_names:
                    return group.get_metadata_builder()
        raise KeyError(prefix)
