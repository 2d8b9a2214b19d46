"""Reading a cluster from Spark: planning through one broker, rows straight from the bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

import pyarrow as pa

from octavo.spark.exported import ExportedTopics
from octavo.spark.live import CLIENT_NAME, LedgerBatches, describe_topics
from octavo.spark.loop_bridge import iterate
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit, Split, plan
from octavo.spark.reading import (
    follows_from_place,
    ledger_rows,
    read_file_split,
    rows_of_place,
    time_lookup,
    views,
)
from octavo.spark.worker_connections import WorkerConnections

BATCHES_AHEAD = 4
"""Record batches decoded ahead of Spark, each at most 32 MiB."""

_connections = WorkerConnections(CLIENT_NAME)
"""Of this process: a worker reads one split after another."""


def plan_cluster(options: ReadOptions) -> list[Split]:
    """Ask a broker once for all segments and cut what is asked for into splits."""
    exported = ExportedTopics(options).load()
    logs = describe_topics(options, exported)
    return plan(options, views(options, exported, logs), time_lookup(read_split))


def read_split(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of any split."""
    if isinstance(split, FileSplit):
        return read_file_split(split, columns)
    return read_ledger_split(split, columns)


def read_ledger_split(split: LedgerSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of one ledger range; connections live on the loop of the process (`iterate`).

    No bookie is asked for columns that follow from what the broker said of the ledger.
    """
    if follows_from_place(split, columns):
        return rows_of_place(split, columns)

    async def rows() -> AsyncIterator[pa.RecordBatch]:
        async with (
            _connections.of(split.addresses) as ledgers,
            aclosing(ledger_rows(LedgerBatches(ledgers), split, columns)) as found,
        ):
            async for part in found:
                yield part

    return iterate(rows, BATCHES_AHEAD)
