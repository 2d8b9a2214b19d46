"""Bytes of one ledger handle at bookies, and who waits for room (W-4, W-10)."""

from __future__ import annotations

import asyncio

from octavo.client.ledger.pool import BookiePool


class HandleBudget:
    """Counts what was sent and not answered, every copy, for the handle and for its process."""

    def __init__(self, pool: BookiePool) -> None:
        self.in_flight_bytes = 0
        self._pool = pool
        self._changed = asyncio.Event()
        self._changed.set()
        self._ended = False

    @property
    def has_room(self) -> bool:
        """Whether handle and process may send more."""
        limit = self._pool.config.handle_in_flight_bytes
        return self.in_flight_bytes < limit and self._pool.has_capacity

    def moved(self, delta: int) -> None:
        """Bytes were handed to a bookie (positive), or answered or given up (negative)."""
        self.in_flight_bytes += delta
        if delta > 0:
            self._pool.in_flight_bytes += delta
            return
        self._pool.released(-delta)
        if not self._changed.is_set() and self.has_room:
            self._changed.set()

    async def wait(self) -> None:
        """Return while there is room, or once the handle ended."""
        while not self.has_room and not self._ended:
            self._changed.clear()
            if not self._pool.has_capacity:
                self._pool.wait_capacity(self)
            await self._changed.wait()

    def capacity_changed(self) -> None:
        """The process budget may allow more now."""
        self._changed.set()

    def end(self) -> None:
        """Nobody waits for room in a handle that stopped."""
        self._ended = True
        self._changed.set()
