"""What was fetched and not handed out: verified batches in, records or batches out. Pure.

Owns the buffers of all assigned partitions, their bytes and the turn in which they are served
(F108). Nothing is skipped: damage is fetched once more, then it is the user's error (F9); empty
stretches move the position without a record (F3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from octavo.client.messaging.reading.readings import Answer, Buffered, Reading
from octavo.client.messaging.records import Headers, Record, TopicPartition, make_records
from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchFlags, BatchHeader, Rows
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    CorruptBatch,
    IllegalStateError,
    InvariantViolation,
    MessageTooLarge,
    OctavoError,
    UnsupportedVersion,
)

T = TypeVar("T")
Ends = Mapping[TopicPartition, int]
"""Where a reading up to known ends stops; a partition that it does not name is left out."""


class Buffers:
    """The assigned partitions and what is buffered of them."""

    def __init__(self) -> None:
        self.readings: dict[TopicPartition, Reading] = {}
        self.buffered_bytes = 0
        self.turn: deque[TopicPartition] = deque()
        self.taking: dict[TopicPartition, int] = {}
        """Where the partitions stood that the take under way touched. Whoever takes puts a new
        dict here first, and passes it to `ReadingCore.go_back` when the take was interrupted."""

    def assign(self, wanted: Iterable[TopicPartition]) -> list[Reading]:
        """Make `wanted` the assignment; kept partitions keep their state. Returns the new ones."""
        names = dict.fromkeys(wanted)
        for where in [known for known in self.readings if known not in names]:
            self.clear(self.readings.pop(where))
        fresh = [Reading(where) for where in names if where not in self.readings]
        self.readings.update((reading.where, reading) for reading in fresh)
        self.turn = deque(names)
        return fresh

    def reading(self, where: TopicPartition) -> Reading:
        """The state of an assigned partition; IllegalStateError for others (F8)."""
        found = self.readings.get(where)
        if found is None:
            raise IllegalStateError(
                f"partition {where} is not assigned", hint="call assign() with it first"
            )
        return found

    def clear(self, reading: Reading) -> None:
        """Drop what is buffered of it and what is under way for its position (F8)."""
        empty: deque[Buffered] = deque()  # the last call: nothing strikes what follows in halves
        reading.generation += 1
        reading.asked = reading.looking = reading.ranging = False
        self.buffered_bytes -= reading.buffered_bytes
        reading.buffered_bytes = 0
        reading.buffer = empty

    def release(self) -> None:
        """Nothing is handed out any more: free the buffers."""
        for reading in self.readings.values():
            self.clear(reading)

    def refetch(self, reading: Reading) -> None:
        """Drop its buffer; what was in it is fetched again when it is wanted."""
        self.clear(reading)
        reading.fetch_at = reading.position

    def freeze(self, wanted: Iterable[TopicPartition]) -> None:
        """Drop their buffers and let their positions stand, whatever the user resumes.

        So a partition stands that a group takes away, or gives, until its callback is done (RB11).
        """
        for where in wanted:
            reading = self.readings.get(where)
            if reading is not None:
                reading.frozen = reading.paused = True
                if reading.resolved:
                    self.refetch(reading)

    def thaw(self, wanted: Iterable[TopicPartition]) -> list[Reading]:
        """Undo `freeze`; returns those that may be asked for again."""
        thawed: list[Reading] = []
        for where in wanted:
            reading = self.readings.get(where)
            if reading is not None:
                reading.frozen = False
                if self.unpause(reading):
                    thawed.append(reading)
        return thawed

    @staticmethod
    def unpause(reading: Reading) -> bool:
        """Go on, unless the user or a callback still holds it; whether it does."""
        if not reading.paused or reading.frozen or reading.pause_wanted:
            return False
        reading.paused = False
        return True

    # --- in -------------------------------------------------------------------------------------

    def store(self, reading: Reading, offset: int, answer: Answer) -> bool:
        """Take an answer from `offset` on in; returns whether anything changed for the user."""
        reading.topic_id = reading.topic_id or answer.topic_id
        reading.chosen = False
        reading.failures = reading.above_end = 0
        reading.retry_at_s = 0.0
        before = reading.fetch_at
        damage = self._queue(reading, offset, answer)
        if damage is not None:
            self.damaged(reading, damage)
        self._settle(reading)
        return damage is not None or reading.fetch_at > before

    def _queue(self, reading: Reading, offset: int, answer: Answer) -> OctavoError | None:
        """Queue whole, verified batches; what is damaged, and all behind it, is dropped (F9)."""
        for data in answer.batches:
            try:
                header = batch_format.verify(data)  # F9
            except (CorruptBatch, UnsupportedVersion, MessageTooLarge) as error:
                return error
            adopt = header.next_offset
            if adopt <= reading.fetch_at:
                continue  # wholly below the position
            if header.flags & BatchFlags.CONTROL:
                reading.buffer.append(Buffered(b"", None, adopt))
            else:
                reading.buffer.append(Buffered(data, header, adopt))
                reading.buffered_bytes += len(data)
                self.buffered_bytes += len(data)
            reading.fetch_at = adopt
        if answer.next_offset > max(reading.fetch_at, offset):  # F3
            reading.fetch_at = answer.next_offset
            reading.buffer.append(Buffered(b"", None, answer.next_offset))
        return None

    @staticmethod
    def damaged(reading: Reading, error: OctavoError) -> None:
        """F9: refetch once, then tell the user; never skip."""
        if reading.corrupt_at != reading.fetch_at and not isinstance(error, UnsupportedVersion):
            reading.corrupt_at = reading.fetch_at
            reading.retry_at_s = 0.0
            return
        reading.corrupt_at = -1
        reading.error = type(error)(
            f"{reading.where} offset {reading.fetch_at}: {error.cause}",
            hint="seek past the offset to skip it, after finding out why it is damaged",
            topic=reading.where.topic,
            partition=reading.where.partition,
            offset=reading.fetch_at,
        )

    # --- out ------------------------------------------------------------------------------------

    def take_error(self) -> OctavoError | None:
        """An error that poll() must raise, once what its partition buffered was handed out."""
        for reading in self.readings.values():
            if reading.error is not None and not reading.paused and not reading.buffer:
                error, reading.error = reading.error, None
                return error
        return None

    def take_records(self, max_records: int, ends: Ends | None = None) -> list[Record]:
        """Up to `max_records` buffered records, partitions in turn (F108); none behind `ends`."""
        out: list[Record] = []
        for where in list(self.turn):
            reading = self.readings[where]
            end = None if ends is None else ends.get(where, 0)
            self.taking[where] = reading.position
            while len(out) < max_records and self._ready(reading, end):
                out += self._take(reading, max_records - len(out), end)
            if len(out) >= max_records:
                break
        if out:
            self.turn.rotate(-1)
        return out

    def take_batches(
        self,
        max_bytes: int,
        make: Callable[[TopicPartition, Buffer, BatchHeader, int, int], T],
        ends: Ends | None = None,
    ) -> list[T]:
        """Whole buffered batches, each made of (where, batch, header, first offset, end offset).

        `max_bytes` counts what they hold uncompressed; one batch is given in any case.
        """
        out: list[T] = []
        size = 0
        for where in list(self.turn):
            reading = self.readings[where]
            end = None if ends is None else ends.get(where, 0)
            self.taking[where] = reading.position
            while size < max_bytes and self._ready(reading, end):
                item = reading.buffer[0]
                assert item.header is not None
                stop = item.adopt if end is None else min(end, item.adopt)
                out.append(make(where, item.batch, item.header, reading.position, stop))
                size += item.header.uncompressed_bytes
                if stop == item.adopt:
                    self._drop_front(reading)
                else:
                    reading.position = stop
                    item.rows = None
                    item.cursor = 0
        if out:
            self.turn.rotate(-1)
        return out

    def reached(self, ends: Ends) -> bool:
        """Whether nothing is left to hand out below `ends`; paused partitions are left out."""
        return all(
            (reading := self.readings.get(where)) is None
            or reading.paused
            or reading.position >= end
            for where, end in ends.items()
        )

    def validate(self) -> None:
        """Raise InvariantViolation when bytes or offsets of a buffer do not fit together."""
        for where, reading in self.readings.items():
            held = sum(len(item.batch) for item in reading.buffer)
            steps = [reading.position, *(item.adopt for item in reading.buffer)]
            rising = all(one < two for one, two in pairwise(steps))
            if held != reading.buffered_bytes or not rising or steps[-1] != reading.fetch_at:
                raise InvariantViolation(f"buffer of {where}: {held} bytes, {steps}, {reading}")
        if self.buffered_bytes != sum(r.buffered_bytes for r in self.readings.values()):
            raise InvariantViolation(f"{self.buffered_bytes} buffered bytes do not add up")
        if sorted(self.turn) != sorted(self.readings):
            raise InvariantViolation(f"turn {self.turn} is not the assignment")

    @staticmethod
    def _ready(reading: Reading, end: int | None) -> bool:
        return (
            bool(reading.buffer) and not reading.paused and (end is None or reading.position < end)
        )

    @staticmethod
    def _settle(reading: Reading) -> None:
        """Adopt positions of empty stretches at the front of the buffer (F3)."""
        while reading.buffer and reading.buffer[0].header is None:
            reading.position = reading.buffer.popleft().adopt

    def _drop_front(self, reading: Reading) -> None:
        item = reading.buffer[0]
        size = len(item.batch)  # the last call: nothing strikes what follows in halves
        reading.position = item.adopt
        reading.buffered_bytes -= size
        self.buffered_bytes -= size
        del reading.buffer[0]
        self._settle(reading)

    def _rows(self, reading: Reading, item: Buffered) -> Rows | None:
        """Decoded rows of the front batch, its cursor behind the position; None when damaged."""
        if item.rows is None:
            try:
                item.rows = batch_format.decode_rows(item.batch)
            except CorruptBatch as error:
                self.refetch(reading)
                self.damaged(reading, error)
                return None
            offsets = item.rows.offsets
            while item.cursor < len(offsets) and offsets[item.cursor] < reading.position:
                item.cursor += 1
        return item.rows

    def _take(self, reading: Reading, count: int, end: int | None) -> list[Record]:
        item = reading.buffer[0]
        rows = self._rows(reading, item)
        if rows is None:
            return []
        offsets, start = rows.offsets, item.cursor
        stop = min(start + count, len(offsets))
        if end is not None:
            while stop > start and offsets[stop - 1] >= end:
                stop -= 1
        stamps = rows.timestamps_ms[start:stop]
        headers: Sequence[Headers] | None = None
        if rows.headers is not None:
            headers = rows.headers[start:stop]
        taken = make_records(
            reading.where,
            offsets[start:stop],
            rows.keys[start:stop],
            rows.values[start:stop],
            headers,
            stamps,
        )
        item.cursor = stop
        if stop == len(offsets):
            self._drop_front(reading)
        elif end is not None and offsets[stop] >= end:
            reading.position = max(end, reading.position)
        elif stop > start:
            reading.position = offsets[stop - 1] + 1
        return taken
