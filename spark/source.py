"""Spark's door to Octavo: `format("octavo")` of reads, streams and writes.

Design.md §8, spec/spark.md §2, §7, §8.

Import-light on purpose: Spark imports this module in every Python worker, so pyarrow and the
clients are imported by the functions that use them.

`pushFilters` is not implemented and must not be: Spark 4.3.0 keeps pushed filters on an object
shared by all scans of a DataFrame and then returns wrong rows (spec/spark.md §3). Ranges are
options, columns are `.schema(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from octavo.client.exports.metadata_columns import METADATA_COLUMNS
from octavo.proto.kafka_schema import HEADERS, SQL_TYPES
from octavo.runtime.errors import ConfigError
from octavo.spark.options import ReadOptions, StreamOptions, wants_headers, wants_metadata
from octavo.spark.plan import CompactedSplit, FileSplit, compacted
from octavo.spark.sink_options import WriteOptions
from octavo.spark.worker_python import ImportedByWorkers

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.spark.plan import Split
    from octavo.spark.sink import OctavoStreamWriter, OctavoWriter
    from octavo.spark.streaming import Json, StreamPlanner

KAFKA_COLUMNS = {name: kind for name, kind in SQL_TYPES.items() if name != HEADERS}
HEADER_COLUMNS = {HEADERS: SQL_TYPES[HEADERS]}
_ALL = {**KAFKA_COLUMNS, **HEADER_COLUMNS, **METADATA_COLUMNS}
_BY_LOWER = {name.lower(): name for name in _ALL}


class OctavoSource(DataSource, metaclass=ImportedByWorkers):
    """A topic as a table: of a live cluster, of an exported tree, or of both."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "octavo"

    def schema(self) -> str:
        """The Kafka source's columns; headers and metadata only when asked for."""
        columns = dict(KAFKA_COLUMNS)
        if wants_headers(self.options):
            columns.update(HEADER_COLUMNS)
        if wants_metadata(self.options):
            columns.update(METADATA_COLUMNS)
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> OctavoReader:
        """A batch reader for all or, with `.schema(...)`, some of the columns."""
        return OctavoReader(schema, ReadOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> OctavoWriter:
        """Of a batch: what is wrong with it is raised before the first row."""
        from octavo.spark.sink import (
            OctavoWriter,
        )  # loads the SDK, which reads of files do not need

        return OctavoWriter(schema, WriteOptions.parse(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> OctavoStreamWriter:
        """Of a stream; `overwrite` is Spark's output mode complete."""
        from octavo.spark.sink import OctavoStreamWriter  # loads the SDK

        return OctavoStreamWriter(schema, WriteOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> OctavoStreamReader:  # Spark's name
        """A reader for one streaming query."""
        return OctavoStreamReader(schema, StreamOptions.parse(self.options))


class _Projection:
    """The columns that were asked for, and how to read them from a split."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._names = tuple(field.name for field in schema.fields)
        self._columns = tuple(_known_column(schema, name, options) for name in self._names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow record batches of one split; nothing for the sentinel of an empty plan."""
        split: Split | CompactedSplit | None = partition.value
        if split is None:
            return
        for rows in _read_any(split, self._columns):
            yield rows if self._names == self._columns else rows.rename_columns(list(self._names))


class OctavoReader(DataSourceReader, metaclass=ImportedByWorkers):
    """Plans once per `load()`; the DataFrame stays a snapshot of that moment."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._projection = _Projection(schema, options)

    def partitions(self) -> list[InputPartition]:
        """One Spark partition per split."""
        splits = _plan(self._options)
        if self._options.compacted:
            return _partitions(compacted(splits, self._options))
        return _partitions(splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow record batches of one split."""
        return self._projection.read(partition)


class OctavoStreamReader(
    DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=ImportedByWorkers
):
    """One streaming query: lives in a process of its own beside the driver, `read` in workers.

    What Spark asks is answered by `octavo.spark.streaming`, made at the first question: Spark
    sends this object to its workers before, and it must hold no connection then.
    """

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        self._options = options
        self._projection = _Projection(schema, options.read)
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> Json:
        """Where a new query begins."""
        return self._asked().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that there is a limit; which one counts the planner knows (§7)."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is not for this query."""
        self._asked().freeze()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch; `start` when nothing waits."""
        return self._asked().latest(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> Json | None:
        """What there is, for the progress of the query."""
        return self._asked().reported()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """One Spark partition per split of a batch."""
        return _partitions(self._asked().splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow record batches of one split."""
        return self._projection.read(partition)

    def stop(self) -> None:
        """Close what the query has open; Spark does not always call it, nothing depends on it."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _asked(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = _stream_planner(self._options)
        return self._planner


def _partitions(splits: Sequence[Split | CompactedSplit]) -> list[InputPartition]:
    # An empty list would become one InputPartition(None) behind our back; say it ourselves.
    return [InputPartition(split) for split in splits] or [InputPartition(None)]


def _stream_planner(options: StreamOptions) -> StreamPlanner:
    if options.read.bootstrap is None:
        from octavo.spark.streaming import plan_stream_of_files  # import-light, see above

        return plan_stream_of_files(options)
    from octavo.spark.stream_live import plan_stream  # loads gRPC, which files do not need

    return plan_stream(options)


def _plan(options: ReadOptions) -> list[Split]:
    if options.bootstrap is None:
        from octavo.spark.reading import plan_files  # import-light, see above

        return plan_files(options)
    from octavo.spark.live_reading import plan_cluster  # loads gRPC, which files do not need

    return plan_cluster(options)


def _read_any(split: Split | CompactedSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if isinstance(split, CompactedSplit):
        from octavo.spark.last_rows import read_compacted  # import-light, see above

        return read_compacted(split, columns, _read)
    return _read(split, columns)


def _read(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if isinstance(split, FileSplit):
        from octavo.spark.reading import read_file_split  # import-light, see above

        return read_file_split(split, columns)
    from octavo.spark.ledger_reading import read_ledger_split  # loads the ledger client

    return read_ledger_split(split, columns)


def _known_column(schema: StructType, name: str, options: ReadOptions) -> str:
    """Our column behind a name in `.schema(...)`; raises ConfigError for others and wrong types."""
    column = _BY_LOWER.get(name.lower())
    if column is None:
        raise ConfigError(
            f"column {name!r} of .schema(...) does not exist",
            hint=f"columns are {', '.join(_ALL)}",
            option="schema",
        )
    kind = schema[name].dataType.simpleString()
    if kind != _ALL[column]:
        raise ConfigError(
            f"column {name!r} of .schema(...) is {_ALL[column]}, not {kind}", option="schema"
        )
    if column in METADATA_COLUMNS and options.path is not None:
        raise ConfigError(
            f"column {name!r} is not part of exported files",
            hint="read it from the cluster: drop the option path",
            option="schema",
        )
    return column
