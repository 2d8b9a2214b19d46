"""From records to slots: one record at a time, or the rows of a chunk grouped by partition.

Keyless choices have state and are made under the accumulator's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.partitioner import (
    KeyHashes,
    StickyChoice,
    check_partition,
    checked_choice,
)
from octavo.client.messaging.producing.accumulator import (
    GROWN_BATCHES_MAX,
    GROWN_BYTES_MAX,
    Slot,
)
from octavo.client.messaging.producing.batches import RECORD_OVERHEAD_BYTES
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.runtime.errors import OctavoError, PartitionDecommissioned

BATCH_SLACK_BYTES = 4096
"""Header and padding of a batch, which its records' sizes do not count."""
Rows = Sequence[int]
"""Indexes of rows in a chunk."""


class TopicState:
    """One topic as the producer uses it: its slots and its keyless choice."""

    __slots__ = (
        "counter", "decommissioned", "ended", "life", "live", "name", "row_bytes_max", "slots",
        "sticky", "writable",
    )  # fmt: skip

    def __init__(self, name: str, sticky: StickyChoice, life: int = 0) -> None:
        self.name = name
        self.life = life
        """Which life of the name the slots are of."""
        self.ended: OctavoError | None = None
        """Why nothing can be added: the topic was created again, with other slots."""
        self.slots: list[Slot] = []
        """Of all partitions, by number."""
        self.writable: list[Slot] = self.slots
        """Of those that take records: the same list, unless some are decommissioned (P2, F027)."""
        self.decommissioned: Collection[int] = ()
        """Numbers of those that take none."""
        self.sticky = sticky
        self.counter = 0
        self.live: list[int] = []
        """Partitions with a known owner."""
        self.row_bytes_max = 0
        """The largest record that may be sent, with what a row costs."""

    def set_limits(self, view: TopicView, batch_size: int) -> None:
        """No batch gets larger than the topic takes; a record close to that goes alone. Lock held.

        `batch_size` is the configured one; 0: every record is a batch.
        """
        self.row_bytes_max = view.record_bytes_max + RECORD_OVERHEAD_BYTES
        takes = max(view.batch_bytes_max - BATCH_SLACK_BYTES, view.batch_bytes_max // 2, 1)
        full = min(max(batch_size, 1), takes)
        grown = min(GROWN_BYTES_MAX, GROWN_BATCHES_MAX * batch_size, takes)
        for slot in self.slots:
            slot.full_bytes = full
            slot.grown_bytes_max = grown if batch_size > 0 else 0

    def adopt_owners(self, view: TopicView) -> None:
        """Which partitions have an owner, and which take records. Lock held.

        What lies in the queue of a decommissioned one still goes there: it takes records until
        everybody has heard of it. So the order of a key holds within what was sent before, and
        within what is sent after, as when partitions are added (P7).
        """
        owned = [number for number, owner in enumerate(view.owners) if owner]
        if not view.decommissioned:
            self.live = owned
            return
        numbers = view.writable
        self.decommissioned = view.decommissioned
        self.writable = [self.slots[number] for number in numbers]
        self.live = [number for number in owned if number not in view.decommissioned] or numbers
        if self.sticky.current in view.decommissioned:
            self.sticky.renew()

    def check_named(self, partition: int) -> None:
        """Raise unless a record may go to a partition that the caller names.

        InvalidPartition; PartitionDecommissioned: nothing was sent.
        """
        check_partition(self.name, partition, len(self.slots))
        if partition in self.decommissioned:
            raise PartitionDecommissioned(
                f"partition {partition} of topic {self.name!r} is decommissioned and takes no new "
                "records",
                hint="send it without naming a partition, or name another one",
            )

    def check_life(self) -> None:
        """Raise when the topic was created again since this state was looked up. Lock held."""
        if self.ended is not None:
            raise self.ended


class Router:
    """P1: explicit partition, then custom or key hash, then the keyless mode."""

    def __init__(self, config: ProducerConfig) -> None:
        self.hashes = KeyHashes()
        self.custom = config.partitioner if callable(config.partitioner) else None
        self._round_robin = config.partitioner == "round_robin"
        self._batch_size = max(config.batch_size, 1)

    def custom_choice(
        self, state: TopicState, key: bytes | None, value: bytes | None, headers: Headers
    ) -> int:
        """What the user's partitioner says. Not under the lock: it is the user's code."""
        assert self.custom is not None
        count = len(state.slots)
        chosen = checked_choice(self.custom, state.name, key, value, headers, count)
        state.check_named(chosen)
        return chosen

    def choose(self, state: TopicState, partition: int | None, key: bytes | None) -> Slot:
        """The slot of one record; raises InvalidPartition, PartitionDecommissioned. Lock held."""
        state.check_life()
        if partition is not None:
            state.check_named(partition)
            return state.slots[partition]
        slots = state.writable
        if key is not None:
            return slots[self.hashes.get(key) % len(slots)]
        if self._round_robin:
            state.counter += 1
            return slots[(state.counter - 1) % len(slots)]
        return state.slots[self.sticky_partition(state)]

    @staticmethod
    def sticky_partition(state: TopicState) -> int:
        """The current keyless partition, chosen anew when due (P5)."""
        sticky, slots = state.sticky, state.slots
        current = sticky.current
        if 0 <= current < len(slots):
            return current
        return sticky.choose(len(slots), lambda p: slots[p].waiting, state.live)

    def choose_many(
        self,
        state: TopicState,
        partition: int | None,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
    ) -> int | list[int] | None:
        """What can be decided without the lock: one partition, one per row, or None (keyless)."""
        if partition is not None:
            state.check_named(partition)
            return partition
        count = len(values)
        if self.custom is not None:
            return [
                self.custom_choice(
                    state,
                    None if keys is None else keys[row],
                    values[row],
                    NO_HEADERS if headers is None else headers[row],
                )
                for row in range(count)
            ]
        known = [key for key in keys or () if key is not None]
        if keys is None or len(known) < count:
            return None
        writable = state.writable
        partitions = len(writable)
        hashes = self.hashes.get_many(known)
        if writable is state.slots:
            return [hashed % partitions for hashed in hashes]
        return [writable[hashed % partitions].partition for hashed in hashes]

    def group(
        self,
        state: TopicState,
        chosen: int | list[int] | None,
        keys: Sequence[bytes | None] | None,
        sizes: Sequence[int],
    ) -> Iterator[tuple[Slot, Rows]]:
        """Slots with the rows that go there, rows ascending. Lock held."""
        state.check_life()
        if isinstance(chosen, int):
            yield state.slots[chosen], range(len(sizes))
            return
        if chosen is None and (keys is None or not any(key is not None for key in keys)):
            yield from self._group_keyless(state, sizes)
            return
        if chosen is None:
            chosen = self._choose_each(state, keys or (), sizes)
        groups: dict[int, list[int]] = {}
        for row, where in enumerate(chosen):
            groups.setdefault(where, []).append(row)
        for where, rows in groups.items():
            yield state.slots[where], rows

    def _choose_each(
        self, state: TopicState, keys: Sequence[bytes | None], sizes: Sequence[int]
    ) -> list[int]:
        """Keyed and keyless rows mixed."""
        out: list[int] = []
        for key, size_bytes in zip(keys, sizes, strict=True):
            out.append(self.choose(state, None, key).partition)
            if key is None and not self._round_robin:
                state.sticky.added(size_bytes, batch_closed=True)
        return out

    def _group_keyless(
        self, state: TopicState, sizes: Sequence[int]
    ) -> Iterator[tuple[Slot, Rows]]:
        count = len(sizes)
        if self._round_robin:
            slots = state.writable
            for step in range(min(count, len(slots))):
                yield slots[(state.counter + step) % len(slots)], range(step, count, len(slots))
            state.counter += count
            return
        ends = list(accumulate(sizes))
        start = 0
        while start < count:
            slot = state.slots[self.sticky_partition(state)]
            before = ends[start - 1] if start else 0
            limit = slot.fills_up_to(self._batch_size)
            room = limit if slot.open is None else limit - slot.open.size_bytes
            stop = bisect_right(ends, before + room)
            if stop <= start:  # full but for less than a record, or grown beyond what it may now
                stop = max(bisect_right(ends, before + limit), start + 1)
            yield slot, range(start, stop)
            if stop < count or slot.open is None:  # a full batch: a remainder would travel alone
                state.sticky.renew()
            else:
                state.sticky.added(ends[stop - 1] - before, batch_closed=False)
            start = stop
