"""The columns of a record as Spark's Kafka source names them (spec/spark.md §6).

Owns the schema, as Spark DDL and as Arrow, and the way from a stored batch to Arrow columns. The
two schemas must match exactly, because Spark compares the first record batch with
`Schema.equals`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto import batch as batches
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.batch_arrow import HEADER_TYPE, decode_arrow
from octavo.spark.log_view import StoredBatch

CREATE_TIME = 0
APPEND_TIME = 1
_INT64_MAX = 2**63 - 1
_TIMESTAMP = pa.timestamp("us", tz="UTC")

TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADER_TYPE,
    "ledgerId": pa.int64(),
    "entryId": pa.int64(),
    "batchIndex": pa.int32(),
    "eventTime": _TIMESTAMP,
    "producer": pa.string(),
    "sequence": pa.int64(),
    "schemaId": pa.int32(),
}
EXPORTED = tuple(TYPES)[:8]
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
        return _headers(rows.column("headers"))
    if name == "timestamp":
        if header.flags & BatchFlags.APPEND_TIME:
            return _constant(_append_time(header), TYPES[name], count)
        return micros(rows.column("timestamp"))
    if name == "eventTime":
        return micros(rows.column("timestamp"))
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
        "timestampType": APPEND_TIME if header.flags & BatchFlags.APPEND_TIME else CREATE_TIME,
        "ledgerId": stored.ledger_id,
        "entryId": stored.entry_id,
        "producer": producer,
        "schemaId": header.schema_id,
    }
    return values[name]


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _append_time(header: BatchHeader) -> int:
    return _clamp(header.append_time_ms * 1000)


def _clamp(value_us: int) -> int:
    return max(-_INT64_MAX, min(_INT64_MAX, value_us))


def micros(millis: pa.Array) -> pa.Array:
    """Milliseconds to microseconds; what does not fit is clamped, so that one record with an absurd
    time cannot make a whole partition unreadable."""
    try:
        return millis.cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        raw = cast("list[int]", millis.cast(pa.int64()).to_pylist())
        return pa.array([_clamp(ms * 1000) for ms in raw], _TIMESTAMP)


def _headers(column: pa.Array) -> pa.Array:
    """A record without headers has a null list, whatever its neighbours in the batch have (P13)."""
    if column.null_count == len(column):
        return column
    empty = pc.fill_null(pc.equal(pc.list_value_length(column), 0), True)
    if pc.any(empty).as_py() is not True:
        return column
    return pa.ListArray.from_arrays(column.offsets, column.values, type=HEADER_TYPE, mask=empty)


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
