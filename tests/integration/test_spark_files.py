"""`spark.read.format("octavo")` over exported files, in a real Spark session (spec spark §14.2)."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from octavo.client.exports.columns import arrow_schema
from octavo.client.exports.metadata_columns import METADATA_COLUMNS
from octavo.client.exports.run import export_log
from octavo.spark.source import (
    HEADER_COLUMNS,
    KAFKA_COLUMNS,
    OctavoReader,
)
from tests.spark_damage import FORMATS, DamagedExport
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KAFKA = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


class Lake:
    """An exported tree and the rows that went into it."""

    def __init__(self, spark: SparkSession, root: pathlib.Path) -> None:
        self.spark = spark
        self.root = root
        self.topics: dict[str, MemoryTopic] = {}

    def export(self, topic: MemoryTopic, fmt: str = "arrow") -> None:
        self.topics[topic.topic] = topic
        asyncio.run(export_log(topic, topic.topic, self.root, fmt=fmt))

    def load(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("octavo").option("path", str(self.root))
        if not {"subscribe", "subscribePattern", "assign"} & options.keys():
            options["subscribe"] = "orders"
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: pathlib.Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    """Rows as tuples, binaries as bytes."""

    def plain(value: object) -> object:
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, list):
            items = cast("list[tuple[object, ...]]", value)
            return [tuple(plain(part) for part in item) for item in items]
        return value

    rows = cast("list[tuple[object, ...]]", frame.collect())
    return [tuple(plain(value) for value in row) for row in rows]


def want(topic: MemoryTopic, partition: int) -> list[tuple[object, ...]]:
    return [
        (row.key, row.value, topic.topic, partition, offset, stamp(row), 0)
        for offset, row in topic.rows[partition].items()
    ]


def stamp(row: Row) -> datetime:
    at = datetime.fromtimestamp(row.timestamp_ms / 1000, UTC)
    return at.astimezone().replace(tzinfo=None)  # collect() gives local time


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.collect())


def span(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def failure(frame_of: object) -> str:
    with pytest.raises(PySparkException) as caught:
        frame_of()  # type: ignore[operator]
    return str(caught.value)


@pytest.fixture
def orders(lake: Lake) -> MemoryTopic:
    """Two partitions with rows in several files, one empty partition."""
    topic = MemoryTopic(partitions=3)
    topic.append([numbered(1000, timestamp_ms=1_700_000_000_000)])
    topic.append([numbered(500)], partition=1)
    lake.export(topic)
    topic.append([numbered(1000, 1000, timestamp_ms=1_700_000_000_000)])
    lake.export(topic)
    return topic


def test_spark_and_arrow_schema_are_exactly_the_same(spark: SparkSession) -> None:
    """Spark refuses a first batch whose schema differs in anything (spec §2)."""
    columns = {**KAFKA_COLUMNS, **HEADER_COLUMNS, **METADATA_COLUMNS}
    ddl = StructType.fromDDL(", ".join(f"{name} {kind}" for name, kind in columns.items()))
    assert isinstance(ddl, StructType)
    assert to_arrow_schema(ddl, timezone="UTC").equals(arrow_schema(list(columns)))


def test_read_equals_produced_rows(lake: Lake) -> None:
    """Null keys, tombstones, empty bytes, a value of 1 MiB; the format needs no registration."""
    topic = MemoryTopic(partitions=2)
    topic.append([ODD_ROWS, numbered(3)])
    topic.append([numbered(10)], partition=1)
    lake.export(topic)
    frame = lake.load()
    assert frame.columns == KAFKA
    got = sorted(rows_of(frame), key=lambda row: cast("tuple[int, int]", row[3:5]))
    assert got == want(topic, 0) + want(topic, 1)


def test_headers_keep_order_duplicates_and_nulls(lake: Lake) -> None:
    topic = MemoryTopic()
    topic.append([ODD_ROWS])
    lake.export(topic)
    frame = lake.load(includeHeaders="true")
    assert frame.columns == [*KAFKA, "headers"]
    got = rows_of(frame.select("offset", "headers").orderBy("offset"))
    assert got[4] == (4, [("a", b"1"), ("a", b"2"), ("b", None)])
    assert [row[1] for row in got if row[0] != 4] == [None] * (len(ODD_ROWS) - 1)


def test_parquet_tree_reads_the_same(lake: Lake) -> None:
    topic = MemoryTopic()
    topic.append([ODD_ROWS, numbered(9000)])
    lake.export(topic, fmt="parquet")
    frame = lake.load(includeHeaders="true", startingOffsets='{"orders":{"0":4}}')
    assert frame.count() == 9000 + len(ODD_ROWS) - 4
    assert rows_of(frame.where("offset = 4").select("headers"))[0][0] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", None),
    ]
    native = lake.spark.read.parquet(str(lake.root / "orders"))
    assert native.count() == 9000 + len(ODD_ROWS)


def test_empty_topic_is_an_empty_frame(lake: Lake) -> None:
    """An empty plan must not become InputPartition(None) with rows of nowhere (spec §2)."""
    lake.export(MemoryTopic())
    assert lake.load().count() == 0
    assert lake.load(subscribePattern="nothing.*").collect() == []


def test_projection_by_schema(lake: Lake, orders: MemoryTopic) -> None:
    frame = lake.load("offset bigint, KEY binary")
    assert frame.columns == ["offset", "KEY"]
    got = sorted(rows_of(frame.where("offset >= 1995")))
    assert got == [(offset, orders.rows[0][offset].key) for offset in range(1995, 2000)]
    assert "headers" in lake.load("headers array<struct<key:string,value:binary>>").columns


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("offsett bigint", "'offsett'"),
        ("offset int", "bigint, not int"),
        ("ledgerId bigint", "not part of exported files"),
    ],
)
def test_projection_of_unknown_columns(
    lake: Lake, orders: MemoryTopic, schema: str, text: str
) -> None:
    assert text in failure(lambda: lake.load(schema).count())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, span(0, 0, 2000) + span(1, 0, 500)),
        (
            {
                "startingOffsets": '{"orders":{"0":990,"1":-2}}',
                "endingOffsets": '{"orders":{"0":1010}}',
            },
            span(0, 990, 1010) + span(1, 0, 500),
        ),
        ({"STARTINGOFFSETS": '{"orders":{"0":1999,"1":500}}'}, span(0, 1999, 2000)),
        ({"assign": '{"orders":[1,2]}'}, span(1, 0, 500)),
        ({"subscribePattern": "ord.*", "endingOffsets": '{"orders":{"0":0,"1":3}}'}, span(1, 0, 3)),
        (
            {"startingTimestamp": "1700000001990", "startingOffsetsByTimestampStrategy": "latest"},
            span(0, 1990, 2000),
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":1700000000500,"1":0}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":1700000000502,"1":1700000000001}}',
            },
            span(0, 500, 502) + span(1, 0, 1),
        ),
    ],
)
def test_ranges(
    lake: Lake, orders: MemoryTopic, given: dict[str, str], expected: Sequence[tuple[int, int]]
) -> None:
    assert offsets(lake.load("partition int, offset bigint", **given)) == list(expected)


def test_partition_counts(lake: Lake, orders: MemoryTopic) -> None:
    assert lake.load().rdd.getNumPartitions() == 3  # one per file
    assert lake.load(minPartitions="10").rdd.getNumPartitions() == 10
    cut = lake.load("partition int, offset bigint", maxRecordsPerPartition="300")
    assert cut.rdd.getNumPartitions() == 4 + 4 + 2
    assert offsets(cut) == span(0, 0, 2000) + span(1, 0, 500)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"startingOffsets": '{"orders":{"0":2001}}'}, ["OFFSET_OUT_OF_RANGE", "offset 2001"]),
        ({"startingOffsets": "latest"}, ["CONFIG", "startingOffsets"]),
        ({"startingOffset": "earliest"}, ["CONFIG", "did you mean 'startingOffsets'"]),
        ({"subscribe": "nowhere"}, ["UNKNOWN_TOPIC", "nowhere", "octavo export"]),
        ({"includeMetadata": "true"}, ["CONFIG", "includeMetadata"]),
        ({"startingTimestamp": "1900000000000"}, ["OFFSET_OUT_OF_RANGE", "1900000000000"]),
        ({"subscribe": "orders", "assign": '{"orders":[0]}'}, ["CONFIG", "exactly one"]),
        ({"path": "s3a://bucket/lake"}, ["CONFIG", "write s3://"]),
    ],
)
def test_errors_name_what_is_wrong(
    lake: Lake, orders: MemoryTopic, given: dict[str, str], texts: list[str]
) -> None:
    said = failure(lambda: lake.load(**given).count())
    for text in texts:
        assert text in said


def test_p8_a_damaged_file_fails_the_query_and_is_named(lake: Lake, orders: MemoryTopic) -> None:
    """Never wrong or fewer rows; a query that does not touch the file still answers."""
    harmed = sorted((lake.root / "orders").glob("p00000-*"))[0]
    data = bytearray(harmed.read_bytes())
    data[len(data) // 2] ^= 0x04
    harmed.write_bytes(bytes(data))
    said = failure(lambda: lake.load().count())
    assert "STORAGE_FAILED" in said
    assert harmed.name in said
    assert lake.load(assign='{"orders":[1]}').count() == 500


@pytest.mark.parametrize(("fmt", "codec"), FORMATS)
def test_p8_damage_gives_right_rows_or_an_error_that_names_the_file(
    spark: SparkSession, tmp_path: pathlib.Path, fmt: str, codec: str
) -> None:
    """The short form of `make soak-export`."""
    export = DamagedExport(spark, tmp_path / "lake", fmt, codec)
    export.run(flip_count=8, cut_count=4)
    assert not export.faults()
    assert export.seen["refused"] > 6


def test_a_data_frame_is_a_snapshot(lake: Lake, orders: MemoryTopic) -> None:
    """Files published later are seen by a new load() only; every action repeats the same read."""
    frame = lake.load()
    assert frame.count() == 2500
    orders.append([numbered(7)], partition=2)
    lake.export(orders)
    assert frame.count() == 2500
    assert lake.load().count() == 2507


def test_folder_of_one_topic_is_explained(lake: Lake, orders: MemoryTopic) -> None:
    said = failure(lambda: lake.load(path=str(lake.root / "orders")).count())
    assert "folder of one topic" in said


def test_sql_sees_the_same_rows(lake: Lake, orders: MemoryTopic) -> None:
    lake.load().createOrReplaceTempView("t")
    (row,) = lake.spark.sql(
        "select count(*) n, count(distinct partition, offset) d, max(offset) m from t"
    ).collect()
    assert (row.n, row.d, row.m) == (2500, 2500, 1999)


def test_filters_of_one_scan_do_not_reach_another(lake: Lake, orders: MemoryTopic) -> None:
    """Our answer to the leak below: filters stay with Spark, results stay right."""
    frame = lake.load()
    assert "pushFilters" not in vars(OctavoReader)
    assert OctavoReader.pushFilters is DataSourceReader.pushFilters
    assert frame.where("partition = 1").count() == 500
    assert frame.count() == 2500
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert both.count() == 2500
