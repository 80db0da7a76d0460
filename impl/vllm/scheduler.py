"""The ``priority`` policy made safe for states at every block: ``scheduler_config.scheduler_cls``, set by ``touchpoints.prepare``.

vLLM publishes the hash of a block when it schedules the tokens that will fill it. Its ``priority`` policy may then,
in the same step, preempt that very request and drop its row: the block stays published with a state that was
never written, and a later request hits it (vllm/v1/core/sched/scheduler.py, ``schedule``; vLLM issue #57580). Here a
victim's blocks from its first unwritten one on lose their hashes before it is preempted. ``fcfs`` preempts only requests that the
step has not scheduled yet, and needs nothing. Imports vLLM. Exercise it with ``pytest -m vllm tests/vllm/test_priority.py``.
"""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class _UnpublishVictims:
    """Mixin: a preempted request leaves no hash of a block that its dropped row would have filled."""

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        # num_computed_tokens still is what the step started from: vLLM advances it when the whole step is scheduled.
        manager = self.kv_cache_manager
        unwritten: set[int] = set()
        for group, ids in zip(
            manager.kv_cache_config.kv_cache_groups, manager.get_block_ids(request.request_id)
        ):
            unwritten.update(ids[request.num_computed_tokens // group.kv_cache_spec.block_size :])
        manager.evict_blocks(unwritten)
        super()._preempt_request(request, timestamp, drop_stale_output)


class MendedScheduler(_UnpublishVictims, Scheduler):
    """For synchronous scheduling."""


class MendedAsyncScheduler(_UnpublishVictims, AsyncScheduler):
    """For asynchronous scheduling."""


def mended(vllm_config: VllmConfig, **arguments: Any) -> Scheduler:
    """The scheduler that vLLM would have chosen, mended. vLLM decides on async scheduling after it calls ``prepare``."""
    chosen = MendedAsyncScheduler if vllm_config.scheduler_config.async_scheduling else MendedScheduler
    return chosen(vllm_config=vllm_config, **arguments)
