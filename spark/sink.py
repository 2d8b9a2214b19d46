"""Spark's door for writes: `df.write.format("octavo")`, `df.writeStream.format("octavo")`.

Streams, and batches with a `txnId`, add each batch once (`exactly_once`): tasks stage, `commit`
decides and publishes. Else a write adds its rows at least once: a row whose task succeeded is in
the log, and what Spark runs again is written again. Loaded by `octavo.spark.source` when somebody
writes; it loads the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from octavo.runtime.errors import ConfigError, IllegalStateError
from octavo.spark.exactly_once import commit
from octavo.spark.live_writing import check_topic, produce
from octavo.spark.sink_options import SinkColumns, WriteOptions, sink_columns
from octavo.spark.staging import Batch, Staged, stage
from octavo.spark.worker_python import ImportedByWorkers

ONLY_BATCH = 0
"""The number of a transaction's one batch."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

Messages = Sequence[WriterCommitMessage | None]


@dataclass
class Written(WriterCommitMessage, metaclass=ImportedByWorkers):
    """What a task tells of itself."""

    rows: int
    sink_id: str = ""
    """Of an exactly-once write."""
    staged: Staged | None = None


class OctavoWriter(DataSourceArrowWriter, metaclass=ImportedByWorkers):
    """A batch write. Raises ConfigError, BrokerUnavailable, UnknownTopic before the first row."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                "a topic cannot be overwritten",
                hint='records are appended: .mode("append")',
                option="mode",
            )
        self._options = options
        self._columns = columns_of(schema, options)
        self._batch: Batch | None = None
        if options.is_exactly_once(streaming=False):
            self._batch = Batch(f"txn/{options.txn_id}", ONLY_BATCH)
        check_topic(options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send or stage the rows of one task; it returns once all are durable."""
        if self._batch is None:
            return Written(produce(iterator, self._options, self._columns))
        staged = stage(iterator, self._options, self._columns, self._batch)
        return Written(staged.rows, self._batch.sink_id, staged)

    def commit(self, messages: Messages) -> None:
        """Publish what was staged; at least once there is nothing to do."""
        if self._batch is not None:
            commit(self._options, self._batch, _staged(messages), is_last=True)

    def abort(self, messages: Messages) -> None:
        """Nothing: what was sent at least once stays, what was staged is seen by nobody and goes
        when the transaction is run again."""


class OctavoStreamWriter(DataSourceStreamArrowWriter, metaclass=ImportedByWorkers):
    """The writer of a stream. Raises ConfigError before the first row."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._columns = columns_of(schema, options)
        self._exactly_once = options.is_exactly_once(streaming=True)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send or stage the rows of one task; it returns once all are durable."""
        if not self._exactly_once:
            return Written(produce(iterator, self._options, self._columns))
        batch = _batch_of_task()
        staged = stage(iterator, self._options, self._columns, batch)
        return Written(staged.rows, batch.sink_id, staged)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publish what was staged; at least once there is nothing to do."""
        if not self._exactly_once:
            return
        sinks = {message.sink_id for message in messages if isinstance(message, Written)}
        if not sinks:
            return  # no task, no row
        (sink_id,) = sinks
        commit(self._options, Batch(sink_id, batchId), _staged(messages), is_last=False)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Nothing: what was sent at least once stays, what was staged is seen by nobody and goes
        with the next batch that is published."""


def columns_of(schema: StructType, options: WriteOptions) -> SinkColumns:
    """What of a DataFrame is written; raises ConfigError."""
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return sink_columns(fields, options)


def _batch_of_task() -> Batch:
    """Which batch of which query a task of Spark works on; the id lives in its checkpoint."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    number = None if context is None else context.getLocalProperty(_BATCH_ID)
    if not query_id or number is None:
        raise IllegalStateError(
            "Spark does not tell this task its query and batch, so it cannot be written once",
            hint='.option("delivery", "at-least-once") does without them',
        )
    return Batch(f"query/{query_id}", int(number))


def _staged(messages: Messages) -> list[Staged]:
    found: list[Staged] = []
    for message in messages:
        if not isinstance(message, Written) or message.staged is None:
            raise IllegalStateError("a task that Spark commits did not say what it staged")
        found.append(message.staged)
    return found
