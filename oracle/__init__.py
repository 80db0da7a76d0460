"""What is right: the gated delta rule and what every cache block must hold, in plain PyTorch and Python.

Imports nothing else of this project, no Triton, no vLLM. Exercise it with ``pytest tests/oracle``.
"""

from gdn_apc.oracle.cache import Contents, StepResult, Write, block_contents, conv_step, delta_step
from gdn_apc.oracle.compare import Comparison, check, ratios
from gdn_apc.oracle.conv import causal_conv1d, silu, window_after
from gdn_apc.oracle.core import core_contents, core_step, gdn_core, split_qkv
from gdn_apc.oracle.delta_rule import l2norm, recurrence
from gdn_apc.oracle.dtypes import DTYPES, dtype_name, half_ulp, round_to, torch_dtype, unit_roundoff
from gdn_apc.oracle.gates import gates, softplus
from gdn_apc.oracle.metadata import block_indices
from gdn_apc.oracle.wy import chunked

__all__ = [
    "DTYPES",
    "Comparison",
    "Contents",
    "StepResult",
    "Write",
    "block_contents",
    "block_indices",
    "causal_conv1d",
    "check",
    "chunked",
    "conv_step",
    "core_contents",
    "core_step",
    "delta_step",
    "dtype_name",
    "gates",
    "gdn_core",
    "half_ulp",
    "l2norm",
    "ratios",
    "recurrence",
    "round_to",
    "silu",
    "softplus",
    "split_qkv",
    "torch_dtype",
    "unit_roundoff",
    "window_after",
]
