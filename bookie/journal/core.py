"""The pure core of the append stream: what to write, when to sync, what may be told (§6.4, §6.13).

Events in, actions out: no file, thread or clock. One group at a time:

    wake → WriteBatch → written → SyncSegment → synced → NoteDurable, Publish, Acknowledge

and where a group and the mark behind it do not fit into what the segment reserved, before it

    CreateSegment → file_created → WriteHeader → written → SyncSegment → synced
    → SyncDirectory → directory_synced → NoteDurable, EnterSegment
    or, without space, DropSegment → segment_dropped → Acknowledge as refused

What holds: nothing is acknowledged or shown to the index before a sync that covers it, the name of
its file included (B-4, B-5); a write that did not end where it must, and any failed write or sync,
is fail-stop, after which no action but `Fail` is ever asked for (B-8). The one failure that the
stream survives is no space for a new segment: nothing was stored in it, and it is removed for good.
Ordinary items are refused then; fences and recovery get small segments while there is space for
those (6.13). A number once given to a file is never given again.

An idle stream writes one empty batch, which proves the batch before it (B-15).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from octavo.bookie.faults import is_full
from octavo.bookie.journal.actions import (
    Acknowledge,
    Action,
    CreateSegment,
    DropSegment,
    End,
    EnterSegment,
    Fail,
    NoteDurable,
    Publish,
    SyncDirectory,
    SyncSegment,
    WriteBatch,
    WriteCarried,
    WriteHeader,
)
from octavo.bookie.journal.item import CommittedGroup, JournalItem
from octavo.bookie.journal.options import RESERVE_STEP_BYTES, JournalOptions
from octavo.bookie.journal.queue import JournalQueue
from octavo.bookie.journal.segment import (
    BATCH_HEADER_BYTES,
    HEADER_BYTES,
    MAX_SEGMENT_BYTES,
    Position,
    SegmentHeader,
)
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import InvariantViolation, StorageFailed
from octavo.runtime.invariant import invariant

_SYNC = SyncSegment()


class Step(Enum):
    """What the stream waits for."""

    NEW = "open"
    CREATE = "the file of a new segment"
    HEAD = "its header's write"
    HEAD_SYNC = "its header's sync"
    NAME_SYNC = "its name's sync"
    DROP = "the removal of a segment that found no space"
    CARRY = "the write of a carried batch"
    CARRY_SYNC = "the sync of the carried batches"
    READY = "work"
    WRITE = "the write of a batch"
    SYNC = "the sync of a batch"
    ENDED = "nothing: stopped"
    FAILED = "nothing: failed"


_CREATING = frozenset({Step.CREATE, Step.HEAD, Step.HEAD_SYNC, Step.NAME_SYNC})


class _Creation(NamedTuple):
    """A segment that is being made."""

    header: SegmentHeader
    """Without its uuid and time until the file is there."""
    size_bytes: int
    next_smaller: tuple[int, ...]
    """Sizes to try when there is no space for this one."""
    no_space: OSError | None = None
    """Why it is being removed."""


def batch_bytes(records: int, nbytes: int) -> int:
    """Size of a batch on disk."""
    return BATCH_HEADER_BYTES + 4 * records + nbytes


class JournalCore:
    """The commit side of one stream. Its public fields may be read from any thread.

    Args:
        template: identity written into every segment header (stream, instance, incarnation).
        queue: what to write; this is the side that takes.
    """

    def __init__(
        self, template: SegmentHeader, options: JournalOptions, queue: JournalQueue
    ) -> None:
        self.queue = queue
        self.header = template
        """Of the segment that is appended to."""
        self.durable = template.durable_up_to
        """Up to here everything is synced."""
        self.recorded = template.durable_up_to
        """Durable end of the last batch with records, or where a segment is appended to: what may
        be published as evidence. Empty batches do not count, they hold nothing to lose."""
        self.unproven = False
        """A batch with records is not yet named durable by a later one (B-15)."""
        self.sync_started_s: float | None = None
        """Since when a batch is being written and synced (B-9)."""
        self.bytes_written = 0
        self.syncs = 0
        self.step = Step.NEW
        self._options = options
        self._opening = True
        self._creation: _Creation | None = None
        self._next_number = 0
        self._carried: list[int] = []  # record counts and sizes of what the boot carries over
        self._carried_heads: list[int] = []
        self._carry_index: int = 0
        self._end = 0  # of what was written to the segment
        self._write_end = 0  # where the write under way must end
        self._allocated = 0
        self._sequence = 0
        self._items: list[JournalItem] = []  # being written, or waiting for a segment
        self._records = 0
        self._nbytes = 0
        self._deadline_s: float | None = None

    # --- events -----------------------------------------------------------------------------

    def open(
        self, number: int, durable_up_to: Position, carried: Sequence[tuple[int, int]]
    ) -> list[Action]:
        """A boot goes on from `durable_up_to` in a new segment.

        `carried`: (records, bytes) of the batches that it found behind that position, which nothing
        proves durable: they are written and synced once more before the stream is ready (ADR 14).
        """
        self._expect(Step.NEW)
        self._carried = [batch_bytes(*batch) for batch in carried]
        self._carried_heads = [batch_bytes(records, 0) for records, _ in carried]
        header = self.header._replace(
            number=number, durable_up_to=durable_up_to, carried_bytes=sum(self._carried)
        )
        return self._create(header, self._options.segment_bytes, ())

    def wake(self, now_s: float) -> list[Action]:
        """Rung, or the deadline is over; no actions: sleep until `next_deadline_s()` or a ring."""
        if self.step is not Step.READY:
            self._expect(Step.READY)
        queue, deadline_s = self.queue, self._deadline_s
        over = deadline_s is not None and now_s >= deadline_s
        taken = queue.take(self._options.group_max_bytes, when_due=not over)
        self._items, self._records, self._nbytes = taken
        if self._items:
            return self._write(now_s) if self._fits() else self._roll()
        if self.unproven and (over or queue.closed):
            return self._write(now_s)
        if queue.closed:
            self.step = Step.ENDED
            return [End(self.header)]
        if not self.unproven and not len(queue):
            self._deadline_s = None
        elif deadline_s is None:
            self._deadline_s = now_s + self._options.idle_mark_s
        return []

    def file_created(self, segment_uuid: uuid.UUID, created_ms: int) -> list[Action]:
        """The file is there with all its space; what its header says besides."""
        self._expect(Step.CREATE)
        creation = self._made()
        header = creation.header._replace(segment_uuid=segment_uuid, created_ms=created_ms)
        self._creation = creation._replace(header=header)
        self._next_number = header.number + 1  # never used again, even if this one is given up
        self._write_end = HEADER_BYTES
        self.step = Step.HEAD
        return [WriteHeader(header)]

    def written(self, end: int) -> list[Action]:
        """The write under way ended at offset `end` of its file."""
        step = self.step
        if end != self._write_end:
            where = f"a write in segment {self._target.number} ended at {end}"
            return self._fail(StorageFailed(f"{where}, expected {self._write_end}"))
        if step is Step.WRITE:
            self.step = Step.SYNC
        elif step is Step.HEAD:
            self.step = Step.HEAD_SYNC
        else:
            self._expect(Step.CARRY)
            self._end = end
            self._sequence += 1
            self._carry_index += 1
            if self._carry_index < len(self._carried):
                return self._carry()
            self.step = Step.CARRY_SYNC
        return [_SYNC]

    def synced(self) -> list[Action]:
        """The sync under way has ended well."""
        if self.step is Step.SYNC:
            return self._committed()
        if self.step is Step.HEAD_SYNC:
            self.step = Step.NAME_SYNC
            return [SyncDirectory()]
        self._expect(Step.CARRY_SYNC)
        self._opened()
        return []

    def directory_synced(self, now_s: float) -> list[Action]:
        """The new segment's name stays: it is the log's continuation."""
        self._expect(Step.NAME_SYNC)
        creation, retired = self._made(), self.header
        self._creation = None
        self.header = creation.header
        self._allocated = creation.size_bytes
        self._sequence = 0
        self._end = HEADER_BYTES
        if self._opening:
            entered: list[Action] = [EnterSegment(self.header, None)]
            if self._carried:
                return entered + self._carry()
            self._opened()
            return entered
        self.durable = self.recorded = Position(self.header.number, self._end)
        return [NoteDurable(self.durable), EnterSegment(self.header, retired), *self._write(now_s)]

    def failed(self, error: Exception) -> list[Action]:
        """An action raised, or an event of ours did."""
        if self.step in _CREATING and isinstance(error, OSError) and is_full(error):
            creation = self._made()
            self._creation = creation._replace(no_space=error)
            self.step = Step.DROP
            return [DropSegment(creation.header.number)]
        return self._fail(error)

    def segment_dropped(self, now_s: float) -> list[Action]:
        """No boot will ever see the segment for which there was no space (6.13).

        Only now may the one before it be written to: a header that survived would name where the
        log went on from, and what was acknowledged behind that would not be part of it.
        """
        self._expect(Step.DROP)
        creation, self._creation = self._made(), None
        if self._opening and creation.no_space is not None:
            return self._fail(creation.no_space)
        return self._go_on_without(creation, now_s)

    def next_deadline_s(self) -> float | None:
        """When `wake` has something to do though nobody rings."""
        return self._deadline_s

    # --- groups -----------------------------------------------------------------------------

    def _fits(self) -> bool:
        """True if the group and the mark behind it lie within what was allocated: so nothing but
        an allocation ever meets a full disk."""
        size = BATCH_HEADER_BYTES + 4 * self._records + self._nbytes
        return self._end + size + BATCH_HEADER_BYTES <= self._allocated

    def _write(self, now_s: float) -> list[Action]:
        items = self._items
        offset = self._end + BATCH_HEADER_BYTES + 4 * self._records
        for item in items:
            item.offset = offset
            offset += item.nbytes
        self._write_end = offset
        self.sync_started_s = now_s
        self._deadline_s = None
        self.step = Step.WRITE
        return [WriteBatch(self.header.number, self._sequence, self.durable, items, self._nbytes)]

    def _committed(self) -> list[Action]:
        """The group is durable: say so, to the evidence first and to the clients last."""
        items, self._items = self._items, []
        self.sync_started_s = None
        self.syncs += 1
        self.bytes_written += self._write_end - self._end
        self._end = self._write_end
        self._sequence += 1
        self.durable = Position(self.header.number, self._end)
        self.step = Step.READY
        if not items:
            self.unproven = False
            return []
        self.unproven = True
        self.recorded = self.durable
        return [
            NoteDurable(self.durable),
            Publish(CommittedGroup(self.header.number, items, self.durable)),
            # The loop wakes for this one and wants the interpreter, so it comes last.
            Acknowledge(items, Status.OK),
        ]

    # --- segments ---------------------------------------------------------------------------

    def _roll(self) -> list[Action]:
        header = self.header._replace(
            number=self._next_number, durable_up_to=self.durable, carried_bytes=0
        )
        return self._create(header, self._options.segment_bytes, (RESERVE_STEP_BYTES, 0))

    def _create(
        self, header: SegmentHeader, wanted_bytes: int, next_smaller: tuple[int, ...]
    ) -> list[Action]:
        first = batch_bytes(self._records, self._nbytes)
        least = HEADER_BYTES + header.carried_bytes + first + BATCH_HEADER_BYTES
        size = max(wanted_bytes, least)
        invariant(size <= MAX_SEGMENT_BYTES, f"segment of {size} bytes")
        self._creation = _Creation(header, size, next_smaller)
        self.step = Step.CREATE
        return [CreateSegment(header.number, size)]

    def _go_on_without(self, creation: _Creation, now_s: float) -> list[Action]:
        """Whoever may not use the reserve is refused first; then smaller segments are tried."""
        actions: list[Action] = []
        refused = [item for item in self._items if not item.reserve]
        if refused:
            actions.append(Acknowledge(refused, Status.DISK_FULL))
            self._keep([item for item in self._items if item.reserve])
            if self._items and self._fits():
                return actions + self._write(now_s)
        if self._items and creation.next_smaller:
            header = creation.header._replace(number=self._next_number)
            smaller, *rest = creation.next_smaller
            return actions + self._create(header, smaller, tuple(rest))
        if self._items:
            actions.append(Acknowledge(self._items, Status.DISK_FULL))
            self._keep([])
        self.step = Step.READY
        return actions

    def _keep(self, items: list[JournalItem]) -> None:
        """The others of the group are refused."""
        self._items = items
        self._records = sum(item.records for item in items)
        self._nbytes = sum(item.nbytes for item in items)

    # --- the boot's batches -----------------------------------------------------------------

    def _carry(self) -> list[Action]:
        index = self._carry_index
        self._write_end = self._end + self._carried[index]
        self.step = Step.CARRY
        # It claims nothing of this segment to be durable, for nothing of it is.
        claims = self.header.durable_up_to
        offset = self._end + self._carried_heads[index]
        return [WriteCarried(index, self.header.number, self._sequence, claims, offset)]

    def _opened(self) -> None:
        self._opening = False
        self.durable = self.recorded = Position(self.header.number, self._end)
        self.step = Step.READY

    # --- failures and checks ----------------------------------------------------------------

    @property
    def _target(self) -> SegmentHeader:
        """Of the file that is written to."""
        return self.header if self._creation is None else self._creation.header

    def _made(self) -> _Creation:
        if self._creation is None:
            raise InvariantViolation("no segment is being made")
        return self._creation

    def _expect(self, step: Step) -> None:
        """An event out of turn is a mistake of the shell, and fail-stop like any other."""
        if self.step is not step:
            raise InvariantViolation(f"the stream waits for {self.step.value}, not {step.value}")

    def _fail(self, error: Exception) -> list[Action]:
        if self.step is Step.FAILED:
            return []
        self.step = Step.FAILED
        self.sync_started_s = self._deadline_s = None
        return [Fail(error)]

    def validate(self) -> None:
        """Raises InvariantViolation when what is known contradicts itself; run between events."""
        self.queue.validate()
        invariant(self.recorded <= self.durable, "evidence ahead of what is synced")
        making = self.step in _CREATING or self.step is Step.DROP
        invariant((self._creation is not None) == making or self.step is Step.FAILED, "creation")
        if self._opening or self.step is Step.FAILED:
            return
        here = Position(self.header.number, self._end)
        invariant(self.durable == here, f"durable is {self.durable}, the segment ends at {here}")
        invariant(self._next_number > self.header.number, "a segment's number would be used again")
        free = self._allocated - self._end
        if self.step is Step.READY and self.unproven:
            invariant(free >= BATCH_HEADER_BYTES, "no space for the mark behind the last batch")
        if self.step in (Step.WRITE, Step.SYNC):
            invariant(self._end < self._write_end <= self._allocated, "a batch beyond the file")
        else:
            invariant(making or not self._items, "items are neither written nor answered")
        waits = self.step in (Step.WRITE, Step.SYNC)
        invariant((self.sync_started_s is not None) == waits, "the watch over the sync (B-9)")
