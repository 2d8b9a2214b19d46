"""Uses the public API as users do; mypy and pyright check it, nothing runs it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypedDict, assert_type

import pyarrow as pa

from octavo import AsyncClient, Client, Record, RecordMetadata, TopicPartition
from octavo.client.messaging import Consumer, Producer, Reader, SendFuture, SendReport
from octavo.client.messaging.api.descriptions import ClusterHealth, LogDescription, TopicDescription
from octavo.errors import OctavoError


class Order(TypedDict):
    id: int


def order_bytes(order: Order) -> bytes:
    return b"%d" % order["id"]


def by_length(
    topic: str, key: bytes | None, value: bytes | None, headers: object, partitions: int
) -> int:
    return len(value or b"") % partitions


def from_a_file() -> dict[str, Any]:
    return {"linger.ms": 5}


def sync_flavour(table: pa.Table) -> None:
    with Client("localhost:7650", client_id="me") as client:
        client.connect(timeout=5)
        assert_type(client.admin.create_topic("orders", partitions=6), TopicDescription)
        assert_type(client.admin.describe_log("orders", 0), LogDescription)
        assert_type(client.admin.cluster_health(), ClusterHealth)
        assert_type(client.admin.list_offsets("orders", "earliest"), dict[int, int | None])
        with client.producer(serializer="json", linger_ms=0) as producer:
            assert_type(producer, Producer[Any])
            assert_type(producer.send("orders", {"a": 1}, key=b"user-123"), RecordMetadata)
            future = producer.send_nowait("orders", "x", key="k", headers=[("trace", b"1")])
            assert_type(future, SendFuture)
            assert_type(future.result(timeout=10), RecordMetadata)
            assert_type(future.exception(), OctavoError | None)
            report = producer.send_many("orders", (b"%d" % n for n in range(9)), keys=[None] * 9)
            assert_type(report, SendReport)
            assert_type(report.offsets(0), list[range])
            producer.send_arrow("orders", table, key="id", value="body")
            producer.flush(timeout=5)
        with client.producer(serializer=order_bytes, key_serializer="json") as typed:
            assert_type(typed, Producer[Order])
            assert_type(typed.send("orders", Order(id=1), key="k"), RecordMetadata)
            typed.send("orders", None, key=Order(id=2), headers={"trace": "1"})
        with client.producer(access_mode="wait_for_exclusive") as alone:
            meta = alone.send("orders", b"paid", dedup_id="order-1", min_insync_replicas=2)
            assert_type(meta.duplicate, bool)
        with client.producer(acks=1, partitioner=by_length, **from_a_file()) as plain:
            assert_type(plain.send_nowait("orders", "v", acks="all"), SendFuture)
            plain_typed: Producer = plain
            for each in (b"x", bytearray(b"x"), memoryview(b"x"), "x", None):
                plain_typed.send("orders", each, key=each, headers=[("a", b"1"), ("b", "2")])
        assert_type(client.producer(), Producer)
        assert_type(client.producer(key_serializer="json"), Producer[Any])
        with client.reader("orders", start=datetime(2026, 1, 1, tzinfo=UTC)) as reader:
            assert_type(reader, Reader)
            for record in reader.read_to_end():
                assert_type(record, Record)
                assert_type(record.value, bytes | None)
            assert_type(reader.poll_arrow(timeout=1.0), pa.RecordBatch | None)
        with client.consumer(auto_offset_reset="earliest") as consumer:
            assert_type(consumer, Consumer)
            consumer.assign([TopicPartition("orders", 0), ("orders", 1)])
            consumer.seek(TopicPartition("orders", 0), 5)
            assert_type(consumer.poll(max_records=10, timeout=0.5), list[Record])
            assert_type(consumer.lag(), dict[TopicPartition, int])
            for record in consumer:
                assert_type(record, Record)


async def async_flavour() -> None:
    async with AsyncClient(["a:1", "b:2"]) as client:
        await client.connect(timeout=5)
        async with client.producer() as producer:
            assert_type(await producer.send("orders", b"paid"), RecordMetadata)
            future = producer.send_nowait("orders", b"sent")
            assert_type(await future, RecordMetadata)
        async with client.reader("orders", start="latest") as reader:
            async for record in reader.read_to_end():
                assert_type(record, Record)
            async for record in reader:
                assert_type(record, Record)
