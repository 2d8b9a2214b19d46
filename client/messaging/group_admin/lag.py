"""How far behind a group is, and how fast it catches up (M1 to M3). Pure."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from octavo.client.messaging.group_admin.values import GroupLag, PartitionLag
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


Slot = tuple[str, int]
"""Topic id and partition: a topic created again begins anew (O1)."""


class LagHistory:
    """Samples of one group's lag over RATE_WINDOW_S; feed it each `GroupLag` as it comes."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._points: dict[Slot, deque[_Point]] = {}
        self._newest: GroupLag | None = None

    def add(self, sample: GroupLag) -> None:
        """A sample, not older than the one before."""
        now_s = sample.taken_s
        invariant(self._newest is None or self._newest.taken_s <= now_s, "samples come in order")
        self._newest = sample
        kept: dict[Slot, deque[_Point]] = {}
        for part in sample.partitions:
            slot = (part.topic_id, part.partition)
            points = self._points.get(slot, deque(maxlen=SAMPLES_MAX))
            # Sent back, by a reset or a commit of an older offset: what was before is another run.
            if points and (part.position < points[-1].position or part.end < points[-1].end):
                points.clear()
            points.append(_Point(now_s, part.position, part.end))
            while now_s - points[0].at_s > self._window_s:
                points.popleft()
            kept[slot] = points
        self._points = kept

    def of(self, part: PartitionLag) -> Rates | None:
        """Of a partition of the newest sample; None while there is one point of it only."""
        points = self._points.get((part.topic_id, part.partition))
        if points is None:
            return None
        first, last = points[0], points[-1]
        passed_s = last.at_s - first.at_s
        if passed_s <= 0:
            return None
        return Rates(
            drain=(last.position - first.position) / passed_s,
            inflow=(last.end - first.end) / passed_s,
            lag=max(last.end - last.position, 0),
        )

    def total(self) -> Rates | None:
        """Of the whole group; None while no partition has rates."""
        if self._newest is None:
            return None
        known = [rates for part in self._newest.partitions if (rates := self.of(part)) is not None]
        if not known:
            return None
        return Rates(
            drain=sum(rates.drain for rates in known),
            inflow=sum(rates.inflow for rates in known),
            lag=self._newest.lag,
        )
