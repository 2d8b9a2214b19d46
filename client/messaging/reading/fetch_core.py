"""The pure reading core: positions, what to ask for, what to hand out (spec groups §4).

Events in, values out: no socket, clock or task. One `Reading` per assigned partition. Two offsets
matter: `position` is the next offset for the user, `fetch_at` the next one to ask a broker for; the
buffer lies between them. A seek raises `generation`, so replies asked for earlier are dropped (F8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.client.messaging.records import Headers, Record, TopicPartition, make_records
from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchFlags, BatchHeader, Rows
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    CorruptBatch,
    IllegalStateError,
    InconsistentTopicId,
    MessageTooLarge,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    UnknownTopic,
    UnsupportedVersion,
)

UNKNOWN_TOPIC_ATTEMPTS = 10
"""After this many refusals in a row poll() raises; before, the topic may just be new."""
PARTIAL_WAIT_MS = 20
"""Long-poll time of a request that leaves out partitions whose buffers are full: they may drain
while it waits."""


class Buffered:
    """One fetched batch, or an empty stretch whose only effect is a new position (F3)."""

    __slots__ = ("adopt", "batch", "cursor", "header", "rows")

    def __init__(self, batch: Buffer, header: BatchHeader | None, adopt: int) -> None:
        self.batch = batch
        self.header = header
        self.adopt = adopt
        """The position after it."""
        self.rows: Rows | None = None
        self.cursor = 0
        """Rows before it were handed out or lie before the position."""


@dataclass(eq=False, slots=True)
class Reading:
    """State of one assigned partition. Invariant: position <= fetch_at when both are known."""

    where: TopicPartition
    position: int = -1
    """-1: not resolved yet; nothing is fetched until it is."""
    fetch_at: int = -1
    generation: int = 0
    buffer: deque[Buffered] = field(default_factory=lambda: deque[Buffered]())
    buffered_bytes: int = 0
    paused: bool = False
    owner: str = ""
    finding: bool = False
    asked: bool = False
    """Part of a request whose reply has not come."""
    retry_at_s: float = 0.0
    failures: int = 0
    corrupt_at: int = -1
    """Where data was damaged and is being fetched once more; -1: nowhere."""
    above_end: int = 0
    """Consecutive answers that the position lies above the end (F5)."""
    chosen: bool = False
    """The position is one the user named, and no answer has shown yet that it exists: when it does
    not, that is the user's error and no case for the reset policy."""
    error: OctavoError | None = None
    """Raised by the next poll; no fetch meanwhile."""
    high_watermark: int = -1
    log_start: int = -1
    topic_id: bytes = b""
    """The topic that the position belongs to; empty: not told yet."""

    @property
    def resolved(self) -> bool:
        """Whether the position is known."""
        return self.position >= 0


class Ask(NamedTuple):
    """One partition of a fetch request."""

    reading: Reading
    offset: int
    generation: int


class Plan(NamedTuple):
    """One fetch request to one broker."""

    asks: list[Ask]
    max_bytes: int
    max_wait_ms: int


class Answer(NamedTuple):
    """One partition of a fetch reply."""

    batches: Sequence[Buffer]
    next_offset: int
    log_start: int
    high_watermark: int
    error: OctavoError | None
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Sizes and times of fetching, from the consumer's settings."""

    max_bytes: int
    partition_bytes: int
    prefetch_bytes: int
    prefetch_partition_bytes: int
    max_wait_ms: int


class FetchCore:
    """All partitions of one consumer."""

    def __init__(self, limits: FetchLimits) -> None:
        self.limits = limits
        self.readings: dict[TopicPartition, Reading] = {}
        self.buffered_bytes = 0
        self.ends: Mapping[TopicPartition, int] | None = None
        """Where the reading under way stops; nothing at or above is asked for meanwhile."""
        self._turn: deque[TopicPartition] = deque()

    # --- assignment and positions ---------------------------------------------------------------

    def assign(self, wanted: Iterable[TopicPartition]) -> list[Reading]:
        """Make `wanted` the assignment; kept partitions keep their state. Returns the new ones."""
        names = list(dict.fromkeys(wanted))
        for where in [known for known in self.readings if known not in names]:
            self._clear(self.readings.pop(where))
        fresh = [Reading(where) for where in names if where not in self.readings]
        self.readings.update((reading.where, reading) for reading in fresh)
        self._turn = deque(names)
        return fresh

    def reading(self, where: TopicPartition) -> Reading:
        """The state of an assigned partition; IllegalStateError for others (F8)."""
        found = self.readings.get(where)
        if found is None:
            raise IllegalStateError(
                f"partition {where} is not assigned", hint="call assign() with it first"
            )
        return found

    def seek(self, where: TopicPartition, offset: int) -> Reading:
        """Move the position; what is buffered or asked for already is dropped (F8)."""
        reading = self.reading(where)
        self._clear(reading)
        reading.position = reading.fetch_at = offset
        reading.error = None
        reading.corrupt_at = -1
        reading.above_end = reading.failures = 0
        reading.retry_at_s = 0.0
        reading.chosen = False
        reading.topic_id = b""
        return reading

    def unresolve(self, where: TopicPartition) -> Reading:
        """Forget the position: it is to be looked up anew (out of range)."""
        reading = self.seek(where, 0)
        reading.position = reading.fetch_at = -1
        return reading

    def _clear(self, reading: Reading) -> None:
        reading.generation += 1
        reading.asked = False
        self.buffered_bytes -= reading.buffered_bytes
        reading.buffered_bytes = 0
        reading.buffer.clear()

    def release(self) -> None:
        """Nothing is handed out any more: free the buffers."""
        for reading in self.readings.values():
            self._clear(reading)

    # --- asking ---------------------------------------------------------------------------------

    def _wants(self, reading: Reading, now_s: float) -> bool:
        return (
            reading.resolved
            and not reading.paused
            and not reading.asked
            and reading.error is None
            and now_s >= reading.retry_at_s
            and not self._complete(reading.where, reading.fetch_at)
        )

    def _complete(self, where: TopicPartition, offset: int) -> bool:
        """Whether the reading under way wants nothing of `where` from `offset` on."""
        return self.ends is not None and offset >= self.ends.get(where, 0)

    def ownerless(self, now_s: float) -> list[Reading]:
        """Partitions that could be fetched if their owner were known."""
        return [
            reading
            for reading in self.readings.values()
            if not reading.owner and not reading.finding and self._wants(reading, now_s)
        ]

    def plan(self, owner: str, now_s: float) -> Plan | None:
        """The next request to `owner`; None when nothing is to be asked now."""
        limits = self.limits
        mine: list[Reading] = []
        owners: set[str] = set()
        for where in self._turn:
            reading = self.readings[where]
            owners.add(reading.owner)
            if reading.owner == owner and self._wants(reading, now_s):
                mine.append(reading)
        budget = limits.prefetch_bytes - self.buffered_bytes
        if mine and budget <= 0:
            self._release_idle_buffers()
            budget = limits.prefetch_bytes - self.buffered_bytes
        asks = [
            Ask(reading, reading.fetch_at, reading.generation)
            for reading in mine
            if budget > 0 and reading.buffered_bytes < limits.prefetch_partition_bytes
        ]
        if not asks:
            return None
        for ask in asks:
            ask.reading.asked = True
        self._turn.rotate(-1)  # F2: no partition is first for ever
        left_out = len(asks) < len(mine)
        wait_ms = min(limits.max_wait_ms, PARTIAL_WAIT_MS) if left_out else limits.max_wait_ms
        # Brokers answer side by side: each gets its share of what is left.
        share = max(budget // max(len(owners - {""}), 1), 1)
        return Plan(asks, min(limits.max_bytes, share), wait_ms)

    def _release_idle_buffers(self) -> None:
        """Nobody may drain what is paused or behind the ends: it must not starve the others.

        What is thrown away is fetched again when it is wanted.
        """
        for reading in self.readings.values():
            idle = reading.paused or self._complete(reading.where, reading.position)
            if idle and reading.buffered_bytes:
                self._clear(reading)
                reading.fetch_at = reading.position

    def next_retry_s(self, owner: str, now_s: float) -> float | None:
        """When the next partition of `owner` that waits for nothing else ends its back-off."""
        return min(
            (
                reading.retry_at_s
                for reading in self.readings.values()
                if reading.owner == owner
                and reading.retry_at_s > now_s
                and self._wants(reading, reading.retry_at_s)
            ),
            default=None,
        )

    def failed(self, plan: Plan, retry_at_s: float) -> None:
        """A request got no reply: ask again later, the owner may have moved."""
        for reading, _, generation in plan.asks:
            if reading.generation == generation:
                reading.asked = False
                reading.failures += 1
                reading.owner = ""
                reading.retry_at_s = retry_at_s

    @staticmethod
    def give_back(plan: Plan) -> None:
        """A request was ended before its reply: its partitions may be asked for again."""
        for reading, _, generation in plan.asks:
            if reading.generation == generation:
                reading.asked = False

    def give_back_all(self, owner: str) -> None:
        """The stream to this broker is gone, with whatever was asked there."""
        for reading in self.readings.values():
            if reading.owner == owner:
                reading.asked = False

    def broken(self, owner: str, error: OctavoError) -> None:
        """Asking this broker met a fault of our own: every partition there says so at poll()."""
        for reading in self.readings.values():
            if reading.owner == owner:
                self._clear(reading)  # what is under way is not known any more
                reading.fetch_at = reading.position
                reading.error = error

    # --- answers --------------------------------------------------------------------------------

    def answered(self, ask: Ask, answer: Answer | None, retry_at_s: float) -> OctavoError | None:
        """Take one partition's answer in; returns an error that needs the shell (F5).

        `answer` is None when the reply left the partition out.
        """
        reading, offset, generation = ask
        if reading.generation != generation:
            return None  # asked before a seek (F8)
        reading.asked = False
        if answer is None:
            return None
        if answer.log_start >= 0:
            reading.log_start = answer.log_start
        if answer.error is not None:
            return self.refused(reading, answer.error, retry_at_s)
        reading.topic_id = reading.topic_id or answer.topic_id
        reading.high_watermark = answer.high_watermark
        reading.chosen = False
        reading.failures = reading.above_end = 0
        reading.retry_at_s = 0.0
        self._buffer(reading, offset, answer)
        self._settle(reading)
        return None

    def refused(
        self, reading: Reading, error: OctavoError, retry_at_s: float
    ) -> OctavoError | None:
        """Take an owner's refusal in, or that none was found; returns what needs the shell (F5)."""
        reading.failures += 1
        reading.retry_at_s = retry_at_s
        if isinstance(error, OffsetOutOfRange | InconsistentTopicId):
            return error
        if isinstance(error, CorruptBatch):
            self._corrupt(reading, error)
        elif isinstance(error, NotLeader):
            reading.owner = str(error.details.get("owner_address", ""))
            if reading.owner and reading.failures == 1:
                reading.retry_at_s = 0.0
        elif isinstance(error, UnknownTopic):
            reading.owner = ""
            if reading.failures >= UNKNOWN_TOPIC_ATTEMPTS:
                reading.error = error
                reading.failures = 0
        elif not error.retriable:
            reading.error = error
        return None

    def _buffer(self, reading: Reading, offset: int, answer: Answer) -> None:
        """Queue whole, verified batches; the rest of a reply behind a corrupt one is dropped."""
        for data in answer.batches:
            try:
                header = batch_format.verify(data)  # F9
            except (CorruptBatch, UnsupportedVersion, MessageTooLarge) as error:
                self._corrupt(reading, error)
                return
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

    def _corrupt(self, reading: Reading, error: OctavoError) -> None:
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

    # --- handing out ----------------------------------------------------------------------------

    def _settle(self, reading: Reading) -> None:
        """Adopt positions of empty stretches at the front of the buffer (F3)."""
        while reading.buffer and reading.buffer[0].header is None:
            reading.position = reading.buffer.popleft().adopt

    def _drop_front(self, reading: Reading) -> None:
        item = reading.buffer.popleft()
        reading.position = item.adopt
        reading.buffered_bytes -= len(item.batch)
        self.buffered_bytes -= len(item.batch)
        self._settle(reading)

    def take_error(self) -> OctavoError | None:
        """An error that poll() must raise, once what its partition buffered was handed out."""
        for reading in self.readings.values():
            if reading.error is not None and not reading.paused and not reading.buffer:
                error, reading.error = reading.error, None
                return error
        return None

    def take_records(
        self, max_records: int, limits: Mapping[TopicPartition, int] | None = None
    ) -> list[Record]:
        """Up to `max_records` buffered records, partitions in turn (F108).

        `limits` are end offsets: nothing at or above them is handed out.
        """
        out: list[Record] = []
        for where in list(self._turn):
            reading = self.readings[where]
            end = _end(limits, where)
            while len(out) < max_records and self._ready(reading, end):
                out += self._take(reading, max_records - len(out), end)
            if len(out) >= max_records:
                break
        if out:
            self._turn.rotate(-1)
        return out

    def _ready(self, reading: Reading, end: int | None) -> bool:
        return (
            bool(reading.buffer) and not reading.paused and (end is None or reading.position < end)
        )

    def _rows(self, reading: Reading, item: Buffered) -> Rows | None:
        """Decoded rows of the front batch, its cursor behind the position; None when damaged."""
        if item.rows is None:
            try:
                item.rows = batch_format.decode_rows(item.batch)
            except CorruptBatch as error:
                self._refetch(reading, error)
                return None
            offsets = item.rows.offsets
            while item.cursor < len(offsets) and offsets[item.cursor] < reading.position:
                item.cursor += 1
        return item.rows

    def _refetch(self, reading: Reading, error: OctavoError) -> None:
        """The front batch does not decode: throw the buffer away and fetch it again (F9)."""
        self._clear(reading)
        reading.fetch_at = reading.position
        self._corrupt(reading, error)

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
        if rows.header.flags & BatchFlags.APPEND_TIME:
            stamps = [rows.header.append_time_ms] * (stop - start)
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

    def take_batches(
        self, max_bytes: int, limits: Mapping[TopicPartition, int] | None = None
    ) -> list[tuple[TopicPartition, Buffer, BatchHeader, int, int]]:
        """Whole buffered batches as (where, batch, header, first wanted offset, end offset).

        `max_bytes` counts what they hold uncompressed; one batch is given in any case.
        """
        out: list[tuple[TopicPartition, Buffer, BatchHeader, int, int]] = []
        size = 0
        for where in list(self._turn):
            reading = self.readings[where]
            end = _end(limits, where)
            while size < max_bytes and self._ready(reading, end):
                item = reading.buffer[0]
                assert item.header is not None
                stop = item.adopt if end is None else min(end, item.adopt)
                out.append((where, item.batch, item.header, reading.position, stop))
                size += item.header.uncompressed_bytes
                if stop == item.adopt:
                    self._drop_front(reading)
                else:
                    reading.position = stop
                    item.rows = None
                    item.cursor = 0
        if out:
            self._turn.rotate(-1)
        return out


def _end(limits: Mapping[TopicPartition, int] | None, where: TopicPartition) -> int | None:
    return None if limits is None else limits.get(where, 0)
