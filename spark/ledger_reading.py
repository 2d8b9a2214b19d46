"""Rows straight from the bookies, for workers: loads the ledger client and nothing of the SDK.

Each worker process of Spark imports this anew, so what it does not load is saved for every task.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing

import pyarrow as pa

from octavo.client.segments.reader import DescribedLedgers
from octavo.client.segments.scan import scan, scan_headers
from octavo.proto.segments import Segment, StoredBatch, StoredHeader
from octavo.spark.loop_bridge import iterate
from octavo.spark.plan import FileSplit, LedgerSplit, Split
from octavo.spark.reading import (
    follows_from_place,
    ledger_rows,
    read_file_split,
    rows_of_place,
)
from octavo.spark.worker_connections import WorkerConnections

CLIENT_NAME = "octavo-scan"
BATCHES_AHEAD = 4
"""Record batches decoded ahead of Spark, each at most 32 MiB."""

_connections = WorkerConnections(CLIENT_NAME)
"""Of this process: a worker reads one split after another."""


class LedgerBatches:
    """`BatchSource` over the bookies of one cluster, all ledgers over the same connections."""

    def __init__(self, ledgers: DescribedLedgers) -> None:
        self.ledgers = ledgers

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """See `BatchSource.batches`."""
        reader = self.ledgers.open(segment)
        try:
            async with aclosing(scan(reader, segment, start_offset, visible_end)) as found:
                async for stored in found:
                    yield stored
        finally:
            await reader.close()

    async def headers(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[Sequence[StoredHeader], None]:
        """See `BatchSource.headers`."""
        reader = self.ledgers.open(segment)
        try:
            async with aclosing(scan_headers(reader, segment, start_offset, visible_end)) as found:
                async for some in found:
                    yield some
        finally:
            await reader.close()


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
