"""Which failing examples are kept, and where: what can be known without Hypothesis, before anything is collected.

Imports the standard library; redis only when a URL is given. Exercise it with ``pytest tests/fuzz/test_database.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "GDN_APC_DATABASE"
"""Environment variable with the URL of a shared database: a password then stays out of the process list."""


class NoDatabase(Exception):
    """The shared database cannot be used: bad usage, exit status 4."""


def url_of(options: dict[str, Any]) -> str | None:
    """The URL that was given, as an option or in the environment."""
    return options.get("gdn_database") or os.environ.get(VARIABLE) or None


def masked(url: str) -> str:
    """The URL without user, password and query."""
    scheme, slashes, rest = url.partition("?")[0].rpartition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def connect(url: str) -> Any:
    """A connection that answers. Raises :class:`NoDatabase`."""
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise NoDatabase(
            f"database: {masked(url)!r} is no Redis, expected a URL like redis://HOST:6379/0; without one, "
            "examples are kept in .gdn-apc/examples"
        )
    try:
        import redis
    except ImportError as e:
        raise NoDatabase(
            "database: a shared one needs the package redis; pip install 'gdn-apc[redis]'"
        ) from e
    try:
        connection = redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5)
        connection.ping()
    except (redis.RedisError, ValueError) as e:
        raise NoDatabase(
            f"database: {masked(url)} cannot be used: {type(e).__name__}: {e}; start it, or leave the option out"
        ) from e
    return connection


def folder(root: Path, target: str) -> Path:
    """Where a target's examples lie on disk."""
    return root / ".gdn-apc" / "examples" / "".join(c if c.isalnum() or c in "-_." else "_" for c in target)


def prefix(target: str, name: str) -> str:
    """What the keys of a property's shared examples begin with."""
    return f"gdn-apc:{target}:{name}:"


def have_examples(root: Path, target: str, url: str | None = None) -> list[str]:
    """The properties of which failing examples are kept, in alphabetical order."""
    found = {path.name for path in folder(root, target).glob("*") if any(path.glob("*/*"))}
    if url is not None:
        start = prefix(target, "")[:-1]
        keys = (key.decode(errors="replace") for key in connect(url).scan_iter(f"{start}*", count=1000))
        found |= {key[len(start) :].partition(":")[0] for key in keys}
    return sorted(found)
