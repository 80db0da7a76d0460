"""vLLM's own kernels, called as its layer calls them: the Triton prefill path, and the fused decode path.

As in ``vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py``: a prefill runs the convolution, one kernel that
splits, normalises and gates, gathers the initial states, runs the chunk kernels and scatters the final states; a decode
runs the convolution and the packed recurrent kernel. What the metadata builder prepares once a step is prepared here.
It keeps the last state of a row only. Found as the fuzz target finds it (``fuzz/targets/_vllm_loader.py``).
Imports torch and, when constructed, single files of vLLM. Exercise it with ``GDN_APC_VLLM=DIR pytest tests/benchmarks/test_peers.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from gdn_apc.fuzz.bench.check import Answer
from gdn_apc.fuzz.bench.inputs import Inputs, Set
from gdn_apc.fuzz.bench.peers import Missing
from gdn_apc.fuzz.bench.peers.base import Peer, Run
from gdn_apc.fuzz.bench.problems import CHUNK, IN_PLACE, Problem
from gdn_apc.fuzz.targets import _vllm_loader

UTILS = "vllm.v1.attention.backends.utils"


class Vllm(Peer):
    """See the module. Raises :class:`Missing` without a vLLM that can be loaded."""

    name = "vllm"

    def __init__(self) -> None:
        try:
            self.found = _vllm_loader.find()
            fla = self.found.fla
            names = ("chunk", "fused_recurrent", "fused_gdn_prefill_post_conv", "index")
            loaded = _vllm_loader.load(self.found, *(f"{fla}.{n}" for n in names), _vllm_loader.CONV, UTILS)
        except (_vllm_loader.VllmMissing, _vllm_loader.VllmUnsupported) as e:
            raise Missing(f"peer: 'vllm' cannot run here: {e}") from e
        self.chunk, self.recurrent, self.post_conv, self.index, self.convolution, self.utils = loaded

    def version(self) -> str:
        return self.found.version

    def solves(self, problem: Problem, device: torch.device) -> bool:
        if problem.op == "decode":
            return problem.variant == IN_PLACE
        return problem.op in ("conv", "gates", "delta", "core") and problem.dtype != "fp32"

    def prepare(self, inputs: Inputs) -> Run:
        p = inputs.problem
        make = {"conv": self._conv, "gates": self._gates, "delta": self._delta, "core": self._core}
        calls = [make.get(p.op, self._decode)(inputs, batch) for batch in inputs.sets]
        if p.op == "gates":
            return Run(calls, lambda result: Answer(gates=result[3:]))
        return Run(calls, lambda result: Answer(o=result, all_columns=False))

    def _conv(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        p = inputs.problem
        nums, batch_ptr, token_ptr = self.utils.compute_causal_conv1d_metadata(
            batch.query_start_loc.cpu(), device=inputs.device
        )
        step = SimpleNamespace(nums_dict=nums, batch_ptr=batch_ptr, token_chunk_offset_ptr=token_ptr)
        resumed = torch.full((len(p.lengths),), p.computed > 0, dtype=torch.bool, device=inputs.device)
        slots, x, windows = _last_slots(p, batch), batch.operands["x"], inputs.windows.transpose(1, 2)

        def conv() -> torch.Tensor:
            return self.convolution.causal_conv1d_fn(
                x.transpose(0, 1),
                inputs.weight,
                None,
                activation="silu",
                conv_states=windows,
                has_initial_state=resumed,
                cache_indices=slots,
                query_start_loc=batch.query_start_loc,
                metadata=step,
            ).transpose(0, 1)

        return conv

    def _gates(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        """One kernel that splits and normalises too: q, k, v, g, beta."""
        p = inputs.problem
        y = torch.randn(p.tokens, p.D, device=inputs.device).to(batch.operands["a"].dtype)
        return lambda: self._prepared(inputs, batch, y)

    def _prepared(self, inputs: Inputs, batch: Set, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = inputs.problem
        return self.post_conv.fused_post_conv_prep(
            conv_output=y,
            a=batch.operands["a"],
            b=batch.operands["b"],
            A_log=inputs.A_log,
            dt_bias=inputs.dt_bias,
            num_k_heads=p.H,
            head_k_dim=p.K,
            head_v_dim=p.V,
            apply_l2norm=True,
            output_g_exp=False,
        )

    def _chunks(self, inputs: Inputs, batch: Set) -> Callable[..., torch.Tensor]:
        """The chunk kernels between the gather and the scatter of the rows' states."""
        p, cu = inputs.problem, batch.query_start_loc
        slots = _last_slots(p, batch).long()
        fresh = torch.full((len(p.lengths),), p.computed == 0, dtype=torch.bool, device=inputs.device)
        indices = self.index.prepare_chunk_indices(cu, CHUNK)
        offsets = self.index.prepare_chunk_offsets(cu, CHUNK)

        def run(*operands: torch.Tensor) -> torch.Tensor:
            initial = inputs.states[slots]
            initial[fresh, ...] = 0
            o, final = self.chunk.chunk_gated_delta_rule(
                *(t.unsqueeze(0) for t in operands),
                initial_state=initial,
                output_final_state=True,
                cu_seqlens=cu,
                chunk_indices=indices,
                chunk_offsets=offsets,
                use_qk_l2norm_in_kernel=False,
            )
            inputs.states[slots] = final.to(inputs.states.dtype)
            return o[0]

        return run

    def _delta(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        run, operands = self._chunks(inputs, batch), batch.tensors(inputs.problem)
        return lambda: run(*operands)

    def _core(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        conv, run = self._conv(inputs, batch), self._chunks(inputs, batch)
        return lambda: run(*self._prepared(inputs, batch, conv()))

    def _decode(self, inputs: Inputs, batch: Set) -> Callable[[], object]:
        p = inputs.problem
        x, a, b = batch.tensors(p)
        slots, windows = _last_slots(p, batch), inputs.windows.transpose(1, 2)
        # The layer lets the convolution overwrite its input, and has the output's buffer from outside.
        buffer, out = torch.empty_like(x), x.new_empty(p.tokens, 1, p.HV, p.V)

        def decode() -> torch.Tensor:
            y = self.convolution.causal_conv1d_update(
                x,
                windows,
                inputs.weight,
                None,
                "silu",
                conv_state_indices=slots,
                validate_data=False,
                out=buffer,
            )
            self.recurrent.fused_recurrent_gated_delta_rule_packed_decode(
                mixed_qkv=y,
                a=a,
                b=b,
                A_log=inputs.A_log,
                dt_bias=inputs.dt_bias,
                scale=p.K**-0.5,
                initial_state=inputs.states,
                out=out,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=True,
            )
            return out[:, 0]

        return decode


def _last_slots(p: Problem, batch: Set) -> torch.Tensor:
    """The slot of each row's last column, int32 [N]: where an engine without block exports keeps the row's state."""
    columns = (batch.seq_lens - 1) // p.block_size
    return batch.table.gather(1, columns.long()[:, None])[:, 0].contiguous()
