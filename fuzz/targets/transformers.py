"""The PyTorch fallback of ``transformers`` as a target: Qwen3-Next's chunked and recurrent rule and its convolution.

These are what a model runs where neither fla nor causal-conv1d is installed: plain PyTorch on any device, fp32
inside, one request a call here. ``blockwise.py`` plays the engine. The layer's own gates are not a seam of theirs,
so ``core`` is not asked; ``tests/anchors/test_transformers.py`` compares the whole layer.

States are ``[1, HV, K, V]`` there, the convolution's cache is ``[1, D, W]`` with a column that is not used. Their
functions always scale q by K^-½, so another scale goes into q, in fp32. Imports torch and, when constructed,
transformers (``pip install 'gdn-apc[anchors]'``). Exercise it with ``pytest tests/anchors/test_transformers_target.py``.
"""

from __future__ import annotations

import importlib
import inspect

import torch

from gdn_apc.fuzz.targets import TargetUnavailable
from gdn_apc.fuzz.targets.base import Claims
from gdn_apc.fuzz.targets.blockwise import BY_ENGINE, Blockwise

MODULE = "transformers.models.qwen3_next.modeling_qwen3_next"


class TransformersTarget(Blockwise):
    """See the module. Raises :class:`TargetUnavailable` without transformers' Qwen3-Next.

    Not claimed: chunks other than 64, a chunk grid counted from boundaries inside a block, and head sizes whose K^-½
    is no power of two (their functions always multiply by it, and the exact properties ask for other scales).
    """

    name = "transformers"
    fresh_recurrent = True
    claims = Claims(
        seams=frozenset({"conv", "delta"}),
        chunk_sizes=frozenset({64}),
        head_sizes=frozenset({16, 64}),
        absolute_grid=False,
        by_adapter=BY_ENGINE,
    )

    def __init__(self) -> None:
        try:
            self.model = importlib.import_module(MODULE)
            import transformers
        except ImportError as e:
            raise TargetUnavailable(
                f"target: 'transformers' cannot run here: {e}; pip install 'gdn-apc[anchors]'"
            ) from e
        self.version = transformers.__version__

    def versions(self) -> dict[str, str]:
        """torch and transformers."""
        return {"torch": torch.__version__, "transformers": self.version}

    def conv_prefill(self, layer, x, windows, slots, cu, warm):
        y = torch.empty_like(x)
        update = self._plain("causal_conv1d_update")
        bounds = cu.tolist()
        for i, slot in enumerate(slots.tolist()):
            part = x[bounds[i] : bounds[i + 1]]
            state = windows.new_zeros(1, layer.conv_weight.shape[1], x.shape[1])
            if warm[i]:
                state[0, 1:] = windows[slot]
            state = state.transpose(1, 2).contiguous()
            out = update(part.T[None], state, layer.conv_weight, layer.conv_bias, layer.activation)
            y[bounds[i] : bounds[i + 1]] = out[0].T
            windows[slot] = state[0, :, 1:].T.to(windows.dtype)
        return y

    def chunk(self, layer, inputs, l2norm, states, cu):
        return self._rows("torch_chunk_gated_delta_rule", layer, inputs, l2norm, states, cu.tolist())

    def recurrent(self, layer, inputs, l2norm, states):
        cu = list(range(len(states) + 1))
        return self._rows("torch_recurrent_gated_delta_rule", layer, inputs, l2norm, states, cu)

    def _rows(self, name, layer, inputs, l2norm, states, bounds):
        """One request after the other: outputs [T, HV, V] and final states."""
        rule, group = self._plain(name), layer.HV // layer.H
        q, k, v, g, beta = inputs
        q, k = (t.repeat_interleave(group, dim=1) for t in (q, k))
        factor = layer.scale * layer.K**0.5
        outputs, finals = [], []
        for i, state in enumerate(states):
            part = [t[None, bounds[i] : bounds[i + 1]] for t in (q, k, v, g, beta)]
            part[0] = part[0].float()  # the output has q's dtype
            if not l2norm:
                part[0] = part[0] * factor
            out, final = rule(
                *part[:3],
                g=part[3],
                beta=part[4],
                initial_state=state.transpose(-1, -2)[None],
                output_final_state=True,
                use_qk_l2norm_in_kernel=l2norm,
            )
            outputs.append((out[0] * factor if l2norm else out[0]).to(v.dtype))
            finals.append(final[0].transpose(-1, -2))
        return torch.cat(outputs), torch.stack(finals)

    def _plain(self, name: str):
        """Their function itself, never a kernel that stands in for it."""
        return inspect.unwrap(getattr(self.model, name))
