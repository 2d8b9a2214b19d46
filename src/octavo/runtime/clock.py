"""Time as a value that is passed in, so that the simulator and tests can own it (G5, P-7).

Monotonic time decides every timeout and interval; wall time is only stored (timestamps, retention).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time and the only way to wait for it."""

    def monotonic(self) -> float:
        """Seconds that never go back; origin is arbitrary."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump in both directions."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; cancellable."""
        ...


class SystemClock:
    """The machine's clock on the running asyncio loop."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock moved by hand: `advance()` wakes sleepers whose time has come. For tests."""

    def __init__(self, start_s: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._now = start_s
        self._wall_ms = wall_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._wall_ms

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        """Move both clocks forward and wake every sleeper that is due, earliest first."""
        self._now += seconds
        self._wall_ms += round(seconds * 1000)
        due = sorted((s for s in self._sleepers if s[0] <= self._now), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._now]
        for _, future in due:
            if not future.done():
                future.set_result(None)
