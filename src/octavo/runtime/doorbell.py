"""A wake-up for one sleeping thread, at a fraction of the price of a Condition.

The state it announces lives elsewhere, in fields that one side writes: ring after changing it, and
look at it again after every wait.
"""

from __future__ import annotations

import threading


class Doorbell:
    """Rings that come before the wait are kept, as one."""

    def __init__(self) -> None:
        self._rung = threading.Lock()
        self._rung.acquire()

    def ring(self) -> None:
        """End the present wait, or the next one; any thread may ring."""
        try:
            self._rung.release()
        except RuntimeError:
            return  # rung already, and not heard yet

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it rings; False when the time is over first. One thread only."""
        return self._rung.acquire(timeout=-1 if timeout_s is None else timeout_s)
