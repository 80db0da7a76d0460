"""Runs of the measuring command, read together: numbered, without what failed and was answered later, without paths.

A comparison needs figures of one run, so rows keep their run's number, and ``report.py`` makes each table from one run.
Imports the standard library only. ``run.py --report`` exercises it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of results files, in order. A row without a number gets its file's: one more than all before it.

    A run that is already among the rows is not counted twice. An error goes when the same was answered, then or later.
    """
    rows: list[Row] = []
    for path in paths:
        fresh = [clean(json.loads(line)) for line in path.read_text().splitlines()]
        known = {_shown(row) for row in rows}
        if all(_shown(row) in known for row in fresh if "error" not in row["result"]):
            continue
        number = 1 + max((row["run"] for row in rows), default=0)
        rows += [{"run": number} | row for row in fresh]
    answered = {key(row) for row in rows if "error" not in row["result"]}
    return [row for row in rows if "error" not in row["result"] or key(row) not in answered]


def key(row: Row) -> tuple[str, str, str]:
    """What was measured, in which engine."""
    return row["engine"], row["job"], json.dumps(row.get("arguments", {}), sort_keys=True)


def _shown(row: Row) -> str:
    return json.dumps({k: v for k, v in row.items() if k != "run"}, sort_keys=True)


def clean(value: Any) -> Any:
    """The same without absolute paths: a file from its package on, or its last two parts."""
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean(v) for v in value]
    return _ABSOLUTE.sub(lambda m: placed(m[0]), value) if isinstance(value, str) else value


_ABSOLUTE = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]+")


def placed(path: str) -> str:
    """A file without what is the machine's."""
    package = re.split(r"(?:site|dist)-packages/|/site/", path)[-1]
    return package if package != path else "/".join(path.split("/")[-2:])
