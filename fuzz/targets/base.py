"""What an implementation under test is: a small adapter with the seams it has and the clauses it claims.

Imports torch only. Every method works on one batch and changes the cache in place, as an engine's layer does.
Exercise it with ``pytest tests/fuzz/test_targets.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """A step as an engine hands it to a layer. All tensors int32, on the target's device.

    ``seq_lens: [N]`` is n + m of each row, ``query_start_loc: [N + 1]`` the packed token offsets (flat over
    padding rows), ``block_table: [N, max_blocks]`` slots by column. Row i computes
    ``m = query_start_loc[i + 1] - query_start_loc[i]`` tokens after ``n = seq_lens[i] - m``.
    """

    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    chunk_size: int
    max_query_len: int


@dataclass(frozen=True)
class Layer:
    """The parameters of one GDN layer.

    ``conv_weight: [D, W]`` and ``conv_bias: [D] | None`` in the input dtype, ``A_log: [HV]`` and
    ``dt_bias: [HV]`` fp32; D = 2·H·K + HV·V, channels in the order q, k, v.
    """

    H: int
    HV: int
    K: int
    V: int
    conv_weight: torch.Tensor
    conv_bias: torch.Tensor | None
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    scale: float
    use_qk_l2norm: bool
    activation: str | None


@dataclass(frozen=True)
class Claims:
    """Which clauses of the contract a target claims; what it does not claim is reported, not failed."""

    seams: frozenset[str] = frozenset({"metadata", "conv", "delta", "core"})
    input_dtypes: frozenset[str] = frozenset({"bf16", "fp16", "fp32"})
    state_dtypes: frozenset[str] = frozenset({"bf16", "fp16", "fp32"})
    any_start: bool = True  # a step may start anywhere, not only on the chunk grid
    boundary_states: bool = True  # every boundary that a step crosses is written, in that step
    boundary_grid: bool = True  # no chunk lies across a boundary
    absolute_grid: bool = True  # section 4.2: chunks count from boundaries wherever a step starts: free cuts
    persisted_carry: bool = True  # section 4.3: a hit changes no bit
    batch_invariant: bool = True  # section 4.1
    skips_null: bool = True  # slot 0 is neither read nor written
    packed_tail: bool = True  # packed tensors may be longer than the batch's tokens
    head_sizes: frozenset[int] | None = None  # None: any K and V
    block_multiple: int = 1  # block sizes must be multiples of this
    chunk_sizes: frozenset[int] = frozenset({16, 32, 64})
    metadata: frozenset[str] = frozenset(
        {"block_idx_last_computed_token", "block_idx_first_scheduled_token", "block_idx_last_scheduled_token"}
    )  # fields that the metadata seam must give; others are compared if they are given
    conv_fp32: bool = True  # the convolution's products are not rounded before they are summed
    fresh_token_fp32: bool = True  # a first step of one token is computed in fp32, like a decode
    fp16_range: bool = True  # with fp16 inputs, intermediate values below 6e-8 are not lost
    by_adapter: frozenset[str] = (
        frozenset()
    )  # clauses that hold because of what the adapter does, not the target


class Target:
    """Base of all adapters. A target overrides the seams that its claims name."""

    name: str = "?"
    claims: Claims = Claims()
    runs_triton: bool = (
        False  # its kernels are Triton's: off a GPU the interpreter can reorder their programs
    )

    def device(self) -> torch.device:
        """Where the target's tensors live."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def versions(self) -> dict[str, str]:
        """What must be known to replay: package names and their versions."""
        return {"torch": torch.__version__}

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The block-index metadata of a batch, by the names of DESIGN.md section 3 (see ``oracle/metadata.py``)."""
        raise NotImplementedError

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``x: [T, D]`` packed, ``conv_state: [num_slots, W - 1, D]`` of any strides → ``y: [T, D]``, input dtype."""
        raise NotImplementedError

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
        """``q, k: [T, H, K]``, ``v: [T, HV, V]``, ``g, beta: [T, HV]`` fp32, ``ssm_state: [num_slots, HV, V, K]`` → ``o: [T, HV, V]``."""
        raise NotImplementedError

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
        """``x: [T, D]`` before the convolution, ``a, b: [T, HV]`` → ``o: [T, HV, V]``; both states change in place."""
        raise NotImplementedError
