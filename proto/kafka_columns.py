"""The eight columns of a record, with the names and types of Spark's Kafka source (spark §6).

What `poll_arrow`, the Spark source and exported files give, value for value.

    key            binary               null: the record has no key
    value          binary               null: a tombstone
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]   the time of append where the topic stamps records with it,
                                        else the record's own
    timestampType  int32                0: the record's own time, 1: the time of append
    headers        list<struct<key: string, value: binary>>
                                        null: the record has none, whatever its neighbours have
                                        (P13); never an empty list

Times are stored as milliseconds in 64 bits. One that microseconds cannot tell becomes the nearest
that they can, so that a record with an absurd time cannot make the rest unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.batch_arrow import HEADER_TYPE
from octavo.proto.kafka_schema import HEADERS, SQL_TYPES

CREATE_TIME = 0
APPEND_TIME = 1
TIMESTAMP = pa.timestamp("us", tz="UTC")
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
    SQL_TYPES[HEADERS]: HEADER_TYPE,
}
"""SQL type to Arrow type."""
TYPES: Mapping[str, pa.DataType] = {name: ARROW_TYPES[sql] for name, sql in SQL_TYPES.items()}
SCHEMA = pa.schema([pa.field(name, kind) for name, kind in TYPES.items()])
"""All nullable: Spark compares the first record batch with `Schema.equals`."""

_INT64_MAX = 2**63 - 1


def timestamp_type(header: BatchHeader) -> int:
    """Which of the two times the records of a batch have."""
    return APPEND_TIME if header.flags & BatchFlags.APPEND_TIME else CREATE_TIME


def timestamps(header: BatchHeader, own: pa.Array) -> pa.Array:
    """The column `timestamp` of a batch, or of several that share kind and time of append.

    `own` are the stored times in milliseconds.
    """
    if header.flags & BatchFlags.APPEND_TIME:
        return pa.repeat(pa.scalar(_clamp(header.append_time_ms * 1000), TIMESTAMP), len(own))
    return micros(own)


def micros(millis: pa.Array) -> pa.Array:
    """Stored times as microseconds, the nearest that there is."""
    try:
        return millis.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        raw = cast("list[int]", millis.cast(pa.int64()).to_pylist())
        return pa.array([_clamp(ms * 1000) for ms in raw], TIMESTAMP)


def _clamp(value_us: int) -> int:
    return max(-_INT64_MAX, min(_INT64_MAX, value_us))


def headers(stored: pa.Array) -> pa.Array:
    """The column `headers`; `stored` is an unsliced column of decoded batches."""
    if stored.null_count == len(stored):
        return stored
    empty = pc.fill_null(pc.equal(pc.list_value_length(stored), 0), True)
    if pc.any(empty).as_py() is not True:
        return stored
    return pa.ListArray.from_arrays(stored.offsets, stored.values, type=HEADER_TYPE, mask=empty)
