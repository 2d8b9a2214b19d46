"""A topic kept in memory, in the shape the exporter and the Spark source see a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import pyarrow as pa

from octavo.client.exports.log_view import PartitionLog, TopicLog
from octavo.proto import batch as batches
from octavo.proto.compacted import without_records
from octavo.proto.compression import Codec
from octavo.proto.segments import Segment, StoredBatch, StoredHeader
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import UnknownTopic
from octavo.runtime.ids import EntryId, LedgerId

Headers = Sequence[tuple[str, bytes | None]]


class Row(NamedTuple):
    """One record as a test produces it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000


class MemoryTopic:
    """Builds ledgers of stored batches and serves them as a LogSource."""

    def __init__(
        self, topic: str = "orders", partitions: int = 1, topic_id: str = "ab" * 16
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.segments: dict[int, list[Segment]] = {p: [] for p in range(partitions)}
        self.stored: dict[int, list[StoredBatch]] = {}
        self.ends = dict.fromkeys(range(partitions), 0)
        self.rows: dict[int, dict[int, Row]] = {p: {} for p in range(partitions)}
        self.next_ledger = 1
        self.log_start = dict.fromkeys(range(partitions), 0)
        self.reads: list[int] = []

    def append(
        self,
        rows: Sequence[Sequence[Row]],
        partition: int = 0,
        *,
        closed: bool = True,
        size_bytes: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        flags: int = 0,
        schema_id: int = 0,
        codec: int = Codec.LZ4,
    ) -> Segment:
        """A new ledger that holds one batch per inner sequence."""
        base = next_offset = self.end(partition)
        ledger = LedgerId(self.next_ledger)
        self.next_ledger += 1
        self.stored[ledger] = []
        newest = 0
        for entry, group in enumerate(rows, 1):  # entry 0 is the snapshot
            batch = batches.encode(
                [row.timestamp_ms for row in group],
                [row.key for row in group],
                [row.value for row in group],
                [row.headers for row in group],
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=producer[2],
                schema_id=schema_id,
                codec=codec,
            )
            if flags:
                batch = _with_flags(batch, flags)
            batch = batches.stamp(
                batch, base_offset=next_offset, owner_epoch=1, append_time_ms=1_700_000_111_000
            )
            self.stored[ledger].append(StoredBatch(ledger, EntryId(entry), batch))
            if not flags & batches.BatchFlags.CONTROL:
                for i, row in enumerate(group):
                    self.rows[partition][next_offset + i] = row
            next_offset += len(group)
            newest = max([newest, *(row.timestamp_ms for row in group)])
        stored = self.stored[ledger]
        size = sum(len(item.batch) for item in stored) if size_bytes is None else size_bytes
        segment = Segment(
            ledger_id=ledger,
            base_offset=base,
            end_offset=next_offset if closed else None,
            size_bytes=size,
            max_timestamp_ms=newest,
            last_append_ms=newest,
            last_entry=EntryId(len(stored) if closed else -1),
        )
        self.segments[partition].append(segment)
        self.ends[partition] = next_offset
        return segment

    def compact(self, count: int, keep: set[int], partition: int = 0) -> Segment:
        """One compacted ledger with the records in `keep` for the first `count` segments (K7)."""
        old, rest = self.segments[partition][:count], self.segments[partition][count:]
        ledger = LedgerId(self.next_ledger)
        self.next_ledger += 1
        left: list[StoredBatch] = []
        for segment in old:
            for item in self.stored[segment.ledger_id]:
                header = batches.verify(item.batch)
                offsets = batches.decode_rows(item.batch).offsets
                mask = pa.array([offset in keep for offset in offsets], pa.bool_())
                if keep.intersection(offsets):
                    (made,) = without_records(item.batch, header, mask)
                    left.append(StoredBatch(ledger, EntryId(len(left)), made))
        new = replace(
            old[0],
            ledger_id=ledger,
            end_offset=old[-1].end_offset,
            size_bytes=sum(len(item.batch) for item in left),
            last_entry=EntryId(len(left)),
            compacted=True,
        )
        self.stored[ledger] = left
        self.segments[partition] = [new, *rest]
        gone = range(new.base_offset, new.end_offset or 0)
        for offset in keep.symmetric_difference(gone).intersection(gone):
            self.rows[partition].pop(offset, None)
        return new

    def close_last(self, partition: int = 0) -> None:
        """Close the open ledger."""
        last = self.segments[partition][-1]
        entries = len(self.stored[last.ledger_id])
        self.segments[partition][-1] = replace(
            last, end_offset=self.ends[partition], last_entry=EntryId(entries)
        )

    def end(self, partition: int = 0) -> int:
        """The high watermark."""
        return self.ends[partition]

    def log(self) -> TopicLog:
        """What a cluster would describe."""
        logs: Mapping[int, PartitionLog] = {
            p: PartitionLog(p, self.log_start[p], self.end(p), tuple(segments))
            for p, segments in self.segments.items()
        }
        return TopicLog(self.topic, self.topic_id, logs)

    async def describe(self, topic: str) -> TopicLog:
        """LogSource."""
        if topic != self.topic:
            raise UnknownTopic(f"no topic {topic!r}")
        return self.log()

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """BatchSource."""
        self.reads.append(segment.ledger_id)
        for item in self.stored[segment.ledger_id]:
            if batches.decode_header(item.batch).next_offset > start_offset:
                yield item

    async def headers(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[Sequence[StoredHeader], None]:
        """BatchSource: three at a time."""
        found = [
            StoredHeader(item.entry_id, batches.decode_header(item.batch))
            async for item in MemoryTopic.batches(self, segment, start_offset, visible_end)
        ]
        for first in range(0, len(found), 3):
            yield found[first : first + 3]


def _with_flags(batch: Buffer, flags: int) -> Buffer:
    changed = bytearray(batch)
    changed[3] |= flags
    # Same identity written anew: computes the crc over the changed header.
    header = batches.decode_header(batch)
    identity = header.producer_id, header.producer_epoch, header.base_sequence
    return batches.with_sequence(bytes(changed), *identity)


def rows_back(columns: pa.RecordBatch) -> dict[int, Row]:
    """Exported columns as rows by offset."""
    found: dict[int, Row] = {}
    stamps = cast("list[int]", columns.column("timestamp").cast(pa.int64()).to_pylist())
    for row, stamp_us in zip(columns.to_pylist(), stamps, strict=True):
        key, value = cast("tuple[bytes | None, bytes | None]", (row["key"], row["value"]))
        listed = cast("list[dict[str, bytes | None]] | None", row["headers"])
        headers = tuple((cast("str", h["key"]), h["value"]) for h in listed or ())
        found[cast("int", row["offset"])] = Row(key, value, headers, stamp_us // 1000)
    return found


def ints(columns: pa.RecordBatch, name: str) -> list[int]:
    """One column of integers."""
    return cast("list[int]", columns.column(name).to_pylist())


def numbered(count: int, start: int = 0, timestamp_ms: int = 1_700_000_000_000) -> list[Row]:
    """Rows whose key, value and time name their number."""
    return [
        Row(b"k%d" % n, b'{"n":%d}' % n, timestamp_ms=timestamp_ms + n)
        for n in range(start, start + count)
    ]


ODD_ROWS = [
    Row(None, b"no key"),
    Row(b"gone", None),
    Row(None, None),
    Row(b"", b""),
    Row(b"dup", b"x", (("a", b"1"), ("a", b"2"), ("b", None))),
    Row(b"plain", b"after headers"),
    Row(b"big", b"\xff" * (1 << 20 >> 1) + b"\x00" * ((1 << 20 >> 1) - 64)),
]
"""Null keys, tombstones, empty bytes, duplicate and null headers, a value of almost 1 MiB."""
