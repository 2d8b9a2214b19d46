"""The list of segments of one partition: fields and rules (spec/ledger.md ML-1, ML-3).

Pure values. A successor may append a segment only with a ledger id above `max_ledger_id_ever`, or
with one that it reserved in its trash, and neither the owner epoch nor the log start nor what is
cleaned moves back. Ids grow along the list, but for segments that a cleaner wrote (K7).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.proto import records_pb2, segment_codecs
from octavo.proto.segments import Segment
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import LedgerId
from octavo.runtime.invariant import invariant

FORMAT_VERSION = 5
"""Of partitions with records in exported files, which builds before them must not serve (F088)."""
WRITER_FORMAT_VERSION = 4
"""Of partitions that were claimed by a writer, which builds before them would let anybody write."""
DECOMMISSIONED_FORMAT_VERSION = 3
"""Of decommissioned partitions, which builds before them would write to."""
CLEANED_FORMAT_VERSION = 2
"""Of records with compacted segments, which builds before them must not serve."""
PLAIN_FORMAT_VERSION = 1
"""Of all others."""
CLEAN_MARKS_MAX = 256
WRITER_BYTES_MAX = 64
RESERVED = "reserved"
"""Why a ledger is in the trash that a cleaner may be writing: it is listed later, or deleted."""


class CleanMark(NamedTuple):
    """Offsets below `end_offset` were first clean, with everything before them, then (K5)."""

    end_offset: int
    since_ms: int


@dataclass(frozen=True)
class TrashedLedger:
    """A ledger taken out of the list whose record is still to be deleted (ML-9)."""

    ledger_id: LedgerId
    reason: str
    since_ms: int
    has_objects: bool = False
    """Whether files of the topic's tree hold its records, which go with it (F088)."""


@dataclass(frozen=True)
class PartitionState:
    """Everything the metadata store knows of one partition (ML-1)."""

    topic_id: uuid.UUID
    partition: int
    segments: tuple[Segment, ...] = ()
    """In offset order, which is that of ledger ids but for compacted segments (ML-2)."""
    owner_epoch: int = 0
    """Grows by one with every open (ML-4)."""
    max_ledger_id_ever: int = -1
    """No listed or once listed ledger has a higher id (ML-3)."""
    log_start_offset: int = 0
    trash: tuple[TrashedLedger, ...] = ()
    """Also ledgers that were reserved for a cleaner and are not listed yet."""
    cleaned_to: int = 0
    """Of each key that recurs below it only the last record is left (K4)."""
    clean_marks: tuple[CleanMark, ...] = ()
    """Ascending; what became clean before the first of them has no tombstones left."""
    decommissioned: bool = False
    """Takes no new batches, whoever owns it (F027). Never taken back."""
    writer_epoch: int = 0
    """Grows by one with every claim of an exclusive writer (X32)."""
    writer: bytes = b""
    """Token of the last that claimed."""
    last_writer_token: bytes = b""
    """Set by the catalog on every write (M-3)."""

    def knows(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger is a segment, or lies in the trash."""
        listed = any(segment.ledger_id == ledger_id for segment in self.segments)
        return listed or any(item.ledger_id == ledger_id for item in self.trash)

    @property
    def has_files(self) -> bool:
        """Whether files of the topic's tree hold records of it, or of what lies in its trash."""
        return any(one.object_version is not None for one in self.segments) or any(
            item.has_objects for item in self.trash
        )

    def check_successor(self, new: PartitionState) -> None:
        """Raise InvariantViolation unless `new` may replace this state."""
        invariant(
            (new.topic_id, new.partition) == (self.topic_id, self.partition),
            "a partition's record may not change its partition",
        )
        invariant(new.owner_epoch >= self.owner_epoch, "owner epoch moved back")
        invariant(new.log_start_offset >= self.log_start_offset, "log start offset moved back")
        invariant(new.max_ledger_id_ever >= self.max_ledger_id_ever, "max ledger id moved back")
        invariant(new.cleaned_to >= self.cleaned_to, "what is cleaned moved back")
        invariant(new.decommissioned >= self.decommissioned, "a decommissioned partition came back")
        same_writer = (new.writer_epoch, new.writer) == (self.writer_epoch, self.writer)
        invariant(same_writer or new.writer_epoch > self.writer_epoch, "writer epoch did not grow")
        before = {segment.ledger_id: segment for segment in self.segments}
        known = set(before)
        known.update(item.ledger_id for item in self.trash if item.reason == RESERVED)
        for segment in new.segments:
            invariant(
                segment.ledger_id in known or segment.ledger_id > self.max_ledger_id_ever,
                f"ledger {segment.ledger_id} is not above {self.max_ledger_id_ever} (ML-3)",
            )
            _check_place(before.get(segment.ledger_id), segment)
        problem = new.problem()
        invariant(problem is None, f"partition record: {problem}")

    def problem(self) -> str | None:
        """What rule the record breaks, or None."""
        if not self.partition >= 0 or self.owner_epoch < 0 or self.log_start_offset < 0:
            return "negative partition, epoch or log start"
        if self.writer_epoch < 0 or len(self.writer) > WRITER_BYTES_MAX:
            return "impossible writer"
        if self.cleaned_to < 0 or len(self.clean_marks) > CLEAN_MARKS_MAX:
            return "impossible cleaning"
        return _problem_of_list(self.segments, self.max_ledger_id_ever)

    @property
    def _format_version(self) -> int:
        if self.has_files:
            return FORMAT_VERSION
        if self.writer_epoch:
            return WRITER_FORMAT_VERSION
        if self.decommissioned:
            return DECOMMISSIONED_FORMAT_VERSION
        is_cleaned = self.cleaned_to > 0 or any(segment.compacted for segment in self.segments)
        return CLEANED_FORMAT_VERSION if is_cleaned else PLAIN_FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """The record as stored; equal states give equal bytes."""
        return records_pb2.PartitionRecord(
            format_version=self._format_version,
            topic_id=self.topic_id.bytes,
            partition=self.partition,
            segments=[segment_codecs.to_record(segment) for segment in self.segments],
            owner_epoch=self.owner_epoch,
            max_ledger_id_ever=self.max_ledger_id_ever,
            log_start_offset=self.log_start_offset,
            trash=[
                records_pb2.TrashedLedger(
                    ledger_id=t.ledger_id,
                    reason=t.reason,
                    since_ms=t.since_ms,
                    has_objects=t.has_objects,
                )
                for t in self.trash
            ],
            last_writer_token=self.last_writer_token,
            cleaned_to=self.cleaned_to,
            decommissioned=self.decommissioned,
            writer_epoch=self.writer_epoch,
            writer=self.writer,
            clean_marks=[
                records_pb2.CleanMark(end_offset=mark.end_offset, since_ms=mark.since_ms)
                for mark in self.clean_marks
            ],
        ).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(
        cls, data: bytes, topic_id: uuid.UUID | None = None, partition: int | None = None
    ) -> PartitionState:
        """Parse and validate; the arguments say under which key it was found."""
        record = records_pb2.PartitionRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"partition record cannot be parsed: {error}") from error
        if record.format_version > FORMAT_VERSION:
            raise UnsupportedVersion(f"partition record has format {record.format_version}")
        if record.format_version < 1 or len(record.topic_id) != 16:
            raise MetadataCorrupt("not a partition record")
        state = cls(
            topic_id=uuid.UUID(bytes=record.topic_id),
            partition=record.partition,
            segments=tuple(map(segment_codecs.from_record, record.segments)),
            owner_epoch=record.owner_epoch,
            max_ledger_id_ever=record.max_ledger_id_ever,
            log_start_offset=record.log_start_offset,
            trash=tuple(
                TrashedLedger(LedgerId(t.ledger_id), t.reason, t.since_ms, t.has_objects)
                for t in record.trash
            ),
            last_writer_token=record.last_writer_token,
            cleaned_to=record.cleaned_to,
            decommissioned=record.decommissioned,
            writer_epoch=record.writer_epoch,
            writer=record.writer,
            clean_marks=tuple(
                CleanMark(mark.end_offset, mark.since_ms) for mark in record.clean_marks
            ),
        )
        misplaced = (topic_id is not None and state.topic_id != topic_id) or (
            partition is not None and state.partition != partition
        )
        problem = "found under another partition's key" if misplaced else state.problem()
        if problem:
            raise MetadataCorrupt(f"partition record: {problem}")
        return state


def _check_place(before: Segment | None, after: Segment) -> None:
    """A segment's files are named before its ledger goes, and it never comes back (F088)."""
    if before is None:
        invariant(after.in_ledger, f"segment {after.ledger_id} is listed without its ledger")
        return
    invariant(
        after.in_ledger or before.object_version is not None,
        f"the ledger of segment {after.ledger_id} goes before a list named its files",
    )
    invariant(
        before.in_ledger or not after.in_ledger, f"ledger {after.ledger_id} went and came back"
    )
    invariant(
        (after.object_version or 0) >= (before.object_version or 0),
        f"the files of segment {after.ledger_id} moved back",
    )


def _problem_of_list(segments: tuple[Segment, ...], max_ledger_id_ever: int) -> str | None:
    """What rule the segments break together, or one of them by itself."""
    previous: Segment | None = None
    highest = -1
    for segment in segments:
        if segment.ledger_id > max_ledger_id_ever:
            return f"ledger {segment.ledger_id} above max_ledger_id_ever"
        alone = _problem_of(segment)
        if alone is not None:
            return alone
        if not segment.compacted:
            if segment.ledger_id <= highest:
                return "ledger ids do not increase"
            highest = segment.ledger_id
        if previous is not None:
            if previous.end_offset is None:
                return f"open segment {previous.ledger_id} is not the last"
            if segment.base_offset != previous.end_offset:
                return f"segment {segment.ledger_id} does not start where the last one ended"
        previous = segment
    if previous is not None and not previous.in_ledger:  # nor would the newest snapshot be (I10)
        return f"the ledger of the last segment {previous.ledger_id} is not there"
    return None


def _problem_of(segment: Segment) -> str | None:
    """What rule one segment breaks by itself."""
    if segment.end_offset is not None and segment.end_offset < segment.base_offset:
        return f"segment {segment.ledger_id} ends before it begins"
    if segment.object_version is not None and segment.end_offset is None:
        return f"open segment {segment.ledger_id} lies in files"
    if not segment.in_ledger and segment.object_version is None:
        return f"segment {segment.ledger_id} lies neither in a ledger nor in files"
    return None
