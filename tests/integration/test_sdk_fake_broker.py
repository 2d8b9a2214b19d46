"""The async SDK against the fake broker: real gRPC, faults on demand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from octavo import AsyncClient, TopicPartition
from octavo.client.messaging.partitioner import partition_of
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.stall_watch import StallWatch
from octavo.proto import batch as batch_format
from octavo.runtime.errors import (
    BrokerUnavailable,
    BufferFull,
    DeliveryFailed,
    FlushTimeout,
    IllegalStateError,
    InvalidPartition,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    NotEnoughReplicas,
    ProducerClosed,
    RequestTimedOut,
    UnknownTopic,
)
from tests.bookie_rig import until
from tests.broker_model import PartitionModel
from tests.fake_broker import FakeCluster

P0 = TopicPartition("orders", 0)


async def read_all(client: AsyncClient, topic: str) -> list[bytes | None]:
    async with client.reader(topic) as reader:
        return [record.value async for record in reader.read_to_end()]


# --- sending ------------------------------------------------------------------------------------


async def test_send_returns_where_the_record_is(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer:
        meta = await producer.send("orders", b"paid", key=b"user-123", timestamp_ms=77)
        assert meta == ("orders", partition_of(b"user-123", 3), 0, 77, False)
        assert meta.topic_partition == TopicPartition("orders", 2)
        again = await producer.send("orders", "text", key="user-123", headers={"h": b"1"})
        assert again.offset == 1
    rows = [batch_format.decode_rows(batch) for batch in fake.log("orders", 2).batches]
    assert rows[1].values == [b"text"]
    assert rows[1].headers == [[("h", b"1")]]


async def test_send_does_not_linger(client: AsyncClient) -> None:
    async with client.producer(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        async with asyncio.timeout(30):
            await producer.send("one", b"x")


async def test_f037_a_thousand_records_take_few_messages(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer:
        await producer.send("one", b"warm")
        before = fake.brokers[0].produce_messages
        futures = [producer.send_nowait("one", b"x" * 1000) for _ in range(1000)]
        await producer.flush()
        assert fake.brokers[0].produce_messages - before <= 20
        offsets = [future.result().offset for future in futures]
    assert offsets == list(range(1, 1001))


async def test_partitions_that_are_not_answered_hold_no_other_partition(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Small batches wait for answers, but not for those of a partition that is stuck."""
    await client.admin.create_topic("many", partitions=6)
    async with client.producer(linger_ms=0, request_timeout_ms=2_000) as producer:
        for partition in range(6):  # the first batch of each goes alone (idempotence)
            await producer.send("many", b"warm", partition=partition)
        owners = fake.topics["many"].owners
        first, second, third = (p for p in range(6) if owners[p] == 0)
        fake.brokers[0].faults.swallow_replies = 2
        silent = [producer.send_nowait("many", b"silent", partition=p) for p in (first, second)]
        await until(lambda: fake.brokers[0].faults.swallow_replies == 0)
        assert (await producer.send("many", b"heard", partition=third)).offset == 1
        assert not any(future.done() for future in silent)
        assert [(await future).offset for future in silent] == [1, 1]


async def test_small_batches_of_many_partitions_go_in_one_message(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Who waited for an answer does not wait for those who waited with it."""
    await client.admin.create_topic("many", partitions=40)
    async with client.producer(linger_ms=0) as producer:
        await asyncio.gather(*(producer.send("many", b"warm", partition=p) for p in range(40)))
        before = fake.brokers[0].produce_messages
        sent = [producer.send_nowait("many", b"small", partition=p) for p in range(40)]
        await asyncio.gather(*sent)
        assert fake.brokers[0].produce_messages - before <= 3  # 20 partitions, 16 in a message


async def test_p5_partitions_that_find_their_owner_later_get_keyless_records(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """A fresh topic is known before all its partitions are open; nobody waits five minutes."""
    fake.topics["orders"].loading = {1, 2}
    async with client.producer(batch_size=1, linger_ms=0) as producer:
        for _ in range(8):
            assert (await producer.send("orders", b"early")).partition == 0
        fake.topics["orders"].loading = set()
        seen: set[int] = set()
        async with asyncio.timeout(30):
            while seen != {0, 1, 2}:
                seen.add((await producer.send("orders", b"later")).partition)


async def test_p7_partitions_added_meanwhile_get_keyless_records(fake: FakeCluster) -> None:
    async with (
        AsyncClient(fake.bootstrap, metadata_max_age_ms=100) as client,
        client.producer(batch_size=1, linger_ms=0) as producer,
    ):
        assert (await producer.send("one", b"x")).partition == 0
        fake.topics["one"].owners.append(0)
        fake.topics["one"].partitions.append(PartitionModel())
        seen: set[int] = set()
        async with asyncio.timeout(30):
            while seen != {0, 1}:
                seen.add((await producer.send("one", b"later")).partition)


async def test_order_per_partition_and_futures_agree_with_the_log(
    client: AsyncClient, fake: FakeCluster
) -> None:
    futures: list[tuple[bytes, SendFuture]] = []
    async with client.producer(batch_size=500) as producer:
        for number in range(500):
            value = b"%d" % number
            futures.append(
                (value, producer.send_nowait("orders", value, key=b"k%d" % (number % 9)))
            )
    for number in range(3):
        values = fake.log("orders", number).values()
        assert values == sorted(values, key=lambda v: int(v or b""))
        for value, future in futures:
            meta = future.result()
            if meta.partition == number:
                assert values[meta.offset] == value


async def test_send_nowait_before_metadata_keeps_order(
    client: AsyncClient, fake: FakeCluster
) -> None:
    for broker in fake.brokers:
        broker.faults.release_metadata.clear()
    async with client.producer() as producer:
        futures = [producer.send_nowait("one", b"%d" % number) for number in range(50)]
        assert not any(future.done() for future in futures)
        for broker in fake.brokers:
            broker.faults.release_metadata.set()
        metas = [await future for future in futures]
        assert [meta.offset for meta in metas] == list(range(50))
        assert (await producer.send("one", b"last")).offset == 50


async def test_f031_unknown_topic_after_max_block(client: AsyncClient) -> None:
    async with client.producer(max_block_ms=400) as producer:
        # Either what it heard last, or that with its last request still on its way.
        with pytest.raises((UnknownTopic, RequestTimedOut), match="'nope' does not exist"):
            await producer.send("nope", b"x")
        future = producer.send_nowait("nope", b"x")
        with pytest.raises((UnknownTopic, RequestTimedOut), match="'nope' does not exist"):
            await future


async def test_f031_a_topic_created_meanwhile_is_found(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer:
        task = asyncio.ensure_future(producer.send("late", b"x"))
        await asyncio.sleep(0)
        fake.create("late")
        assert (await task).offset == 0


async def test_bad_records_fail_at_the_caller(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer:
        with pytest.raises(TypeError, match='serializer="json"'):
            await producer.send("one", cast("Any", {"a": 1}))
        with pytest.raises(InvalidPartition, match="partitions 0 to 0"):
            await producer.send("one", b"", partition=1)
        for stamp in (-1, True, "x", 1 << 63):
            with pytest.raises(InvalidTimestamp):
                await producer.send("one", b"", timestamp_ms=stamp)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            await producer.send("one", b"", headers=[("h", b"x" * (1 << 20))])
        limit = 1 << 20
        assert (await producer.send("one", b"x" * limit)).offset == 0
        with pytest.raises(MessageTooLarge, match=rf"{limit + 1} bytes.*{limit} bytes") as caught:
            await producer.send("one", b"x" * (limit - 2), key=b"abc")
        assert "max_request_size" in str(caught.value)
    assert fake.log("one").end == 1


async def test_the_brokers_limit_is_named_when_it_is_smaller(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.max_record_bytes = 1000
    async with client.producer() as producer:
        with pytest.raises(MessageTooLarge, match="the broker"):
            await producer.send("one", b"x" * 1001)


async def test_acks_0_resolves_without_an_offset(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer(acks=0) as producer:
        assert (await producer.send("one", b"x")).offset == -1
    async with client.producer(acks=1) as producer:
        await producer.send("one", b"y")
    assert fake.log("one").values() == [b"x", b"y"]


async def test_tombstones_and_empty_values_differ(client: AsyncClient) -> None:  # G6
    async with client.producer() as producer:
        await producer.send("one", None, key=b"")
        await producer.send("one", b"")
    async with client.reader("one") as reader:
        records = [record async for record in reader.read_to_end()]
    assert [(record.key, record.value) for record in records] == [(b"", None), (None, b"")]


async def test_send_many_reports_offsets(client: AsyncClient, fake: FakeCluster) -> None:
    values = [b"%d" % number for number in range(10_000)]
    keys = [b"k%d" % (number % 100) for number in range(10_000)]
    async with client.producer() as producer:
        report = await producer.send_many("orders", values, keys=keys)
        assert report.count == 10_000
        assert report.partitions == [0, 1, 2]
        for number in range(3):
            wanted = [v for v, k in zip(values, keys, strict=True) if partition_of(k, 3) == number]
            assert fake.log("orders", number).values() == wanted
            assert report.offsets(number) == [range(len(wanted))]
        mixed = await producer.send_many(
            "orders",
            (f"v{n}" for n in range(10)),
            keys=[None, "k"] * 5,
            headers=[[("h", b"x")]] * 10,
            timestamps_ms=range(10),
        )
        assert mixed.count == 10
        assert (await producer.send_many("orders", [])).count == 0
        pinned = await producer.send_many("orders", [b"a", b"b"], partition=1)
        assert pinned.partitions == [1]


async def test_send_many_with_unequal_columns_or_a_large_record(client: AsyncClient) -> None:
    async with client.producer() as producer:
        with pytest.raises(ValueError, match="fewer"):
            await producer.send_many("one", [b"a", b"b"], keys=[b"k"])
        with pytest.raises(ValueError, match="more"):
            await producer.send_many("one", [b"a"], keys=[b"k", b"l"])
        with pytest.raises(MessageTooLarge):
            await producer.send_many("one", [b"x" * ((1 << 20) + 1)])


async def test_send_many_larger_than_the_buffer_streams(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(buffer_memory=4 << 20, compression_type="none") as producer:
        report = await producer.send_many("one", (b"x" * 10_000 for _ in range(1500)))
        assert report.count == 1500
    assert fake.log("one").end == 1500


async def test_keyless_send_many_stores_every_record_once_while_batches_grow(
    client: AsyncClient, fake: FakeCluster
) -> None:
    """Open batches grow behind full windows and shrink back; no record may be grouped twice."""
    count = 20_000
    await client.admin.create_topic("many", partitions=10)
    async with client.producer(batch_size=1_000, buffer_memory=4 << 20) as producer:
        report = await producer.send_many("many", (b"%06d" % n for n in range(count)))
    stored = [value for p in range(10) for value in fake.log("many", p).values()]
    assert report.count == len(stored) == count
    assert len(set(stored)) == count
    assert len(report.partitions) == 10


async def test_batches_grow_but_never_beyond_what_the_topic_takes(
    client: AsyncClient, fake: FakeCluster
) -> None:
    limit = 100_000
    await client.admin.create_topic("small", config={"max.message.bytes": str(limit)})
    async with client.producer(batch_size=65_536, compression_type="none") as producer:
        await producer.send_many("small", (b"x" * 1_000 for _ in range(3_000)))
    sizes = [len(batch) for batch in fake.log("small").batches]
    assert 65_536 < max(sizes) <= limit


async def test_send_many_raises_the_first_error_with_a_note(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(batch_size=0) as producer:
        await producer.send("one", b"warm")
        fake.brokers[0].faults.refuse = [InvalidRecord("refused by the test")]
        with pytest.raises(InvalidRecord) as caught:
            await producer.send_many("one", [b"x" * 100 for _ in range(20)])
        assert "19 records acknowledged, 1 failed" in caught.value.__notes__[0]
        assert (await producer.send("one", b"next")).offset == 20  # its sequence was reused (§18)


# --- Arrow --------------------------------------------------------------------------------------


async def test_arrow_in_and_out(client: AsyncClient, fake: FakeCluster) -> None:
    table = pa.table(
        {
            "id": pa.array([f"k{n % 11}" for n in range(1000)]),
            "body": pa.array([b"%d" % n if n % 7 else None for n in range(1000)], pa.binary()),
            "at": pa.array([n * 1000 for n in range(1000)], pa.timestamp("us", tz="UTC")),
        }
    )
    async with client.producer(batch_size=2000) as producer:
        report = await producer.send_arrow("orders", table, key="id", value="body", timestamp="at")
    assert report.count == 1000
    for number in range(3):
        wanted = [
            row["body"]
            for row in table.to_pylist()
            if partition_of(row["id"].encode(), 3) == number
        ]
        assert fake.log("orders", number).values() == wanted
    async with client.reader("orders") as reader:
        rows: list[dict[str, object]] = []
        while len(rows) < 1000:
            batch = await reader.poll_arrow(timeout=60)
            assert batch is not None
            assert str(batch.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
            assert " ".join(batch.schema.names) == (
                "key value topic partition offset timestamp timestampType headers"
            )
            rows += batch.to_pylist()
        assert await reader.poll_arrow(timeout=0) is None
    by_value = {row["value"]: row for row in rows}
    assert by_value[b"999"]["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 999_000, tzinfo=UTC)
    assert by_value[b"999"]["key"] == b"k9"


async def test_arrow_keyless_partition_headers_and_chunks(client: AsyncClient) -> None:
    headers = pa.array(
        [[("a", b"1")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    batch = pa.record_batch({"value": pa.array(["x", "y"]), "h": headers})
    table = pa.Table.from_batches([batch, batch])
    async with client.producer() as producer:
        report = await producer.send_arrow("orders", table, headers="h", partition=1)
        assert report.offsets(1) == [range(4)]
        assert (await producer.send_arrow("orders", batch)).count == 2
        with pytest.raises(ValueError, match="no column 'nope'"):
            await producer.send_arrow("orders", batch, key="nope")
        numbers = pa.table({"id": [1, 2], "value": ["a", "b"]})
        with pytest.raises(TypeError, match='serializer="json"'):
            await producer.send_arrow("orders", numbers, key="id")
    async with client.producer(serializer="json") as producer:
        await producer.send_arrow("one", numbers, key="id")
    async with client.reader("one") as reader:
        assert [record.key async for record in reader.read_to_end()] == [b"1", b"2"]
    async with client.reader("orders", partitions=[1]) as reader:
        records = [record async for record in reader.read_to_end()]
    assert [list(record.headers) for record in records[:2]] == [[("a", b"1")], []]


async def test_arrow_after_some_rows_of_a_batch_were_polled(client: AsyncClient) -> None:
    async with client.producer() as producer:
        await producer.send_many("one", [b"%d" % n for n in range(10)])
    async with client.reader("one") as reader:
        assert len(await reader.poll(max_records=4, timeout=60)) == 4
        batch = await reader.poll_arrow(timeout=60)
        assert batch is not None
        assert batch.column("offset").to_pylist() == [4, 5, 6, 7, 8, 9]


# --- lost replies, moves, outages ---------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lose_replies", "cut_before_append", "not_leader"])
async def test_nothing_is_lost_or_doubled_when_a_stream_breaks(
    client: AsyncClient, fake: FakeCluster, fault: str
) -> None:
    values = [b"%d" % number for number in range(300)]
    async with client.producer(batch_size=300) as producer:
        await producer.send("one", b"warm")
        for number, value in enumerate(values):
            producer.send_nowait("one", value)
            if number in (50, 150):
                setattr(fake.brokers[0].faults, fault, 2)
                await asyncio.sleep(0)
    assert fake.log("one").values() == [b"warm", *values]


async def test_a_swallowed_reply_is_resolved_after_the_request_timeout(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(request_timeout_ms=200) as producer:
        await producer.send("one", b"warm")
        fake.brokers[0].faults.swallow_replies = 1
        assert (await producer.send("one", b"x")).offset == 1
    assert fake.log("one").values() == [b"warm", b"x"]


async def test_f046_a_moved_partition_is_followed(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer:
        for number in range(6):
            fake.move("one", 0, number % 2)
            assert (await producer.send("one", b"%d" % number)).offset == number
    assert fake.brokers[1].produce_batches >= 3


async def test_f046_not_enough_replicas_is_retried(client: AsyncClient, fake: FakeCluster) -> None:
    fake.brokers[0].faults.refuse = [NotEnoughReplicas("test") for _ in range(3)]
    async with client.producer() as producer:
        assert (await producer.send("one", b"x")).offset == 0


async def test_a_broker_restart_is_survived_by_producer_and_reader(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer, client.reader("one") as reader:
        await producer.send("one", b"0")
        assert len(await reader.poll(timeout=60)) == 1
        await fake.brokers[0].stop()
        future = producer.send_nowait("one", b"1")
        await fake.brokers[0].start()
        assert (await future).offset == 1
        records = await reader.poll(timeout=30)
        assert [record.value for record in records] == [b"1"]


async def test_i4_delivery_timeout(client: AsyncClient, fake: FakeCluster) -> None:
    fake.brokers[0].faults.hold.clear()
    async with client.producer(
        delivery_timeout_ms=1_000, request_timeout_ms=800, linger_ms=0
    ) as producer:
        with pytest.raises(DeliveryFailed, match="may or may not be stored"):
            await producer.send("one", b"x")
    fake.brokers[0].faults.hold.set()


async def test_after_an_expired_batch_the_producer_goes_on(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer(
        delivery_timeout_ms=1_000, request_timeout_ms=800, linger_ms=0
    ) as producer:
        await producer.send("one", b"0")
        fake.brokers[0].faults.refuse = [NotEnoughReplicas("test") for _ in range(1000)]
        with pytest.raises(NotEnoughReplicas, match="was not stored"):
            await producer.send("one", b"1")
        fake.brokers[0].faults.refuse = []
        assert (await producer.send("one", b"2")).offset == 1  # the gap was explained (I5)
    assert fake.log("one").values() == [b"0", b"2"]


async def test_a_producer_whose_records_wait_says_so_and_why(
    client: AsyncClient,
    fake: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "octavo.client.messaging.producing.delivery.StallWatch", partial(StallWatch, 0.05)
    )
    async with client.producer(linger_ms=0) as producer:
        fake.brokers[0].faults.refuse = [NotEnoughReplicas("test") for _ in range(10_000)]
        future = producer.send_nowait("one", b"1")
        await until(lambda: "a batch for one-0 has waited" in caplog.text)
        assert "last error: [NOT_ENOUGH_REPLICAS] test" in caplog.text
        fake.brokers[0].faults.refuse = []
        assert (await future).offset == 0


async def test_buffer_full(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer(
        buffer_memory=4 << 20, max_block_ms=100, compression_type="none"
    ) as producer:
        await producer.send("one", b"warm")
        fake.brokers[0].faults.hold.clear()
        futures = [producer.send_nowait("one", b"x" * (1 << 20)) for _ in range(3)]
        with pytest.raises(BufferFull, match="buffer_memory of 4194304 bytes"):
            producer.send_nowait("one", b"x" * (1 << 20))
        with pytest.raises(BufferFull):
            await producer.send("one", b"x" * (1 << 20))
        waiting = asyncio.ensure_future(producer.send("one", b"small"))
        fake.brokers[0].faults.hold.set()
        assert (await waiting).offset >= 0
        assert [(await future).offset for future in futures] == [1, 2, 3]


async def test_u2_close_with_unsent_data_raises_with_the_count(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.brokers[0].faults.hold.clear()
    producer = client.producer()
    futures = [producer.send_nowait("one", b"x") for _ in range(3)]
    with pytest.raises(FlushTimeout, match="3 records") as caught:
        await producer.close(timeout=0.2)
    assert caught.value.details["remaining"] == 3
    for future in futures:
        with pytest.raises(DeliveryFailed, match="closed before"):
            await future
    with pytest.raises(ProducerClosed):
        await producer.send("one", b"x")
    await producer.close()
    fake.brokers[0].faults.hold.set()


async def test_u2_failures_nobody_looked_at_are_raised_at_close(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.brokers[0].faults.refuse = [InvalidRecord("refused"), InvalidRecord("refused")]
    producer = client.producer(batch_size=0)
    for _ in range(3):
        producer.send_nowait("one", b"x")
    with pytest.raises(DeliveryFailed, match="2 records were not acknowledged"):
        await producer.close()


async def test_closing_the_client_closes_its_parts(fake: FakeCluster) -> None:
    client = AsyncClient(fake.bootstrap)
    producer = client.producer()
    future = producer.send_nowait("one", b"x")
    reader = client.reader("one")
    await client.close()
    assert future.result(0).offset == 0
    with pytest.raises(IllegalStateError):
        await reader.poll()
    with pytest.raises(IllegalStateError):
        client.producer().send_nowait("one", b"x")


async def test_connect_names_every_address_and_reason() -> None:
    async with AsyncClient("127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(BrokerUnavailable) as caught:
            await client.connect(timeout=0.5)
    assert "127.0.0.1:1" in str(caught.value)
    assert "127.0.0.1:2" in str(caught.value)
    assert "octavo up" in caught.value.hint


async def test_connect_succeeds_when_one_of_the_addresses_answers(fake: FakeCluster) -> None:
    async with AsyncClient(["127.0.0.1:1", fake.bootstrap.split(",")[0]]) as client:
        await client.connect()
        assert len(await client.admin.list_topics()) == 2
