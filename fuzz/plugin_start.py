"""How a campaign under pytest starts: its folder, its seed, its shards, its workers, and the order of its items.

A part of the pytest plugin, so it imports the standard library and pytest only, until tests of ours are about to run.
Exercise it with ``pytest tests/fuzz/test_plugin.py tests/fuzz/test_resume.py``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gdn_apc.fuzz import options

NAMES, MORE = [option.name for option in options.OPTIONS], "gdn_more_time"


class Start:
    """What a session of pytest knows of its campaign before an item runs.

    The controller decides where it runs and from which seed, once; its workers are told.
    """

    def __init__(self, config, module: Path):
        self.config, self.module = config, module
        self.is_worker = hasattr(config, "workerinput")
        self.sent: dict[str, Any] = getattr(config, "workerinput", {}).get("gdn_apc", {})
        self.worker = config.workerinput["workerid"] if self.is_worker else "main"
        self.workers = config.workerinput["workercount"] if self.is_worker else 1
        self.root = Path(config.rootpath)
        inside = module.is_relative_to(self.root)
        # pytest's own ids lose the file's name where it lies outside of the root.
        self.nodeid = (
            module.relative_to(self.root) if inside else Path("gdn_apc/fuzz", module.name)
        ).as_posix()
        self.first: list[str] = []  # properties of which failing examples are kept
        self.held: Any = None  # the locks of the run folder
        self._run_dir: Path | None = None
        self._set_up()

    def _set_up(self) -> None:
        """The clock, and what the options mean together with those of a campaign that goes on."""
        from gdn_apc.fuzz import begin, clock, resume

        clock.start(self.sent.get("began"))
        if self.is_worker:
            vars(self.config.option).update(self.sent.get("options", {}))  # pytest-xdist parses them again
            self.shards, self.only = self.sent.get("shards"), self.sent.get("only")
            self.shards = self.shards or self.workers
            return
        given = vars(self.config.option)
        try:
            resolved, self.shards = begin.resolve(given)
        except resume.Mismatch as e:
            raise pytest.UsageError(str(e)) from e
        given.update(resolved)
        self.only = None
        if given.get("gdn_shard"):
            self.only, self.shards = options.shard(given["gdn_shard"])
        self.shards_given = self.shards
        self.shards = self.shards or 1

    @property
    def run_dir(self) -> Path:
        """The run folder, which is made when the first item of ours is about to run."""
        if self._run_dir is None:
            from gdn_apc.fuzz.runs import default_path

            option = self.config.option
            given = self.sent.get("run_dir") or option.gdn_resume or option.gdn_run_dir
            self._run_dir = Path(given).absolute() if given else default_path(self.root)
        return self._run_dir

    @property
    def fresh_seed(self) -> int:
        """A seed for a campaign that was given none."""
        return self.sent.setdefault("seed", int.from_bytes(os.urandom(4), "big"))

    def begin(self, workers_too: bool) -> None:
        """Take the run folder, once. Raises ``UsageError`` where that may not be."""
        from gdn_apc.fuzz import begin, lock, resume, runs

        if self.held is None:
            try:
                run = runs.RunFolder(self.run_dir)
                self.held = begin.begin(run, bool(self.config.option.gdn_resume), workers_too)
            except (lock.Taken, resume.Mismatch, runs.Unwritable) as e:
                self._run_dir = None  # it is not ours to report in
                raise pytest.UsageError(str(e)) from e

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config, specs):
        """pytest-xdist: before its workers start. The folder is taken, each gets a GPU, kept failures are looked up."""
        if config.option.markexpr != "fuzz":  # perhaps none of ours are going to run
            return
        from gdn_apc.fuzz import devices, kept

        option = config.option
        if option.gdn_resume or option.gdn_run_dir:
            self.begin(workers_too=True)
        devices.spread(specs, devices.visible())
        self.first = kept.have_examples(self.root, option.gdn_target or "native", self._database())

    def _database(self) -> str | None:
        from gdn_apc.fuzz import kept

        url = kept.url_of(vars(self.config.option))
        try:
            return url if url and kept.connect(url) else None
        except kept.NoDatabase as e:
            raise pytest.UsageError(str(e)) from e

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        """pytest-xdist: all workers write into one folder, derive their seeds from one, and end at one moment."""
        from gdn_apc.fuzz import clock

        sent = {"run_dir": str(self.run_dir), "seed": self.fresh_seed, "first": self.first}
        sent |= {"began": time.monotonic() - clock.elapsed(), "shards": self.shards_given, "only": self.only}
        values = vars(self.config.option)
        sent["options"] = {k: v for k, v in values.items() if k in map(options.dest, NAMES) or k == MORE}
        node.workerinput["gdn_apc"] = sent

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Failures found earlier come first: the properties of which some are kept, before all others of ours."""
        if not self.is_worker and not any(item.path == self.module for item in items):
            return
        places = [i for i, item in enumerate(items) if item.path == self.module]
        if not self.is_worker:
            from gdn_apc.fuzz import kept

            self.first = kept.have_examples(
                self.root, self.config.option.gdn_target or "native", self._database()
            )
        first = self.sent.get("first", self.first)

        def later(item) -> bool:
            given = getattr(item, "callspec", None)
            return given is None or getattr(given.params.get("gdn_property"), "name", "") not in first

        for place, item in zip(places, sorted((items[i] for i in places), key=later)):
            items[place] = item
