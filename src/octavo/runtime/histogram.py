"""A histogram that the loop or a thread of ours writes and anybody may look at.

Plain integers, one list: an observation costs a bisection and two additions, no lock. One writer at
a time; who reads meanwhile may miss the newest observation, never see half of a number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SYNC_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Bounds for what a disk or one hand-over takes."""
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what a request over the network takes."""
WORK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds for what takes several requests, such as a recovery."""
GROUP_RECORDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
"""Bounds for how many are done together."""


class Histogram:
    """How often a value lay between each two bounds, and the sum of all.

    Args:
        bounds: upper bounds of the buckets, ascending; a bucket without one comes behind them.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
