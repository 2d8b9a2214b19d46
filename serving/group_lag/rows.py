"""What a pass found of groups, and what of it may be shown now (M4). Pure.

Rows are immutable: a look at them goes on while the next pass runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from octavo.proto.lag import Rates
from octavo.serving.groups.values import LeftOut

AGE_MAX_S = 5.0
"""What is older is not shown any more (M4)."""


class PartitionRow(NamedTuple):
    """A group at one partition."""

    partition: int
    lag: int
    since_ms: int | None
    """When what it waits for was appended; None: not known, or nothing."""
    rates: Rates | None
    """None: there was one sample only."""
    asked_s: float
    """When the pass began that found it."""

    def seconds(self, now_ms: int) -> float | None:
        """How long what it waits for has been there (M3); 0 without lag, None: not known."""
        if self.lag == 0:
            return 0.0
        return None if self.since_ms is None else max(now_ms - self.since_ms, 0) / 1000


class TopicRow(NamedTuple):
    """A group at one topic."""

    home: int
    """The partition of groups that it lives in."""
    group: str
    topic: str
    size: int
    """Partitions that it reads or committed."""
    partitions: tuple[PartitionRow, ...]
    """Those of which something is known."""


class GroupRow(NamedTuple):
    """A group as a whole."""

    home: int
    group: str
    members: int
    asked_s: float


class Found(NamedTuple):
    """Of all groups, in the order of their names and topics."""

    groups: Sequence[GroupRow] = ()
    topics: Sequence[TopicRow] = ()
    left_out: LeftOut = LeftOut()
    """Not asked for, because there is a bound."""


class Sums(NamedTuple):
    """Over the partitions of a topic; None: one of them is not known."""

    lag: int | None
    seconds: float | None
    """Of the partition that is behind for longest."""
    drain: float | None
    inflow: float | None
    unknown: int
    """Partitions of which the lag is not known."""


class Shown(NamedTuple):
    """One topic of a group, as it may be shown."""

    row: TopicRow
    sums: Sums
    partitions: tuple[PartitionRow, ...]
    """Those that have series of their own."""


def sums_of(row: TopicRow, fresh: Sequence[PartitionRow], now_ms: int) -> Sums:
    """What the fresh rows of a topic say together: nothing of a whole that is not known."""
    unknown = row.size - len(fresh)
    if unknown:
        return Sums(None, None, None, None, unknown)
    seconds = [one.seconds(now_ms) for one in fresh]
    known_s = [one for one in seconds if one is not None]
    rates = [one.rates for one in fresh if one.rates is not None]
    has_rates = len(rates) == len(fresh)
    return Sums(
        lag=sum(one.lag for one in fresh),
        seconds=max(known_s, default=0.0) if len(known_s) == len(fresh) else None,
        drain=sum(one.drain for one in rates) if has_rates else None,
        inflow=sum(one.inflow for one in rates) if has_rates else None,
        unknown=0,
    )


class Look:
    """One look at what was found.

    Args:
        homes: the partitions of groups that are coordinated here right now.
        series_max: partitions with series of their own, topics with sums, and groups; each.
    """

    def __init__(
        self, found: Found, homes: Collection[int], series_max: int, *, now_s: float, now_ms: int
    ) -> None:
        self._homes = homes
        self._now_s = now_s
        self.now_ms = now_ms
        fresh = [row for row in found.groups if row.home in homes and self._is_fresh(row.asked_s)]
        topics = [row for row in found.topics if row.home in homes]
        self.groups = fresh[:series_max]
        self._topics = topics[:series_max]
        self._with_partitions: set[int] = set()
        room = series_max
        for number, row in enumerate(self._topics):
            if row.size <= room:  # a topic as a whole or not at all
                room -= row.size
                self._with_partitions.add(number)
        shown = sum(self._topics[number].size for number in self._with_partitions)
        self.groups_left_out = len(fresh) - len(self.groups)
        self.topics_left_out = found.left_out.topics + len(topics) - len(self._topics)
        self.partitions_left_out = (
            found.left_out.partitions + sum(row.size for row in topics) - shown
        )

    def topics(self) -> Iterator[Shown]:
        """Each topic of each group, one after the other."""
        for number, row in enumerate(self._topics):
            fresh = tuple(one for one in row.partitions if self._is_fresh(one.asked_s))
            has_series = number in self._with_partitions
            sums = sums_of(row, fresh, self.now_ms)
            yield Shown(row, sums, fresh if has_series else ())

    def _is_fresh(self, asked_s: float) -> bool:
        return self._now_s - asked_s <= AGE_MAX_S
