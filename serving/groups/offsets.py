"""Committed offsets of one group (O1, O2, O6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from octavo.proto.group_records import Kind, OffsetKey, OffsetRecord, Record, Slot
from octavo.runtime.errors import InvariantViolation

EVICTED = "octavo: evicted by the backlog quota, was at "
"""Begins the metadata of an offset that its group did not commit itself (F162)."""


class CommittedOffsets:
    """By slot; every change leaves its record."""

    def __init__(self) -> None:
        self._of: dict[Slot, tuple[OffsetKey, OffsetRecord]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._of)

    def get(self, slot: Slot) -> OffsetRecord | None:
        """None: nothing was committed (O5)."""
        found = self._of.get(slot)
        return None if found is None else found[1]

    def names(self) -> dict[str, str]:
        """Topic names by id."""
        return {slot.topic_id: key.topic for slot, (key, _) in self._of.items()}

    def put(self, key: OffsetKey, value: OffsetRecord) -> Record:
        """A commit. It may go back (O2)."""
        self._of[key.slot] = (key, value)
        return Record(Kind.OFFSET, key, value)

    def remove(self, slots: Iterable[Slot]) -> list[Record]:
        """Tombstones of those that were there."""
        found = [self._of.pop(slot)[0] for slot in list(slots) if slot in self._of]
        return [Record(Kind.OFFSET, key, None) for key in found]

    def of_topic(self, topic_id: str) -> dict[int, int]:
        """Committed offsets of one topic by partition."""
        return {
            slot.partition: value.offset
            for slot, (_, value) in self._of.items()
            if slot.topic_id == topic_id
        }

    def evict(
        self, topic_id: str, lowest: Mapping[int, int]
    ) -> dict[OffsetKey, tuple[int, Record]]:
        """Move what lies below `lowest`, by partition, there: how far, and the record (F162).

        The time of the commit stays: a group that nobody runs any more expires when it would have.
        """
        moved: dict[OffsetKey, tuple[int, Record]] = {}
        for partition, offset in lowest.items():
            key, old = self._of.get(Slot(topic_id, partition), (None, None))
            if key is not None and old is not None and old.offset < offset:
                told = f"{EVICTED}{old.offset}"
                new = OffsetRecord(offset, None, told, old.committed_ms)
                moved[key] = offset - old.offset, self.put(key, new)
        return moved

    def topics(self) -> dict[str, list[Slot]]:
        """Slots by topic name."""
        found: dict[str, list[Slot]] = {}
        for slot, (key, _) in self._of.items():
            found.setdefault(key.topic, []).append(slot)
        return found

    def expired(
        self, before_ms: int, empty_since_ms: int | None, spared: Collection[str]
    ) -> list[Slot]:
        """O6: whose age counts from before that time.

        The age counts from the commit, and not before the group became empty; topics that are
        `spared` are read by somebody.
        """
        floor_ms = before_ms if empty_since_ms is None else empty_since_ms
        if floor_ms > before_ms:
            return []
        return [
            slot
            for topic, slots in self.topics().items()
            if topic not in spared
            for slot in slots
            if self._of[slot][1].committed_ms <= before_ms
        ]

    def replay(self, record: Record) -> None:
        """A record of the log, in order."""
        key = record.subject
        if not isinstance(key, OffsetKey):
            raise InvariantViolation(f"{record} is no offset")
        if isinstance(record.value, OffsetRecord):
            self._of[key.slot] = (key, record.value)
        else:
            self._of.pop(key.slot, None)

    def snapshot(self) -> Iterator[Record]:
        """Records that replay to this."""
        return self.snapshot_of(self._of)

    def snapshot_of(self, slots: Iterable[Slot]) -> Iterator[Record]:
        """The same of some slots, of those that are still there."""
        for slot in slots:
            if slot in self._of:
                key, value = self._of[slot]
                yield Record(Kind.OFFSET, key, value)
