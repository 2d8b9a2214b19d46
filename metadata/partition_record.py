"""The list of segments of one partition: fields and rules (spec/ledger.md ML-1, ML-3).

Pure values. A successor may append a segment only with a ledger id above `max_ledger_id_ever`,
and neither the owner epoch nor the log start moves back.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.proto import records_pb2, segment_codecs
from octavo.proto.segments import Segment
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import LedgerId
from octavo.runtime.invariant import invariant

FORMAT_VERSION = 1


@dataclass(frozen=True)
class TrashedLedger:
    """A ledger taken out of the list whose record is still to be deleted (ML-9)."""

    ledger_id: LedgerId
    reason: str
    since_ms: int


@dataclass(frozen=True)
class PartitionState:
    """Everything the metadata store knows of one partition (ML-1)."""

    topic_id: uuid.UUID
    partition: int
    segments: tuple[Segment, ...] = ()
    """In list order, which equals ledger id order and offset order (ML-2)."""
    owner_epoch: int = 0
    """Grows by one with every open (ML-4)."""
    max_ledger_id_ever: int = -1
    """No listed or once listed ledger has a higher id (ML-3)."""
    log_start_offset: int = 0
    trash: tuple[TrashedLedger, ...] = ()
    last_writer_token: bytes = b""
    """Set by the catalog on every write (M-3)."""

    def check_successor(self, new: PartitionState) -> None:
        """Raise InvariantViolation unless `new` may replace this state."""
        invariant(
            (new.topic_id, new.partition) == (self.topic_id, self.partition),
            "a partition's record may not change its partition",
        )
        invariant(new.owner_epoch >= self.owner_epoch, "owner epoch moved back")
        invariant(new.log_start_offset >= self.log_start_offset, "log start offset moved back")
        invariant(new.max_ledger_id_ever >= self.max_ledger_id_ever, "max ledger id moved back")
        known = {segment.ledger_id for segment in self.segments}
        for segment in new.segments:
            invariant(
                segment.ledger_id in known or segment.ledger_id > self.max_ledger_id_ever,
                f"ledger {segment.ledger_id} is not above {self.max_ledger_id_ever} (ML-3)",
            )
        problem = new.problem()
        invariant(problem is None, f"partition record: {problem}")

    def problem(self) -> str | None:
        """What rule the record breaks, or None."""
        if not self.partition >= 0 or self.owner_epoch < 0 or self.log_start_offset < 0:
            return "negative partition, epoch or log start"
        previous: Segment | None = None
        for segment in self.segments:
            if segment.ledger_id > self.max_ledger_id_ever:
                return f"ledger {segment.ledger_id} above max_ledger_id_ever"
            if segment.end_offset is not None and segment.end_offset < segment.base_offset:
                return f"segment {segment.ledger_id} ends before it begins"
            if previous is not None:
                if segment.ledger_id <= previous.ledger_id:
                    return "ledger ids do not increase"
                if previous.end_offset is None:
                    return f"open segment {previous.ledger_id} is not the last"
                if segment.base_offset != previous.end_offset:
                    return f"segment {segment.ledger_id} does not start where the last one ended"
            previous = segment
        return None

    def to_bytes(self) -> bytes:
        """The record as stored; equal states give equal bytes."""
        return records_pb2.PartitionRecord(
            format_version=FORMAT_VERSION,
            topic_id=self.topic_id.bytes,
            partition=self.partition,
            segments=[segment_codecs.to_record(segment) for segment in self.segments],
            owner_epoch=self.owner_epoch,
            max_ledger_id_ever=self.max_ledger_id_ever,
            log_start_offset=self.log_start_offset,
            trash=[
                records_pb2.TrashedLedger(
                    ledger_id=t.ledger_id, reason=t.reason, since_ms=t.since_ms
                )
                for t in self.trash
            ],
            last_writer_token=self.last_writer_token,
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
                TrashedLedger(LedgerId(t.ledger_id), t.reason, t.since_ms) for t in record.trash
            ),
            last_writer_token=record.last_writer_token,
        )
        misplaced = (topic_id is not None and state.topic_id != topic_id) or (
            partition is not None and state.partition != partition
        )
        problem = "found under another partition's key" if misplaced else state.problem()
        if problem:
            raise MetadataCorrupt(f"partition record: {problem}")
        return state
