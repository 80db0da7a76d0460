"""The block pool: reference counts, the LRU free list, and the map from hashes to slots.

As vLLM's block pool: a block whose last reference goes joins the tail of the free list with its hash kept, so
that it can be hit until it is given out again from the head, which is when its hash is cleared (an eviction).
Slot 0 is the null block: never given out, never counted.

Imports the standard library and ``fuzz.engine.faults``. Exercise it with ``pytest tests/fuzz/test_engine.py``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable

from gdn_apc.fuzz.engine.faults import NONE, Faults


class BlockPool:
    """``num_slots`` slots, 0 included. ``key_of`` maps a published slot to its hash, ``refs[s]`` counts references."""

    def __init__(self, num_slots: int, faults: Faults = NONE, events: Counter[str] | None = None):
        if num_slots < 2:
            raise ValueError(f"num_slots: {num_slots} leaves no slot besides the null block; give at least 2")
        self.num_slots = num_slots
        self.faults = faults
        self.events = Counter() if events is None else events
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_slots))
        self.refs = [0] * num_slots
        self.key_of: dict[int, Hashable] = {}
        self._slots_of: dict[Hashable, dict[int, None]] = {}
        self._last_kind: dict[int, str] = {}

    def find(self, key: Hashable) -> int | None:
        """The slot published longest ago under ``key``, or None."""
        return next(iter(self._slots_of.get(key, ())), None)

    def allocate(self, count: int, kind: str) -> list[int]:
        """Take ``count`` slots from the head of the free list, evicting what they cached. The caller checks for room."""
        slots = [self.free.popitem(last=False)[0] for _ in range(count)]
        for slot in slots:
            if slot in self.key_of:
                self.events["machine_eviction"] += 1
                if not self.faults.keep_hash_of_recycled_slot:
                    self.unpublish(slot)
            if slot in self._last_kind:
                self.events["machine_recycled_slot"] += 1
                if self._last_kind[slot] != kind:
                    self.events["machine_slot_changes_kind"] += 1
            self._last_kind[slot] = kind
            self.refs[slot] = 1
        return slots

    def touch(self, slots: Iterable[int]) -> None:
        """Add a reference to each slot of a hit; a free one leaves the free list."""
        for slot in slots:
            if self.refs[slot] == 0 and not self.faults.evict_referenced:
                del self.free[slot]
            self.refs[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """Drop a reference to each slot, in this order; those that no one refers to join the tail of the free list."""
        for slot in slots:
            self.refs[slot] = 0 if self.faults.free_in_use else max(0, self.refs[slot] - 1)
            if self.refs[slot] == 0:
                self.free[slot] = None

    def publish(self, slot: int, key: Hashable) -> None:
        """Let ``key`` be hit at ``slot``. Several slots may hold the same key."""
        self.unpublish(slot)
        self.key_of[slot] = key
        self._slots_of.setdefault(key, {})[slot] = None

    def unpublish(self, slot: int) -> None:
        """Forget the slot's hash, if it has one."""
        key = self.key_of.pop(slot, None)
        if key is not None:
            del self._slots_of[key][slot]
            if not self._slots_of[key]:
                del self._slots_of[key]
