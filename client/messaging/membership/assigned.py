"""The partitions that a group gave to this consumer, as its reading knows them (RB11).

Owns the arrow from slots to readings: what stops, goes, begins and is handed out, and where each
stands. Everything runs on the client's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.records import TopicPartition


class AssignedReadings:
    """Of one consumer with a group."""

    def __init__(self, fetcher: Fetcher, handout: Handout) -> None:
        self.fetcher = fetcher
        self.handout = handout
        self.slots: dict[TopicPartition, Slot] = {}
        """What is read, going partitions included."""

    def stop(self, slots: Iterable[Slot]) -> None:
        """Nothing of them is handed out any more; they stand behind the last record that was."""
        places = self._mine(slots)
        self.fetcher.go_back(self.handout.cut(places))
        self.fetcher.freeze(places)

    def drop(self, slots: Iterable[Slot]) -> None:
        """They are somebody else's: nothing of them is kept (O11)."""
        gone = self._mine(slots)
        if not gone:
            return
        for where in gone:
            del self.slots[where]
        self.handout.cut(gone)
        self.fetcher.assign([where for where in self.fetcher.core.readings if where not in gone])

    def add(
        self, slots: Iterable[Slot], committed: Mapping[Slot, int], later: Iterable[Slot] = ()
    ) -> None:
        """They begin at what was committed, else by the reset policy; frozen until `start`.

        Those that are `later` begin with their first record.
        """
        added = {slot.where: slot for slot in slots}
        self.slots.update(added)
        start: dict[TopicPartition, int | Literal["earliest"]]
        start = {slot.where: "earliest" for slot in later}
        start |= {slot.where: offset for slot, offset in committed.items()}
        readings = self.fetcher.core.readings
        self.fetcher.assign([*readings, *added], start)
        self.fetcher.freeze(added)
        for slot in committed:
            readings[slot.where].topic_id = added[slot.where].topic_id

    def start(self, slots: Iterable[Slot]) -> None:
        """Hand them out."""
        self.fetcher.thaw(self._mine(slots))

    def positions(self, slots: Iterable[Slot]) -> dict[Slot, int]:
        """The next record of each that the user has not got; those not known yet are left out."""
        first = self.handout.first_offsets()
        found: dict[Slot, int] = {}
        for slot in slots:
            reading = self.fetcher.core.readings.get(slot.where)
            if reading is not None and self.slots.get(slot.where) == slot and reading.resolved:
                found[slot] = first.get(slot.where, reading.position)
        return found

    def wake(self) -> None:
        """Reading calls look what is to be done, also an iteration over what was fetched."""
        self.handout.hold()
        self.fetcher.tell()

    def _mine(self, slots: Iterable[Slot]) -> list[TopicPartition]:
        return [slot.where for slot in slots if self.slots.get(slot.where) == slot]
