"""What runs behind the Spark source: putting views together, and turning splits into rows.

Kept apart from `octavo.spark.source`, which every worker imports before it knows what it will do,
and from `octavo.spark.ledger_reading`, so that reading exported files loads no client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.exports.arrow_files import BATCH_BYTES_MAX, BATCH_ROWS, read_file
from octavo.client.exports.columns import (
    HeaderRun,
    arrow_schema,
    columns_of_headers,
    constant,
    int_at,
    is_control,
    join_columns,
    offset_range,
    slice_offsets,
    without_bodies,
)
from octavo.client.exports.log_view import BatchSource, TopicLog
from octavo.client.exports.places import format_of, source_at
from octavo.proto import batch as batches
from octavo.proto.batch import BatchFlags
from octavo.proto.segments import StoredBatch
from octavo.runtime.errors import ConfigError, CorruptEntry
from octavo.spark.exported import ExportedTopic, ExportedTopics, root_of
from octavo.spark.options import ReadOptions
from octavo.spark.plan import (
    FileSplit,
    LedgerSplit,
    PartitionView,
    Split,
    TimeLookup,
    plan,
    view_of,
)
from octavo.spark.tiered import tier_state

NARROW_ROWS = 65_536
"""Of a record batch whose columns are made of numbers that are known before."""
ReadSplit = Callable[[Split, Sequence[str]], Iterator[pa.RecordBatch]]


def plan_files(options: ReadOptions) -> list[Split]:
    """Splits of a read that names only a `path`."""
    exported = ExportedTopics(options).load()
    return plan(options, views(options, exported, {}), file_time_lookup())


def file_time_lookup() -> TimeLookup:
    """`time_lookup` where there are files only."""

    def read(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not isinstance(split, FileSplit):
            raise ConfigError("an exported tree holds files only")
        return read_file_split(split, columns)

    return time_lookup(read)


def views(
    options: ReadOptions,
    exported: Mapping[str, ExportedTopic],
    logs: Mapping[str, TopicLog],
) -> list[PartitionView]:
    """One view per subscribed partition; raises ConfigError when tree and cluster do not match."""
    found: list[PartitionView] = []
    root = "" if options.path is None else root_of(options.path)
    for topic in sorted(exported.keys() | logs.keys()):
        tree, log = exported.get(topic), logs.get(topic)
        if tree is not None and log is not None and tree.info.topic_id != log.topic_id:
            raise ConfigError(
                f"{root} holds an export of another topic that was called {topic!r}",
                hint="export into a new folder",
                option="path",
            )
        partitions = set(tree.partitions() if tree is not None else ())
        if log is not None:
            partitions |= set(log.partitions)
        topic_id = log.topic_id if log is not None else tree.info.topic_id if tree else ""
        tiered = tier_state(log) if log is not None else None
        for partition in assigned(options, topic, partitions):
            found.append(
                view_of(
                    topic,
                    partition,
                    root=root,
                    exported=tree.state if tree is not None else None,
                    log=log.partitions.get(partition) if log is not None else None,
                    addresses=log.addresses if log is not None else None,
                    topic_id=topic_id,
                    tier_root=log.tier_tree if log is not None else "",
                    tiered=tiered,
                )
            )
    return found


def assigned(options: ReadOptions, topic: str, partitions: set[int]) -> list[int]:
    """Those of a topic's partitions that are subscribed; raises ConfigError for a missing one."""
    wanted = options.assign.get(topic)
    if wanted is None:
        return sorted(partitions)
    for partition in wanted:
        if partition not in partitions:
            raise ConfigError(
                f"option assign: {topic} has no partition {partition}",
                option="assign",
                topic=topic,
                partition=partition,
            )
    return list(wanted)


def time_lookup(read: ReadSplit) -> TimeLookup:
    """The planner's look inside pieces: those that end before the time are not opened."""

    def find(view: PartitionView, time_ms: int) -> int | None:
        for piece in view.splits:
            if piece.newest_ms is not None and piece.newest_ms < time_ms:
                continue
            for rows in read(piece, ("offset", "timestamp")):
                stamps = rows.column("timestamp").cast(pa.int64())
                late = pc.indices_nonzero(pc.greater_equal(stamps, time_ms * 1000))
                if len(late):
                    return int_at(rows.column("offset"), int_at(late, 0))
        return None

    return find


def read_file_split(split: FileSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a split of an exported file.

    Columns that follow from its manifest are not read.
    """
    if follows_from_place(split, columns):
        return rows_of_place(split, columns)
    first, end = (None, None) if split.whole else (split.first, split.end)
    place = source_at(split.path)
    return read_file(place, columns, first, end, checks=split.checks, fmt=format_of(split.path))


_OF_PLACE = frozenset({"topic", "partition", "offset"})
_OF_LEDGER = _OF_PLACE | {"ledgerId"}


def follows_from_place(split: Split, columns: Sequence[str]) -> bool:
    """Whether the rows of a split are known without reading it: which offsets it holds, and where.

    Of a file its manifest says so, of a ledger its broker.
    """
    known = _OF_PLACE if isinstance(split, FileSplit) else _OF_LEDGER
    return split.dense and bool(columns) and set(columns) <= known


def rows_of_place(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a split that `follows_from_place`."""
    same: dict[str, object] = {"topic": split.topic, "partition": split.partition}
    if isinstance(split, LedgerSplit):
        same["ledgerId"] = split.segment.ledger_id
    for first in range(split.first, split.end, NARROW_ROWS):
        end = min(first + NARROW_ROWS, split.end)
        arrays = [
            offset_range(first, end)
            if name == "offset"
            else constant(same[name], name, end - first)
            for name in columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


async def ledger_rows(
    source: BatchSource, split: LedgerSplit, columns: Sequence[str]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Rows of a ledger in record batches of a size that Spark takes well.

    Bodies are opened only when a column is stored there. Raises CorruptEntry when the ledger ends
    before the offsets that were promised.
    """
    if without_bodies(columns) and columns and not split.segment.compacted:
        rows = _rows_of_headers(source, split, columns)
    else:
        rows = _rows_of_bodies(source, split, columns)
    async with aclosing(rows):
        async for part in rows:
            yield part


async def _rows_of_headers(
    source: BatchSource, split: LedgerSplit, columns: Sequence[str]
) -> AsyncGenerator[pa.RecordBatch, None]:
    place = (split.topic, split.partition, split.segment.ledger_id)
    runs: list[HeaderRun] = []
    count = 0
    reached = split.first
    async with aclosing(source.headers(split.segment, split.first, split.end)) as found:
        async for some in found:
            for entry_id, header in some:
                if header.flags & BatchFlags.COMPACTED:  # only its body tells which are left
                    if runs:
                        yield columns_of_headers(runs, place, columns)
                    rest = replace(split, first=max(split.first, header.base_offset))
                    async with aclosing(_rows_of_bodies(source, rest, columns)) as parts:
                        async for part in parts:
                            yield part
                    return
                reached = header.next_offset
                first = max(header.base_offset, split.first)
                end = min(reached, split.end)
                if first < end and not is_control(header):
                    runs.append(HeaderRun(first, end, entry_id, header))
                    count += end - first
                if count >= NARROW_ROWS:
                    yield columns_of_headers(runs, place, columns)
                    runs, count = [], 0
            if reached >= split.end:
                break
    if runs:
        yield columns_of_headers(runs, place, columns)
    _check_reached(split, reached)


async def _rows_of_bodies(
    source: BatchSource, split: LedgerSplit, columns: Sequence[str]
) -> AsyncGenerator[pa.RecordBatch, None]:
    waiting: list[StoredBatch] = []
    count = size_bytes = 0
    reached = split.first
    async with aclosing(source.batches(split.segment, split.first, split.end)) as found:
        async for stored in found:
            header = batches.decode_header(stored.batch)
            reached = header.next_offset
            if not is_control(header) and header.base_offset < split.end:
                waiting.append(stored)
                count += header.record_count
                size_bytes += header.uncompressed_bytes
            if count >= BATCH_ROWS or size_bytes >= BATCH_BYTES_MAX:
                for rows in _joined(waiting, split, columns):
                    yield rows
                waiting, count, size_bytes = [], 0, 0
            if reached >= split.end:
                break
    for rows in _joined(waiting, split, columns):
        yield rows
    _check_reached(split, reached)


def _joined(
    stored: Sequence[StoredBatch], split: LedgerSplit, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """What the split wants of some batches, in pieces that Spark takes well."""
    if not stored:
        return
    need = tuple(dict.fromkeys((*columns, "offset")))
    rows = join_columns(stored, split.topic, split.partition, need)
    rows = slice_offsets(rows, rows.column("offset"), split.first, split.end)
    rows = rows.select(list(columns))
    pieces = max(1, rows.num_rows // BATCH_ROWS)  # each less than twice as long
    for at in range(pieces):
        first = rows.num_rows * at // pieces
        part = rows.slice(first, rows.num_rows * (at + 1) // pieces - first)
        if part.num_rows:
            yield part


def _check_reached(split: LedgerSplit, reached: int) -> None:
    # A compacted ledger was read to its last entry; behind its last record there is a gap (K4).
    if reached < split.end and not split.segment.compacted:
        raise CorruptEntry(
            f"ledger {split.segment.ledger_id} ends at offset {reached}, "
            f"{split.topic}-{split.partition} promised {split.end}"
        )
