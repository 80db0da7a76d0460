"""FlashInfer's prefill kernel of the gated delta rule, as vLLM 0.31 calls it: decays, not their logarithms.

Imports torch and, when constructed, ``flashinfer``, which needs a GPU. Exercise it with
``pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

import torch

from gdn_apc.fuzz.bench.inputs import Set
from gdn_apc.fuzz.bench.peers.fla import Fla


class FlashInfer(Fla):
    """See the module. Raises ``Missing`` without flashinfer or a GPU."""

    name = "flashinfer"
    package, module = "flashinfer-python", "flashinfer.gdn_prefill"
    install = "pip install flashinfer-python==0.6.13"

    def _offsets(self, batch: Set) -> tuple[torch.Tensor, dict]:
        return batch.query_start_loc.long(), {}

    def _rule(self, q, k, v, g, beta, initial, cu, extra) -> tuple[torch.Tensor, torch.Tensor]:
        o, final = self.run(
            q=q[0],
            k=k[0],
            v=v[0],
            g=torch.exp(g[0]),
            beta=beta[0],
            initial_state=initial,
            output_final_state=True,
            cu_seqlens=cu,
        )
        return o[None], final
