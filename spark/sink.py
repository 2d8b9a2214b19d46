"""Spark's door for writes: `df.write.format("octavo")`, `df.writeStream.format("octavo")`.

At least once: a row whose task succeeded is acknowledged by the cluster, and a task or a batch
that Spark runs again writes its rows again. So `commit` and `abort` have nothing to do. Loaded by
`octavo.spark.source` when somebody writes; it loads the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from octavo.runtime.errors import ConfigError
from octavo.spark.live_writing import check_topic, produce
from octavo.spark.sink_options import SinkColumns, WriteOptions, sink_columns
from octavo.spark.worker_python import ImportedByWorkers


@dataclass
class Written(WriterCommitMessage, metaclass=ImportedByWorkers):
    """What a task tells of itself."""

    rows: int


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
        check_topic(options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of one task; it returns once all are acknowledged."""
        return Written(produce(iterator, self._options, self._columns))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: all rows are in the log."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what was written stays, as in Spark's Kafka sink."""


class OctavoStreamWriter(DataSourceStreamArrowWriter, metaclass=ImportedByWorkers):
    """The writer of a stream. Raises ConfigError before the first row."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._columns = columns_of(schema, options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of one task; it returns once all are acknowledged."""
        return Written(produce(iterator, self._options, self._columns))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: all rows are in the log."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what was written stays, and the batch is written again."""


def columns_of(schema: StructType, options: WriteOptions) -> SinkColumns:
    """What of a DataFrame is written; raises ConfigError."""
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return sink_columns(fields, options)
