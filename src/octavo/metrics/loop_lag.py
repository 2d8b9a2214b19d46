"""How late the event loop is: every request of the server waits for that, too (interface §4.1)."""

from __future__ import annotations

from octavo.runtime.clock import Clock
from octavo.runtime.histogram import SYNC_SECONDS, Histogram

LOOK_S = 0.25
"""How often a timer is set; four wake-ups a second."""


class LoopLag:
    """Sets timers and counts how much later they ring."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = Histogram(SYNC_SECONDS)

    async def run(self) -> None:
        """For as long as the server lives."""
        clock = self._clock
        while True:
            due_s = clock.monotonic() + LOOK_S
            await clock.sleep(LOOK_S)
            self.seconds.observe(max(0.0, clock.monotonic() - due_s))
