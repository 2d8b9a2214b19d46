"""Ordered pairs of bytes in memory, bounded: for an index without, or above, files."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping

from octavo.runtime.errors import StorageFull

KEYS_MAX = 2_000_000
"""Keys kept in memory, some 400 MB."""


GONE = b"\0removed"
"""This very object stands for the value of a key that was removed."""


class MemoryBatch:
    """Changes that are applied together."""

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key, whether it is there or not."""
        self.changes[key] = GONE


class SortedPairs:
    """A dictionary that can be read in the order of its keys, from any thread."""

    def __init__(self, pairs: Mapping[bytes, bytes] | None = None) -> None:
        self._pairs: dict[bytes, bytes] = dict(pairs or {})
        self._lock = threading.Lock()
        self._order: list[bytes] = sorted(self._pairs)  # guarded by _lock; all but _new
        self._new: list[bytes] = []  # guarded by _lock; keys not sorted in yet

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None: no such key."""
        return self._pairs.get(key)

    def between(self, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        """Pairs with keys from `low` to below `high`, in order, as of now."""
        with self._lock:
            order, pairs = self._order, self._pairs
            if self._new:
                order += self._new
                order.sort()  # linear: two runs, of which the first is in order
                self._new = []
            found = order[bisect.bisect_left(order, low) : bisect.bisect_left(order, high)]
            return [(key, pairs[key]) for key in found]

    def update(self, changes: Mapping[bytes, bytes]) -> None:
        """Set these keys, all or none; raises StorageFull beyond KEYS_MAX."""
        with self._lock:
            new = [key for key in changes if key not in self._pairs]
            if len(self._pairs) + len(new) > KEYS_MAX:
                raise StorageFull(f"more than {KEYS_MAX} keys of the index are kept in memory")
            self._pairs.update(changes)
            self._new += new

    def copy(self) -> dict[bytes, bytes]:
        """All pairs, as of now."""
        with self._lock:
            return dict(self._pairs)
