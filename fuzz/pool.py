"""The cache's pages, as an engine lays them out: strided views over one byte buffer, and who wrote what.

A page holds one slot: its convolution window, then its recurrent state, then padding that is nobody's (as is a
gap of up to 63 bytes between the two). Red zones of 512 bytes lie before the first page and after the last::

    | red zone | conv 0 | ssm 0 | padding | conv 1 | ssm 1 | padding | … | red zone |
                 slot 0, the null block     slot 1

Poison: every 16-bit word of a poisoned part is a NaN in bf16 and in fp16, and two of them are a NaN in fp32, while
their payloads depend on the place. So a poisoned value that is read shows in the results, and one that is copied
from one place to another shows as a change of bytes.

Writes are found by comparing bytes with a snapshot. Imports torch and ``fuzz.case``, ``fuzz.tensors``.
Exercise it with ``pytest tests/fuzz/test_pool.py``.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from dataclasses import dataclass

import torch

from gdn_apc.fuzz.case import Case
from gdn_apc.fuzz.tensors import TORCH, sent

RED_ZONE = 512
PARTS = ("conv", "gap", "ssm", "padding")
ALIGNMENT = 64
"""Parts and pages start on multiples of 16 elements of any dtype: with less, compilers may order sums differently."""
_LARGE = 1 << 30
_WATCHED_PADDING = 4096  # of a page's padding, at most this much is poisoned and watched

Part = tuple[int, str]
"""(slot, "conv" or "ssm"): what a row may read or write."""


@dataclass(frozen=True)
class Change:
    """The first byte that changed where nothing may be written. ``slot`` is None in a red zone."""

    slot: int | None
    part: str
    offset: int  # bytes from the start of the part

    def __str__(self) -> str:
        where = self.part if self.slot is None else f"slot {self.slot}, {self.part}"
        return f"{where}, byte {self.offset}"


class Pages:
    """The pages of a case's pool.

    ``conv: [num_slots, W - 1, D]`` and ``ssm: [num_slots, HV, V, K]`` are the strided views that a target gets.
    """

    def __init__(self, case: Case, device: torch.device | str = "cpu"):
        s, d, pool = case.sizes, case.dtypes, case.pool
        conv_dtype, ssm_dtype = TORCH[d.conv], TORCH[d.state]
        conv_bytes = (s.W - 1) * s.conv_dim * conv_dtype.itemsize
        ssm_bytes = s.HV * s.V * s.K * ssm_dtype.itemsize
        ssm_start = _round_up(conv_bytes, ALIGNMENT)
        page = _round_up(ssm_start + ssm_bytes + pool.page_padding, ALIGNMENT)
        self.num_slots = pool.num_slots
        self._bounds = {
            "conv": (0, conv_bytes),
            "gap": (conv_bytes, ssm_start),
            "ssm": (ssm_start, ssm_start + ssm_bytes),
            "padding": (ssm_start + ssm_bytes, min(page, ssm_start + ssm_bytes + _WATCHED_PADDING)),
        }
        self._buffer = allocate(2 * RED_ZONE + self.num_slots * page, device)
        watched = self._bounds["padding"][1]
        self._bytes = self._buffer.as_strided((self.num_slots, watched), (page, 1), RED_ZONE)
        self._zones = (self._buffer[:RED_ZONE], self._buffer[-RED_ZONE:])

        window = (1, s.W - 1) if pool.channel_major else (s.conv_dim, 1)
        self.conv = self._buffer.view(conv_dtype).as_strided(
            (self.num_slots, s.W - 1, s.conv_dim),
            (page // conv_dtype.itemsize, *window),
            RED_ZONE // conv_dtype.itemsize,
        )
        self.ssm = self._buffer.view(ssm_dtype).as_strided(
            (self.num_slots, s.HV, s.V, s.K),
            (page // ssm_dtype.itemsize, s.V * s.K, s.K, 1),
            (RED_ZONE + ssm_start) // ssm_dtype.itemsize,
        )
        self._poison = _nans(self.num_slots, watched, device)
        self.fill("nan")

    def fill(self, how: str, keep: Collection[Part] = ()) -> None:
        """Overwrite everything except the parts in ``keep`` with poison (``"nan"``) or with zero bytes (``"zero"``)."""
        new = self._poison if how == "nan" else torch.zeros_like(self._poison)
        kept = [(where, self._bytes[where]) for where in self._many(keep)]
        self._bytes.copy_(new)
        for zone in self._zones:
            zone.copy_(_nans(1, RED_ZONE, zone.device)[0] if how == "nan" else torch.zeros_like(zone))
        for where, old in kept:
            self._bytes[where] = old

    def part(self, slot: int, name: str) -> torch.Tensor:
        """The bytes of one part of one slot, a view."""
        lo, hi = self._bounds[name]
        return self._bytes[slot, lo:hi]

    def _many(self, parts: Collection[Part]) -> list[tuple[torch.Tensor, slice]]:
        """Indices of ``_bytes`` that name all these parts at once: one for each kind of part."""
        by_name: dict[str, list[int]] = {}
        for slot, name in parts:
            by_name.setdefault(name, []).append(slot)
        return [
            (sent(torch.tensor(slots), self._bytes.device), slice(*self._bounds[name]))
            for name, slots in by_name.items()
        ]

    def snapshot(self) -> tuple[torch.Tensor, ...]:
        """All watched bytes as they are now."""
        return (self._bytes.clone(), *(zone.clone() for zone in self._zones))

    def restore(self, snapshot: tuple[torch.Tensor, ...], keep: Collection[Part] = ()) -> None:
        """Put a snapshot's bytes back, except in the parts in ``keep``."""
        kept = [(where, self._bytes[where]) for where in self._many(keep)]
        self._bytes.copy_(snapshot[0])
        for zone, old in zip(self._zones, snapshot[1:]):
            zone.copy_(old)
        for where, new in kept:
            self._bytes[where] = new

    def first_change(self, before: tuple[torch.Tensor, ...], allowed: Collection[Part]) -> Change | None:
        """The first byte that differs from a snapshot outside the allowed parts, or None."""
        zones = [zone != old for zone, old in zip(self._zones, before[1:])]
        differs = self._bytes != before[0]
        for where in self._many(allowed):
            differs[where] = False
        if not bool(torch.stack([x.any() for x in (*zones, differs)]).any()):
            return None
        for name, zone in zip(("red zone before", "red zone after"), zones):
            if bool(zone.any()):
                return Change(None, name, int(zone.nonzero()[0, 0]))
        slot, offset = (int(i) for i in differs.nonzero()[0])
        name = next(p for p in PARTS if self._bounds[p][0] <= offset < self._bounds[p][1])
        return Change(slot, name, offset - self._bounds[name][0])


def allocate(size: int, device: torch.device | str) -> torch.Tensor:
    """``size`` bytes. On a CPU a large pool is address space only: pages that nobody touches cost no memory.

    Raises ``OSError`` if the machine cannot reserve that much.
    """
    if torch.device(device).type != "cpu" or size < _LARGE:
        return torch.empty(size, dtype=torch.uint8, device=device)
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's value; Python names it since 3.13
    space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return torch.frombuffer(space, dtype=torch.uint8)


def bits(t: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as integers, so that equality means the same bits (NaN equals itself, 0 differs from −0)."""
    return t.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


_WEIGHTS: dict[torch.device, torch.Tensor] = {}
_AT_ONCE = 1 << 20


def fingerprint(t: torch.Tensor) -> torch.Tensor:
    """A 64-bit hash of a tensor's bits, where it lies: int64 scalar, the same on every device.

    Sums of words of 16 or 32 bits times odd numbers, modulo 2⁶⁴: one changed word always shows, others all but
    surely. It serves to tell whether two runs saw the same bits, and need not withstand anybody.
    """
    words = t.contiguous().view(torch.int16 if t.element_size() == 2 else torch.int32).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=t.device)
    if t.device not in _WEIGHTS:
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(-(1 << 62), 1 << 62, (_AT_ONCE,), generator=generator)
        _WEIGHTS[t.device] = (drawn * 2 + 1).to(t.device)
    for i, start in enumerate(range(0, words.numel(), _AT_ONCE)):
        some = words[start : start + _AT_ONCE].to(torch.int64)
        total += (some * _WEIGHTS[t.device][: some.numel()]).sum() * _odd(i)
    return total


def _odd(i: int) -> int:
    """An odd number of 63 bits with its sign, for the ``i``-th part of a tensor."""
    x = (i + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 | 1
    return x - (1 << 64) if x >> 63 else x


def _nans(rows: int, columns: int, device: torch.device | str) -> torch.Tensor:
    """Bytes [rows, columns] of 16-bit NaNs: sign and 6 bits of payload from the place, all else set."""
    words = torch.arange(rows * ((columns + 1) // 2), dtype=torch.int64, device=device)
    mixed = (words * 2654435761 + 12345) >> 7
    nan = 0x7FC0 | (mixed & 0x3F) | ((mixed & 0x40) << 9)
    nan = torch.where(nan >= 0x8000, nan - 0x10000, nan).to(torch.int16)
    return nan.view(rows, -1).view(torch.uint8)[:, :columns]


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple
