"""What a broker checks of a produced batch before it takes an offset. Pure.

The body is checked by its crc only: it is never decompressed on this path (F066), but for the keys
of a compacted topic (K1), and the times of one that sets `message.timestamp.before.max.ms` (X23).
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.proto import batch as batches
from octavo.proto.batch import (
    KNOWN_MARKS,
    MAX_RECORD_BYTES,
    PRODUCER_FLAGS,
    RECORD_ENVELOPE_BYTES,
    BatchHeader,
)
from octavo.proto.dedup_ids import is_marked
from octavo.proto.opened_batches import create_times, first_without_key
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
)
from octavo.serving.partition.log import ACKS_ALL, ACKS_NONE, ACKS_ONE
from octavo.serving.topic_config import TopicSettings

_INT32_MAX = (1 << 31) - 1


def check_acks(acks: int) -> None:
    """acks is -1 (all), 1 or 0; raises InvalidRequest."""
    if acks not in (ACKS_ALL, ACKS_ONE, ACKS_NONE):
        raise InvalidRequest(f"acks must be -1, 1 or 0, not {acks}")


def check_batch(batch: Buffer, acks: int, settings: TopicSettings, now_ms: int) -> BatchHeader:
    """The header of a batch that may be stored.

    Raises MessageTooLarge, CorruptBatch, UnsupportedVersion, InvalidRecord, InvalidTimestamp or
    InvalidRequest.
    """
    limit = settings.max_message_bytes
    if len(batch) > settings.max_batch_bytes:
        raise _too_large(f"batch of {len(batch)} bytes", settings.max_batch_bytes, limit)
    header = batches.verify(batch)
    body_limit = header.record_count * (limit + RECORD_ENVELOPE_BYTES)
    if header.uncompressed_bytes > body_limit:
        records = f"{header.record_count} records of {header.uncompressed_bytes} bytes"
        raise _too_large(records, body_limit, limit)
    if header.flags & ~PRODUCER_FLAGS:
        raise InvalidRecord(f"a producer may not set batch flags {header.flags:#x}")
    if header.marks & ~KNOWN_MARKS:
        raise InvalidRecord(f"a producer may not set batch marks {header.marks:#x}")
    if header.base_timestamp_ms < 0 or header.max_timestamp_ms < header.base_timestamp_ms:
        raise InvalidTimestamp(
            f"timestamps {header.base_timestamp_ms}..{header.max_timestamp_ms} are impossible"
        )
    if not settings.append_time:
        _check_times(batch, header, settings, now_ms)
    _check_identity(header, acks)
    if settings.compacts:
        _check_keys(batch, header)
    return header


def _check_times(batch: Buffer, header: BatchHeader, settings: TopicSettings, now_ms: int) -> None:
    """X23, R1. The header has the latest time; for the earliest the body is opened, only where
    the topic limits it."""
    if header.max_timestamp_ms - now_ms > settings.timestamp_after_max_ms:
        times = create_times(batch, header)
        raise _skewed(times, max(times), now_ms, settings.timestamp_after_max_ms, "after")
    if settings.timestamp_before_max_ms < now_ms:
        times = create_times(batch, header)
        earliest_ms = min(times)
        if now_ms - earliest_ms > settings.timestamp_before_max_ms:
            raise _skewed(times, earliest_ms, now_ms, settings.timestamp_before_max_ms, "before")


def _skewed(
    times: Sequence[int], time_ms: int, now_ms: int, limit_ms: int, side: str
) -> InvalidTimestamp:
    record = list(times).index(time_ms)
    skew = f"{abs(time_ms - now_ms)} ms {'ahead' if time_ms > now_ms else 'behind'}"
    return InvalidTimestamp(
        f"timestamp {time_ms} of record {record} of {len(times)} of the batch lies {skew} of the "
        f"broker's clock, allowed are {limit_ms}",
        hint=f"check the producer's clock or message.timestamp.{side}.max.ms",
        record=record,
        timestamp_ms=time_ms,
    )


def _too_large(what: str, takes_bytes: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"{what}, this topic takes {takes_bytes}: its max.message.bytes is {limit}",
        hint="send smaller records or batches, or create the topic with a max.message.bytes of up "
        f"to {MAX_RECORD_BYTES}",
        limit=limit,
    )


def _check_keys(batch: Buffer, header: BatchHeader) -> None:
    """K1: of what has no key no record could ever be told to replace another."""
    missing = first_without_key(batch, header)
    if missing is not None:
        raise InvalidRecord(
            f"record {missing} of {header.record_count} of the batch has no key, and this topic is "
            "compacted: of each key its last record is kept",
            hint="send every record with a key (an empty one counts), or set cleanup.policy=delete",
        )


def _check_identity(header: BatchHeader, acks: int) -> None:
    if is_marked(header) and (acks != ACKS_ALL or header.producer_id >= 0):
        raise InvalidRequest("a record to be kept once needs acks=all and no producer id (X14)")
    if header.producer_id < 0:
        if header.producer_id != -1:
            raise InvalidRequest(f"producer id {header.producer_id} is impossible")
        return
    if acks != ACKS_ALL:  # A5
        raise InvalidRequest("an idempotent producer needs acks=all")
    if header.producer_epoch < 0 or not 0 <= header.base_sequence <= _INT32_MAX:
        raise InvalidRequest(
            f"producer {header.producer_id}: epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence} are impossible"
        )
