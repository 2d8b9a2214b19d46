"""The columns that the Spark source offers: the eight of `octavo.proto.kafka_columns` and metadata.

Owns the types of the latter and the way from one stored batch to any of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto import batch as batches
from octavo.proto import kafka_columns
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.batch_arrow import decode_arrow
from octavo.proto.segments import StoredBatch
from octavo.spark.metadata_columns import METADATA_COLUMNS

TYPES: Mapping[str, pa.DataType] = {
    **kafka_columns.TYPES,
    **{name: kafka_columns.ARROW_TYPES[sql] for name, sql in METADATA_COLUMNS.items()},
}
EXPORTED = tuple(kafka_columns.TYPES)
"""The columns of exported files."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns, all nullable."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def is_control(header: BatchHeader) -> bool:
    """Control batches (transaction markers) hold no records of users."""
    return bool(header.flags & BatchFlags.CONTROL)


def to_columns(
    stored: StoredBatch, topic: str, partition: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """One stored batch as the named columns; raises CorruptBatch.

    Keys and values are the decompressed bytes of the batch, not copies.
    """
    header = batches.decode_header(stored.batch)
    rows = decode_arrow(stored.batch)
    made = [_column(name, rows, header, stored, topic, partition) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(columns))


def _column(
    name: str,
    rows: pa.RecordBatch,
    header: BatchHeader,
    stored: StoredBatch,
    topic: str,
    partition: int,
) -> pa.Array:
    count = rows.num_rows
    if name in ("key", "value", "offset"):
        return rows.column(name)
    if name == "headers":
        return kafka_columns.headers(rows.column("headers"))
    if name == "timestamp":
        return kafka_columns.timestamps(header, rows.column("timestamp"))
    if name == "eventTime":
        return kafka_columns.micros(rows.column("timestamp"))
    if name in ("batchIndex", "sequence"):
        index = pc.subtract(rows.column("offset"), header.base_offset)
        if name == "batchIndex":
            return index.cast(pa.int32())
        if header.base_sequence < 0:
            return pa.nulls(count, TYPES[name])
        return pc.add(index, header.base_sequence)
    return _constant(_fixed(name, header, stored, topic, partition), TYPES[name], count)


def _fixed(
    name: str, header: BatchHeader, stored: StoredBatch, topic: str, partition: int
) -> object:
    """The value of a column that is the same for a whole batch."""
    producer = f"{header.producer_id}:{header.producer_epoch}" if header.producer_id >= 0 else None
    values: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "timestampType": kafka_columns.timestamp_type(header),
        "ledgerId": stored.ledger_id,
        "entryId": stored.entry_id,
        "producer": producer,
        "schemaId": header.schema_id,
    }
    return values[name]


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def int_at(column: pa.Array, index: int) -> int:
    """One value of a column of integers without nulls; a negative index counts from the end."""
    return cast("int", column[index].as_py())


def slice_offsets(rows: pa.RecordBatch, offsets: pa.Array, first: int, end: int) -> pa.RecordBatch:
    """The rows whose offset lies in [first, end): offsets ascend, so two searches and no mask."""
    count = rows.num_rows
    if count == 0:
        return rows

    def at(index: int) -> int:
        return int_at(offsets, index)

    low = 0 if at(0) >= first else bisect_left(range(count), first, key=at)
    high = count if at(count - 1) < end else bisect_left(range(count), end, key=at)
    return rows if (low, high) == (0, count) else rows.slice(low, max(0, high - low))
