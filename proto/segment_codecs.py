"""The two stored forms of a segment, both directions (ML-1, spec/spark.md §1).

    value                  SegmentRecord, in the list    SegmentInfo, from a broker
    end_offset      None   unset                         state is not CLOSED; end_offset says how
                                                         far it could be read when it was told
    first_append_ms None   0                             0
    last_append_ms  None   0                             0
    max_timestamp_ms None  -1                            -1
    last_entry             -1: NO_ENTRY                  -1: NO_ENTRY, and of an open one
    object_version  None   0                             0
    ledger_record          not kept                      as it is

Records' times are never negative (validation at the broker), nobody appends in 1970: these numbers
can stand for "not known" where the stored form has no other way to say it.
"""

from __future__ import annotations

from octavo.proto import broker_pb2, records_pb2
from octavo.proto.segments import Segment
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId

_NO_TIMESTAMP = -1
_CLOSED = "CLOSED"


def to_record(segment: Segment) -> records_pb2.SegmentRecord:
    """The element of a partition's record; equal segments give equal bytes."""
    record = records_pb2.SegmentRecord(
        ledger_id=segment.ledger_id,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        first_append_ms=segment.first_append_ms or 0,
        last_append_ms=segment.last_append_ms or 0,
        last_entry=segment.last_entry,
        max_timestamp_ms=_timestamp(segment),
        compacted=segment.compacted,
        dense=segment.dense,
        object_version=segment.object_version or 0,
        without_ledger=not segment.in_ledger,
    )
    if segment.end_offset is not None:
        record.end_offset = segment.end_offset
    return record


def from_record(record: records_pb2.SegmentRecord) -> Segment:
    """The segment of a partition's record."""
    return _segment(record, record.end_offset if record.HasField("end_offset") else None)


def to_info(segment: Segment, high_watermark: int) -> broker_pb2.SegmentInfo:
    """What a broker tells readers, which see offsets below `high_watermark`."""
    return broker_pb2.SegmentInfo(
        ledger_id=segment.ledger_id,
        base_offset=segment.base_offset,
        end_offset=high_watermark if segment.end_offset is None else segment.end_offset,
        state=segment.state,
        size_bytes=segment.size_bytes,
        first_append_ms=segment.first_append_ms or 0,
        last_append_ms=segment.last_append_ms or 0,
        last_entry=segment.last_entry if segment.closed else NO_ENTRY,
        ledger_record=segment.ledger_record,
        max_timestamp_ms=_timestamp(segment),
        compacted=segment.compacted,
        dense=segment.dense,
        object_version=segment.object_version or 0,
        without_ledger=not segment.in_ledger,
    )


def from_info(info: broker_pb2.SegmentInfo) -> Segment:
    """The segment a broker told of; a state that this build does not know is not CLOSED."""
    return _segment(
        info, info.end_offset if info.state == _CLOSED else None, bytes(info.ledger_record)
    )


def _timestamp(segment: Segment) -> int:
    return _NO_TIMESTAMP if segment.max_timestamp_ms is None else segment.max_timestamp_ms


def _segment(
    form: records_pb2.SegmentRecord | broker_pb2.SegmentInfo,
    end_offset: int | None,
    ledger_record: bytes = b"",
) -> Segment:
    """The fields that both forms spell the same way."""
    return Segment(
        ledger_id=LedgerId(form.ledger_id),
        base_offset=form.base_offset,
        end_offset=end_offset,
        size_bytes=form.size_bytes,
        first_append_ms=form.first_append_ms or None,
        last_append_ms=form.last_append_ms or None,
        last_entry=EntryId(form.last_entry) if end_offset is not None else NO_ENTRY,
        max_timestamp_ms=form.max_timestamp_ms if form.max_timestamp_ms >= 0 else None,
        compacted=form.compacted,
        dense=form.dense,
        object_version=form.object_version or None,
        in_ledger=not form.without_ledger,
        ledger_record=ledger_record,
    )
