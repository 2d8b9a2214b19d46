"""Records that an iteration took from the buffers and has not yielded yet: pure.

A seek, a pause or an assignment takes effect at the next record (F8): records of that partition
leave `ready`, for ever or until they are released.

A blocking iteration takes records off `ready` on its own thread, `record = ready[0]; del ready[0]`
with no call between. So whatever happens on the client's loop meanwhile takes `ready` away as a
whole before it looks into it, and the iteration's next step comes to the loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable

from octavo.client.messaging.records import Record, TopicPartition


class Handout:
    """The rest of an iteration's last poll, in order; each partition's records stay in order."""

    def __init__(self) -> None:
        self.ready: deque[Record] = deque()
        """What the next steps of the iteration yield; replaced as a whole when it changes."""
        self.good_until_s = math.inf
        """From then on, by the monotonic clock, the next step comes to the loop before it yields:
        what is ready may be somebody else's (RB12)."""
        self._held: deque[Record] = deque()
        """What `ready` was when the next step was to come to the loop first."""
        self._parked: dict[TopicPartition, list[Record]] = {}

    def hold(self) -> None:
        """The iteration's next step comes to the loop, which has something to do before it."""
        empty: deque[Record] = deque()
        ready = self.ready
        self.ready = empty
        self._held.extend(ready)

    def unhold(self) -> None:
        """The iteration goes on where it was."""
        if self._held:
            self.hold()
            self.ready, self._held = self._held, deque()

    def cut(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Drop what was taken of them; the first offset of each that was not yielded yet."""
        self.hold()
        first: dict[TopicPartition, int] = {}
        for where in partitions:
            offset = self.first_offset(where)
            if offset is not None:
                first[where] = offset
        self.forget(partitions)
        return first

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
        taken = {record.topic_partition for record in (*self._held, *self.ready)}
        self.forget(taken.union(self._parked).difference(partitions))

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
        for taken in (self._held, self.ready):
            for record in taken:
                if record.topic_partition == where:
                    return record.offset
        return None

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The same of every partition that has one."""
        parked = (part[:1] for part in self._parked.values())
        first: dict[TopicPartition, int] = {}
        for taken in (self._held, self.ready, *parked):
            for record in taken:
                where = record.topic_partition
                first[where] = min(first.get(where, record.offset), record.offset)
        return first

    def drain(self) -> list[Record]:
        """Everything left, which whoever asks has to give back or may forget."""
        parked = [record for part in self._parked.values() for record in part]
        left = [*self._held, *self.ready, *parked]
        self.ready, self._held = deque(), deque()
        self._parked.clear()
        return left

    def _split(self, gone: set[TopicPartition]) -> list[Record]:
        """Take the records of these partitions out of what was taken."""
        out: list[Record] = []
        if self._held:
            out += [record for record in self._held if record.topic_partition in gone]
            self._held = deque(r for r in self._held if r.topic_partition not in gone)
        if self.ready:
            here = [record for record in self.ready if record.topic_partition in gone]
            if here:
                self.ready = deque(r for r in self.ready if r.topic_partition not in gone)
                out += here
        return out
