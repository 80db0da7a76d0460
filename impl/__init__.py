"""What runs: block-index metadata, Triton kernels, the CPU path, the vLLM plugin.

Imports nothing of ours outside ``impl``. Exercise it with ``pytest tests/impl``.
"""

from gdn_apc.impl._checks import check_slots
from gdn_apc.impl.metadata import BlockIndexMetadata, build_metadata, chunk_bounds
from gdn_apc.impl.ops import causal_conv1d, gated_delta_rule, gdn_core, gdn_gates

__all__ = [
    "BlockIndexMetadata",
    "build_metadata",
    "causal_conv1d",
    "check_slots",
    "chunk_bounds",
    "gated_delta_rule",
    "gdn_core",
    "gdn_gates",
]
