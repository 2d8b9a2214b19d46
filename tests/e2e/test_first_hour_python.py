"""Every [A] line of the first hour's Python, as printed in the README."""

from __future__ import annotations

import datetime
from typing import cast

import pyarrow as pa
import pytest

from octavo import AsyncClient, Client, TopicPartition
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process


def test_the_printed_python(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        client.connect(timeout=60)
        client.admin.create_topic("orders", partitions=6)

        with client.producer() as producer:
            meta = producer.send("orders", b"paid", key=b"user-123")
            assert (meta.partition, meta.offset) == (2, 0)  # P3: murmur2 of b"user-123" mod 6
            assert meta.timestamp_ms > 1_600_000_000_000
            future = producer.send_nowait("orders", "sent", key="user-9", headers=[("trace", b"1")])
            assert future.result(timeout=60).offset >= 0
            values = [f"v{n}" for n in range(1000)]
            keys = [f"k{n % 7}" for n in range(1000)]
            report = producer.send_many("orders", values, keys=keys)
            assert report.count == 1000
            offsets = [len(r) for p in range(6) for r in report.offsets(p)]
            assert sum(offsets) == 1000
            table = pa.table({"id": ["a", "b", None], "body": [b"x", None, b""]})
            producer.send_arrow("orders", table, key="id", value="body")

        with client.reader("orders", start="earliest") as reader:
            records = list(reader.read_to_end())
        assert len(records) == 1005
        first = next(r for r in records if r.value == b"paid")
        assert (first.topic, first.partition, first.key) == ("orders", 2, b"user-123")
        traced = next(r for r in records if r.value == b"sent")
        assert list(traced.headers) == [("trace", b"1")]
        by_key = {r.key: r.value for r in records if r.key in (b"a", b"b")}
        assert by_key == {b"a": b"x", b"b": None}
        assert [r.value for r in records if r.key is None] == [b""]

        with client.reader("orders", start="earliest") as reader:
            batch = reader.poll_arrow(timeout=60)
            assert batch is not None
            assert batch.schema.names == [
                "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
                "headers",
            ]  # fmt: skip
        hour_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        with client.reader("orders", start=hour_ago) as reader:
            assert len(list(reader.read_to_end())) == 1005

        consumer = client.consumer()
        where = [TopicPartition("orders", number) for number in range(6)]
        consumer.assign(where)
        consumer.seek_to_beginning(*where)
        got = 0
        while got < 1005:
            polled = consumer.poll(max_records=500, timeout=60)
            assert polled, "nothing more came"
            got += len(polled)
        assert sum(consumer.position(tp) for tp in where) == 1005
        consumer.seek(where[2], 0)
        assert consumer.position(where[2]) == 0
        consumer.pause(where[2])
        consumer.resume(where[2])
        consumer.close()


async def test_the_printed_async_python(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster.bootstrap_servers) as client:
        await client.admin.create_topic("orders-async", partitions=2)
        async with client.producer() as producer:
            await producer.send("orders-async", b"paid", key=b"user-123")
        async with client.reader("orders-async", start="earliest") as reader:
            seen = [record.value async for record in reader.read_to_end()]
    assert seen == [b"paid"]


def test_wrong_types_name_the_fix(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("typed", partitions=1)
        with client.producer() as producer, pytest.raises(TypeError, match="serializer"):
            producer.send("typed", cast(bytes, {"not": "bytes"}))
        with client.producer(serializer="json") as producer:
            producer.send("typed", cast(bytes, {"id": 1}))
        with client.reader("typed", start="earliest") as reader:
            assert [r.value for r in reader.read_to_end()] == [b'{"id":1}']
