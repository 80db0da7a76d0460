"""The pytest plugin: ``pytest -m fuzz`` here, ``pytest --pyargs gdn_apc.fuzz -m fuzz`` from any other checkout.

pytest loads this module in every session of every environment that has the package. So it imports the standard
library and pytest only, sets no environment variable, and does nothing unless tests of ours are about to run.
Exercise it with ``pytest tests/fuzz/test_plugin.py``.
"""

from __future__ import annotations

import importlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdn_apc.fuzz import options
from gdn_apc.fuzz.plugin_end import End
from gdn_apc.fuzz.plugin_start import Start

if TYPE_CHECKING:
    from gdn_apc.fuzz.campaign import Outcome
    from gdn_apc.fuzz.progress import Progress
    from gdn_apc.fuzz.properties.base import Property
    from gdn_apc.fuzz.session import Session

HERE = Path(__file__).parent
MODULE = HERE / "test_campaign.py"
KEY: pytest.StashKey[Campaign] = pytest.StashKey()
NEEDED = ("torch", "hypothesis", "numpy")


def pytest_addoption(parser):
    """Namespaced options; the short forms belong to our own checkout's ``conftest.py`` and to ``gdn-apc fuzz``."""
    group = parser.getgroup("gdn-apc", "gdn-apc: prefix caching for Gated DeltaNet layers")
    options.add_namespaced(group.addoption)


def pytest_configure(config):
    """Register the marker, so that ``--strict-markers`` accepts our items everywhere."""
    config.addinivalue_line("markers", "fuzz: a campaign of gdn-apc, run by `pytest -m fuzz`")
    wrong = options.problem(vars(config.option)) if not hasattr(config, "workerinput") else None
    if wrong:
        raise pytest.UsageError(wrong)
    config.stash[KEY] = Campaign(config)
    config.pluginmanager.register(config.stash[KEY], "gdn-apc-campaign")


def campaign_of(config) -> Campaign:
    """The plugin's state of this session."""
    return config.stash[KEY]


class CampaignModule(pytest.Module):
    """Our test module, imported under its real name: an adopter's checkout may have a package ``fuzz`` of its own."""

    def _getobj(self):
        try:
            return importlib.import_module("gdn_apc.fuzz.test_campaign")
        except ModuleNotFoundError as e:
            if e.name in NEEDED:
                self.config.stash[
                    KEY
                ].usage = f"{e.name} is not installed here; pip install 'gdn-apc[fuzz]', and a torch that suits this machine"
            raise

    def funcnamefilter(self, name: str) -> bool:
        return name.startswith("test_")  # whatever the adopter's python_functions says


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path, parent):
    """Our folder is no ``Package``: pytest would import it as a top-level package called ``fuzz``."""
    return pytest.Dir.from_parent(parent, path=path) if path == HERE else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path, parent):
    """Our test module, see :class:`CampaignModule`."""
    if module_path != MODULE:
        return None
    return CampaignModule.from_parent(parent, path=module_path, nodeid=campaign_of(parent.config).nodeid)


class Campaign(Start, End):
    """The state and the hooks of one pytest session: on a controller of pytest-xdist, in a worker, or alone."""

    def __init__(self, config):
        super().__init__(config, MODULE)
        self.session: Session | None = None
        self.progress: Progress | None = None
        self.usage = self.collect_error = self.signal = ""
        self.foreign_failures = 0
        self.lines: list[str] = []
        self.old_handler: Any = None
        self.unwritable = ""

    # -- collection --------------------------------------------------------------------------------------------

    def parametrize(self, metafunc) -> None:
        """The items of ``fuzz/test_campaign.py``."""
        from gdn_apc.fuzz import session

        names = metafunc.fixturenames
        if "gdn_property" in names:
            try:
                chosen = session.select(self.config.option.gdn_property)
            except ValueError as e:
                self.usage = str(e)
                raise
            shards = range(self.shards) if self.only is None else [self.only]
            pairs = [(p, shard) for p in chosen for shard in shards]
            ids = [p.name if self.shards == 1 else f"{p.name}-shard{shard}" for p, shard in pairs]
            metafunc.parametrize(("gdn_property", "gdn_shard"), pairs, ids=ids)
        elif "gdn_event" in names:
            events = session.events()  # machines share them
            metafunc.parametrize(
                "gdn_event", events if self.only is None else events[self.only :: self.shards]
            )

    def pytest_collectreport(self, report):
        """Remember that our own module could not be collected: that is a broken suite, not a broken target."""
        if report.failed and report.nodeid == self.nodeid:
            self.collect_error = str(report.longrepr)

    def pytest_collection_finish(self, session):
        """Open the campaign if items of ours are going to run."""
        ours = [item for item in session.items if item.path == MODULE]
        if not ours or self.config.option.collectonly:
            return
        from gdn_apc.fuzz import lock, resume
        from gdn_apc.fuzz import session as sessions
        from gdn_apc.fuzz.kept import NoDatabase
        from gdn_apc.fuzz.progress import Progress
        from gdn_apc.fuzz.runs import RunFolder
        from gdn_apc.fuzz.targets import TargetUnavailable

        if not self.is_worker:
            self.begin(workers_too=True)
        values = vars(self.config.option)
        self.session = sessions.Session(
            values,
            root=self.root,
            run=RunFolder(self.run_dir),
            seed=sessions.seed_of(values, self.fresh_seed),
            worker=self.worker,
            shards=self.shards,
            workers=self.workers,
        )
        if self.is_worker:
            self.held = lock.work(self.session.run)
        driven = [
            item.callspec.params for item in ours if "gdn_property" in getattr(item, "fixturenames", ())
        ]
        names = list(dict.fromkeys(p["gdn_property"].name for p in driven))
        try:
            self.session.open(names, len(driven))
        except TargetUnavailable as e:
            if not self.is_worker:
                raise pytest.UsageError(str(e)) from e
        except (resume.Mismatch, NoDatabase) as e:
            self.session.run.append("refused", message=str(e))
            if not self.is_worker:
                raise pytest.UsageError(str(e)) from e
            self.session.unavailable = str(e)
        if not self.is_worker:
            self._on_sigterm()
            self.write_summary("")
            self.progress = Progress(self.config, len(driven))
            self.say(
                f"gdn-apc: target {self.session.name}, seed {self.session.seed}, run folder {self.run_dir}"
            )

    def say(self, line: str) -> None:
        """A line before the items run."""
        if self.progress and not self.progress.quiet:
            self.progress.reporter.write_line(line)

    # -- running -----------------------------------------------------------------------------------------------

    def session_or_skip(self) -> Session:
        """The open campaign; skips where the target cannot run, which the exit status of the session reports."""
        if self.session.unavailable:
            pytest.skip(self.session.unavailable)
        return self.session

    def run_property(self, session: Session, prop: Property, shard: int, item) -> None:
        """The body of ``test_property``."""
        reason = session.needs[prop.name]
        if reason:
            pytest.skip(f"the target cannot be asked: {reason}")

        if session.is_over(prop, shard):
            self._over(session, prop, shard)
            return

        def on_round(outcome: Outcome) -> None:
            if self.progress and outcome.finding:
                self.progress.found(prop.name, outcome.finding)
            elif self.progress:
                left = session.deadline - time.monotonic()
                self.progress.round(prop.name, outcome.units(prop), session.plan.goal(prop), left)

        outcome = self._writing(item, lambda: session.drive(prop, shard, on_round))
        item.user_properties += [
            ("gdn_examples", outcome.examples),
            ("gdn_comparisons", outcome.comparisons),
            ("gdn_status", outcome.status),
        ]
        if outcome.status == "broken":
            pytest.fail(f"the suite itself broke (exit status 3), {outcome.message}", pytrace=False)
        if outcome.status == "failed":
            self._fail(session, prop.doc, outcome.message, Path(outcome.case))

    def _over(self, session: Session, prop: Property, shard: int) -> None:
        """A shard that an earlier leg of the campaign finished: its result stands."""
        failure = session.past(prop, shard).failure
        if failure:
            self._fail(session, prop.doc, failure["message"], Path(failure["case"]))

    def _writing(self, item, do: Callable[[], Any]) -> Any:
        """``do()``; where the run folder cannot be written, the whole session ends: nothing more would be known."""
        from gdn_apc.fuzz.runs import Unwritable

        try:
            return do()
        except Unwritable as e:
            item.user_properties.append(("gdn_unwritable", str(e)))
            if not self.is_worker:
                self.unwritable = str(e)
                pytest.exit(str(e), returncode=3)
            item.session.shouldstop = str(e)
            pytest.fail(str(e), pytrace=False)

    def run_witness(self, session: Session, event: str, item) -> None:
        """The body of ``test_reached``."""
        reason = session.needs_of(event)
        if reason:
            pytest.skip(f"the target cannot reach it: {reason}")
        if event in session.witnessed:  # in an earlier leg of the campaign
            failure = session.witnessed[event]
            if failure:
                self._fail(session, f"Witness of {event}.", failure["message"], Path(failure["case"]))
            return
        if time.monotonic() > session.deadline:
            pytest.skip("no time was left")
        failed = self._writing(item, lambda: session.witness(event))
        if failed:
            path, error = failed
            self._fail(session, f"Witness of {event}.", str(error), path)

    def _fail(self, session: Session, doc: str, message: str, case: Path) -> None:
        from gdn_apc.fuzz.page import replay_line

        line = replay_line(session.run, case.name, session.name)
        pytest.fail(f"{doc}\n\n{message}\n\nreplay it with:  {line}", pytrace=False)

    def pytest_runtest_logreport(self, report):
        """Progress, and whose failure it was."""
        self.unwritable = self.unwritable or dict(report.user_properties).get("gdn_unwritable", "")
        if not self._is_ours(report.nodeid):
            self.foreign_failures += report.failed
            return
        if self.is_worker or (report.when != "call" and not (report.when == "setup" and report.skipped)):
            return
        if self.progress:
            witness = report.nodeid.startswith(f"{self.nodeid}::test_reached")
            if not (witness and report.skipped):
                many = self.config.getoption("numprocesses", None)
                self.progress.item(
                    _line(report), brief=witness and report.passed, counted=bool(many) and not witness
                )
            if report.nodeid.startswith(f"{self.nodeid}::test_property"):
                self.progress.property_ended()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report, config):
        """No letters for our items where the progress has lines for them."""
        lines = self.progress and not self.progress.quiet and not config.option.verbose
        if lines and self._is_ours(report.nodeid) and (report.when == "call" or report.skipped):
            return report.outcome, "", report.outcome.upper()
        return None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        """On the controller, the first moment at which items of ours are known to run."""
        if self.progress is None and any(map(self._is_ours, ids)):
            from gdn_apc.fuzz.progress import Progress

            self.begin(workers_too=False)
            self._on_sigterm()
            self.progress = Progress(self.config, sum("::test_property[" in i for i in ids))
            self.say(f"gdn-apc: run folder {self.run_dir}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem, report, sched):
        """A worker died: the case that it ran is the finding."""
        if self._is_ours(crashitem):
            from gdn_apc.fuzz.runs import RunFolder

            RunFolder(self.run_dir).record_crash(report.node.gateway.id, "the worker process died")

    def _is_ours(self, nodeid: str) -> bool:
        return nodeid.startswith(f"{self.nodeid}::")

    def _on_sigterm(self) -> None:
        """SIGTERM ends the session as Ctrl-C does, so that the summary is written."""
        if threading.current_thread() is not threading.main_thread():
            return

        def interrupt(number, frame):
            self.signal = "SIGTERM"
            try:
                # At once: ending hung workers takes a while, and whoever sent the signal may not wait for it.
                self.write_summary(self.signal)
            finally:
                raise KeyboardInterrupt(self.signal)

        self.old_handler = signal.signal(signal.SIGTERM, interrupt)


def _line(report) -> str:
    """One line about an item that ended."""
    name = report.nodeid.rpartition("::")[2]
    name = name[name.find("[") + 1 : -1] if "[" in name else name.removeprefix("test_")
    numbers = dict(report.user_properties)
    did = (
        f"  {numbers['gdn_examples']} examples, {numbers['gdn_comparisons']} comparisons"
        if "gdn_examples" in numbers
        else ""
    )
    return f"  {report.outcome:7} {name}{did}  {report.duration:.1f} s"
