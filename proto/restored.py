"""Stored batches made again from their records and their headers (ADR 68, spec ledger §8.9).

Where records are kept as columns and the headers of their batches beside them, `restored` gives the
batches back: every field that a reader sees is the stored one, the body is encoded anew. What an
append time replaced (X23) is gone, as it is for every reader of the stored batch.
"""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import BatchFlags, BatchHeader, with_body
from octavo.proto.batch_arrow import body_parts
from octavo.proto.compacted import SEQUENCES
from octavo.proto.compression import Codec
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import MessageTooLarge


def part_of(header: BatchHeader, offsets: pa.Array, stamps_ms: pa.Array, end: int) -> BatchHeader:
    """The header of some neighbouring records of a batch, which take the offsets up to `end`.

    `offsets` and `stamps_ms` are int64 of these records, at least one.
    """
    base, count = _int(offsets[0]), len(offsets)
    sequence = header.base_sequence
    if header.producer_id >= 0:
        sequence = (sequence + base - header.base_offset) % SEQUENCES
    flags, times = header.flags, (header.base_timestamp_ms, header.max_timestamp_ms)
    if not flags & BatchFlags.APPEND_TIME:
        times = _int(stamps_ms[0]), _int(pc.max(stamps_ms))
    if count != end - base:
        flags |= BatchFlags.COMPACTED
    return header._replace(
        flags=flags,
        record_count=count,
        base_timestamp_ms=times[0],
        max_timestamp_ms=times[1],
        base_sequence=sequence,
        base_offset=base,
        last_offset_delta=end - 1 - base,
    )


def restored(header: BatchHeader, rows: pa.RecordBatch, stamps_ms: pa.Array) -> list[Buffer]:
    """The batch of this header: `rows` are its columns offset, key, value and headers.

    `stamps_ms` are the records' times, int64 without nulls. More than one batch, which divide its
    place, where its own codec and ZSTD make it too large here. Raises InvalidRecord.
    """
    flags = header.flags
    deltas = None
    if flags & BatchFlags.COMPACTED:
        deltas = pc.subtract(rows.column("offset"), header.base_offset).cast(pa.int32())
    headers = rows.column("headers") if flags & BatchFlags.HEADERS else None
    try:
        parts = body_parts(stamps_ms, rows.column("key"), rows.column("value"), headers, deltas)
        try:
            return [with_body(header, parts)]
        except MessageTooLarge:
            return [with_body(header._replace(codec=Codec.ZSTD), parts)]
    except MessageTooLarge:
        half = len(rows) // 2
        if not half:
            raise
    halves = (
        (rows.slice(0, half), stamps_ms.slice(0, half)),
        (rows.slice(half), stamps_ms.slice(half)),
    )
    border = _int(rows.column("offset")[half])
    made: list[Buffer] = []
    for (some, stamps), end in zip(halves, (border, header.next_offset), strict=True):
        made += restored(part_of(header, some.column("offset"), stamps, end), some, stamps)
    return made


def _int(scalar: pa.Scalar) -> int:
    return cast("int", scalar.as_py())
