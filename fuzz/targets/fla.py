"""fla-core's gated delta rule and short convolution as a target: ``chunk_``, ``fused_recurrent_`` and ``causal_conv1d``.

The kernels know no blocks, so ``blockwise.py`` plays the engine. One-token rows take the recurrent kernel, new
requests included, as fla's own layer chooses by length; every other row takes the chunk kernels. ``core`` computes
g and beta inside the kernels (``use_gate_in_kernel``, ``use_beta_sigmoid_in_kernel``).

States are ``[N, HV, K, V]`` there, and the convolution's cache is ``[N, D, W]``: its oldest column is never used, so
a window fills the other W − 1. Imports torch and, when constructed, fla (``pip install --no-deps fla-core==0.6.0
einops``). Exercise it with ``pytest tests/anchors/test_fla_target.py``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings

import torch

from gdn_apc.fuzz.targets import TargetUnavailable
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.blockwise import BY_ENGINE, Blockwise, offsets

INSTALL = "pip install --no-deps fla-core==0.6.0 einops"


class FlaTarget(Blockwise):
    """See the module. Raises :class:`TargetUnavailable` without fla-core 0.6 or newer.

    Not claimed: chunks other than 64, a chunk grid counted from boundaries inside a block (theirs counts from where a
    call starts), and fp32's range between fp16 inputs.
    """

    name = "fla"
    runs_triton = True
    fresh_recurrent = True
    claims = Claims(
        seams=frozenset({"conv", "delta", "core"}),
        chunk_sizes=frozenset({64}),
        absolute_grid=False,
        fp16_range=False,
        by_adapter=BY_ENGINE,
    )

    def __init__(self) -> None:
        try:
            self.version = importlib.metadata.version("fla-core")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is no GPU
                self.kernels = importlib.import_module("fla.ops.gated_delta_rule")
                self.short = importlib.import_module("fla.modules.causal_conv1d")
        except ImportError as e:
            raise TargetUnavailable(f"target: 'fla' cannot run here: {e}; {INSTALL}") from e
        if tuple(map(int, self.version.split(".")[:2])) < (0, 6):
            raise TargetUnavailable(
                f"target: 'fla' needs fla-core 0.6 or newer, {self.version} is installed; {INSTALL}"
            )

    def versions(self) -> dict[str, str]:
        """torch, triton and fla-core."""
        import triton

        return {"torch": torch.__version__, "triton": triton.__version__, "fla-core": self.version}

    def conv_prefill(self, layer, x, windows, slots, cu, warm):
        cache = _cache_of(windows, slots)
        cache[~warm] = 0
        y, after = self.short.causal_conv1d_fwd(
            x[None],
            layer.conv_weight,
            layer.conv_bias,
            None,
            initial_state=cache,
            output_final_state=True,
            activation=layer.activation,
            cu_seqlens=cu,
        )
        windows[slots.long()] = after[:, :, 1:].transpose(1, 2).to(windows.dtype)
        return y[0]

    def conv_decode(self, layer, x, windows, slots):
        y, after = self.short.causal_conv1d_update(
            x, _cache_of(windows, slots), None, layer.conv_weight, layer.conv_bias, layer.activation
        )
        windows[slots.long()] = after[:, :, 1:].transpose(1, 2).to(windows.dtype)
        return y

    def chunk(self, layer, inputs, l2norm, states, cu):
        return self._call(self.kernels.chunk_gated_delta_rule, layer, inputs, l2norm, states, cu)

    def recurrent(self, layer, inputs, l2norm, states):
        cu = torch.arange(len(states) + 1, dtype=torch.int32, device=states.device)
        return self._call(self.kernels.fused_recurrent_gated_delta_rule, layer, inputs, l2norm, states, cu)

    def core_call(self, layer, y, a, b, cache, decode, pieces):
        """The kernels compute the gates; q and k are normalised as the layer says."""
        keys = layer.H * layer.K
        q, k, v = y.split([keys, keys, layer.HV * layer.V], dim=-1)
        q, k = (t.unflatten(-1, (layer.H, layer.K)) for t in (q, k))
        inputs = [q, k, v.unflatten(-1, (layer.HV, layer.V)), a, b]
        states = cache.gather(pieces)
        rule = (
            self.kernels.fused_recurrent_gated_delta_rule if decode else self.kernels.chunk_gated_delta_rule
        )
        gates = dict(
            use_gate_in_kernel=True, A_log=layer.A_log, dt_bias=layer.dt_bias, use_beta_sigmoid_in_kernel=True
        )
        cu = offsets(pieces, y.device)
        out, after = self._call(rule, layer, inputs, layer.use_qk_l2norm, states, cu, **gates)
        cache.scatter(pieces, after)
        return out

    def _call(self, rule, layer, inputs, l2norm, states, cu, **more):
        q, k, v, g, beta = (t[None].contiguous() for t in inputs)
        with torch.no_grad():
            o, after = rule(
                q,
                k,
                v,
                g=g,
                beta=beta,
                scale=layer.scale,
                initial_state=states.transpose(-1, -2).contiguous(),
                output_final_state=True,
                use_qk_l2norm_in_kernel=l2norm,
                cu_seqlens=cu,
                **more,
            )
        return o[0], after.transpose(-1, -2)


def _cache_of(windows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """fla's cache of these slots: ``[N, D, W]``, the oldest column zero."""
    held = windows[slots.long()].transpose(1, 2)
    return torch.nn.functional.pad(held, (1, 0)).contiguous()
