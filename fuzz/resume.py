"""Goes on with a campaign that was stopped or killed, from its events alone.

What was counted stays counted; a round that was cut short runs again, from the same seed, and so finds again what was
about to be recorded. A campaign goes on only with what it began with: another target, seed or version would make one
verdict of two different things, and is refused.

Imports ``fuzz``, no torch and no hypothesis. Exercise it with ``pytest tests/fuzz/test_resume.py``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.plan import Past
from gdn_apc.fuzz.runs import RunFolder

FIXED = {"gdn_target": "target", "gdn_seed": "seed", "gdn_profile": "profile"}
"""Options that a campaign keeps for its life → where its start recorded them."""

KNOWN = ("expect", "baseline")
"""Options with files of known failures."""

SAME = ("target", "versions", "device", "code")
"""What must be now as it was then, in the order in which differences are named."""


LARGE, ABOUT = ("vllm", "fla", "transformers"), ("fla", "mamba", "gdn", "conv", "delta", "qwen3_next")
"""Packages that targets live in, and words in the names of the modules that matter of them."""


class Mismatch(Exception):
    """The campaign cannot go on like this: bad usage, exit status 4."""


def start_of(run: RunFolder) -> dict[str, Any]:
    """How the campaign in a folder began. Raises :class:`Mismatch` if there is none that could go on."""
    start = next((e for e in run.events() if e["event"] == "start"), None)
    if start is None:
        raise Mismatch(
            f"resume: {run.path} holds no campaign that began; give the folder of a run, as in .gdn-apc/runs/<time>"
        )
    if "code" not in start:
        raise Mismatch(f"resume: {run.path} has no properties or comes from an older gdn-apc; start anew")
    return start


def options_of(start: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options to go on with: those that it began with; how much to run may be given anew.

    Raises :class:`Mismatch` if ``given`` (options by dest) names another target, seed or profile.
    """
    options = dict(given)
    for name in KNOWN:  # what is a failure must not change on the way either
        if given.get(f"gdn_{name}") and given[f"gdn_{name}"] != start.get(name):
            raise Mismatch(
                f"{name}: {given[f'gdn_{name}']} cannot go on with a campaign that began with {start.get(name)}"
            )
        if start.get(name):
            options[f"gdn_{name}"] = start[name]
    for option, key in FIXED.items():
        if given.get(option) not in (None, start[key]):
            name = option.removeprefix("gdn_")
            raise Mismatch(
                f"{name}: {given[option]!r} cannot go on with a campaign that began with {start[key]!r}; "
                "leave the option out, or start a campaign of its own"
            )
        options[option] = start[key]
    if not any(given.get(f"gdn_{name}") for name in ("budget", "minutes", "smoke")):
        options |= {
            "gdn_budget": start["budget_asked"],
            "gdn_minutes": start["minutes"],
            "gdn_smoke": start["smoke"],
        }
    if not given.get("gdn_property") and start["selection"]:
        options["gdn_property"] = start["selection"]
    return options


def same(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises :class:`Mismatch` if what is tested, or what tests, is not what it was."""
    for key in SAME:
        before, after = then.get(key), now.get(key)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            names = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
            what = ", ".join(f"{k} was {before.get(k, 'absent')}, is {after.get(k, 'absent')}" for k in names)
        else:
            what = f"{key} was {before}, is {after}"
        raise Mismatch(
            f"resume: this is not what the campaign began with: {what}; what it counted says nothing about that: start anew"
        )


def pasts(events: Iterable[dict[str, Any]]) -> dict[tuple[str, int], Past]:
    """What was done of each (property, shard)."""
    found: dict[tuple[str, int], Past] = {}
    for e in events:
        if "property" not in e or "shard" not in e or e.get("witness"):
            continue
        past = found.setdefault((e["property"], e["shard"]), Past())
        if e["event"] == "example" and e["digest"] not in past.seen:
            past.seen.add(e["digest"])
            past.comparisons += e["comparisons"]
        elif e["event"] == "round" and e["complete"]:
            past.rounds = max(past.rounds, e["round"] + 1) if e["phase"] == "generate" else past.rounds
            past.fixed |= e["phase"] == "fixed"
        elif e["event"] == "item":
            past.replayed += e["replayed"]
            past.status = e["status"]
        elif e["event"] == "failure":
            past.failure, past.status = e, "failed"
    return found


def witnessed(events: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any] | None]:
    """Must-happen events whose witness has run: how it failed, or None if it holds and reached the event."""
    found = {}
    for e in events:
        if e["event"] == "witness" and e["reached"]:
            found[e["name"]] = None
        elif e["event"] == "failure" and e.get("witness"):
            found[e["witness"]] = e
    return found


def set_aside(run: RunFolder) -> list[Path]:
    """Keep the cases that were running when the campaign stopped, under names that nothing writes to."""
    kept = []
    for path in sorted(run.cases.glob("current-*.json")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        kept.append(path.rename(path.with_name(f"interrupted-{digest}.json")))
    return kept


def sources(module: str) -> list[Path]:
    """Files of a target that may be a working tree, by what is imported now: its module, its siblings, kernels.

    Of a large package only modules whose names say that they are about such layers: the others differ from machine to
    machine, and decide nothing here.
    """
    top = module.partition(".")[0]
    found = set()
    for name, loaded in list(sys.modules.items()):
        first, file = name.partition(".")[0], getattr(loaded, "__file__", None)
        ours = name == module or (first == top != "gdn_apc")
        if (
            file
            and file.endswith(".py")
            and (ours or (first in LARGE and any(word in name for word in ABOUT)))
        ):
            found.add(Path(file))
    return sorted(path for path in found if path.exists())


def code(package: Path, more: Iterable[Path] = ()) -> str:
    """12 hex digits of the sources that a campaign's results depend on: ours, and the files ``more``."""
    total = hashlib.sha256()
    ours = (p for top in ("oracle", "impl", "fuzz") for p in (package / top).rglob("*.py"))
    for path in sorted({*ours, *more}):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]
