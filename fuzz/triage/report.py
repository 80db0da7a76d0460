"""The whole triage of one failing case, and its files: ``triage/<case>.json``, ``.txt`` and ``.svg`` beside the case.

    found = triage(prop, target, case)         # observe, localise, classify
    write(found, path)                         # path: of the case
    print("\\n".join(found.text()))

``fuzz/triage/files.py`` says what summaries and reports show of it. Imports torch and ``fuzz``. Exercise it with
``gdn-apc triage CASE.json`` and ``pytest tests/fuzz/test_triage.py``.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.properties.base import Property, Violation
from gdn_apc.fuzz.targets.base import Target
from gdn_apc.fuzz.triage import picture
from gdn_apc.fuzz.triage.classes import Kind, classify
from gdn_apc.fuzz.triage.files import beside, text_of, words
from gdn_apc.fuzz.triage.localise import Located, localise
from gdn_apc.fuzz.triage.observe import Seen, fickle, observe_often

RERUNS = 3
"""A failing case runs so often more: what differs between runs is a finding of its own."""


@dataclass
class Triage:
    """Everything that triage says of a case."""

    case: Case
    target: str
    runs: list[Seen]
    located: Located | None
    kinds: list[Kind]
    message: str
    broke: list[str] = field(default_factory=list)  # experiments of ours that failed
    seconds: float = 0.0
    picture: str = ""
    text_of_picture: list[str] = field(default_factory=list)

    @property
    def fickle(self) -> str:
        """What differs between runs, or nothing."""
        return fickle(self.runs)

    @property
    def place(self) -> str:
        """The first wrong place in words."""
        return ", ".join(words(self.located.where)) if self.located else ""

    def record(self) -> dict[str, Any]:
        """``triage.json``."""
        located = self.located or Located(self.case)
        first = self.kinds[0] if self.kinds else None
        return {
            "schema": 1,
            "property": self.case.property,
            "target": self.target,
            "size": {
                "requests": len(self.case.requests),
                "steps": len(self.case.steps),
                "tokens": self.case.num_tokens,
            },
            "verdict": "fickle" if self.fickle else self.runs[0].word,
            "runs": [{"verdict": r.word, "digest": r.digest, "answers": r.calls} for r in self.runs],
            "fickle": self.fickle,
            "layer": located.layer,
            "kernel": located.kernel,
            "seam": located.seam,
            "where": {k: v if isinstance(v, (int, str)) else str(v) for k, v in located.where.items()},
            "says": located.says,
            "class": first.fault if first else "",
            "kind": first.name if first else "",
            "like": list(first.like) if first else [],
            "also": [k.name for k in self.kinds[1:4]],
            "evidence": located.evidence,
            "message": self.message,
            "picture": self.picture,
            "broke": self.broke,
            "seconds": round(self.seconds, 2),
        }

    def text(self) -> list[str]:
        """For a terminal."""
        return text_of(self.record()) + self.text_of_picture


def triage(
    prop: Property, target: Target, case: Case, error: Violation | None = None, reruns: int = RERUNS
) -> Triage:
    """Observe, localise and classify a case that fails. ``error``: how it failed when it was found.

    An experiment of ours that breaks is named in ``broke`` and costs nothing else. Raises ``campaign.Broken`` if the
    case itself cannot be judged.
    """
    began = time.monotonic()
    runs = observe_often(prop, target, case, reruns)
    failing = next((r.violation for r in runs if r.violation is not None), error)
    message = str(failing) if failing is not None else "the case holds"
    found = Triage(case, getattr(target, "name", "?"), runs, None, [], message)
    if failing is not None:
        try:
            found.located = localise(target, case, failing)
        except Exception as e:
            found.broke.append(f"localising broke: {type(e).__name__}: {e}")
            found.located = Located(case, where=dict(failing.where), says=message.splitlines()[0])
        if found.fickle or (error is not None and all(r.violation is None for r in runs)):
            found.located.kinds.add("fickle")
            found.located.evidence.insert(0, found.fickle or "it failed when it was found, and not since")
        found.kinds = classify(found.located.to_classes())
        _picture_text(found)
    found.seconds = time.monotonic() - began
    return found


def _picture_text(found: Triage) -> None:
    try:
        errors, tables = picture.errors(found.located), picture.tables(found.located)
    except Exception as e:
        found.broke.append(f"the picture broke: {type(e).__name__}: {e}")
        return
    if errors is not None:
        found.text_of_picture += ["", *picture.error_text(errors)]
    if tables:
        found.text_of_picture += ["", *picture.table_text(tables)]


def write(found: Triage, case: Path) -> Path:
    """Write the picture, the text and ``triage.json`` beside the case; returns the last one's path."""
    svg = beside(case, ".svg")
    svg.parent.mkdir(exist_ok=True)
    if found.located is not None:
        head = f"{found.kinds[0].name if found.kinds else found.case.property}: {found.place}"[:110]
        try:
            found.picture = svg.name if picture.draw(found.located, svg, head) else ""
        except Exception as e:
            found.broke.append(f"drawing broke: {type(e).__name__}: {e}")
    beside(case, ".txt").write_text("\n".join(found.text()) + "\n")
    path = beside(case, ".json")
    path.write_text(json.dumps(found.record(), indent=1, sort_keys=True) + "\n")
    return path
