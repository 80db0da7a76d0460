"""Flash-Linear-Attention (``fla-core``): the chunk form of the delta rule, its own Triton kernels.

fla-core hands over to FlashQLA where that is installed; this peer measures its own kernels, so it says no. It knows no
slots: initial states are gathered and final states scattered, as an engine has to. The last state of a row only.
Imports torch and, when constructed, ``fla``. Exercise it with ``PYTHONPATH=DIR pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable

import torch

from gdn_apc.fuzz.bench.check import Answer
from gdn_apc.fuzz.bench.inputs import Inputs, Set
from gdn_apc.fuzz.bench.peers import Missing
from gdn_apc.fuzz.bench.peers.base import Peer, Run
from gdn_apc.fuzz.bench.problems import Problem


class Fla(Peer):
    """See the module. Raises :class:`Missing` without fla-core."""

    name = "fla"
    package, module, function = "fla-core", "fla.ops.gated_delta_rule", "chunk_gated_delta_rule"
    install = "pip install fla-core==0.6.0 einops"

    def __init__(self) -> None:
        os.environ.setdefault("FLA_FLASH_QLA", "0")
        try:
            self.run = getattr(importlib.import_module(self.module), self.function)
        except Exception as e:  # a package that needs a GPU fails in ways of its own
            raise Missing(
                f"peer: {self.name!r} cannot run here: {type(e).__name__}: {e}; {self.install}"
            ) from e

    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def solves(self, problem: Problem, device: torch.device) -> bool:
        return problem.op == "delta" and problem.dtype != "fp32"

    def prepare(self, inputs: Inputs) -> Run:
        calls = [self._call(inputs, batch) for batch in inputs.sets]
        return Run(calls, lambda result: Answer(o=result, all_columns=False))

    def _call(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        p, operands = inputs.problem, [t.unsqueeze(0) for t in batch.tensors(inputs.problem)]
        slots = batch.table.gather(1, ((batch.seq_lens - 1) // p.block_size).long()[:, None])[:, 0].long()
        cu, extra = self._offsets(batch)
        fresh = torch.zeros(len(p.lengths), p.HV, p.V, p.K, device=inputs.device)

        def call() -> torch.Tensor:
            initial = inputs.states[slots].float() if p.computed else fresh
            o, final = self._rule(*operands, initial, cu, extra)
            inputs.states[slots] = final.to(inputs.states.dtype)
            return o[0]

        return call

    def _offsets(self, batch: Set) -> tuple[torch.Tensor, dict]:
        """What does not depend on the layer, prepared once a step."""
        cu = batch.query_start_loc.long()
        return cu, dict(cu_seqlens_cpu=cu.cpu())

    def _rule(self, q, k, v, g, beta, initial, cu, extra) -> tuple[torch.Tensor, torch.Tensor]:
        return self.run(
            q,
            k,
            v,
            g,
            beta,
            initial_state=initial,
            output_final_state=True,
            cu_seqlens=cu,
            state_v_first=True,
            **extra,
        )
