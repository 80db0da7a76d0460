"""Runs a case's check and keeps a digest of every bit that the target answered, so that two runs can be told apart.

A target is watched from outside: each answer (outputs of the batch's tokens, and the slots that its block tables
name, as the call left them) goes into one hash. Equal digests mean equal bits, for every property.

Imports torch and ``fuzz``. Exercise it with ``pytest tests/fuzz/test_replay.py``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.pool import bits
from gdn_apc.fuzz.properties.base import Checked, Property, Violation
from gdn_apc.fuzz.targets.base import Batch, Target


class Watched(Target):
    """A target that answers as ``inner`` does; ``digest`` sums up its answers, ``calls`` counts them."""

    def __init__(self, inner: Target):
        self.inner, self.calls, self._hash = inner, 0, hashlib.sha256()
        self.name, self.claims, self.runs_triton = inner.name, inner.claims, inner.runs_triton

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def digest(self) -> str:
        """12 hex digits of all answers so far."""
        return self._hash.hexdigest()[:12]

    def device(self) -> torch.device:
        return self.inner.device()

    def versions(self) -> dict[str, str]:
        return self.inner.versions()

    def metadata(self, batch: Batch) -> dict[str, torch.Tensor]:
        found = self.inner.metadata(batch)
        self._add("metadata", repr(sorted((k, _plain(v)) for k, v in found.items())).encode())
        return found

    def conv(self, layer, x, conv_state, batch):
        return self._call("conv", batch, (conv_state,), layer, x, conv_state)

    def delta(self, layer, q, k, v, g, beta, ssm_state, batch):
        return self._call("delta", batch, (ssm_state,), layer, q, k, v, g, beta, ssm_state)

    def core(self, layer, x, a, b, conv_state, ssm_state, batch):
        return self._call("core", batch, (conv_state, ssm_state), layer, x, a, b, conv_state, ssm_state)

    def _call(self, seam: str, batch: Batch, states: tuple, *arguments: Any) -> torch.Tensor:
        try:
            out = getattr(self.inner, seam)(*arguments, batch)
        except Exception as e:
            self._add(seam, type(e).__name__.encode())
            raise
        tokens = int(batch.query_start_loc[-1])
        self._add(seam, _bytes(out[:tokens]))
        named = sorted(set(batch.block_table.flatten().tolist()))
        for state in states:
            slots = [slot for slot in named if 0 <= slot < len(state)]
            self._hash.update(_bytes(state[torch.tensor(slots, dtype=torch.long, device=state.device)]))
        return out

    def _add(self, seam: str, data: bytes) -> None:
        self.calls += 1
        self._hash.update(seam.encode())
        self._hash.update(data)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _bytes(t: torch.Tensor) -> bytes:
    return bits(t.detach()).cpu().numpy().tobytes()


@dataclass(frozen=True)
class Seen:
    """One run of a case: ``violation`` is None if it held; ``digest`` is of every answer of the target."""

    violation: Violation | None
    checked: Checked | None
    digest: str
    calls: int

    @property
    def word(self) -> str:
        """``fails`` or ``holds``."""
        return "holds" if self.violation is None else "fails"

    def same(self, other: Seen) -> bool:
        """The same verdict on the same bits."""
        return (self.word, self.digest) == (other.word, other.digest)


def observe(prop: Property, target: Target, case: Case) -> Seen:
    """Check the case once. Raises ``campaign.Broken`` if our own code failed."""
    from gdn_apc.fuzz.campaign import check

    watched = Watched(target)
    try:
        checked = check(prop, watched, case)
    except Violation as e:
        return Seen(e, None, watched.digest, watched.calls)
    return Seen(None, checked, watched.digest, watched.calls)


def observe_often(prop: Property, target: Target, case: Case, times: int) -> list[Seen]:
    """The case ``times`` times over, in one process."""
    return [observe(prop, target, case) for _ in range(times)]


def fickle(runs: list[Seen]) -> str:
    """What differs between runs of one case, with the digests; empty if nothing does."""
    first = runs[0]
    other = next((r for r in runs[1:] if not r.same(first)), None)
    if other is None:
        return ""
    words = [r.word for r in runs]
    return (
        f"not deterministic: {len(runs)} runs gave the digests {first.digest} ({first.word}) and {other.digest} "
        f"({other.word}); it failed {words.count('fails')} times"
    )
