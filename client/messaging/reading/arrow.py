"""Fetched batches as the eight Kafka-source columns, without an object per record (spark.md §6).

Imported only by the first `poll_arrow` (`api.arrow_access`): row-wise use never loads pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.messaging.records import TopicPartition
from octavo.proto import kafka_columns
from octavo.proto.batch import BatchHeader
from octavo.proto.batch_arrow import join_arrow
from octavo.proto.kafka_columns import SCHEMA
from octavo.runtime.checksum import Buffer


class StoredBatch(NamedTuple):
    """A fetched, verified batch and the rows of it that are wanted."""

    where: TopicPartition
    batch: Buffer
    header: BatchHeader
    first_offset: int
    """Rows below it were handed out already or lie before the position."""
    end_offset: int
    """Rows from here on are not wanted yet."""

    @property
    def whole(self) -> bool:
        """Whether every row is wanted, as most often."""
        header = self.header
        return self.first_offset <= header.base_offset and self.end_offset >= header.next_offset

    @property
    def rows(self) -> int:
        """How many are wanted, as far as the header tells: of a compacted batch this many at most,
        if only a part of it is."""
        header = self.header
        end = min(self.end_offset, header.next_offset)
        return min(end - max(self.first_offset, header.base_offset), header.record_count)

    @property
    def time(self) -> tuple[int, int]:
        """What the column `timestamp` depends on besides the records' own times."""
        kind = kafka_columns.timestamp_type(self.header)
        return kind, self.header.append_time_ms if kind else 0


def to_record_batch(batches: Sequence[StoredBatch]) -> pa.RecordBatch:
    """One RecordBatch with the Kafka-source columns; raises CorruptBatch."""
    joined = join_arrow((item.batch, item.header) for item in batches)
    made = pa.RecordBatch.from_arrays(_columns(joined, batches), schema=SCHEMA)
    if all(item.whole for item in batches):
        return made
    return _wanted(made, batches)


def _columns(joined: pa.RecordBatch, batches: Sequence[StoredBatch]) -> list[pa.Array]:
    """The stored columns, and those that all rows of neighbouring batches share."""
    topics: list[pa.Array] = []
    partitions: list[pa.Array] = []
    stamps: list[pa.Array] = []
    kinds: list[pa.Array] = []
    row = 0
    for (where, (kind, _)), run in groupby(batches, key=lambda item: (item.where, item.time)):
        items = list(run)
        count = sum(item.header.record_count for item in items)
        topics.append(pa.repeat(pa.scalar(where.topic, pa.string()), count))
        partitions.append(pa.repeat(pa.scalar(where.partition, pa.int32()), count))
        own = joined.column("timestamp").slice(row, count)
        stamps.append(kafka_columns.timestamps(items[0].header, own))
        kinds.append(pa.repeat(pa.scalar(kind, pa.int32()), count))
        row += count
    return [
        joined.column("key"),
        joined.column("value"),
        pa.concat_arrays(topics),
        pa.concat_arrays(partitions),
        joined.column("offset"),
        pa.concat_arrays(stamps),
        pa.concat_arrays(kinds),
        kafka_columns.headers(joined.column("headers")),
    ]


def _wanted(made: pa.RecordBatch, batches: Sequence[StoredBatch]) -> pa.RecordBatch:
    """Without the rows that lie before a position or behind an end."""
    pieces: list[pa.RecordBatch] = []
    row = 0
    for item in batches:
        count = item.header.record_count
        piece = made.slice(row, count)
        row += count
        if not item.whole:
            offsets = piece.column("offset")
            piece = piece.filter(
                pc.and_(
                    pc.greater_equal(offsets, item.first_offset),
                    pc.less(offsets, item.end_offset),
                )
            )
        pieces.append(piece)
    combined = pa.Table.from_batches(pieces, schema=SCHEMA).combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=SCHEMA)


class ArrowReading:
    """What consumers use of this module, reached through `api.arrow_access`."""

    StoredBatch = StoredBatch
    to_record_batch = staticmethod(to_record_batch)


FUNCTIONS = ArrowReading()
