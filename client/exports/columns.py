"""The columns that the Spark source offers: the eight of `octavo.proto.kafka_columns` and metadata.

Owns the types of the latter and the way from stored batches to any of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.exports.metadata_columns import METADATA_COLUMNS
from octavo.proto import batch as batches
from octavo.proto import kafka_columns
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.batch_arrow import NAMES, join_arrow
from octavo.proto.segments import StoredBatch

TYPES: Mapping[str, pa.DataType] = {
    **kafka_columns.TYPES,
    **{name: kafka_columns.ARROW_TYPES[sql] for name, sql in METADATA_COLUMNS.items()},
}
EXPORTED = tuple(kafka_columns.TYPES)
"""The columns of exported files."""

_STORED = {
    "key": "key",
    "value": "value",
    "headers": "headers",
    "timestamp": "timestamp",
    "eventTime": "timestamp",
}
"""What a column is made of; all others of the batch's header, its place and its offsets."""


def without_bodies(columns: Sequence[str]) -> bool:
    """Whether these columns can be told from the headers of batches that have all their records."""
    return not any(name in _STORED for name in columns)


class HeaderRun(NamedTuple):
    """The offsets [first, end) of one batch; none of its records is missing."""

    first: int
    end: int
    entry_id: int
    header: BatchHeader


def columns_of_headers(
    runs: Sequence[HeaderRun], place: tuple[str, int, int], columns: Sequence[str]
) -> pa.RecordBatch:
    """The rows of some batches of one ledger; `place`: topic, partition, ledger id."""
    topic, partition, ledger_id = place
    count = sum(run.end - run.first for run in runs)
    same = {"topic": topic, "partition": partition, "ledgerId": ledger_id}
    made: list[pa.Array] = []
    for name in columns:
        if name in same:
            made.append(constant(same[name], name, count))
        elif name == "offset":
            made.append(pa.concat_arrays(list(_offset_ranges(runs))))
        else:
            made.append(pa.concat_arrays([_of_header(name, run) for run in runs]))
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(columns))


def _offset_ranges(runs: Sequence[HeaderRun]) -> Iterator[pa.Array]:
    """One array for batches that follow each other without a gap."""
    first, end = runs[0].first, runs[0].first
    for run in runs:
        if run.first != end:
            yield offset_range(first, end)
            first = run.first
        end = run.end
    yield offset_range(first, end)


def offset_range(first: int, end: int) -> pa.Array:
    """The offsets [first, end)."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), end - first)
    return pc.add(pc.cumulative_sum(ones), first - 1)


def _of_header(name: str, run: HeaderRun) -> pa.Array:
    header, count = run.header, run.end - run.first
    if name not in ("batchIndex", "sequence"):
        return constant(_of_batch(name, header, run.entry_id), name, count)
    index = offset_range(run.first - header.base_offset, run.end - header.base_offset)
    return _by_index(name, index, header)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns, all nullable."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def is_control(header: BatchHeader) -> bool:
    """Control batches (transaction markers) hold no records of users."""
    return bool(header.flags & BatchFlags.CONTROL)


def to_columns(
    stored: StoredBatch, topic: str, partition: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """One stored batch as the named columns; raises CorruptBatch."""
    return join_columns([stored], topic, partition, columns)


def join_columns(
    stored: Sequence[StoredBatch], topic: str, partition: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """Stored batches of one partition, one behind the other, as the named columns.

    Most of what a batch costs is Arrow's work for each column, however few rows it has: many small
    batches are joined at once. Keys and values of a single one are its decompressed bytes, not
    copies. Stored columns that no named one is made of are not decoded. Raises CorruptBatch.
    """
    verified = [(item.batch, batches.verify(item.batch)) for item in stored]
    needed = {_STORED[name] for name in columns if name in _STORED} | {"offset"}
    rows = join_arrow(verified, [name for name in NAMES if name in needed])
    joined = _Joined(rows, stored, [header for _, header in verified])
    same: Mapping[str, object] = {"topic": topic, "partition": partition}
    made = [
        constant(same[name], name, rows.num_rows) if name in same else joined.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(columns))


class _Joined(NamedTuple):
    """Batches that were decoded together."""

    rows: pa.RecordBatch
    stored: Sequence[StoredBatch]
    headers: Sequence[BatchHeader]

    def column(self, name: str) -> pa.Array:
        rows = self.rows
        if name in ("key", "value", "offset"):
            return rows.column(name)
        if name == "headers":
            return kafka_columns.headers(rows.column("headers"))
        if name in ("timestamp", "eventTime"):  # those that count, where the append's do (X23)
            return kafka_columns.micros(rows.column("timestamp"))
        if name in ("batchIndex", "sequence"):
            return _concat([*self._indexed(name)], name)
        return _concat([constant(value, name, count) for value, count in self._runs(name)], name)

    def _indexed(self, name: str) -> Iterator[pa.Array]:
        offsets, at = self.rows.column("offset"), 0
        for header in self.headers:
            own = offsets.slice(at, header.record_count)
            yield _by_index(name, pc.subtract(own, header.base_offset), header)
            at += header.record_count

    def _runs(self, name: str) -> Iterator[tuple[object, int]]:
        """Values that are the same for a batch, with how many rows have them on end."""
        now: object = None
        count = 0
        for item, header in zip(self.stored, self.headers, strict=True):
            value: object = (
                item.ledger_id if name == "ledgerId" else _of_batch(name, header, item.entry_id)
            )
            if count and value != now:
                yield now, count
                count = 0
            now = value
            count += header.record_count
        if count:
            yield now, count


def _concat(parts: list[pa.Array], name: str) -> pa.Array:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], TYPES[name])


def _by_index(name: str, index: pa.Array, header: BatchHeader) -> pa.Array:
    """A column that counts the records of a batch; `index` is int64."""
    if name == "batchIndex":
        return index.cast(pa.int32())
    if header.base_sequence < 0:
        return pa.nulls(len(index), TYPES[name])
    return pc.add(index, header.base_sequence)


def _of_batch(name: str, header: BatchHeader, entry_id: int) -> object:
    """The value of a column that is the same for a whole batch."""
    if name == "timestampType":
        return kafka_columns.timestamp_type(header)
    if name == "entryId":
        return entry_id
    if name == "schemaId":
        return header.schema_id
    return f"{header.producer_id}:{header.producer_epoch}" if header.producer_id >= 0 else None


def constant(value: object, name: str, count: int) -> pa.Array:
    """A column that is the same in some rows."""
    return pa.repeat(pa.scalar(value, TYPES[name]), count)


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
