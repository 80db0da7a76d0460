"""Where failing examples are kept for the next campaign: on disk, and in a Redis that several machines share.

Hypothesis's own databases, one for each target and property. A Redis that goes away in the middle of a campaign costs
the sharing, not the campaign; one that cannot be reached at the start is refused, for a typing error would go unseen.

Imports hypothesis; redis only when a URL is given. Exercise it with ``pytest tests/fuzz/test_database.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase

from gdn_apc.fuzz.kept import connect, folder, masked, prefix

KEEP = timedelta(days=90)
"""How long a shared example outlives its last use."""


def database(
    root: Path,
    target: str,
    name: str,
    url: str | None = None,
    on_lost: Callable[[str], None] = lambda message: None,
) -> ExampleDatabase:
    """The examples of one property of one target, on disk and, with ``url``, in a shared Redis too."""
    local = DirectoryBasedExampleDatabase(folder(root, target) / name)
    if url is None:
        return local
    from hypothesis.extra.redis import RedisExampleDatabase

    kept = RedisExampleDatabase(connect(url), expire_after=KEEP, key_prefix=prefix(target, name).encode())
    return MultiplexedDatabase(local, Forgiving(kept, masked(url), on_lost))


class Forgiving(ExampleDatabase):
    """A shared database that is left alone from its first error on. ``on_lost`` hears of it once."""

    def __init__(self, kept: ExampleDatabase, name: str, on_lost: Callable[[str], None]):
        super().__init__()
        self.kept, self.name, self.on_lost, self.lost = kept, name, on_lost, False

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example."""
        self._try(lambda: self.kept.save(key, value))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All examples of a key."""
        return self._try(lambda: list(self.kept.fetch(key))) or []

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self._try(lambda: self.kept.delete(key, value))

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """An example's new key."""
        self._try(lambda: self.kept.move(src, dest, value))

    def _try(self, do: Callable[[], Any]) -> Any:
        import redis

        if self.lost:
            return None
        try:
            return do()
        except (redis.RedisError, OSError) as e:
            self.lost = True
            self.on_lost(
                f"the shared database {self.name} was lost ({type(e).__name__}: {e}); examples are kept on disk"
            )
            return None
