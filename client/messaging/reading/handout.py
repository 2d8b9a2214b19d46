"""Records that an iteration took from the buffers and has not yielded yet: pure.

A seek, a pause or an assignment takes effect at the next record (F8): records of that partition
leave `ready`, for ever or until they are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from octavo.client.messaging.records import Record, TopicPartition


class Handout:
    """The rest of an iteration's last poll, in order; each partition's records stay in order."""

    def __init__(self) -> None:
        self.ready: deque[Record] = deque()
        """What the next steps of the iteration yield; replaced as a whole when it changes."""
        self._parked: dict[TopicPartition, list[Record]] = {}

    def take(self, count: int) -> list[Record]:
        """The next records, up to `count`."""
        ready = self.ready
        return [ready.popleft() for _ in range(min(count, len(ready)))]

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Their positions moved: drop what was taken of them."""
        self._split(set(partitions))
        for where in partitions:
            self._parked.pop(where, None)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Drop what was taken of all others: they are not assigned any more."""
        held = {record.topic_partition for record in self.ready} | set(self._parked)
        self.forget(held - set(partitions))

    def park(self, partitions: Collection[TopicPartition]) -> None:
        """Set aside what was taken of them: they were paused."""
        for record in self._split(set(partitions)):
            self._parked.setdefault(record.topic_partition, []).append(record)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """What was set aside of them is handed out again."""
        back = [record for where in partitions for record in self._parked.pop(where, ())]
        if back:
            self.ready = deque([*self.ready, *back])

    def first_offset(self, where: TopicPartition) -> int | None:
        """The offset of the next record of a partition; None when none is left."""
        for record in self._parked.get(where, ()):
            return record.offset
        for record in self.ready:
            if record.topic_partition == where:
                return record.offset
        return None

    def drain(self) -> list[Record]:
        """Everything left, which whoever asks has to give back or may forget."""
        left = [*self.ready, *(record for part in self._parked.values() for record in part)]
        self.ready = deque()
        self._parked.clear()
        return left

    def _split(self, gone: set[TopicPartition]) -> list[Record]:
        """Take the records of these partitions out of `ready`."""
        if not self.ready:
            return []
        out = [record for record in self.ready if record.topic_partition in gone]
        if out:
            self.ready = deque(r for r in self.ready if r.topic_partition not in gone)
        return out
