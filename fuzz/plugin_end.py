"""How a campaign under pytest ends: the verdict becomes the exit status, and the pages are written whatever happened.

A part of the pytest plugin, so it imports the standard library and pytest only, until a campaign of ours has run.
Exercise it with ``pytest tests/fuzz/test_exit_status.py``.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


class End:
    """The hooks of a session's end, for ``pytest_plugin.Campaign``."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """The verdict becomes the session's exit status, and the page is written whatever happened."""
        if self.progress:
            self.progress.stop()
        if self.session:
            self.session.close()
        if self.old_handler is not None:
            signal.signal(signal.SIGTERM, self.old_handler)
        collecting_failed = self.collect_error and not self.config.option.collectonly
        if self.is_worker or not (collecting_failed or (self._run_dir and self._run_dir.exists())):
            return
        from gdn_apc.fuzz.runs import Unwritable

        try:
            session.exitstatus = self._end(int(exitstatus), bool(collecting_failed))
        except Unwritable as e:
            self.unwritable = self.unwritable or str(e)
        if self.unwritable:
            session.exitstatus = 3
            self.lines = ["BROKEN (exit status 3)", f"  {self.unwritable}"]
        if self.held is not None:
            self.held.close()

    def _end(self, status: int, collecting_failed: bool) -> int:
        """Record how the session ended and write the pages. Returns the exit status."""
        from gdn_apc.fuzz import report
        from gdn_apc.fuzz.runs import RunFolder
        from gdn_apc.fuzz.summary import Totals

        run = RunFolder(self.run_dir)
        refused = Totals.of(run.events()).refused
        if refused and self.config.option.gdn_resume:  # what the campaign found before stands as it was
            report.write_all(run)
            self.lines = ["NOT RUN (exit status 4)", f"  {refused}"]
            return 4
        reason = {2: self.signal or "Ctrl-C", 3: "internal error"}.get(status, "finished")
        if collecting_failed:
            reason = "finished"
            self._record_collect_error()
        found = self.write_summary("internal error" if self.unwritable else reason)
        failed = report.publish(run)
        self.lines += [f"  note: {failed}"] if failed else []
        return 1 if self.foreign_failures and found.status in (0, 5) else found.status

    def _record_collect_error(self) -> None:
        from gdn_apc.fuzz.runs import RunFolder

        run = RunFolder(self.run_dir).create()
        if self.usage:
            run.append("usage", message=self.usage)
        else:
            run.append("broken", message=f"collecting the campaign failed\n{self.collect_error}")

    def write_summary(self, reason: str):
        """Write the pages from the events; ``reason`` is how the session ended, empty while it runs."""
        from gdn_apc.fuzz import clock, report
        from gdn_apc.fuzz.runs import RunFolder

        run = RunFolder(self.run_dir)
        if reason == "finished" and self.only is None:
            from gdn_apc.fuzz.session import record_floors

            record_floors(run, self.root)
        if reason:
            self._write_baseline(run)
            run.append("end", reason=reason, seconds=round(clock.elapsed(), 1))
        found, self.lines = report.write_all(run, ended=bool(reason))
        return found

    def _write_baseline(self, run) -> None:
        """``--write-baseline``: every kind of failure of this run, whatever ended it."""
        path = self.config.option.gdn_write_baseline
        if path:
            from gdn_apc.fuzz import expectations

            count = expectations.write(Path(path), run.events())
            run.append(
                "note",
                message=f"{path} holds {count} kinds of failure; gate on others with --baseline {path}",
            )

    def pytest_terminal_summary(self, terminalreporter):
        """The verdict, last."""
        if not self.lines or self.is_worker:
            return
        terminalreporter.section("gdn-apc")
        for line in self.lines:
            terminalreporter.write_line(line)
