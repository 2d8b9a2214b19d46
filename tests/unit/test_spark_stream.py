"""A stream's offsets and decisions, without Spark (spec spark §7, §8, §14.4)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from octavo.runtime.errors import (
    ConfigError,
    InconsistentTopicId,
    MetadataCorrupt,
    OctavoError,
    OffsetOutOfRange,
    UnknownTopic,
)
from octavo.spark.options import TOPIC_IDS, StreamOptions
from octavo.spark.plan import PartitionView
from octavo.spark.positions import Positions
from tests.spark_stream_world import Engine, StreamTopics, earliest, stream_options, world

# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"maxTriggerDelay": "-5s"}, "maxTriggerDelay"),
        ({"groupId": ""}, "groupId"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"@topicIds":7}'}, "startingOffsets"),
        ({"startingOffsets": '{"@topicIds":{"orders":7}}'}, "startingOffsets"),
        ({"startingOfsets": "latest"}, "startingOfsets"),
    ],
)
def test_bad_options_of_a_stream_are_named(given: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stream_options(**given)
    assert caught.value.details["option"] == option


def test_a_group_needs_a_cluster() -> None:
    with pytest.raises(ConfigError, match="groupId"):
        StreamOptions.parse({"path": "/lake", "subscribe": "orders", "groupId": "g"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("2min", 120), ("500ms", 0.5), ("30s", 30), ("1h", 3600), ("1500", 1.5)],
)
def test_durations_are_written_as_spark_writes_them(text: str, seconds: float) -> None:
    assert stream_options(maxTriggerDelay=text).max_delay_s == pytest.approx(seconds)


def test_defaults_of_a_stream() -> None:
    options = stream_options()
    assert options.read.start.kind == "latest"
    assert options.max_delay_s == 900
    assert (options.max_offsets, options.min_offsets, options.max_bytes) == (None, None, None)


# --- offsets in the checkpoint -------------------------------------------------------------------


def test_positions_are_kafkas_json_with_the_topics_ids_beside() -> None:
    body = {"b": {"10": 5, "2": 7}, "a": {"0": 1}, TOPIC_IDS: {"b": "bb", "a": "aa"}}
    made = Positions.parse(body).to_json()
    assert json.dumps(made) == (
        '{"a": {"0": 1}, "b": {"2": 7, "10": 5}, "@topicIds": {"a": "aa", "b": "bb"}}'
    )
    assert Positions.parse(made) == Positions.parse(body)


def test_a_kafka_checkpoint_without_ids_is_taken_for_the_topics_there_are() -> None:
    engine = earliest(world(orders=20))
    engine.offsets, engine.committed = ['{"orders": {"0": 5}}'], 0
    assert engine.trigger()
    assert engine.delivered == {("orders", 0): list(range(5, 20))}
    assert engine.position[TOPIC_IDS] == {"orders": f"{1:032x}"}


@pytest.mark.parametrize(
    "body",
    [
        7,
        {"orders": 5},
        {"orders": {"0": "5"}},
        {"orders": {"0": -1}},
        {"orders": {"0": True}},
        {"orders": {"x": 5}},
        {TOPIC_IDS: []},
        {TOPIC_IDS: {"orders": 5}},
    ],
)
def test_a_damaged_checkpoint_is_refused(body: object) -> None:
    with pytest.raises(MetadataCorrupt, match="checkpoint"):
        Positions.parse(body)


def test_a_position_can_be_the_start_of_another_query() -> None:
    topics = world(orders=100)
    first = earliest(topics, maxOffsetsPerTrigger="30")
    first.trigger()
    text = first.offsets[-1]
    second = Engine(topics, startingOffsets=text)
    second.trigger()
    assert second.delivered == {("orders", 0): list(range(30, 100))}
    topics.create("orders").ends[0] = 100
    with pytest.raises(InconsistentTopicId):
        Engine(topics, startingOffsets=text).trigger()


# --- where a query begins ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, 100),
        ({"startingOffsets": "latest"}, 100),
        ({"startingOffsets": "earliest"}, 20),
        ({"startingOffsets": '{"orders":{"0":50}}'}, 50),
        ({"startingOffsets": '{"orders":{"0":-2}}'}, 20),
        ({"startingOffsets": '{"orders":{"0":"latest"}}'}, 100),
        ({"startingOffsets": '{"orders":"earliest"}'}, 20),
        ({"startingOffsets": '{"orders":-1}'}, 100),
        ({"startingTimestamp": "33"}, 33),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":44}}'}, 44),
        ({"startingTimestamp": "500", "startingOffsetsByTimestampStrategy": "latest"}, 100),
    ],
)
def test_where_a_new_query_begins(given: dict[str, Any], first: int) -> None:
    topics = world(orders=100)
    topics.topics["orders"].starts[0] = 20
    engine = Engine(topics, **given)
    engine.trigger()
    assert json.loads(engine.offsets[0])["orders"] == {"0": first}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"startingOffsets": '{"orders":{}}'}, ConfigError),
        ({"startingOffsets": '{"orders":{"0":1},"other":{"0":1}}'}, ConfigError),
        ({"startingOffsets": '{"orders":{"0":1,"7":1}}'}, ConfigError),
        ({"startingOffsets": '{"orders":{"0":101}}'}, OffsetOutOfRange),
        ({"startingTimestamp": "500"}, OffsetOutOfRange),
        ({"subscribe": "nowhere"}, UnknownTopic),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(
    given: dict[str, Any], error: type[OctavoError]
) -> None:
    topics = world(orders=100)
    topics.subscribed = set(str(given.get("subscribe", "orders")).split(",")).__contains__
    with pytest.raises(error):
        Engine(topics, **given).trigger()


def test_the_beginning_is_kept_while_records_arrive() -> None:
    """Spark asks twice before the first batch; two answers would lose what lies between (§3)."""
    topics = world(orders=100)
    engine = Engine(topics)
    first = engine.planner.initial()
    topics.topics["orders"].ends[0] = 150
    assert engine.planner.initial() == first
    assert engine.trigger()
    assert engine.delivered == {("orders", 0): list(range(100, 150))}


# --- triggers ------------------------------------------------------------------------------------


def test_nothing_new_gives_the_same_text_and_asks_for_no_segments() -> None:
    topics = world(orders=40)
    engine = earliest(topics)
    assert engine.run_dry() == 1
    asked = topics.asked_views
    assert not engine.trigger()
    assert topics.asked_views == asked


def test_a_limit_is_split_and_met_exactly() -> None:
    topics = StreamTopics()
    topics.create("orders", partitions=3).ends[:] = [1000, 100, 10]
    engine = earliest(topics, maxOffsetsPerTrigger="111")
    engine.trigger()
    assert engine.position["orders"] == {"0": 100, "1": 10, "2": 1}
    assert engine.run_dry() == 9
    assert sum(map(len, engine.delivered.values())) == 1110


def test_trigger_once_takes_everything_whatever_the_limit() -> None:
    engine = earliest(world(orders=500), maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    assert engine.trigger(once=True)
    assert len(engine.delivered[("orders", 0)]) == 500


def test_bytes_of_a_trigger() -> None:
    engine = earliest(world(orders=95), maxBytesPerTrigger="2550")
    engine.trigger()
    assert engine.position["orders"] == {"0": 25}
    assert engine.run_dry() == 3


def test_one_offset_is_taken_though_it_is_larger_than_the_limit() -> None:
    engine = earliest(world(orders=3), maxBytesPerTrigger="7")
    assert engine.run_dry() == 3


def test_few_records_wait_for_more_or_for_the_delay() -> None:
    topics = world(orders=5)
    orders = topics.topics["orders"]
    engine = earliest(topics, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert engine.trigger()  # the first takes what there is
    orders.ends[0] = 9
    assert not engine.trigger()
    orders.ends[0] = 15
    assert engine.trigger()
    orders.ends[0] = 16
    assert not engine.trigger()
    engine.clock.advance(60.0)
    assert engine.trigger()
    assert engine.delivered == {("orders", 0): list(range(16))}


def test_available_now_ends_though_records_and_partitions_arrive() -> None:
    topics = world(orders=100)
    engine = earliest(topics, maxOffsetsPerTrigger="30", minOffsetsPerTrigger="20")
    engine.trigger()
    engine.restart()
    engine.planner.freeze()
    topics.grow("orders", 2)
    for _ in range(20):
        topics.topics["orders"].ends[:] = [topics.topics["orders"].ends[0] + 30, 40]
        if not engine.trigger():
            break
    assert engine.delivered == {("orders", 0): list(range(100))}
    engine.restart(subscribe="orders")
    engine.run_dry()
    assert len(engine.delivered[("orders", 1)]) == 40


def test_what_is_reported_is_the_end_of_the_log() -> None:
    engine = earliest(world(orders=100), maxOffsetsPerTrigger="30")
    assert engine.planner.reported() is None
    engine.trigger()
    told: Any = engine.planner.reported()
    assert told["orders"] == {"0": 100}


# --- a batch that is repeated --------------------------------------------------------------------


def test_a_batch_that_was_not_committed_is_read_again_exactly() -> None:
    topics = world(orders=100)
    engine = earliest(topics, maxOffsetsPerTrigger="30")
    engine.trigger()
    engine.trigger(die=True)
    topics.topics["orders"].ends[0] = 200
    engine.restart(startingOffsets="latest", maxOffsetsPerTrigger="7")  # §13: has no effect now
    engine.trigger()
    assert engine.delivered == {("orders", 0): list(range(60))}


def test_new_partitions_are_read_from_their_start() -> None:
    topics = world(orders=10)
    engine = Engine(topics)
    engine.trigger()
    topics.grow("orders", 3)
    assert not engine.trigger()  # empty ones are no news
    topics.topics["orders"].ends[:] = [12, 5, 0]
    engine.trigger()
    assert engine.delivered == {("orders", 0): [10, 11], ("orders", 1): [0, 1, 2, 3, 4]}


def test_a_new_topic_of_a_pattern_is_written_down_before_it_is_read() -> None:
    """So the batch that reads it can be repeated, though its start was trimmed meanwhile."""
    topics = world(orders=10)
    engine = earliest(topics, subscribePattern="ord.*")
    engine.run_dry()
    topics.create("ordinary").ends[0] = 50
    topics.topics["ordinary"].starts[0] = 20
    assert engine.trigger()
    assert engine.position["ordinary"] == {"0": 20}
    assert ("ordinary", 0) not in engine.delivered
    topics.topics["ordinary"].starts[0] = 30
    with pytest.raises(OffsetOutOfRange, match="20 to 29"):
        engine.trigger()


# --- what was lost -------------------------------------------------------------------------------


def test_retention_that_overtakes_a_stream_is_an_error() -> None:
    topics = world(orders=100)
    engine = earliest(topics, maxOffsetsPerTrigger="10")
    engine.trigger()
    topics.topics["orders"].starts[0] = 40
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 39 of orders-0") as caught:
        engine.trigger()
    assert caught.value.details["offset"] == 10
    assert "failOnDataLoss=false" in (caught.value.hint or "")


def test_retention_that_overtakes_a_stream_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = world(orders=100)
    engine = earliest(topics, maxOffsetsPerTrigger="10", failOnDataLoss="false")
    engine.trigger()
    topics.topics["orders"].starts[0] = 40
    engine.trigger()
    assert engine.delivered == {("orders", 0): [*range(10), *range(40, 50)]}
    assert caplog.text.count("offsets 10 to 39") == 1


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_was_removed_before_it_was_exported_is_loss(
    fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Files to 20, the log from 60 on."""

    class Exported(StreamTopics):
        def _views(self) -> list[PartitionView]:
            (view,) = super()._views()
            pieces = tuple(one for one in view.splits if not 20 <= one.first < 60)
            return [replace(view, splits=pieces, hole=(20, 60))]

    topics = Exported()
    topics.create("orders").ends[0] = 100
    engine = earliest(topics, failOnDataLoss=fail)
    if fail == "true":
        with pytest.raises(OffsetOutOfRange, match="20 to 59 of orders-0 were removed before they"):
            engine.trigger()
        return
    engine.trigger()
    assert "20 to 59" in caplog.text
    assert engine.delivered == {("orders", 0): [*range(20), *range(60, 100)]}


def test_trimming_what_was_delivered_is_no_loss() -> None:
    topics = world(orders=100)
    engine = earliest(topics)
    engine.trigger()
    topics.topics["orders"].starts[0] = 100
    assert not engine.trigger()


def test_a_new_partition_that_was_trimmed_before_the_stream_saw_it_is_loss() -> None:
    topics = world(orders=10)
    engine = earliest(topics)
    engine.trigger()
    topics.grow("orders", 2)
    topics.topics["orders"].ends[1], topics.topics["orders"].starts[1] = 30, 20
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 19 of orders-1"):
        engine.trigger()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_that_ends_before_the_stream_is_no_silence(
    fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another cluster, or one set up anew from a copy: never 'nothing is new'."""
    topics = world(orders=100)
    engine = earliest(topics, failOnDataLoss=fail)
    engine.trigger()
    topics.topics["orders"].ends[0] = 60
    if fail == "true":
        with pytest.raises(OffsetOutOfRange, match="which ends at 60"):
            engine.trigger()
        return
    assert not engine.trigger()
    assert "which ends at 60" in caplog.text
    topics.topics["orders"].ends[0] = 105
    engine.trigger()
    assert engine.delivered[("orders", 0)] == list(range(105))


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("end", [0, 50, 100, 500])
def test_a_topic_created_again_is_an_error_whatever_it_holds(fail: str, end: int) -> None:
    topics = world(orders=100)
    engine = earliest(topics, failOnDataLoss=fail)
    engine.trigger()
    topics.create("orders").ends[0] = end
    with pytest.raises(InconsistentTopicId, match="created again") as caught:
        engine.trigger()
    assert "new checkpoint" in (caught.value.hint or "")


def test_a_batch_of_a_topic_created_again_meanwhile_is_not_read() -> None:
    topics = world(orders=100)
    engine = earliest(topics)
    engine.trigger(die=True)
    topics.create("orders").ends[0] = 500
    engine.restart()
    with pytest.raises(InconsistentTopicId):
        engine.trigger()
    assert engine.delivered == {}


def test_a_topic_that_was_deleted(caplog: pytest.LogCaptureFixture) -> None:
    topics = world(orders=100, ordinary=100)
    strict = earliest(topics, subscribePattern="ord.*")
    lax = earliest(topics, subscribePattern="ord.*", failOnDataLoss="false")
    strict.trigger()
    lax.trigger()
    del topics.topics["orders"]
    topics.topics["ordinary"].ends[0] = 120
    with pytest.raises(UnknownTopic, match="'orders' of this stream"):
        strict.trigger()
    lax.run_dry()
    assert len(lax.delivered[("ordinary", 0)]) == 120
    assert caplog.text.count("'orders' of this stream does not exist any more") == 1
    assert lax.position["orders"] == {"0": 100}  # kept: a successor is told from it


def test_a_subscription_that_changed_keeps_what_it_left() -> None:
    topics = world(a=10, b=10)
    engine = earliest(topics, subscribe="a,b")
    engine.trigger()
    topics.topics["a"].ends[0] = topics.topics["b"].ends[0] = 20
    topics.subscribed = {"a"}.__contains__
    engine.restart(subscribe="a")
    engine.run_dry()
    topics.subscribed = {"a", "b"}.__contains__
    engine.restart(subscribe="a,b")
    engine.run_dry()
    assert engine.delivered == {("a", 0): list(range(20)), ("b", 0): list(range(20))}


def test_a_batch_that_holds_what_is_not_subscribed_any_more_is_an_error() -> None:
    topics = world(a=10, b=10)
    engine = earliest(topics, subscribe="a,b")
    engine.trigger(die=True)
    topics.subscribed = {"a"}.__contains__
    engine.restart(subscribe="a")
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 9 of b-0"):
        engine.trigger()


def test_splits_of_a_batch_follow_the_options_of_partitions() -> None:
    topics = world(orders=40)
    engine = earliest(topics, minPartitions="8")
    start = engine.planner.initial()
    end = engine.planner.latest(start, everything=False)
    assert len(engine.planner.splits(start, end)) == 8
    engine.planner.close()
    assert topics.closed
