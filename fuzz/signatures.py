"""What makes two failures one kind: the first clause of their messages, with numbers and lists left open.

A campaign on a foreign implementation meets the same deviation in many examples and many witnesses; reports, known
failures and baselines (``fuzz/expectations.py``) speak of kinds. Imports the standard library. Exercise it with
``pytest tests/fuzz/test_expectations.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

NUMBER = r"(?:[-+]?(?:\d+(?:[.,]\d+)*(?:e[-+]?\d+)?|inf\b))"


def signature(message: str) -> str:
    """The kind of a message: its first clause, ``#`` for each number, ``[#]`` for each list, ``(…)`` for a word in brackets."""
    line = re.split(r";|, for the rows|\n", message, maxsplit=1)[0]
    line = re.sub(r"\([a-z_]+\)", "(…)", re.sub(r"\[[^\]]*\]", "[#]", line))
    return re.sub(NUMBER, "#", line)


def worst_ratio(message: str) -> float:
    """The largest error / tolerance that a message reports; infinity if it reports none."""
    found = re.search(rf"worst ratio ({NUMBER})", message)
    return float(found.group(1)) if found else math.inf


def groups(failures: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Failures (events of a campaign) of one property and one kind together, in the order in which kinds appear."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for f in failures:
        found.setdefault((f["property"], signature(f["message"])), []).append(f)
    return list(found.values())


def stale(
    entries: Iterable[Mapping[str, Any]],
    seen: Mapping[str, int],
    enough: Callable[[str], bool],
    mended: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Why entries are wrong, as sentences: they matched nothing in a property that compared ``enough``, or their case holds.

    ``entries`` as in a campaign's start event (``expectations.record``); ``seen``: matches by name; ``mended``: entries whose case no longer fails as
    they say, and what it does.
    """
    found = []
    for e in entries:
        if e["baseline"]:
            continue
        if e["name"] in mended:
            found.append(
                f"{e['name']} no longer fails: {mended[e['name']]} ({e['reason']}); remove it or mend it"
            )
        elif not seen.get(e["name"]) and e["asked"] is not None:
            found.append(
                f"{e['name']} matches nothing: the target is not asked for {e['property']} ({e['asked']}); remove it"
            )
        elif not seen.get(e["name"]) and not e["has_case"] and enough(e["property"]):
            found.append(
                f"{e['name']} no longer fails: no example of {e['property']} matched it ({e['reason']}); remove it"
            )
    return found
