"""How far behind a group is, and how fast it catches up (M1 to M3). Pure.

What tells it, the client's admin and the page of a coordinator, computes it here.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from octavo.runtime.invariant import invariant

ResetTarget = Literal["earliest", "latest"]
"""Where a consumer without a committed offset begins (F6); only consumers know theirs."""

RATE_WINDOW_S = 60.0
"""Rates are those of this long (M3)."""
SAMPLES_MAX = 600
"""Samples kept in the window; more frequent ones displace the oldest."""


class Measured(NamedTuple):
    """What M1 makes of offsets."""

    position: int
    lag: int
    uncommitted: bool
    ahead: bool


def measure(committed: int | None, log_start: int, end: int, reset: ResetTarget) -> Measured:
    """Position and lag of one partition (M1).

    What retention removed counts neither as lag nor as a place to go on (F6).
    """
    invariant(0 <= log_start <= end, "a log starts at or before its end")
    if committed is None:
        position = log_start if reset == "earliest" else end
    else:
        position = max(committed, log_start)
    ahead = position > end
    return Measured(position, max(end - position, 0), committed is None, ahead)


class Rates(NamedTuple):
    """Records a second, over the samples in the window."""

    drain: float
    """Consumed and committed."""
    inflow: float
    """Appended."""
    lag: int
    """Records, now."""

    @property
    def growth(self) -> float:
        """By how much the lag grows; negative: the group catches up."""
        return self.inflow - self.drain

    @property
    def eta_s(self) -> float | None:
        """Until the lag is 0 at this rate: 0 when it is, None when it never will be."""
        if self.lag == 0:
            return 0.0
        return self.lag / -self.growth if self.growth < 0 else None


class _Point(NamedTuple):
    at_s: float
    position: int
    end: int


class RateWindow:
    """Samples of one partition.

    Args:
        spacing_s: of samples that are closer together only the newest is kept.
    """

    def __init__(self, window_s: float = RATE_WINDOW_S, spacing_s: float = 0.0) -> None:
        self._window_s = window_s
        self._spacing_s = spacing_s
        self._points: deque[_Point] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_s: float, position: int, end: int) -> None:
        """A sample, not older than the one before."""
        points = self._points
        # Sent back, by a reset or a commit of an older offset: what was before is another run.
        if points and (position < points[-1].position or end < points[-1].end):
            points.clear()
        if len(points) > 1 and points[-1].at_s - points[-2].at_s < self._spacing_s:
            points.pop()
        points.append(_Point(at_s, position, end))
        while at_s - points[0].at_s > self._window_s:
            points.popleft()

    def rates(self) -> Rates | None:
        """Between the oldest sample and the newest; None while there is one point only."""
        first, last = self._points[0], self._points[-1]
        passed_s = last.at_s - first.at_s
        if passed_s <= 0:
            return None
        return Rates(
            drain=(last.position - first.position) / passed_s,
            inflow=(last.end - first.end) / passed_s,
            lag=max(last.end - last.position, 0),
        )
