"""Batches that lose records (design.md §3, spec K8).

What is left of a batch keeps its place: base and last offset, producer and sequence, append time
and owner epoch. Offsets stay; those that went are gaps. Body layout: see `octavo.proto.batch`, flag
COMPACTED.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import (
    BatchFlags,
    BatchHeader,
    stamp,
)
from octavo.proto.batch_arrow import encode_arrow, join_arrow
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import MessageTooLarge

KEPT_FLAGS = BatchFlags.TRANSACTIONAL | BatchFlags.APPEND_TIME
SEQUENCES = 1 << 31
"""Sequence numbers wrap behind 2147483647 (I1)."""


def without_records(batch: Buffer, header: BatchHeader, keep: pa.Array) -> list[bytes]:
    """What is left of a verified batch of which the records in `keep` (bool) stay, at least one.

    One batch in its place; two or more, which divide its place, when the offsets that must be
    written now make one too large. Raises CorruptBatch.
    """
    left = join_arrow([(batch, header)]).filter(keep)
    return _encoded(left, header, header.base_offset, header.next_offset)


def _encoded(left: pa.RecordBatch, header: BatchHeader, base: int, end: int) -> list[bytes]:
    """`left` as batches that together take the offsets [base, end)."""
    offsets = left.column("offset")
    sequence = header.base_sequence
    if header.producer_id >= 0:
        sequence = (sequence + base - header.base_offset) % SEQUENCES
    try:
        made = encode_arrow(
            left.column("timestamp").cast(pa.int64()),
            left.column("key"),
            left.column("value"),
            left.column("headers"),
            offset_deltas=pc.subtract(offsets, base).cast(pa.int32()),
            flags=header.flags & KEPT_FLAGS,
            codec=header.codec,
            producer=(header.producer_id, header.producer_epoch, sequence),
            schema_id=header.schema_id,
        )
    except MessageTooLarge:
        half = len(left) // 2
        if not half:
            raise
        border = offsets[half].as_py()
        first, second = left.slice(0, half), left.slice(half)
        return [*_encoded(first, header, base, border), *_encoded(second, header, border, end)]
    return [
        stamp(
            made,
            base_offset=base,
            owner_epoch=header.owner_epoch,
            append_time_ms=header.append_time_ms,
            last_offset_delta=end - 1 - base,
        )
    ]
