"""How fast the background work of a broker reads and writes, each kind of it together."""

from __future__ import annotations

from octavo.runtime.clock import Clock

UNBOUNDED = 0


class Pace:
    """Bytes are spent at a rate, on average.

    Args:
        bytes_per_s: UNBOUNDED: as fast as it goes.
    """

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = 0.0
        """From this moment on what was spent is within the rate."""

    async def spend(self, size_bytes: int) -> None:
        """Return when what was spent before is within the rate."""
        if self._bytes_per_s == UNBOUNDED:
            return
        now_s = self._clock.monotonic()
        start_s = max(now_s, self._free_s)
        self._free_s = start_s + size_bytes / self._bytes_per_s
        if start_s > now_s:
            await self._clock.sleep(start_s - now_s)
