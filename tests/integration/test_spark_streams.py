"""`spark.readStream.format("octavo")` in a real Spark session: live and files (spec spark §8)."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from octavo.runtime.errors import InconsistentTopicId, OffsetOutOfRange, UnknownTopic
from octavo.spark import stream_live
from octavo.spark.export import export_topic
from octavo.spark.options import StreamOptions
from octavo.spark.stream_live import ClusterWorld
from octavo.spark.streaming import StreamPlanner
from octavo.testing import LocalCluster
from tests.integration.test_spark_live import Topic, offsets_of, topic_on
from tests.spark_memory import numbered
from tests.spark_stream_world import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.process

SCHEMA = "partition int, offset bigint, value binary"
QUERY_S = 240


@dataclass
class Query:
    """A stream of one topic into Parquet files, with a checkpoint: started again and again."""

    spark: SparkSession
    topic: Topic
    root: pathlib.Path
    given: dict[str, str]

    def start(self, *, now: bool = True, **more: Any) -> StreamingQuery:
        options = {"startingOffsets": "earliest", "subscribe": self.topic.name, **self.given}
        if "path" not in options:
            options["octavo.bootstrap.servers"] = self.topic.bootstrap
        reader = self.spark.readStream.format("octavo").schema(SCHEMA)
        frame = reader.options(**{**options, **more}).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.root / "out"))
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        writer = writer.trigger(availableNow=True) if now else writer
        return writer.start()

    def run(self, **more: Any) -> list[Any]:
        """To the end of what there is; the sources of each batch that had records."""
        query = self.start(**more)
        assert query.awaitTermination(QUERY_S)
        batches = [one for one in query.recentProgress if one.numInputRows]
        return [one.sources[0] for one in batches]

    def rows(self) -> list[tuple[int, int, bytes]]:
        found = self.spark.read.parquet(str(self.root / "out")).collect()
        return sorted((row.partition, row.offset, bytes(row.value)) for row in found)


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> Iterator[Topic]:
    yield from topic_on(shared_cluster)


def want(*ends: int) -> list[tuple[int, int, bytes]]:
    return [
        (partition, offset, b'{"n":%d}' % offset)
        for partition, end in enumerate(ends)
        for offset in range(end)
    ]


@pytest.mark.spark
def test_a_live_stream_goes_on_where_it_was(
    spark: SparkSession, topic: Topic, tmp_path: pathlib.Path
) -> None:
    """Limits, Kafka's JSON with the topic's id, a restart, a new partition."""
    query = Query(spark, topic, tmp_path, {"maxOffsetsPerTrigger": "150"})
    topic.produce(numbered(200))
    topic.produce(numbered(100), partition=1)
    batches = query.run()
    assert [one.numInputRows for one in batches] == [150, 150]
    end = json.loads(batches[0].endOffset)
    topic_id = topic.client.admin.describe_topic(topic.name).topic_id
    assert end == {topic.name: {"0": 100, "1": 50}, "@topicIds": {topic.name: topic_id}}
    topic.client.admin.create_partitions(topic.name, 3)
    topic.produce(numbered(50, 200))
    topic.produce(numbered(30), partition=2)
    (batch,) = query.run(startingOffsets="latest")  # counts for new queries only
    assert json.loads(batch.latestOffset)[topic.name] == {"0": 250, "1": 100, "2": 30}
    assert query.rows() == want(250, 100, 30)


@pytest.mark.spark
def test_a_running_stream_begins_at_the_end(
    spark: SparkSession, topic: Topic, tmp_path: pathlib.Path
) -> None:
    query = Query(spark, topic, tmp_path, {"startingOffsets": "latest"})
    topic.produce(numbered(20))
    running = query.start(now=False)
    try:
        running.processAllAvailable()
        topic.produce(numbered(80, 20))
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.rows() == want(100)[20:]


# --- the same on a cluster, without Spark --------------------------------------------------------


@dataclass
class Stream:
    """What Spark does with the planner, and reads in workers, here."""

    topic: Topic
    world: ClusterWorld
    engine: Engine

    def offsets(self, partition: int = 0) -> list[int]:
        return self.engine.delivered.get((self.topic.name, partition), [])

    def go_on(self) -> None:
        """Until an error ends it."""
        while True:
            self.engine.trigger()


@contextmanager
def stream_on(topic: Topic, **given: str) -> Generator[Stream]:
    options = {
        "octavo.bootstrap.servers": topic.bootstrap,
        "startingOffsets": "earliest",
        **({} if "subscribePattern" in given else {"subscribe": topic.name}),
        **given,
    }
    world = ClusterWorld(StreamOptions.parse(options).read)
    make = functools.partial(StreamPlanner, publish=world.publish)
    engine = Engine(world, make, lambda split: offsets_of([split]), **cast("Any", options))
    try:
        yield Stream(topic, world, engine)
    finally:
        world.close()
        world.close()


def test_what_is_trimmed_before_it_was_read(topic: Topic, tmp_path: pathlib.Path) -> None:
    """An error, a warning, or rows of exported files."""
    topic.produce(numbered(100))
    topic.roll()
    export_topic(topic.bootstrap, topic.name, tmp_path)
    topic.produce(numbered(100, 100))
    with stream_on(topic, maxOffsetsPerTrigger="50") as stream:
        stream.engine.trigger()
        assert topic.client.admin.delete_records(topic.name, 0, 80) == 80
        with pytest.raises(OffsetOutOfRange, match="offsets 50 to 79"):
            stream.engine.trigger()
    with stream_on(topic, maxBytesPerTrigger="300", failOnDataLoss="false") as stream:
        assert stream.engine.run_dry() > 2
        assert stream.offsets() == list(range(80, 200))
    with stream_on(topic, path=str(tmp_path)) as stream:
        stream.engine.run_dry()
        assert stream.offsets() == list(range(200))


def test_a_group_shows_where_the_stream_is(topic: Topic) -> None:
    """What `octavo group lag` asks for."""
    topic.produce(numbered(100))
    group = f"query-{topic.name}"
    with stream_on(topic, maxOffsetsPerTrigger="60", groupId=group) as stream:
        stream.engine.trigger()
        lag = topic.client.admin.group_lag(group)
        assert [(one.partition, one.committed, one.lag) for one in lag.partitions] == [
            (0, 0, 100),
            (1, 0, 0),
        ]
        stream.engine.planner.freeze()
        stream.engine.run_dry()
        lag = topic.client.admin.group_lag(group)
        assert [(one.committed, one.lag) for one in lag.partitions] == [(100, 0), (0, 0)]
        assert lag.members == 0


def test_topics_that_come_and_go(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern finds a new one; one that is gone, or another by now, is told at once."""
    monkeypatch.setattr(stream_live, "TOPICS_AGE_S", 0.1)
    prefix = f"{topic.name}-p"
    admin = topic.client.admin
    other = Topic(topic.client, topic.bootstrap, f"{prefix}1")
    topic = Topic(topic.client, topic.bootstrap, f"{prefix}0")
    admin.create_topic(topic.name)
    topic.produce(numbered(10))
    with stream_on(topic, subscribePattern=f"{prefix}.*") as stream:
        stream.engine.run_dry()
        admin.create_topic(other.name)
        other.produce(numbered(7))
        while not stream.engine.delivered.get((other.name, 0)):
            stream.engine.trigger()
        assert stream.offsets() == list(range(10))
        admin.delete_topic(other.name)
        with pytest.raises(UnknownTopic, match="of this stream"):
            stream.go_on()
        offsets = stream.engine.offsets
    admin.create_topic(other.name)
    other.produce(numbered(100))
    with stream_on(topic, subscribePattern=f"{prefix}.*") as stream:
        stream.engine.offsets, stream.engine.committed = offsets, len(offsets) - 1
        with pytest.raises(InconsistentTopicId, match=other.name):
            stream.engine.trigger()


def test_a_stream_outlives_its_broker(cluster: LocalCluster) -> None:
    for topic in topic_on(cluster, partitions=1):
        topic.produce(numbered(10))
        with stream_on(topic) as stream:
            stream.engine.run_dry()
            cluster.kill("broker-1")
            cluster.restart("broker-1")
            topic.produce(numbered(10, 10))
            while stream.offsets() != list(range(20)):
                stream.engine.trigger()
