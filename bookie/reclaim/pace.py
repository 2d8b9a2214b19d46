"""How fast upkeep goes: no faster than its rate, and slower beside those who write and read.

Compaction (B-18) and the scrub (6.15) can wait, an add cannot. They have their full rate while a
bookie serves nobody, and a part of it beside traffic, never less than `SHARE_MIN`: garbage and
damage do not wait for ever. On a disk that runs full compaction does not give way at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from octavo.runtime.clock import Clock

YIELD_ENTRIES_PER_S = 100.0
"""Entries served a second beside which upkeep has half of its rate; twice as many: a third …"""
SHARE_MIN = 0.125
ROW_COST_BYTES = 128
"""What looking up a row of the index counts as."""
MEASURE_S = 1.0
"""Traffic is counted over so long at least."""


class Stopped(Exception):
    """The bookie stops: what was under way was given up."""


class Pace:
    """Holds one thread to so many bytes a second, until it is told to stop.

    Args:
        served: how many entries the bookie has taken and given so far; asked on any thread.
    """

    def __init__(self, bytes_per_s: float, clock: Clock, served: Callable[[], int]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._served = served
        self._ended = threading.Event()
        self._free_at_s = self._measured_s = clock.monotonic()
        self._measured = served()
        self._share = 1.0
        self.is_urgent = False
        """Gives way to nobody."""

    def stop(self) -> None:
        """Wake whoever waits, with Stopped."""
        self._ended.set()

    def share(self) -> float:
        """The part of the rate that is used now: `SHARE_MIN` to 1."""
        now_s = self._clock.monotonic()
        elapsed_s = now_s - self._measured_s
        if elapsed_s >= MEASURE_S:
            served = self._served()
            per_s = (served - self._measured) / elapsed_s
            self._share = max(SHARE_MIN, 1 / (1 + per_s / YIELD_ENTRIES_PER_S))
            self._measured, self._measured_s = served, now_s
        return 1.0 if self.is_urgent else self._share

    def spend(self, nbytes: int) -> None:
        """Wait until so many bytes more are due."""
        now_s = self._clock.monotonic()
        due_s = nbytes / (self._bytes_per_s * self.share())
        self._free_at_s = max(self._free_at_s, now_s) + due_s
        self.rest(max(0.0, self._free_at_s - now_s))

    def look_up(self, rows: int) -> None:
        """Wait until so many rows of the index more are due."""
        self.spend(rows * ROW_COST_BYTES)

    def rest(self, pause_s: float) -> None:
        """Let other threads go on; raises Stopped."""
        if self._ended.wait(pause_s):
            raise Stopped
