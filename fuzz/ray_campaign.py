"""A campaign's shards as tasks of a Ray cluster: a thin adapter, for Ray knows where things run, and we what they are.

A task runs ``gdn-apc fuzz --shard I/N`` in a process of its own and streams what that adds to its run folder; the driver
adds it to its own. So the driver's folder is at most a second old at any moment, and whatever dies, the driver, a
machine or a task, the shard goes on from there.

Imports the standard library and ``fuzz``; Ray comes in as an argument. Exercise it with
``pytest -m ray tests/fuzz/test_ray.py``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gdn_apc.fuzz import clock, merge, options
from gdn_apc.fuzz.merge import FOUND, OWN
from gdn_apc.fuzz.runs import RunFolder, parse, write_whole

EVERY = 0.5
"""Seconds between two looks at what a shard wrote."""

ATTEMPTS = 3
"""A shard whose task dies is started so often in all."""

SPARE = 4.0
"""Of a limited time, so much is kept for the driver."""


class NoCluster(Exception):
    """There is no cluster at this address: bad usage, exit status 4."""


def machine(work: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What runs on a machine: one shard, from ``work["lines"]`` on if there are some. Yields what is new of its folder."""
    with tempfile.TemporaryDirectory(prefix="gdn-apc-") as place:
        run = RunFolder(Path(place) / "run").create()
        command = [
            sys.executable,
            "-c",
            "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())",
            "fuzz",
        ]
        command += [*work["arguments"], "-q"]
        if work["lines"]:
            run.events_path.write_text("\n".join([*work["lines"], ""]))
            command += ["--resume", str(run.path)]
        else:
            command += ["--run-dir", str(run.path)]
        if work["until"] is not None:
            left = work["until"] - time.time()
            if left <= SPARE:
                return
            command += ["--minutes", f"{left / 60:.4f}"]
        at = len(run.events_path.read_bytes()) if work["lines"] else 0
        known: set[tuple[str, int]] = set()
        log = Path(place) / "log"
        with log.open("w") as out:
            child = subprocess.Popen(
                command,
                cwd=work["cwd"] if os.path.isdir(work["cwd"]) else place,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        ended = False
        while not ended:
            ended = child.poll() is not None
            lines, at = _new_lines(run, at)
            files = _new_files(run, known)
            if lines or files:
                yield {"lines": lines, "files": files}
            if not ended:
                time.sleep(EVERY)
        yield {"status": child.returncode, "said": log.read_text(errors="replace")[-4000:]}


def _die_with_parent() -> None:
    """A killed driver takes its tasks along; they must take their children along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _new_lines(run: RunFolder, at: int) -> tuple[list[str], int]:
    if not run.events_path.exists():
        return [], at
    with run.events_path.open("rb") as f:
        f.seek(at)
        text = f.read()
    text = text[: text.rfind(b"\n") + 1]
    return [line for line in text.decode().split("\n") if line], at + len(text)


def _new_files(run: RunFolder, known: set[tuple[str, int]]) -> dict[str, str]:
    """Texts of files that are new or have changed, by their path in the run folder."""
    found = {}
    for path in (p for name in FOUND for p in (run.path / name).rglob("*")):
        if path.is_file() and not path.name.startswith((".", "current-")):
            key = str(path.relative_to(run.path)), path.stat().st_mtime_ns
            if key not in known:
                known.add(key)
                found[key[0]] = path.read_text(errors="replace")
    return found


def run(
    ray: Any, given: argparse.Namespace, folder: RunFolder, shards: int | None, say: Callable[[str], None]
) -> None:
    """Drive all shards to their end, into ``folder``. Ctrl-C and SIGTERM end it early, with what was found."""
    from gdn_apc.fuzz.session import record_floors

    _answers(given.ray)
    try:
        # Ray's own word too: without an address it would join whatever $RAY_ADDRESS names.
        ray.init(given.ray, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise NoCluster(
            f"ray: no cluster at {given.ray!r}: {e}; start one by `ray start --head`, or give --ray local"
        ) from e
    old = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    reasons: list[str] = []
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        count = shards or given.n or int(gpus or ray.cluster_resources().get("CPU", 1))
        say(f"gdn-apc: {count} shards on {len(ray.nodes())} machine(s), run folder {folder.path}")
        reasons = Driver(ray, given, folder, count, 1 if gpus else 0, say).drive()
    except KeyboardInterrupt:
        reasons = ["Ctrl-C"]
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, old)
        merge.finish(folder, reasons or ["internal error"], clock.elapsed(), record_floors, Path.cwd())


def _answers(address: str) -> None:
    """Raises :class:`NoCluster` where nobody listens: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # local, auto
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as e:
        raise NoCluster(
            f"ray: no cluster at {address!r}: {e}; start one by `ray start --head`, or give --ray local"
        ) from e


class Driver:
    """Starts a task for each shard, takes in what they send, and starts again those that die."""

    def __init__(
        self,
        ray: Any,
        given: argparse.Namespace,
        folder: RunFolder,
        count: int,
        gpus: int,
        say: Callable[[str], None],
    ):
        self.ray, self.given, self.folder, self.count, self.say = ray, given, folder, count, say
        self.task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(machine)
        self.seed = given.gdn_seed if given.gdn_seed is not None else int.from_bytes(os.urandom(4), "big")
        self.attempts = [0] * count
        self.lines: list[list[str]] = [[] for _ in range(count)]  # of each shard, as its own folder has them
        for e in folder.events():
            mine = e.get("shard") if "property" in e else e.get("machine")
            if mine is not None and e["event"] not in OWN:
                self.lines[mine].append(json.dumps(e, sort_keys=True))

    def drive(self) -> list[str]:
        """Run every shard; returns how each ended."""
        running = {self._start(shard): shard for shard in range(self.count)}
        reasons = []
        while running:
            ready, _ = self.ray.wait(list(running), num_returns=1, fetch_local=False)
            stream = ready[0]
            shard = running[stream]
            try:
                sent = self.ray.get(next(stream))
            except StopIteration:
                del running[stream]
                continue
            except self.ray.exceptions.RayError as e:
                del running[stream]
                self.folder.append("note", message=f"shard {shard + 1} lost its machine: {type(e).__name__}")
                if self.attempts[shard] < ATTEMPTS:
                    running[self._start(shard)] = shard
                else:
                    reasons.append(f"shard {shard + 1} died {ATTEMPTS} times")
                continue
            if "status" in sent:
                reasons.append(self._ended(shard, sent))
            else:
                self._take_in(shard, sent)
        return reasons

    def _start(self, shard: int) -> Any:
        self.attempts[shard] += 1
        values = {
            k: v for k, v in vars(self.given).items() if k not in ("gdn_resume", "gdn_run_dir", "gdn_minutes")
        }
        arguments = options.command_line(
            {**values, "gdn_seed": self.seed, "gdn_shard": f"{shard + 1}/{self.count}"}
        )
        minutes, until = self.given.gdn_minutes, None
        if minutes:
            until = time.time() + 60 * minutes - clock.elapsed() - SPARE
        work = {"arguments": arguments, "lines": list(self.lines[shard]), "until": until, "cwd": os.getcwd()}
        return self.task.remote(work)

    def _take_in(self, shard: int, sent: dict[str, Any]) -> None:
        """Files first: an event that names a case must not be there before it."""
        for name, text in sent["files"].items():
            path = self.folder.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        for line in sent["lines"]:
            e = parse(line, 0)
            if e["event"] in OWN:
                continue
            e |= {"machine": shard, "at": round(clock.elapsed(), 2)}
            line = json.dumps(e, sort_keys=True)
            self.lines[shard].append(line)
            self.folder.append_line(line)
            if e["event"] == "item":
                self.say(
                    f"  {e['status']:7} {e['property']}-shard{e['shard']}  {e['examples']} examples  {e['seconds']:.1f} s"
                )
            elif e["event"] == "found":
                self.say(f"  FOUND   {e['property']}-shard{e['shard']}: {e['message'].splitlines()[0]}")

    def _ended(self, shard: int, sent: dict[str, Any]) -> str:
        """How a shard's campaign ended: ``finished`` for every verdict, else why it has none."""
        status = sent["status"]
        if status in (0, 1, 4, 5):
            return "finished"
        last = sent["said"].strip().splitlines()
        self.folder.append(
            "note", message=f"shard {shard + 1} ended with status {status}: {last[-1] if last else ''}"
        )
        if status == 3:
            self.folder.append("broken", message=f"shard {shard + 1} broke:\n{sent['said']}")
            return "finished"
        return f"the end of shard {shard + 1}"
