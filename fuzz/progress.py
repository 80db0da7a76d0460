"""Live progress of a campaign: a bar that moves where there is a terminal and rich, plain lines elsewhere.

Everything goes through pytest's terminal reporter's file, and only while pytest's capturing is switched off.
Imports the standard library, and rich if it is there. Exercise it with ``pytest -m fuzz --smoke``.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any

PLAIN_EVERY = 15.0  # seconds between lines about one property


class Progress:
    """Tells where a campaign is. ``quiet`` says nothing."""

    def __init__(self, config: Any, items: int):
        self.reporter = config.pluginmanager.get_plugin("terminalreporter")
        self.capture = config.pluginmanager.get_plugin("capturemanager")
        self.items, self.done, self.briefly = items, 0, 0
        self.last = time.monotonic()
        self.started: float | None = None
        self.findings: set[str] = set()  # properties that have failed
        self.quiet = self.reporter is None or config.option.verbose < 0
        if not self.quiet and not config.option.verbose:
            self.reporter.showfspath = False  # our lines name the item; the file's name before each is noise
        self.bar = (
            None if self.quiet or not self.reporter.isatty else _bar(config.get_terminal_writer(), items)
        )

    def round(self, name: str, units: int, goal: float, seconds_left: float) -> None:
        """A round ended."""
        if self.quiet:
            return
        self.started = self.started or time.monotonic()
        self._tell_brief()
        part = min(1.0, units / goal) if math.isfinite(goal) else 0.0
        of = f"/{goal:,}" if math.isfinite(goal) else ""
        text = f"{name}  {units:,}{of}"
        if self.bar is not None:
            with self._uncaptured():
                self.bar.update(
                    0, completed=self.done + part, description=text, left=self._left(part, seconds_left)
                )
                self.bar.start()
                self.bar.refresh()
        elif time.monotonic() - self.last > PLAIN_EVERY:
            self._line(f"  {text}, about {self._left(part, seconds_left)} left")

    def found(self, name: str, message: str) -> None:
        """A property failed; making the case small takes a while."""
        if name not in self.findings and not self.quiet:
            self._tell_brief()
            self._line(f"  FOUND   {name}: {message[:120]} (making it small …)")
        self.findings.add(name)

    def item(self, line: str, brief: bool = False, counted: bool = False) -> None:
        """An item ended. ``brief`` ones (witnesses that passed, a second each) are only counted, and told together.

        ``counted``: say how many there are, where workers end them in no order.
        """
        self.briefly += brief
        if brief or self.quiet:
            return
        self._tell_brief()
        count = f"  [{min(self.done + 1, self.items)} of {self.items}]" if counted else ""
        self._line(line + count)

    def _tell_brief(self) -> None:
        if self.briefly:
            self._line(f"  passed  {self.briefly} witnesses of the ledger")
            self.briefly = 0

    def property_ended(self) -> None:
        """One of the items that take time has ended."""
        self.done += 1
        if self.done == self.items:
            self.stop()

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            with self._uncaptured():
                self.bar.stop()
            self.bar = None

    def _left(self, part: float, seconds_left: float) -> str:
        """Time left: until the deadline if there is one, else at the pace so far."""
        pace = (time.monotonic() - self.started) / max(0.1, self.done + part)
        seconds = seconds_left if math.isfinite(seconds_left) else pace * (self.items - self.done - part)
        return f"{int(max(0, seconds)) // 60}:{int(max(0, seconds)) % 60:02d}"

    def _line(self, text: str) -> None:
        self.last = time.monotonic()
        with self._uncaptured():
            if self.bar is not None:
                self.bar.print(text, markup=False, highlight=False)
            else:
                self.reporter.ensure_newline()
                self.reporter.write_line(text)

    def _uncaptured(self) -> Any:
        return self.capture.global_and_fixture_disabled() if self.capture else nullcontext()


def _bar(writer: Any, items: int) -> Any:
    """A rich progress bar of ``items``, or None without rich. Never refreshed by a thread: pytest captures output."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.percentage:>3.0f}%  {task.fields[left]} left"),
        console=Console(file=writer._file, force_terminal=True),
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("", total=items, left="?")
    bar.print = bar.console.print
    return bar
