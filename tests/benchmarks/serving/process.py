"""One vLLM engine in a process of its own: reads jobs from stdin, one JSON object a line, answers each on stdout.

    python process.py '{"model": FOLDER, "shape": "large", "options": {…}, "check": false}'

Answers are lines that start with ``@@ ``: one when vLLM is imported, after which a line on stdin lets the engine start, one
when it is ready or why it is not, then one a job. Everything else that is printed comes from vLLM.
Imports vLLM inside functions. ``run.py`` starts these.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "vllm")]


def answer(**what: Any) -> None:
    """One line for the parent."""
    print("@@ " + json.dumps(what), flush=True)


def start(setup: dict[str, Any]) -> Any:
    """The engine of ``tests/vllm/serving.py`` with what measurements need beside."""
    import models
    import serving

    class Engine(serving.Engine):
        vocabulary = models.MODELS[setup["shape"]]["vocab_size"]

        def forget(self) -> None:
            """An empty cache."""
            if not self.config.cache_config.enable_prefix_caching:
                return
            for _ in range(10):  # an asynchronous scheduler may have a step to settle
                if self.llm.reset_prefix_cache():
                    return
                self.llm.llm_engine.step()
            raise RuntimeError("the cache cannot be emptied: requests are still running")

        @property
        def bytes_per_block(self) -> int:
            """Behind one block id: a page in each layer of a group."""
            groups = self.scheduler.kv_cache_config.kv_cache_groups
            return max(len(g.layer_names) * g.kv_cache_spec.page_size_bytes for g in groups)

        @contextlib.contextmanager
        def holding(self, free_bytes: int | None) -> Iterator[int]:
            """With a pool of ``free_bytes`` or all of it; yields its blocks."""
            free = self.pool.get_num_free_blocks()
            if free_bytes is None:
                yield free
                return
            held = self.pool.get_new_blocks(max(free - free_bytes // self.bytes_per_block, 0))
            try:
                yield self.pool.get_num_free_blocks()
            finally:
                self.pool.free_blocks(held)

    models.register()
    if setup["check"]:
        import check

        return check.start(Engine, setup)
    return Engine(setup["model"], **setup["options"])


def main() -> int:
    """Start, then serve jobs until stdin ends."""
    setup = json.loads(sys.argv[1])
    begin = time.perf_counter()
    try:
        import vllm  # noqa: F401  (processes import all at once, and start one after the other)

        answer(imported=time.perf_counter() - begin)
        sys.stdin.readline()  # others may be starting, and this one would disturb their autotuning
        begin = time.perf_counter()
        engine = start(setup)
        import jobs

        answer(ready=True, start_s=time.perf_counter() - begin, **jobs.info(engine, None))
    except BaseException:
        answer(ready=False, error=traceback.format_exc()[-4000:])
        return 1
    import load
    import steps

    functions = jobs.JOBS | dict(states_under_load=load.states_under_load, steps=steps.steps)
    if setup["check"]:
        import check

        functions["check"] = check.run
    for line in sys.stdin:
        job = json.loads(line)
        jobs.core = job.get("core")
        begin = time.monotonic()
        deadline = begin + job["seconds"]
        try:
            result = functions[job["job"]](
                engine, lambda d=deadline: d - time.monotonic(), **job["arguments"]
            )
        except BaseException:
            result = dict(error=traceback.format_exc()[-4000:])
        answer(took=time.monotonic() - begin, **result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
