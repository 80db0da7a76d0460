"""Kills a campaign again and again, at random moments, and looks at what is left: is anything lost?

    python -m gdn_apc.fuzz.kills [--kills 10] [--seed S] [--workers N] [-- OPTIONS OF gdn-apc fuzz]

Each round starts (or resumes) the campaign in a process group of its own and sends SIGKILL to all of it. Then: the
events can be read, no example that was counted has gone, and every case that was found is whole and fails when it is
replayed. At last the campaign is resumed to its end, and all that was ever found is in its reports. Exit status 0 if
nothing was lost, else 1.

Imports the standard library and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_kills.py``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.summary import WORDS, Totals, verdict

COMMAND = [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())"]


@dataclass
class Seen:
    """What a run folder held after a kill."""

    examples: set[tuple[str, int, str]]
    found: dict[str, str]  # name of a case → its property
    legs: int


@dataclass
class Hunt:
    """A campaign that is killed; ``lost`` says what went missing, a line each."""

    run: RunFolder
    options: list[str]
    cwd: Path
    lost: list[str] = field(default_factory=list)
    replayed: dict[str, int] = field(default_factory=dict)  # name of a case → status of its replay

    def start(self, log: Path) -> subprocess.Popen:
        """Begin the campaign, or go on with it if it has begun."""
        begun = any(e["event"] == "start" for e in self.run.events())
        fresh = ["--run-dir", str(self.run.path), *self.options]
        workers = [
            word for i, word in enumerate(self.options) if "-n" in (word, self.options[i - 1] if i else "")
        ]
        again = ["--resume", str(self.run.path), *workers]
        command = [*COMMAND, "fuzz", "-q", *(again if begun else fresh)]
        with log.open("a") as out:
            return subprocess.Popen(
                command, cwd=self.cwd, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def look(self) -> Seen:
        """What is there now."""
        events = self.run.events()
        totals = Totals.of(events)
        cases = {e["case"]: e["property"] for e in events if e["event"] in ("found", "failure")}
        return Seen(totals.counted, cases, totals.legs)

    def compare(self, before: Seen, after: Seen) -> None:
        """Note what was there before and is not there now."""
        for example in before.examples - after.examples:
            self.lost.append(f"an example of {example[0]}: {example[2]}")
        for name in before.found.keys() - after.found.keys():
            self.lost.append(f"the event of {name}")

    def replay(self, found: dict[str, str]) -> None:
        """Every case that was found must be whole, and fail."""
        for name in sorted(found.keys() - self.replayed.keys()):
            path = self.run.cases / name
            try:
                Case.from_json(path.read_text())
            except (OSError, ValueError) as e:
                self.lost.append(f"{name} cannot be read: {e}")
                continue
            done = subprocess.run(
                [*COMMAND, "replay", str(path)], cwd=self.cwd, capture_output=True, text=True, timeout=300
            )
            self.replayed[name] = done.returncode
            if done.returncode != 1:
                self.lost.append(
                    f"{name} does not fail when it is replayed: status {done.returncode}\n{done.stdout}"
                )


def hunt(
    run: RunFolder, options: list[str], cwd: Path, kills: int, longest: float, seed: int, say=print
) -> Hunt:
    """Kill a campaign so often, each time after at most ``longest`` seconds, then let it come to its end."""
    hunted, log, dice = Hunt(run, options, cwd), cwd / "campaign.log", random.Random(seed)
    before = Seen(set(), {}, 1)
    for number in range(1, kills + 1):
        child = hunted.start(log)
        seconds = dice.uniform(0.2, longest)
        until = time.monotonic() + seconds
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        ended = child.poll() is not None
        if not ended:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        after = hunted.look()
        hunted.compare(before, after)
        hunted.replay(after.found)
        how = f"had ended with status {child.returncode}" if ended else f"killed after {seconds:5.2f} s"
        say(
            f"  {number:2}  {how}: {len(after.examples):5,} examples counted, {len(after.found)} cases found, "
            f"{len(hunted.replayed)} replayed"
        )
        before = after
    child = hunted.start(log)
    status = child.wait()
    after = hunted.look()
    hunted.compare(before, after)
    hunted.replay(after.found)
    totals = Totals.of(run.events())
    page = run.summary_path.read_text()
    for f in totals.failures:
        if f["case"] not in page:
            hunted.lost.append(f"{f['case']} is not on the summary page")
    if status != verdict(totals).status:
        hunted.lost.append(
            f"the last leg ended with status {status}, its events say {verdict(totals).status}"
        )
    for name, prop in after.found.items():
        if not any(f["property"] == prop for f in totals.failures):
            hunted.lost.append(f"{name}: {prop} was found failing and is not reported")
    say(
        f"  end  {WORDS[status]}: {len(after.examples):,} examples counted over {totals.legs} legs, "
        f"{len(hunted.replayed)} cases replayed, each fails; {totals.duration:.0f} s"
        if not hunted.lost
        else f"  end  {WORDS.get(status, status)}"
    )
    return hunted


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m gdn_apc.fuzz.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--longest", type=float, default=20.0, metavar="SECONDS", help="of a leg")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--run-dir", type=Path, help="default: a temporary folder")
    parser.add_argument("options", nargs="*", help="of gdn-apc fuzz, after --")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gdn-apc-kills-") as place:
        run = RunFolder((given.run_dir or Path(place) / "run").absolute())
        run.path.parent.mkdir(parents=True, exist_ok=True)
        hunted = hunt(
            run,
            given.options,
            Path.cwd() if given.run_dir else Path(place),
            given.kills,
            given.longest,
            given.seed,
        )
    for line in hunted.lost:
        print(f"LOST: {line}")
    return 1 if hunted.lost else 0


if __name__ == "__main__":
    sys.exit(main())
