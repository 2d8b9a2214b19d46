"""From records to slots: one record at a time, or the rows of a chunk grouped by partition.

Every method runs under the accumulator's lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from octavo.client.messaging.accumulator import Row, Slot
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.partitioner import (
    KeyHashes,
    StickyChoice,
    check_partition,
    checked_choice,
)
from octavo.client.messaging.records import NO_HEADERS, Headers

Rows = Sequence[int]
"""Indexes of rows in a chunk."""


class TopicState:
    """One topic as the producer uses it: its slots and its keyless choice."""

    __slots__ = ("counter", "live", "name", "slots", "sticky")

    def __init__(self, name: str, sticky: StickyChoice) -> None:
        self.name = name
        self.slots: list[Slot] = []
        self.sticky = sticky
        self.counter = 0
        self.live: list[int] = []
        """Partitions with a known owner."""


class Router:
    """P1: explicit partition, then custom or key hash, then the keyless mode."""

    def __init__(self, config: ProducerConfig) -> None:
        self.hashes = KeyHashes()
        self._chooser = config.partitioner if callable(config.partitioner) else None
        self.custom = self._chooser is not None
        self._round_robin = config.partitioner == "round_robin"

    def choose(self, state: TopicState, partition: int | None, row: Row) -> Slot:
        """The slot of one record; raises InvalidPartition."""
        slots = state.slots
        count = len(slots)
        if partition is not None:
            check_partition(state.name, partition, count)
            return slots[partition]
        if self._chooser is not None:
            _, key, value, headers, _ = row
            return slots[checked_choice(self._chooser, state.name, key, value, headers, count)]
        if row.key is not None:
            return slots[self.hashes.get(row.key) % count]
        if self._round_robin:
            state.counter += 1
            return slots[(state.counter - 1) % count]
        return slots[self.sticky_partition(state)]

    @staticmethod
    def sticky_partition(state: TopicState) -> int:
        """The current keyless partition, chosen anew when due (P5)."""
        sticky = state.sticky
        if not 0 <= sticky.current < len(state.slots):
            slots = state.slots
            sticky.choose(len(slots), lambda p: slots[p].waiting, state.live)
        return sticky.current

    def group(
        self,
        state: TopicState,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
        sizes: Sequence[int],
    ) -> Iterator[tuple[Slot, Rows]]:
        """Slots with the rows that go there, rows ascending. `keys` is None: all keyless."""
        count = len(values)
        if partition is not None:
            check_partition(state.name, partition, len(state.slots))
            yield state.slots[partition], range(count)
            return
        if self._chooser is None and keys is None:
            yield from self._group_keyless(state, sizes)
            return
        known = [key for key in keys or () if key is not None]
        if self._chooser is None and len(known) == count:
            partitions = len(state.slots)
            chosen = [hashed % partitions for hashed in self.hashes.get_many(known)]
        else:
            chosen = self._choose_each(state, keys or [None] * count, values, headers, sizes)
        groups: dict[int, list[int]] = {}
        for row, where in enumerate(chosen):
            groups.setdefault(where, []).append(row)
        for where, rows in groups.items():
            yield state.slots[where], rows

    def _choose_each(
        self,
        state: TopicState,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
        sizes: Sequence[int],
    ) -> list[int]:
        out: list[int] = []
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            given = NO_HEADERS if headers is None else headers[at]
            row = Row(0, key, value, given, sizes[at])
            out.append(self.choose(state, None, row).partition)
            if key is None and self._chooser is None and not self._round_robin:
                state.sticky.added(sizes[at], batch_closed=True)
        return out

    def _group_keyless(
        self, state: TopicState, sizes: Sequence[int]
    ) -> Iterator[tuple[Slot, Rows]]:
        count = len(sizes)
        if self._round_robin:
            slots = state.slots
            for step in range(min(count, len(slots))):
                yield slots[(state.counter + step) % len(slots)], range(step, count, len(slots))
            state.counter += count
            return
        ends = list(accumulate(sizes))
        start = 0
        while start < count:
            slot = state.slots[self.sticky_partition(state)]
            before = ends[start - 1] if start else 0
            stop = bisect_left(ends, before + state.sticky.bytes_left) + 1
            stop = min(max(stop, start + 1), count)
            yield slot, range(start, stop)
            state.sticky.added(ends[stop - 1] - before, batch_closed=True)
            start = stop
