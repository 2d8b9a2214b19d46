"""The live route: a real cluster, exported and read with and without Spark (design.md §8, P13)."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from octavo import Client, Record
from octavo.client.exports.manifest import Manifest
from octavo.client.exports.tree import LocalTree
from octavo.errors import BrokerUnavailable, UnknownTopic
from octavo.spark import live
from octavo.spark.export import export_topic
from octavo.spark.live_reading import plan_cluster, read_split
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit, Split
from octavo.spark.reading import plan_files, read_file_split
from octavo.testing import LocalCluster
from tests.spark_memory import ODD_ROWS, Row, ints, numbered, rows_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.process

EXPORTED = ("key", "value", "offset", "timestamp", "headers")


@dataclass
class Topic:
    """A topic of one test on a running cluster."""

    client: Client
    bootstrap: str
    name: str

    def produce(self, rows: list[Row], partition: int = 0) -> None:
        with self.client.producer() as producer:
            futures = [
                producer.send_nowait(
                    self.name,
                    row.value,
                    key=row.key,
                    partition=partition,
                    headers=list(row.headers),
                    timestamp_ms=row.timestamp_ms,
                )
                for row in rows
            ]
            for future in futures:
                future.result(timeout=60)

    def roll(self) -> None:
        for part in self.client.admin.describe_topic(self.name).partitions:
            self.client.admin.roll(self.name, part.partition)

    def drained(self, partition: int) -> dict[int, Row]:
        """What a consumer reads."""

        def row(record: Record) -> Row:
            return Row(record.key, record.value, tuple(record.headers), record.timestamp_ms)

        with self.client.reader(self.name, start="earliest", partitions=[partition]) as reader:
            return {record.offset: row(record) for record in reader.read_to_end()}

    def options(self, **given: str) -> ReadOptions:
        common = {"octavo.bootstrap.servers": self.bootstrap, "subscribe": self.name}
        return ReadOptions.parse({**common, **given})

    def load(self, spark: SparkSession, schema: str | None = None, **given: str) -> DataFrame:
        reader = spark.read.format("octavo").option("octavo.bootstrap.servers", self.bootstrap)
        for name, value in {"subscribe": self.name, **given}.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()


def topic_on(cluster: LocalCluster, partitions: int = 2) -> Iterator[Topic]:
    with Client(cluster.bootstrap_servers) as client:
        name = f"t-{uuid.uuid4().hex[:8]}"
        client.admin.create_topic(name, partitions=partitions)
        yield Topic(client, cluster.bootstrap_servers, name)


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> Iterator[Topic]:
    yield from topic_on(shared_cluster)


def read_all(options: ReadOptions) -> dict[int, dict[int, Row]]:
    """Rows by partition and offset, read here as a worker would."""
    found: dict[int, dict[int, Row]] = {}
    for split in plan_cluster(options):
        for rows in read_split(split, EXPORTED):
            mine = found.setdefault(split.partition, {})
            assert not mine.keys() & set(ints(rows, "offset"))
            mine.update(rows_back(rows))
    return found


def test_live_read_equals_what_a_consumer_reads(topic: Topic) -> None:
    """Closed ledgers from the bookies, the open tail by LAC; null keys, tombstones, 1 MiB."""
    topic.produce([*ODD_ROWS, *numbered(300)])
    topic.roll()
    topic.produce(numbered(200, 300))
    topic.produce(numbered(50), partition=1)
    plan = plan_cluster(topic.options())
    assert [isinstance(s, LedgerSplit) and s.segment.closed for s in plan] == [True, False, False]
    got = read_all(topic.options())
    assert got == {0: topic.drained(0), 1: topic.drained(1)}
    assert list(got[0].values())[: len(ODD_ROWS)] == ODD_ROWS
    assert len(got[0]) == len(ODD_ROWS) + 500


def test_p13_export_equals_the_drained_log_and_is_byte_stable(
    topic: Topic, tmp_path: pathlib.Path
) -> None:
    for n in range(3):
        topic.produce([*ODD_ROWS, *numbered(500, 500 * n)], partition=n % 2)
        topic.roll()
    first = export_topic(topic.bootstrap, topic.name, tmp_path / "a")
    second = export_topic(topic.bootstrap, topic.name, tmp_path / "b", codec="zstd")
    assert first.files == second.files
    for name in first.files:
        files = [(tmp_path / folder / topic.name / name).read_bytes() for folder in ("a", "b")]
        assert files[0] == files[1]
    exported: dict[int, dict[int, Row]] = {}
    options = ReadOptions.parse({"path": str(tmp_path / "a"), "subscribe": topic.name})
    for partition, rows in read_from_files(options).items():
        exported[partition] = rows
    assert exported == {0: topic.drained(0), 1: topic.drained(1)}


def read_from_files(options: ReadOptions) -> dict[int, dict[int, Row]]:
    found: dict[int, dict[int, Row]] = {}
    for split in plan_files(options):
        assert isinstance(split, FileSplit)
        for rows in read_file_split(split, EXPORTED):
            found.setdefault(split.partition, {}).update(rows_back(rows))
    return found


def test_export_again_takes_only_what_is_new(topic: Topic, tmp_path: pathlib.Path) -> None:
    topic.produce(numbered(100))
    topic.roll()
    assert export_topic(topic.bootstrap, topic.name, tmp_path).rows == 100
    again = export_topic(topic.bootstrap, topic.name, tmp_path)
    assert (again.rows, again.files) == (0, ())
    topic.produce(numbered(60, 100))
    before_roll = export_topic(topic.bootstrap, topic.name, tmp_path)
    assert before_roll.rows == 0
    assert before_roll.open_ledgers >= 1
    topic.roll()
    assert export_topic(topic.bootstrap, topic.name, tmp_path).rows == 60
    state = Manifest(LocalTree(tmp_path), topic.name).load()
    assert state.next_offset(0) == 160


def test_exported_offsets_come_from_files_and_the_rest_from_bookies(
    topic: Topic, tmp_path: pathlib.Path
) -> None:
    topic.produce(numbered(100))
    topic.roll()
    export_topic(topic.bootstrap, topic.name, tmp_path)
    topic.produce(numbered(70, 100))
    topic.roll()
    topic.produce(numbered(30, 170))
    options = topic.options(path=str(tmp_path))
    plan = plan_cluster(options)
    assert [type(split) for split in plan] == [FileSplit, LedgerSplit, LedgerSplit]
    assert read_all(options)[0] == topic.drained(0)


def test_ranges_enter_ledgers_in_the_middle(topic: Topic) -> None:
    base_ms = 1_700_000_000_000
    topic.produce(numbered(2000, timestamp_ms=base_ms))
    topic.roll()
    topic.produce(numbered(1000, 2000, timestamp_ms=base_ms))
    spans = {
        (0, 3000): {},
        (1990, 2010): {
            "startingOffsets": f'{{"{topic.name}":{{"0":1990,"1":0}}}}',
            "endingOffsets": f'{{"{topic.name}":{{"0":2010}}}}',
        },
        (1500, 2500): {
            "startingOffsetsByTimestamp": f'{{"{topic.name}":{{"0":{base_ms + 1500}}}}}',
            "endingOffsetsByTimestamp": f'{{"{topic.name}":{{"0":{base_ms + 2500}}}}}',
        },
        (0, 2999): {"minPartitions": "7", "endingTimestamp": f"{base_ms + 2999}"},
    }
    for (first, end), given in spans.items():
        got = read_all(topic.options(**given))
        assert list(got[0]) == list(range(first, end))
    assert len(plan_cluster(topic.options(minPartitions="7"))) == 7


def test_workers_need_neither_the_broker_nor_every_bookie(cluster: LocalCluster) -> None:
    """After planning, the broker and one bookie of three die; rows still come, all of them."""
    plan: list[Split] = []
    for topic in topic_on(cluster, partitions=1):
        topic.produce(numbered(500))
        topic.roll()
        topic.produce(numbered(100, 500))
        plan = plan_cluster(topic.options())
        # Read once: a broker that died before it told the bookies the LAC of its last entries
        # leaves them unconfirmed until they are recovered (RD-6).
        assert offsets_of(plan) == list(range(600))
        assert all(split.dense for split in plan)  # ADR 72: whoever only counts asks nobody
        told = [rows.num_rows for split in plan for rows in read_split(split, ("partition",))]
        assert sum(told) == 600
    cluster.kill("broker-1")
    cluster.kill("bookie-2")
    assert offsets_of(plan) == list(range(600))


def offsets_of(plan: list[Split]) -> list[int]:
    return [
        offset
        for split in plan
        for rows in read_split(split, ("value", "offset"))
        for offset in ints(rows, "offset")
    ]


def test_unknown_topic_and_unreachable_cluster_are_typed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CONNECT_TIMEOUT_S", 1.0)
    with pytest.raises(UnknownTopic):
        plan_cluster(topic.options(subscribe="nowhere"))
    nobody = ReadOptions.parse({"octavo.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        plan_cluster(nobody)


# --- with Spark --------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_the_live_topic(spark: SparkSession, topic: Topic) -> None:
    topic.produce([*ODD_ROWS, *numbered(3000)])
    topic.roll()
    topic.produce(numbered(500), partition=1)
    frame = topic.load(spark, includeHeaders="true").orderBy("partition", "offset")
    rows = frame.collect()
    assert [(row.partition, row.offset) for row in rows] == [
        *((0, offset) for offset in range(3000 + len(ODD_ROWS))),
        *((1, offset) for offset in range(500)),
    ]
    for got, want in zip(rows, ODD_ROWS, strict=False):
        assert (got.key, got.value) == (want.key, want.value)
        assert [(h.key, h.value) for h in got.headers or ()] == list(want.headers)


@pytest.mark.spark
def test_spark_frame_is_a_snapshot_of_the_live_topic(spark: SparkSession, topic: Topic) -> None:
    """Records appended after load() are seen by a new load() only, whatever happens to ledgers."""
    topic.produce(numbered(100))
    frame = topic.load(spark, "partition int, offset bigint")
    assert frame.count() == 100
    topic.produce(numbered(50, 100))
    assert frame.count() == 100
    topic.roll()
    assert frame.count() == 100
    assert topic.load(spark, "offset bigint").count() == 150


@pytest.mark.spark
def test_spark_metadata_columns_of_the_live_topic(spark: SparkSession, topic: Topic) -> None:
    topic.produce(numbered(20))
    topic.roll()
    topic.produce(numbered(20, 20))
    rows = topic.load(spark, includeMetadata="true").orderBy("offset").collect()
    assert len({row.ledgerId for row in rows}) == 2
    assert [row.sequence for row in rows[:20]] == list(range(20))
    assert all(row.entryId >= 1 and row.producer for row in rows)
    places = [(row.ledgerId, row.entryId, row.batchIndex) for row in rows]
    assert places == sorted(set(places))


@pytest.mark.spark
def test_spark_joins_files_and_the_live_tail(
    spark: SparkSession, topic: Topic, tmp_path: pathlib.Path
) -> None:
    topic.produce(numbered(1000))
    topic.roll()
    export_topic(topic.bootstrap, topic.name, tmp_path)
    topic.produce(numbered(500, 1000))
    frame = topic.load(spark, "offset bigint, value binary", path=str(tmp_path))
    assert frame.count() == 1500
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(1500))


@pytest.mark.spark
def test_spark_empty_live_topic(spark: SparkSession, topic: Topic) -> None:
    assert topic.load(spark).count() == 0


@pytest.mark.spark
def test_spark_errors_of_the_live_route(spark: SparkSession, topic: Topic) -> None:
    for given, text in (
        ({"subscribe": "nowhere"}, "UNKNOWN_TOPIC"),
        ({"startingOffsets": f'{{"{topic.name}":{{"0":77}}}}'}, "offset 77"),
    ):
        with pytest.raises(PySparkException) as caught:
            topic.load(spark, **given).count()
        assert text in str(caught.value)
