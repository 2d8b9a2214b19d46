"""Rates of a group's lag out of several answers (M3), as `proto.lag` reckons them. Pure."""

from __future__ import annotations

from octavo.client.messaging.group_admin.values import GroupLag, PartitionLag
from octavo.proto.lag import RATE_WINDOW_S, Rates, RateWindow
from octavo.runtime.invariant import invariant

Slot = tuple[str, int]
"""Topic id and partition: a topic created again begins anew (O1)."""


class LagHistory:
    """Samples of one group's lag over RATE_WINDOW_S; feed it each `GroupLag` as it comes."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._windows: dict[Slot, RateWindow] = {}
        self._newest: GroupLag | None = None

    def add(self, sample: GroupLag) -> None:
        """A sample, not older than the one before."""
        now_s = sample.taken_s
        invariant(self._newest is None or self._newest.taken_s <= now_s, "samples come in order")
        self._newest = sample
        kept: dict[Slot, RateWindow] = {}
        for part in sample.partitions:
            slot = (part.topic_id, part.partition)
            window = kept[slot] = self._windows.get(slot) or RateWindow(self._window_s)
            window.add(now_s, part.position, part.end)
        self._windows = kept

    def of(self, part: PartitionLag) -> Rates | None:
        """Of a partition of the newest sample; None while there is one point of it only."""
        window = self._windows.get((part.topic_id, part.partition))
        return None if window is None else window.rates()

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
