"""Offsets and the fate of batches of one open partition, pure (ML-6, spec groups A3-A8).

A batch is *queued* when it got its offset, *sent* when it became an entry of the current ledger,
and *durable* when its entry was acknowledged. Queue order is offset order is entry order, so each
of the three is a prefix: the high watermark is the end of the durable one (A3), the end offset
the end of all. After a ledger stopped, `resolve` splits the sent ones by the closed ledger's last
entry (ML-6); what is not in it is queued again with the bytes and the offsets it had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.proto import batch as batches
from octavo.proto.batch import BatchHeader
from octavo.proto.segment_entries import SegmentFigures, holds_each_offset
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import EntryId
from octavo.runtime.invariant import invariant


class Appended(NamedTuple):
    """A successful answer to a producer."""

    base_offset: int
    append_time_ms: int
    duplicate: bool = False
    producer_was_unknown: bool = False
    """The owner had no state of the producer: says nothing about earlier batches (I5)."""


class Conditions(NamedTuple):
    """What must be so for a new batch to be written; one that is stored already is judged by none
    of it."""

    min_insync_replicas: int = 0
    """The topic asks for as many copies before it acknowledges (F032)."""
    writer_epoch: int = 0
    """Where a partition has one writer: under which it was claimed; 0: not at all (X32)."""


UNCONDITIONAL = Conditions()

Answer = Appended | OctavoError
Reply = Callable[[Answer], None]

ACKS_ALL = -1
ACKS_ONE = 1
ACKS_NONE = 0


@dataclass(eq=False)
class Append:
    """One batch on its way to durability."""

    payload: bytes  # stamped; shared by ledger entry, tail cache and fetch replies
    header: BatchHeader  # of `payload`
    queued_at_s: float
    entry_id: EntryId | None = None
    first_copy: bool = False
    producer_was_unknown: bool = False
    dedup: bytes = b""
    """Digest of the id by which its record is kept once (X14); empty: it has none."""
    waiting_all: list[Reply] = field(default_factory=list[Reply])
    waiting_one: list[Reply] = field(default_factory=list[Reply])

    def wait(self, acks: int, reply: Reply) -> None:
        """Answer `reply` when the promise of `acks` is kept."""
        (self.waiting_one if acks == ACKS_ONE else self.waiting_all).append(reply)

    def appended(self) -> Appended:
        """The answer on success."""
        return Appended(
            self.header.base_offset,
            self.header.append_time_ms,
            producer_was_unknown=self.producer_was_unknown,
        )

    def answer(self, answer: Answer) -> None:
        """Tell everybody who still waits, once."""
        replies = self.waiting_one + self.waiting_all
        self.waiting_one = []
        self.waiting_all = []
        for reply in replies:
            reply(answer)

    def answer_one(self) -> None:
        """Keep the promise of acks=1."""
        replies, self.waiting_one = self.waiting_one, []
        for reply in replies:
            reply(self.appended())


class PartitionLog:
    """Offsets, order and the three prefixes of one partition."""

    def __init__(self, *, owner_epoch: int, log_start: int, end_offset: int) -> None:
        self.owner_epoch = owner_epoch
        self.log_start = log_start
        self.high_watermark = end_offset
        self.end_offset = end_offset
        self.pending_bytes = 0
        self.last_append_ms = -1
        self._sent: deque[Append] = deque()
        self._queued: deque[Append] = deque()
        self._first_copies = 0  # prefix of _sent whose entries have one copy (A4, acks=1)

    def begin(self, owner_epoch: int, log_start: int, end_offset: int, last_append_ms: int) -> None:
        """Take over what an opener learned (ML-4); nothing is pending."""
        invariant(not self.pending, "a partition is loaded before it takes batches")
        self.owner_epoch = owner_epoch
        self.log_start = log_start
        self.high_watermark = self.end_offset = end_offset
        self.last_append_ms = last_append_ms

    # --- arriving -----------------------------------------------------------------------------

    def has_room(self, size: int, batches_max: int, bytes_max: int) -> bool:
        """Whether one more batch stays within the bounds; an empty log takes any batch."""
        return not self.pending or (
            self.pending < batches_max and self.pending_bytes + size <= bytes_max
        )

    def admit(
        self,
        batch: Buffer,
        header: BatchHeader,
        now_ms: int,
        now_s: float,
        *,
        append_time: bool = False,
    ) -> Append:
        """Give the batch its offset and the owner's stamp, and queue it.

        `append_time`: the owner's time is that of its records, too (X23).

        Append times never go back inside a partition, whatever the wall clock does (G5).
        """
        append_ms = max(now_ms, self.last_append_ms)
        self.last_append_ms = append_ms
        base = self.end_offset
        if append_time:
            payload = batches.stamp_append_time(
                batch, base_offset=base, owner_epoch=self.owner_epoch, append_time_ms=append_ms
            )
            stamped = batches.decode_header(payload)
        else:
            payload = batches.stamp(
                batch, base_offset=base, owner_epoch=self.owner_epoch, append_time_ms=append_ms
            )
            stamped = header._replace(
                base_offset=base,
                last_offset_delta=header.record_count - 1,
                owner_epoch=self.owner_epoch,
                append_time_ms=append_ms,
            )
        append = Append(payload, stamped, now_s)
        self.end_offset = stamped.next_offset
        self.pending_bytes += len(payload)
        self._queued.append(append)
        return append

    # --- towards durability -------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Batches that are in no ledger yet."""
        return len(self._queued)

    @property
    def sent(self) -> int:
        """Batches sent to the current ledger and not yet durable."""
        return len(self._sent)

    @property
    def pending(self) -> int:
        """Batches that are not durable."""
        return len(self._sent) + len(self._queued)

    @property
    def oldest_queued_at_s(self) -> float | None:
        """When the oldest batch that is not durable arrived."""
        if self._sent:
            return self._sent[0].queued_at_s
        return self._queued[0].queued_at_s if self._queued else None

    def sent_batches(self) -> Iterator[Append]:
        """Batches in the current ledger that are not durable yet, in order."""
        return iter(self._sent)

    def queued_batches(self) -> Iterator[Append]:
        """Batches that are in no ledger yet, in the order in which they are to be sent."""
        return iter(self._queued)

    def sent_as(self, append: Append, entry_id: EntryId) -> None:
        """`append`, the head of the queue, became an entry."""
        invariant(self._queued and self._queued[0] is append, "batches are sent in queue order")
        self._queued.popleft()
        append.entry_id = entry_id
        append.first_copy = False
        self._sent.append(append)

    def first_copy(self, append: Append) -> list[Append]:
        """One bookie has the batch; returns batches that now fulfil acks=1, in order (A4).

        Earlier batches that are not tracked count only once they are durable: never too early.
        """
        append.first_copy = True
        ready: list[Append] = []
        while self._first_copies < len(self._sent) and self._sent[self._first_copies].first_copy:
            ready.append(self._sent[self._first_copies])
            self._first_copies += 1
        return ready

    def durable(self, entry_id: int) -> Append:
        """The entry of the oldest sent batch was acknowledged: the high watermark moves (A3)."""
        append = self._sent.popleft()
        invariant(append.entry_id == entry_id, "acknowledgements arrive in entry order (INV-4)")
        self._settle(append)
        return append

    def _settle(self, append: Append) -> None:
        if self._first_copies:
            self._first_copies -= 1
        self.pending_bytes -= len(append.payload)
        invariant(append.header.base_offset == self.high_watermark, "durable offsets have no hole")
        self.high_watermark = append.header.next_offset

    # --- when a ledger stops ------------------------------------------------------------------

    def resolve(self, last_entry: int) -> list[Append]:
        """The ledger is CLOSED at `last_entry` (ML-6): returns the batches that are in it.

        The others are queued again, before what was queued already, in their order.
        """
        inside: list[Append] = []
        while self._sent:
            entry_id = self._sent[0].entry_id
            if entry_id is None or entry_id > last_entry:
                break
            append = self._sent.popleft()
            self._settle(append)
            inside.append(append)
        while self._sent:
            append = self._sent.pop()
            append.entry_id = None
            append.first_copy = False
            self._queued.appendleft(append)
        self._first_copies = 0
        return inside

    def drop_queued(self) -> list[Append]:
        """Take back every batch that is in no ledger, newest first; their offsets are free again.

        Only what certainly was not written may be dropped this way (A8).
        """
        return self._take_back(self._queued)

    def drop_all(self) -> list[Append]:
        """Give up on everything that is not durable, newest first; the partition is unloaded."""
        dropped = self._take_back(self._queued) + self._take_back(self._sent)
        self._first_copies = 0
        return dropped

    def _take_back(self, waiting: deque[Append]) -> list[Append]:
        dropped = list(reversed(waiting))
        waiting.clear()
        for append in dropped:
            self.pending_bytes -= len(append.payload)
            self.end_offset = append.header.base_offset
        return dropped

    def late(self, before_s: float) -> list[Append]:
        """Batches that wait since before `before_s` and still owe an answer."""
        found: list[Append] = []
        for waiting in (self._sent, self._queued):
            for append in waiting:
                if append.queued_at_s >= before_s:
                    return found
                if append.waiting_all or append.waiting_one:
                    found.append(append)
        return found

    def validate(self) -> None:
        """INV: the three prefixes have no hole, and the bounds count what is there."""
        offset, entry, size = self.high_watermark, -1, 0
        for append in (*self._sent, *self._queued):
            invariant(append.header.base_offset == offset, "pending offsets have no hole")
            offset = append.header.next_offset
            size += len(append.payload)
        for append in self._sent:
            invariant(
                append.entry_id is not None and append.entry_id > entry,
                "sent batches lie in entry order (INV-4)",
            )
            entry = append.entry_id or 0
        invariant(all(one.entry_id is None for one in self._queued), "what is queued is no entry")
        invariant(offset == self.end_offset, "the end offset is the end of what is pending")
        invariant(size == self.pending_bytes, "pending bytes are counted")
        invariant(self._first_copies <= len(self._sent), "first copies are of sent batches")


class Figures:
    """Running figures of the open segment.

    Args:
        start: what is known of batches before the first one that is noted.
        whole_from: the segment's base offset, when that one is its first; None: it need not be.
    """

    def __init__(
        self, start: SegmentFigures | None = None, *, whole_from: int | None = None
    ) -> None:
        self._now = start or SegmentFigures()
        self.dense_to = whole_from
        """Each offset from the segment's base up to this one is a record that every reader gets;
        None: one is not, or it is not known."""

    def note(self, header: BatchHeader, payload_bytes: int) -> None:
        """Account for one batch."""
        if self.dense_to is not None:
            follows = header.base_offset == self.dense_to and holds_each_offset(header)
            self.dense_to = header.next_offset if follows else None
        old = self._now
        self._now = SegmentFigures(
            old.payload_bytes + payload_bytes,
            old.first_append_ms if old.first_append_ms >= 0 else header.append_time_ms,
            max(old.last_append_ms, header.append_time_ms),
            max(old.max_timestamp_ms, header.max_timestamp_ms),
        )

    @property
    def value(self) -> SegmentFigures:
        """The figures so far."""
        return self._now
