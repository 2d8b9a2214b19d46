"""What runs behind the Spark source: planning in the driver's Python, reading in the workers.

Kept apart from `octavo.spark.source`, which every worker imports before it knows what it will do.
"""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto import batch as batches
from octavo.runtime.errors import ConfigError, CorruptEntry
from octavo.spark.arrow_files import Rebatcher, read_file
from octavo.spark.columns import int_at, is_control, slice_offsets, to_columns
from octavo.spark.exported import ExportedTopic, exported_topics, root_of
from octavo.spark.log_view import BatchSource, TopicLog
from octavo.spark.loop_bridge import iterate
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit, PartitionView, Split, plan, view_of

BATCHES_AHEAD = 4
"""Record batches decoded ahead of Spark, each at most 32 MiB."""


def make_plan(options: ReadOptions) -> list[Split]:
    """Look at manifests and cluster once and cut what is asked for into splits."""
    exported = exported_topics(options)
    logs: Mapping[str, TopicLog] = {}
    if options.bootstrap is not None:
        from octavo.spark.live import describe_topics  # loads gRPC, which files do not need

        logs = describe_topics(options.bootstrap, options)
    return plan(options, views(options, exported, logs), find_time)


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
        for partition in _assigned(options, topic, partitions):
            found.append(
                view_of(
                    topic,
                    partition,
                    root=root,
                    exported=tree.state if tree is not None else None,
                    log=log.partitions.get(partition) if log is not None else None,
                    addresses=log.addresses if log is not None else None,
                )
            )
    return found


def _assigned(options: ReadOptions, topic: str, partitions: set[int]) -> list[int]:
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


def find_time(view: PartitionView, time_ms: int) -> int | None:
    """First offset at or after a time: pieces that end earlier are not opened."""
    for piece in view.splits:
        if piece.newest_ms is not None and piece.newest_ms < time_ms:
            continue
        for rows in read_split(piece, ("offset", "timestamp")):
            stamps = rows.column("timestamp").cast(pa.int64())
            late = pc.indices_nonzero(pc.greater_equal(stamps, time_ms * 1000))
            if len(late):
                return int_at(rows.column("offset"), int_at(late, 0))
    return None


def read_split(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one split."""
    if isinstance(split, FileSplit):
        first, end = (None, None) if split.whole else (split.first, split.end)
        fmt = split.path.rpartition(".")[2]
        yield from read_file(pathlib.Path(split.path), columns, first, end, fmt=fmt)
        return

    from octavo.spark.live import ledger_batches  # loads the ledger client, likewise

    async def rows() -> AsyncIterator[pa.RecordBatch]:
        async with ledger_batches(split.addresses) as source:
            async for part in ledger_rows(source, split, columns):
                yield part

    yield from iterate(rows, BATCHES_AHEAD)


async def ledger_rows(
    source: BatchSource, split: LedgerSplit, columns: Sequence[str]
) -> AsyncIterator[pa.RecordBatch]:
    """Rows of a ledger in record batches of a size that Spark takes well.

    Raises CorruptEntry when the ledger ends before the offsets that were promised.
    """
    rebatcher = Rebatcher()
    need = tuple(dict.fromkeys((*columns, "offset")))
    reached = split.first
    async for stored in source.batches(split.segment, split.first):
        header = batches.decode_header(stored.batch)
        reached = header.next_offset
        if not is_control(header) and header.base_offset < split.end:
            rows = to_columns(stored, split.topic, split.partition, need)
            rows = slice_offsets(rows, rows.column("offset"), split.first, split.end)
            for full in rebatcher.add(rows.select(list(columns))):
                yield full
        if reached >= split.end:
            break
    for rest in rebatcher.flush():
        yield rest
    if reached < split.end:
        raise CorruptEntry(
            f"ledger {split.segment.ledger_id} ends at offset {reached}, "
            f"{split.topic}-{split.partition} promised {split.end}"
        )
