"""Our own operators: ``native`` (Triton) and ``native-torch``, as a layer calls them.

Imports torch and ``impl``. Exercise it with ``pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch

from gdn_apc import impl
from gdn_apc.fuzz.bench.check import Answer
from gdn_apc.fuzz.bench.inputs import Inputs, Set
from gdn_apc.fuzz.bench.peers.base import Peer, Run
from gdn_apc.fuzz.bench.problems import Problem


class Native(Peer):
    """Through Triton: on a GPU, or in the interpreter (where only the answers mean something)."""

    name = "native"
    ours = exports = True
    backend = "triton"

    def version(self) -> str:
        return "this checkout"

    def solves(self, problem: Problem, device: torch.device) -> bool:
        return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"

    def prepare(self, inputs: Inputs) -> Run:
        p = inputs.problem
        make = {"conv": self._conv, "gates": self._gates, "delta": self._delta, "metadata": self._build}
        calls = [make.get(p.op, self._core)(inputs, batch) for batch in inputs.sets]
        if p.op == "gates":
            return Run(calls, lambda result: Answer(gates=result))
        if p.op == "metadata":
            return Run(calls, lambda result: Answer(indices=[vars(meta) for meta in result]))
        return Run(calls, lambda result: Answer(o=result))

    def _metadata(self, inputs: Inputs, batch: Set, **others) -> impl.BlockIndexMetadata:
        p = inputs.problem
        return impl.build_metadata(
            batch.seq_lens,
            batch.query_start_loc,
            batch.table,
            block_size=p.block_size,
            max_query_len=max(p.lengths),
            num_tokens=p.tokens,
            **others,
        )

    def _build(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        """A step's metadata: built for one group of layers, and the other groups' slots."""
        groups = int(inputs.problem.variant.split()[0])
        tables = [batch.table.clone() for _ in range(groups - 1)]

        def build() -> list[impl.BlockIndexMetadata]:
            first = self._metadata(inputs, batch, backend=self.backend)
            return [first, *(first.with_block_table(t, backend=self.backend) for t in tables)]

        return build

    def _conv(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        return partial(
            impl.causal_conv1d,
            batch.operands["x"],
            inputs.weight,
            None,
            inputs.windows,
            self._metadata(inputs, batch),
            backend=self.backend,
        )

    def _gates(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        operands = batch.operands["a"], batch.operands["b"]
        return partial(impl.gdn_gates, *operands, inputs.A_log, inputs.dt_bias, backend=self.backend)

    def _delta(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        return partial(
            impl.gated_delta_rule,
            *batch.tensors(inputs.problem),
            inputs.states,
            self._metadata(inputs, batch),
            use_qk_l2norm=True,
            backend=self.backend,
        )

    def _core(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        p = inputs.problem
        out = batch.operands["x"].new_empty(p.tokens, p.HV, p.V)  # a layer is handed its output's buffer
        return partial(
            impl.gdn_core,
            *batch.tensors(p),
            inputs.weight,
            None,
            inputs.A_log,
            inputs.dt_bias,
            inputs.windows,
            inputs.states,
            self._metadata(inputs, batch),
            num_k_heads=p.H,
            head_k_dim=p.K,
            backend=self.backend,
            out=out,
        )


class NativeTorch(Native):
    """The plain PyTorch path."""

    name = "native-torch"
    backend = "torch"

    def solves(self, problem: Problem, device: torch.device) -> bool:
        return device.type == "cpu" or problem.op == "metadata"
