"""A bounded number of bytes in flight, first come first served (BP-2, BP-3)."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """At most `limit_bytes` are taken at a time; a larger demand passes when nothing is taken."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are free and nobody waits."""
        if self._waiting or not self._fits(size):
            return False
        self.taken_bytes += size
        return True

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free and take them."""
        if self.try_take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size)  # it was granted in the same turn
            self._grant()
            raise

    def charge(self, size: int) -> None:
        """Take `size` bytes even beyond the limit: they are in memory already."""
        self.taken_bytes += size

    async def wait_below_limit(self) -> None:
        """Return when at least one byte is free."""
        await self.take(1)
        self.release(1)

    def release(self, size: int) -> None:
        """Give bytes back and let waiters pass in order."""
        self.taken_bytes -= size
        self._grant()

    def _fits(self, size: int) -> bool:
        return self.taken_bytes == 0 or self.taken_bytes + size <= self.limit_bytes

    def _grant(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if not self._fits(size):
                return
            self._waiting.popleft()
            self.taken_bytes += size
            future.set_result(None)
