"""Writes what a real engine does as a trace for the design's model checker (``gdn_apc.spec.traces`` has the format).

``with Tracing(engine) as trace: …; write(path, trace.trace())``. It listens to the scheduler that vLLM runs, to its block manager
and to the model runner, and changes nothing. What a row *writes* is measured: the pages whose bits the step changed.
What it *reads* is what the kernels and the attention backend are told to read.

One state group and one attention group, linear layer first (``two_layers``): the design has no more groups. Imports
vLLM's modules inside functions only. Exercise it with ``pytest -m vllm tests/vllm/test_vllm_traces.py``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
import torch

LAYERS = ("linear_attention", "full_attention")
JUNK = 0x11
"""A byte; two or four of them are a tiny finite number."""
Event = dict[str, Any]


def two_layers(folder: Path, kind: str = "qwen3_5") -> Path:
    """A checkpoint with one GDN layer and one attention layer, so that the engine has two groups of blocks."""
    whole = tiny.SIZES
    tiny.SIZES = whole | {"num_hidden_layers": len(LAYERS), "layer_types": list(LAYERS)}
    try:
        return tiny.write(folder, kind)
    finally:
        tiny.SIZES = whole


def write(path: Path, events: list[Event]) -> Path:
    """Write a trace as NDJSON; returns the path."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


class Tracing:
    """Listens to one engine, from an empty cache on, and keeps its ``events``."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.scheduler, self.pool = engine, engine.scheduler, engine.pool
        self.manager = self.scheduler.kv_cache_manager
        self.state, self.attention = self.manager.coordinator.single_type_managers
        self.requests: list[Any] = []
        self.events: list[Event] = []
        self._freed: list[int] = []
        self._published: list[int] = []
        self._rows: list[
            list[Event]
        ] = []  # of the steps that have run and that the scheduler has not heard of
        self._sent: list[list[str]] = []
        self._updating = False
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Tracing:
        from gdn_apc.impl.vllm import layer

        assert not self.scheduler.requests, "requests are still running: a trace starts from an empty cache"
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        self.start = {
            "event": "start",
            "block_size": self.engine.block_size,
            "slots": self.pool.num_gpu_blocks - 1,
            "depth": self.engine.core.batch_queue_size,
            "attention": True,
            "order": "vllm",
            "free": free,
        }
        self._around(self.scheduler, "add_request", self._arrives)
        self._around(self.manager.coordinator, "remove_skipped_blocks", self._skips)
        self._around(self.manager.coordinator, "cache_blocks", self._publishes)
        self._around(self.manager, "allocate_slots", self._allocates)
        self._around(self.pool, "free_blocks", self._frees)
        self._around(self.scheduler, "schedule", self._schedules)
        self._around(self.scheduler, "_preempt_request", self._preempts)
        self._around(self.scheduler, "_free_request", self._ends)
        self._around(self.scheduler, "update_from_output", self._updates)
        self._around(self.engine.runner, "execute_model", self._executes)
        self._around(layer, "gdn_core", self._runs)
        return self

    def __exit__(self, *_: Any) -> None:
        for undo in reversed(self._undo):
            undo()

    def trace(self) -> list[Event]:
        """All events. Tokens are known at the end only; those that a request never got are named after it."""
        requests = []
        for number, request in enumerate(self.requests, 1):
            # The last token that is sampled is never computed: the request ends with the row before it.
            length = request.num_prompt_tokens + request.max_tokens - 1
            known = [str(token) for token in request.all_token_ids][:length]
            never = [f"{number}.{i}" for i in range(len(known), length)]
            requests.append({"tokens": known + never, "prompt": request.num_prompt_tokens})
        return [self.start | {"requests": requests}, *self.events]

    def _around(self, thing: Any, name: str, listener: Callable[..., Any]) -> None:
        """Let ``listener(method, *arguments)`` stand in for a method of this one object, or for a module's function."""
        method, had = getattr(thing, name), name in vars(thing)

        def listened(*arguments: Any, **named: Any) -> Any:
            return listener(method, *arguments, **named)

        setattr(thing, name, listened)
        self._undo.append(lambda: setattr(thing, name, method) if had else delattr(thing, name))

    def _say(self, event: str, **what: Any) -> None:
        self.events.append({"event": event, **what})

    def _number(self, name: str) -> int:
        """The request's number, from 1. A name that no request has is an error of this module."""
        return next(i for i, request in enumerate(self.requests, 1) if request.request_id == name)

    def _tables(self, name: str) -> tuple[list[int], list[int]]:
        """(of states, of attention): a request's block tables as the manager has them."""
        one, other = (
            [b.block_id for b in m.req_to_blocks.get(name, ())] for m in (self.state, self.attention)
        )
        return one, other

    # The scheduler and its block manager

    def _arrives(self, method: Any, request: Any) -> Any:
        self.requests.append(request)
        return method(request)

    def _frees(self, method: Any, blocks: Any) -> Any:
        blocks = list(blocks)
        self._freed += [block.block_id for block in blocks if not block.is_null]
        return method(blocks)

    def _skips(self, method: Any, name: str, *arguments: Any, **named: Any) -> Any:
        self._freed = []
        result = method(name, *arguments, **named)
        if self._freed:
            self._say("skip", request=self._number(name), freed=self._freed)
        return result

    def _publishes(self, method: Any, request: Any, *arguments: Any) -> Any:
        held = [b for m in (self.state, self.attention) for b in m.req_to_blocks[request.request_id]]
        before = [block.block_id for block in held if block.block_hash is None]
        result = method(request, *arguments)
        self._published = [i for i in before if self.pool.blocks[i].block_hash is not None]
        return result

    def _allocates(self, method: Any, *arguments: Any, **named: Any) -> Any:
        given = inspect.signature(method).bind(*arguments, **named).arguments
        request = given["request"]
        n = request.num_computed_tokens + given.get("num_new_computed_tokens", 0)
        self._published = []
        result = method(*arguments, **named)
        if result is not None:
            table, attention = self._tables(request.request_id)
            self._say(
                "schedule",
                request=self._number(request.request_id),
                n=n,
                m=given["num_new_tokens"],
                table=table,
                attention=attention,
                published=self._published,
            )
        return result

    def _schedules(self, method: Any, *arguments: Any, **named: Any) -> Any:
        output = method(*arguments, **named)
        if output.num_scheduled_tokens:
            self._sent.append(list(output.num_scheduled_tokens))
            self._say("dispatch", requests=[self._number(name) for name in output.num_scheduled_tokens])
        return output

    def _preempts(self, method: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        named_before, self._freed = self._named(), []
        result = method(request, *arguments, **named)
        self._say_gone("preempt", request, named_before)
        return result

    def _named(self) -> set[int]:
        return {block.block_id for block in self.pool.blocks if block.block_hash is not None}

    def _say_gone(self, event: str, request: Any, named_before: set[int]) -> None:
        lost = sorted(named_before - self._named())
        self._say(event, request=self._number(request.request_id), freed=self._freed, unpublished=lost)

    def _ends(self, method: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        named_before, self._freed = self._named(), []
        result = method(request, *arguments, **named)
        if self._updating:
            self.events[-1]["finished"].append(self._number(request.request_id))
        else:
            self._say_gone("abort", request, named_before)
        return result

    def _updates(self, method: Any, output: Any, *arguments: Any, **named: Any) -> Any:
        if output.num_scheduled_tokens:
            self._say("execute", rows=self._rows.pop(0), finished=[])
            self._updating = True
        try:
            return method(output, *arguments, **named)
        finally:
            self._updating = False

    # The worker

    def _executes(self, method: Any, output: Any, *arguments: Any, **named: Any) -> Any:
        if not output.num_scheduled_tokens:
            return method(output, *arguments, **named)
        pages = self._pages()
        self._before, self._now = pages.clone(), []
        result = method(output, *arguments, **named)
        changed = (self._before != pages).any(1).nonzero().flatten().tolist()
        self._rows.append(self._attributed(changed, self._sent.pop(0)))
        return result

    def _pages(self) -> torch.Tensor:
        """[slots, bytes]: the pool's memory, which the layers of both groups share."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
            for tensor in self.engine.runner.kv_caches
        }
        assert len(storages) == 1, "layers of two groups have one pool"
        (storage,) = storages.values()
        return torch.tensor([], dtype=torch.uint8).set_(storage).view(self.pool.num_gpu_blocks, -1)

    def _runs(self, method: Any, *arguments: Any, **named: Any) -> Any:
        """Stands in for ``gdn_core``: what the step's rows read, and where they may write."""
        from vllm.forward_context import get_forward_context

        pages = self._pages()
        blocks = inspect.signature(method).bind(*arguments, **named).arguments["meta"]
        metadata = get_forward_context().attn_metadata
        (attention,) = (each for each in metadata.values() if hasattr(each, "slot_mapping"))
        B = self.engine.block_size
        for i, (n, m) in enumerate(
            zip(blocks.num_computed_tokens.tolist(), blocks.num_scheduled_tokens.tolist())
        ):
            if i >= len(self.engine.runner.input_batch.req_ids) or m == 0:
                continue
            columns = -(-(n + m) // B)
            state = blocks.block_table[i, :columns].tolist()
            others = attention.block_table[i, :columns].tolist()
            reads = ([int(blocks.read_slot[i])] if n else []) + others[: -(-n // B)]
            # A column that starts in this step may be a recycled page with the very bits that it will get. This layer is
            # the first, so nothing of the step has been written yet.
            for slot in {*state[-(-n // B) :], *others[-(-n // B) :]}:
                pages[slot] = self._before[slot] = JUNK
            name = self.engine.runner.input_batch.req_ids[i]
            self._now.append(
                {"name": name, "reads": reads, "may write": {*state[n // B :], *others[n // B :]}}
            )
        return method(*arguments, **named)

    def _attributed(self, changed: list[int], sent: list[str]) -> list[Event]:
        """A step's rows, in the order in which they were scheduled. A page that no row may write has a padding row."""
        rows, left = [], set(changed)
        for row in sorted(self._now, key=lambda row: sent.index(row["name"])):
            writes = sorted(row["may write"] & set(changed))
            left -= set(writes)
            rows.append({"request": self._number(row["name"]), "reads": row["reads"], "writes": writes})
        return rows + ([{"request": 0, "reads": [], "writes": sorted(left)}] if left else [])
