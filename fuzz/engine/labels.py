"""What a slot holds, as a label, and whose tokens a request's tokens are.

A label says all that the cache contract says about a block's content: which kind of block it is, and the
prefix whose state (or whose attention keys and values) it holds. Labels are compared for equality, so moving
them instead of tensors checks every index, and no rounding, at no cost.

Imports ``fuzz.case`` and the standard library. Exercise it with ``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gdn_apc.fuzz.case import Request

STATE = "state"
ATTENTION = "attention"


class Label(NamedTuple):
    """The content of a slot.

    ``state``: state(n) and window(n) of the prefix of ``n`` tokens of request ``owner``. ``attention``: the
    keys and values of that prefix's last block, up to token n. ``poison``: what a recycled slot holds before
    its new owner writes. ``wrong``: computed by request ``owner`` up to token n from something wrong.
    """

    kind: str
    owner: int = -1
    n: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.n}) of request {self.owner}" if self.owner >= 0 else self.kind


NULL = Label("null")
POISON = Label("poison")


class Streams:
    """The tokens of a case's requests. Requests that share a prefix share its labels.

    Every token has one owner: the request that it was first written for. Two prefixes are equal exactly if
    they have the same length and the same owner of the last token, because a shared part is a prefix.
    Raises ``ValueError`` for a parent that comes later, or a shared part longer than either request.
    """

    def __init__(self, requests: Sequence[Request]):
        self.requests = tuple(requests)
        for i, r in enumerate(self.requests):
            if r.parent is None and r.shared == 0:
                continue
            if r.parent is None or not 0 <= r.parent < i:
                raise ValueError(f"parent: request {i} has parent {r.parent!r}; name an earlier request")
            longest = min(r.length, self.requests[r.parent].length)
            if not 0 <= r.shared <= longest:
                raise ValueError(
                    f"shared: request {i} shares {r.shared} tokens with request {r.parent}; "
                    f"expected 0 to {longest}, as many as both have"
                )
        self._owners = [
            [self._find_owner(i, n) for n in range(1, r.length + 1)] for i, r in enumerate(requests)
        ]

    def _find_owner(self, request: int, n: int) -> int:
        while self.requests[request].parent is not None and n <= self.requests[request].shared:
            request = self.requests[request].parent
        return request

    def owner(self, request: int, n: int) -> int:
        """The request that the first ``n`` ≥ 1 tokens of ``request`` were first written for."""
        return self._owners[request][n - 1]

    def label(self, kind: str, request: int, n: int) -> Label:
        """What a block of ``kind`` must hold after the first ``n`` ≥ 1 tokens of ``request``."""
        return Label(kind, self._owners[request][n - 1], n)

    def tokens(self, request: int) -> list[tuple[int, int]]:
        """All token ids of a request: (owner, position), equal exactly where tokens are shared."""
        return [(owner, position) for position, owner in enumerate(self._owners[request])]
