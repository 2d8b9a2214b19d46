"""Deadlines by key, the earliest first, each at the cost of a heap."""

from __future__ import annotations

import enum
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple


class Due(enum.IntEnum):
    """What is due."""

    SESSION = 0
    REVOCATION = 1
    HELD_HEARTBEAT = 2
    GROUP = 3
    OFFSETS = 4
    STEPS = 5


class DueKey(NamedTuple):
    """Of whom."""

    due: Due
    name: str


class Deadlines:
    """One deadline for each key.

    A deadline that moves to later costs nothing until its old place comes up: sessions move with
    every heartbeat, and none of them ends.
    """

    def __init__(self) -> None:
        self._at_s: dict[DueKey, float] = {}
        self._heap: list[tuple[float, DueKey]] = []
        self._placed_s: dict[DueKey, float] = {}
        """Where the heap has a key; other places of it there are void."""

    def __contains__(self, key: DueKey) -> bool:
        return key in self._at_s

    @property
    def size(self) -> int:
        """Places in the heap."""
        return len(self._heap)

    def set(self, key: DueKey, at_s: float) -> None:
        """Instead of the key's earlier one."""
        self._at_s[key] = at_s
        placed_s = self._placed_s.get(key)
        if placed_s is None or at_s < placed_s:
            self._placed_s[key] = at_s
            heappush(self._heap, (at_s, key))

    def clear(self, key: DueKey) -> None:
        """None for the key any more."""
        self._at_s.pop(key, None)

    def next_s(self) -> float | None:
        """The earliest."""
        while self._heap:
            placed_s, key = self._heap[0]
            if self._placed_s.get(key) != placed_s:
                heappop(self._heap)
                continue
            at_s = self._at_s.get(key)
            if at_s == placed_s:
                return at_s
            if at_s is None:
                heappop(self._heap)
                del self._placed_s[key]
            else:
                heapreplace(self._heap, (at_s, key))
                self._placed_s[key] = at_s
        return None

    def due(self, now_s: float) -> list[DueKey]:
        """Keys whose time has come; they have no deadline any more."""
        found: list[DueKey] = []
        while (at_s := self.next_s()) is not None and at_s <= now_s:
            key = heappop(self._heap)[1]
            del self._placed_s[key], self._at_s[key]
            found.append(key)
        return found
