"""Our own implementation as targets: ``native`` (Triton, interpreted where there is no GPU) and ``native-torch``.

Both take the package to run, so that a copy of ``impl`` with a planted fault (``fuzz/mutants``) is a target too.
Imports torch and ``impl``; kernels when the first batch runs. Exercise it with ``pytest tests/fuzz/test_targets.py``.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from types import ModuleType

import torch
from torch.overrides import TorchFunctionMode

from gdn_apc import impl as ours
from gdn_apc.fuzz.targets.base import Batch, Claims, Layer, Target


class Uninitialised(TorchFunctionMode):
    """Inside, memory that nobody wrote yet is NaN, True, or the largest integer: what a kernel reads before it is written shows.

    An allocator may return anything, and mostly returns zeros or what an earlier call left: nearly right.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func in (torch.empty, torch.empty_like):
            made.fill_(_unwritten(made.dtype))
        return made


def _unwritten(dtype: torch.dtype) -> float | int | bool:
    """What memory of this dtype holds before it is written: NaN, True, or the largest integer."""
    if dtype.is_floating_point:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


class NativeTarget(Target):
    """``gdn_apc.impl``, or another package with its API, through its Triton kernels.

    The packed tensors may be longer than the batch's tokens.
    """

    name = "native"
    backend = "triton"
    claims = Claims()
    runs_triton = True

    def __init__(self, impl: ModuleType = ours) -> None:
        self.impl = impl
        if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
            from gdn_apc.fuzz import interpreter

            interpreter.activate()

    def versions(self) -> dict[str, str]:
        """torch, and triton if it is installed."""
        try:
            return {"torch": torch.__version__, "triton": importlib.metadata.version("triton")}
        except importlib.metadata.PackageNotFoundError:
            return {"torch": torch.__version__}

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        """By the path that a step takes on this device; off a GPU every eighth batch, always the same ones, by the
        kernel through the interpreter, which takes several times as long."""
        by_kernel = self.runs_triton and int(batch.seq_lens.sum() + batch.block_table.sum()) % 8 == 0
        meta = self._metadata(batch, int(batch.query_start_loc[-1]), backend="triton" if by_kernel else None)
        return {f.name: getattr(meta, f.name) for f in dataclasses.fields(meta)}

    def conv(self, layer: Layer, x: torch.Tensor, conv_state: torch.Tensor, batch: Batch) -> torch.Tensor:
        with Uninitialised():
            return self.impl.causal_conv1d(
                x,
                layer.conv_weight,
                layer.conv_bias,
                conv_state,
                self._metadata(batch, x.shape[0]),
                activation=layer.activation,
                backend=self.backend,
            )

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
        with Uninitialised():
            return self.impl.gated_delta_rule(
                q,
                k,
                v,
                g,
                beta,
                ssm_state,
                self._metadata(batch, q.shape[0]),
                scale=layer.scale,
                use_qk_l2norm=layer.use_qk_l2norm,
                backend=self.backend,
            )

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
        with Uninitialised():
            return self.impl.gdn_core(
                x,
                a,
                b,
                layer.conv_weight,
                layer.conv_bias,
                layer.A_log,
                layer.dt_bias,
                conv_state,
                ssm_state,
                self._metadata(batch, x.shape[0]),
                num_k_heads=layer.H,
                head_k_dim=layer.K,
                scale=layer.scale,
                use_qk_l2norm=layer.use_qk_l2norm,
                activation=layer.activation,
                backend=self.backend,
            )

    def _metadata(self, batch: Batch, num_tokens: int, backend: str | None = None) -> ours.BlockIndexMetadata:
        return self.impl.build_metadata(
            batch.seq_lens,
            batch.query_start_loc,
            batch.block_table,
            block_size=batch.block_size,
            chunk_size=batch.chunk_size,
            max_query_len=batch.max_query_len,
            num_tokens=num_tokens,
            backend=backend,
        )


class NativeTorchTarget(NativeTarget):
    """The same through its plain PyTorch path, on the CPU."""

    name = "native-torch"
    backend = "torch"
    runs_triton = False

    def __init__(self, impl: ModuleType = ours) -> None:
        self.impl = impl

    def device(self) -> torch.device:
        return torch.device("cpu")
