"""FlashQLA (``flash-qla``, TileLang): the chunk form of the delta rule on Hopper and Blackwell.

Its interface is fla-core's. It compiles each shape class when it first runs, 20 to 60 s. Imports torch and, when
constructed, ``flash_qla``, which needs a GPU. Exercise it with ``pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

import torch

from gdn_apc.fuzz.bench.inputs import Set
from gdn_apc.fuzz.bench.peers.fla import Fla


class FlashQla(Fla):
    """See the module. Raises ``Missing`` without flash-qla or a GPU."""

    name = "flashqla"
    package, module = "flash-qla", "flash_qla"
    captured = True
    install = "pip install flash-qla==0.1.3"

    def _offsets(self, batch: Set) -> tuple[torch.Tensor, dict]:
        return batch.query_start_loc.long(), {}
