"""A rate of bytes: each part of the work waits until the parts before it are paid (A-9)."""

from __future__ import annotations

from octavo.runtime.clock import Clock


class Pace:
    """Shared by all workers of a process; at most a second's worth is ahead at once."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at_s = 0.0

    async def spend(self, nbytes: int) -> None:
        """Account for `nbytes`, and wait for one's turn."""
        now_s = self._clock.monotonic()
        begin_s = max(now_s, self._free_at_s)
        self._free_at_s = begin_s + nbytes / self._bytes_per_s
        if begin_s > now_s:
            await self._clock.sleep(begin_s - now_s)
