"""A sink's client: decisions over any broker, errors as they are raised (ADR 67)."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from octavo.errors import (
    InvalidPartition,
    InvalidRecord,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
    Throttled,
    UnknownTopic,
)
from octavo.spark import sink_client
from octavo.spark.live_writing import produce
from octavo.spark.publication import SinkState
from octavo.spark.sink_client import Numbered, SinkClient
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.staged import Target
from tests.fake_broker import FakeCluster
from tests.serving_rig import make_batch


async def test_decisions_are_told_alike_by_every_client(fake: FakeCluster) -> None:
    async with SinkClient(fake.bootstrap) as first, SinkClient(fake.bootstrap) as second:
        assert await first.describe_sink("s") == SinkState()
        mine = await first.decide_sink("s", 0, b"mine", None)
        assert (mine.batch_id, mine.plan, mine.is_published) == (0, b"mine", False)
        assert await second.decide_sink("s", 0, b"other", None) == mine
        await second.published_sink("s", 0)
        assert await first.describe_sink("s") == mine._replace(is_published=True)
        with pytest.raises(InvalidRequest, match="never decided"):
            await first.published_sink("s", 1)
        with pytest.raises(InvalidRequest, match="batches count from 0"):
            await first.decide_sink("s", -1, b"p", None)


async def test_what_an_owner_refuses_for_good_is_raised_at_once(fake: FakeCluster) -> None:
    """And what it stores is what was sent, in order."""
    async with SinkClient(fake.bootstrap) as client:
        view = await client.topic_view("orders")
        assert client.record_bytes_max == fake.max_record_bytes
        sent = [make_batch([b"a"], pid=5, epoch=0, sequence=n) for n in range(3)]
        target = Target("orders", view.topic_id, 1)
        fake.brokers[0].faults.refuse = fake.brokers[1].faults.refuse = [InvalidPartition("no")]
        with pytest.raises(InvalidPartition):
            await client.store(target, [Numbered(0, sent[0])])
        for broker in fake.brokers:
            broker.faults.refuse = []
        await client.store(target, [Numbered(n, batch) for n, batch in enumerate(sent)])
        async with client.reader("orders", partitions=[1]) as reader:
            assert [record.value async for record in reader.read_to_end()] == [b"a"] * 3


@pytest.mark.parametrize(
    "refusal",
    [
        NotLeader("somebody else"),
        NotEnoughReplicas("two of three"),
        Throttled("full", throttle_ms=1),
        OutOfOrderSequence("an owner that lost its office"),
    ],
)
async def test_what_an_owner_cannot_store_now_is_sent_again(
    fake: FakeCluster, refusal: OctavoError
) -> None:
    async with SinkClient(fake.bootstrap, retry_backoff_ms=10) as client:
        view = await client.topic_view("orders")
        for broker in fake.brokers:
            broker.faults.refuse = [refusal] * 2
        batch = Numbered(0, make_batch([b"v"], pid=5, epoch=0, sequence=0))
        await client.store(Target("orders", view.topic_id, 0), [batch])
        assert not all(broker.faults.refuse for broker in fake.brokers)
        async with client.reader("orders", partitions=[0]) as reader:
            assert [record.value async for record in reader.read_to_end()] == [b"v"]


async def test_a_batch_that_nobody_takes_is_given_up_in_the_end(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails; the batch stays decided, and whoever comes next goes on with it."""
    monkeypatch.setattr(sink_client, "BATCH_TIMEOUT_S", 0.05)
    async with SinkClient(fake.bootstrap, retry_backoff_ms=10) as client:
        view = await client.topic_view("orders")
        for broker in fake.brokers:
            broker.faults.refuse = [NotEnoughReplicas("one of three")] * 1000
        batch = Numbered(0, make_batch([b"v"], pid=5, epoch=0, sequence=0))
        with pytest.raises(NotEnoughReplicas, match="one of three"):
            await client.store(Target("orders", view.topic_id, 0), [batch])


async def test_of_rows_that_fail_side_by_side_one_error_is_raised(fake: FakeCluster) -> None:
    """At least once: Spark shows an error of ours, not a group of them."""
    rows = pa.record_batch(
        {"value": pa.array([b"v"] * 4), "partition": pa.array([0, 1, 2, 1], pa.int32())}
    )
    columns = SinkColumns("value", partition="partition")
    options = WriteOptions(fake.bootstrap, "orders", True)
    for broker in fake.brokers:
        broker.faults.refuse = [InvalidRecord("not of this topic")] * 10
    with pytest.raises(InvalidRecord, match="not of this topic"):
        await asyncio.to_thread(produce, [rows], options, columns)
    for broker in fake.brokers:
        broker.faults.refuse = []
    sent = await asyncio.to_thread(produce, [rows], options, columns)
    assert sent == 4


async def test_a_topic_that_a_row_names_and_that_is_not_there_is_told_at_once(
    fake: FakeCluster,
) -> None:
    """At least once: a producer would wait a minute for it (F031)."""
    rows = pa.record_batch({"value": pa.array([b"v", b"v"]), "topic": pa.array(["orders", "nope"])})
    columns = SinkColumns("value", topic="topic")
    options = WriteOptions(fake.bootstrap, None, True)
    async with asyncio.timeout(30):
        with pytest.raises(UnknownTopic, match="nope"):
            await asyncio.to_thread(produce, [rows], options, columns)
