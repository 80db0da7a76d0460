"""The GDN layer of an installed vLLM, with its own metadata builder, in ``align`` mode: what an engine step runs.

The layer's ``_forward_core`` and the builder's ``build`` are executed as they are, on an object that has the fields
they read. The builder decides which rows are decodes, which slot a row uses and whether it has a state; the layer
picks the kernels. Left to this module is the engine: one call for each round of pieces, rows in the order of
vLLM's own runner (decodes, short extends, long extends, new requests), and the copy of a row's state to the block
that it goes on in. FlashInfer is not used: the prefill back end is Triton, as on machines without it.

Imports torch and, when constructed, single files of vLLM. Exercise it with ``pytest tests/anchors``.
"""

from __future__ import annotations

import dataclasses
import types
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from gdn_apc.fuzz.targets import _vllm_loader as loader
from gdn_apc.fuzz.targets.base import Batch, Layer
from gdn_apc.fuzz.targets.blockwise import Cache, Piece, offsets, rounds_of, tokens_of

PREFIX = "layer"
MAX_ROWS = 64


class VllmLayer:
    """One release's layer and builder. Raises ``VllmUnsupported`` if its files do not load."""

    def __init__(self, loaded: loader.Loaded):
        self.loaded = loaded
        self.common, self.gdn, self.module = loaded.load(loader.BACKEND, loader.GDN, loader.LAYER)
        self.layer = _class_with(self.module, "_forward_core")
        self.chunk = _class_with(self.module, "forward_native", "forward_cuda").forward_native
        self.builders: dict[tuple[int, torch.device], Any] = {}

    # ---- a batch ----------------------------------------------------------------------------------------------

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
        """``Target.core`` through the layer: both caches change in place."""
        o = x.new_zeros(x.shape[0], layer.HV, layer.V)
        windows, states = Cache(conv_state), Cache(ssm_state)
        with self.loaded.active():
            for found in rounds_of(batch):
                pieces = sorted(found, key=region)
                at = tokens_of(pieces, x.device)
                with windows.in_place(pieces) as (conv, slots), states.in_place(pieces) as (ssm, _):
                    meta = self.metadata(
                        pieces, _last_column(pieces, slots, batch.block_size), batch.block_size
                    )
                    out = x.new_zeros(len(at), layer.HV, layer.V)
                    loader.FORWARD.attn_metadata = {PREFIX: meta}
                    try:
                        fake = self._fake(layer, (conv, ssm))
                        fake._forward_core(x[at].contiguous(), b[at].contiguous(), a[at].contiguous(), out)
                    finally:
                        loader.FORWARD.attn_metadata = None
                o[at] = out
        return o

    def align_mode(self, batch: Batch) -> dict[str, torch.Tensor]:
        """``write_slot`` and ``has_initial_state`` of each row, [N], as the builder hands them to the kernels."""
        starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
        rows = []
        for i, (start, end) in enumerate(pairwise(starts)):
            n = lengths[i] - (end - start)
            if end > start:
                rows.append(Piece(i, start, end, n or None, 0, n, end - start))
        found = {
            "write_slot": torch.zeros(len(lengths), dtype=torch.int64),
            "has_initial_state": torch.zeros(len(lengths), dtype=torch.bool),
        }
        if rows:
            rows.sort(key=region)
            order = [p.row for p in rows]
            with self.loaded.active():
                meta = self.metadata(rows, batch.block_table[order].contiguous(), batch.block_size)
            found["write_slot"][order] = meta.non_spec_state_indices_tensor.long()
            # A row that the builder calls a decode reads its slot, whatever it holds.
            warm = torch.ones(len(rows), dtype=torch.bool)
            if meta.num_prefills:
                warm[meta.num_decodes :] = meta.prefill_has_initial_state
            found["has_initial_state"][order] = warm
        return found

    def metadata(self, pieces: list[Piece], table: torch.Tensor, block_size: int) -> Any:
        """The builder's answer to a batch of these pieces, in this order, with ``table: [N, columns]``."""
        device = table.device
        lengths = [p.end - p.start for p in pieces]
        seq_lens = torch.tensor([p.position + m for p, m in zip(pieces, lengths)], dtype=torch.int32)
        starts = offsets(pieces, torch.device("cpu"))
        known = dict(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens.to(device),
            num_reqs=len(pieces),
            num_actual_tokens=sum(lengths),
            max_query_len=max(lengths),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=table,
            slot_mapping=torch.zeros(sum(lengths), dtype=torch.int64, device=device),
            is_prefilling=torch.tensor([region(p) > 0 for p in pieces]),
            seq_lens_cpu_upper_bound=seq_lens,
            _seq_lens_cpu=seq_lens,
            _num_computed_tokens_cpu=torch.tensor([p.position for p in pieces], dtype=torch.int32),
        )
        fields = {f.name for f in dataclasses.fields(self.common.CommonAttentionMetadata)}
        common = self.common.CommonAttentionMetadata(**{k: v for k, v in known.items() if k in fields})
        return self._builder(block_size, device).build(0, common)

    # ---- what an engine constructs ----------------------------------------------------------------------------

    def _builder(self, block_size: int, device: torch.device) -> Any:
        """The builder of one block size, in ``align`` mode, without CUDA graphs and without speculation."""
        key = (block_size, device)
        if key not in self.builders:
            spec = SimpleNamespace(
                block_size=block_size, num_speculative_blocks=0, prefill_checkpoint_alignment=None
            )
            with self.loaded.active():
                self.builders[key] = self.gdn.GDNAttentionMetadataBuilder(spec, [PREFIX], config(), device)
        return self.builders[key]

    def _fake(self, layer: Layer, kv_cache: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return _Fields(
            self.layer,
            prefix=PREFIX,
            kv_cache=kv_cache,
            tp_size=1,
            enable_packed_recurrent_decode=True,
            chunk_gated_delta_rule=lambda **kwargs: self.chunk(None, **kwargs),
            conv1d=SimpleNamespace(weight=layer.conv_weight[:, None], bias=layer.conv_bias),
            activation=layer.activation,
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            num_k_heads=layer.H,
            num_v_heads=layer.HV,
            head_k_dim=layer.K,
            head_v_dim=layer.V,
            key_dim=layer.H * layer.K,
            value_dim=layer.HV * layer.V,
        )


def _last_column(pieces: list[Piece], slots: torch.Tensor, block_size: int) -> torch.Tensor:
    """A block table that holds a row's slot in the column of its last token, and null elsewhere."""
    columns = [(p.position + p.end - p.start - 1) // block_size for p in pieces]
    table = slots.new_zeros(len(pieces), max(columns) + 1)
    table[range(len(pieces)), columns] = slots
    return table


def takes(layer: Layer) -> bool:
    """Whether the layer can be asked: it always normalises q and k, scales by K^-½ and applies SiLU."""
    return layer.use_qk_l2norm and layer.activation == "silu" and layer.scale == layer.K**-0.5


def region(piece: Piece) -> int:
    """vLLM's order of a batch: 0 a decode, 1 a last token of a prompt, 2 more of a prompt, 3 a new request."""
    if piece.source is None:
        return 3
    if piece.end - piece.start > 1:
        return 2
    return 0 if piece.whole == 1 else 1


def config() -> SimpleNamespace:
    """The part of ``VllmConfig`` that builders read."""
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: False), max_cudagraph_capture_size=None
        ),
        speculative_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_ROWS, max_num_batched_tokens=1 << 20),
        cache_config=SimpleNamespace(mamba_cache_mode="align", enable_prefix_caching=True),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(), max_model_len=1 << 20),
        additional_config={"gdn_prefill_backend": "triton"},
        mamba_config=SimpleNamespace(gdn_prefill_backend="triton"),
        use_v2_model_runner=False,
    )


class _Fields:
    """An object with given fields and the methods of a class that was never constructed."""

    def __init__(self, cls: type, **fields: Any):
        vars(self).update(fields, _cls=cls)

    def __getattr__(self, name: str) -> Any:
        method = vars(self._cls).get(name)
        if not isinstance(method, types.FunctionType):
            raise AttributeError(
                f"vLLM's {self._cls.__name__} asks for {name!r}, which the adapter does not give"
            )
        return types.MethodType(method, self)


def _class_with(module: types.ModuleType, *methods: str) -> type:
    """The class of a module that defines these methods."""
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and value.__module__ == module.__name__
            and set(methods) <= set(vars(value))
        ):
            return value
    raise loader.VllmUnsupported(
        f"vllm: {module.__name__} has no class with {', '.join(methods)}; fuzz/targets/_vllm_layer.py must learn "
        "where they went"
    )
