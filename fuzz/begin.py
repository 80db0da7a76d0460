"""How a campaign takes its run folder: a new one for itself, or an old one to go on in.

Imports the standard library and ``fuzz``, no torch and no hypothesis. Exercise it with ``pytest tests/fuzz/test_resume.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from gdn_apc.fuzz import lock, options, resume
from gdn_apc.fuzz.runs import RunFolder


def resolve(values: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Options with those of the campaign that goes on, if one does; and into how many shards it was cut.

    Raises ``resume.Mismatch``.
    """
    if not values.get("gdn_resume"):
        return {}, None
    path = Path(values["gdn_resume"]).absolute()
    start = resume.start_of(RunFolder(path))
    more = any(values.get(options.dest(name)) for name in ("budget", "minutes", "smoke"))
    found = resume.options_of(start, values)
    return {**found, "gdn_resume": str(path), "gdn_more_time": more}, start["shards"]


def begin(run: RunFolder, resumed: bool, workers_too: bool = True) -> IO[str]:
    """Take the folder, and record that an earlier campaign goes on. It is held while the returned file is open.

    ``workers_too``: no worker of ours has started yet, so those that are there belong to an earlier campaign.
    Raises ``lock.Taken``, ``resume.Mismatch`` where a campaign is already, or ``Unwritable``.
    """
    run.create()
    held = lock.control(run, lock.PATIENCE if workers_too else None)
    if resumed:
        resume.set_aside(run)
        run.append("resumed")
    elif workers_too and run.events():
        held.close()
        raise resume.Mismatch(
            f"run-dir: {run.path} already holds a campaign; go on with it by --resume, or choose another folder"
        )
    return held
