"""What Spark asks of a stream's reader, and what a group is told of it (spec spark §2, §3, §7)."""

from __future__ import annotations

import asyncio
import functools
import pathlib
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import LongType, StructField, StructType

from octavo.client.exports.run import export_log
from octavo.runtime.errors import BrokerUnavailable, OctavoError
from octavo.runtime.errors_of_groups import NonEmptyGroup
from octavo.spark.options import TOPIC_IDS
from octavo.spark.positions import Positions
from octavo.spark.source import OctavoSource, OctavoStreamReader
from octavo.spark.streaming import StreamPlanner
from tests.spark_memory import MemoryTopic, ints, numbered
from tests.spark_stream_world import Engine, StreamTopics, world

# --- progress as that of a group -----------------------------------------------------------------


class Told:
    """What a group was told, or why it refuses."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.refusal: OctavoError | None = None
        self.asked = 0

    def publish(self, group: str, positions: Positions) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        assert group == "g"
        self.positions.append(positions.next_offsets["orders"][0])

    def engine(self, topics: StreamTopics, **given: str) -> Engine:
        make = functools.partial(StreamPlanner, publish=self.publish)
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30", "groupId": "g"}
        return Engine(topics, make, **cast("Any", {**options, **given}))


def test_a_group_shows_what_is_committed_once_a_second() -> None:
    """Spark asks for the next batch once the one before is committed: never ahead of it."""
    told, topics = Told(), world(orders=100)
    engine = told.engine(topics)
    engine.trigger()
    assert told.positions == [0]  # known before the first batch ends
    engine.trigger()
    engine.clock.advance(1.0)
    engine.trigger()
    assert told.positions == [0, 60]
    engine.clock.advance(1.0)
    engine.run_dry()
    assert told.positions == [0, 60, 90]
    engine.clock.advance(1.0)
    engine.trigger()
    engine.trigger()
    assert told.positions == [0, 60, 90, 100]
    assert told.asked == 4


def test_the_end_of_available_now_is_told_at_once() -> None:
    """Spark commits nothing for the last batch of such a run, and stops (§3)."""
    told = Told()
    engine = told.engine(world(orders=100))
    engine.planner.freeze()
    engine.run_dry()
    assert told.positions == [0, 100]


def test_a_group_that_cannot_be_told_now_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    told.refusal = BrokerUnavailable("nobody is there")
    engine = told.engine(world(orders=100))
    engine.trigger()
    engine.trigger()
    assert (told.asked, caplog.text.count("nobody is there")) == (1, 1)
    told.refusal = None
    engine.clock.advance(1.0)
    engine.trigger()
    told.refusal = NonEmptyGroup("somebody joined")
    engine.clock.advance(1.0)
    engine.trigger()
    assert "somebody joined" in caplog.text
    assert told.positions == [60]
    assert engine.delivered == {("orders", 0): list(range(100))}


def test_a_group_is_not_told_of_topics_that_are_gone() -> None:
    """Their offsets stay in the checkpoint; a coordinator refuses them."""
    shown: list[Positions] = []

    class Shown(Told):
        def publish(self, group: str, positions: Positions) -> None:
            shown.append(positions)

    topics = world(orders=10, ordinary=10)
    engine = Shown().engine(topics, subscribePattern="ord.*", failOnDataLoss="false")
    engine.run_dry()
    del topics.topics["ordinary"]
    engine.clock.advance(1.0)
    engine.trigger()
    assert shown[-1].next_offsets == {"orders": {0: 10}}
    assert shown[-1].topic_ids.keys() == {"orders"}
    assert engine.position["ordinary"] == {"0": 10}


def test_a_group_that_has_members_from_the_start_ends_the_query() -> None:
    told = Told()
    told.refusal = NonEmptyGroup("group 'g' has 2 members")
    with pytest.raises(NonEmptyGroup):
        told.engine(world(orders=100)).trigger()


# --- what Spark calls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "9"}, ReadMaxBytes(9)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
    ],
)
def test_spark_is_told_that_there_is_a_limit(given: dict[str, str], limit: ReadLimit) -> None:
    """Else it would ask with ReadAllAvailable, which means Trigger.Once."""
    assert stream_of("lake", **given).getDefaultReadLimit() == limit


def test_sparks_questions_over_exported_files(tmp_path: pathlib.Path) -> None:
    """Each export is news; AvailableNow stops at what there was; a closed reader holds nothing."""
    topic = MemoryTopic()
    topic.append([numbered(100)])
    asyncio.run(export_log(topic, "orders", tmp_path))
    reader = stream_of(str(tmp_path), maxOffsetsPerTrigger="70")
    carried = stream_of(str(tmp_path))  # workers have one of their own
    start = reader.initialOffset()
    assert start == {"orders": {"0": 0}, TOPIC_IDS: {"orders": topic.topic_id}}
    reader.prepareForTriggerAvailableNow()
    topic.append([numbered(50, 100)])
    asyncio.run(export_log(topic, "orders", tmp_path))
    read: list[int] = []
    while (end := reader.latestOffset(start, ReadMaxRows(70))) != start:
        for partition in reader.partitions(start, end):
            for rows in carried.read(partition):
                read += ints(rows, "offset")
        start = end
    assert read == list(range(100))
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["orders"] == {"0": 150}
    (nothing,) = reader.partitions(start, start)
    assert list(carried.read(nothing)) == []
    reader.stop()
    reader.stop()


def stream_of(path: str, **given: str) -> OctavoStreamReader:
    options = {"path": path, "subscribe": "orders", "startingOffsets": "earliest", **given}
    schema = StructType([StructField("offset", LongType())])
    return OctavoSource(options).streamReader(schema)
