"""Reading and administration through the async SDK against the fake broker."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from octavo import AsyncClient, TopicPartition
from octavo.client.messaging.api.reader import AsyncReader
from octavo.runtime.errors import (
    CorruptBatch,
    IllegalStateError,
    InvalidPartition,
    LogTruncated,
    NoOffsetForPartition,
    TopicAlreadyExists,
    UnknownTopic,
)
from tests.fake_broker import FakeCluster

P0 = TopicPartition("orders", 0)


async def read_all(client: AsyncClient, topic: str) -> list[bytes | None]:
    async with client.reader(topic) as reader:
        return [record.value async for record in reader.read_to_end()]


async def fill(client: AsyncClient, topic: str, count: int) -> None:
    async with client.producer(batch_size=100) as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(count)])


async def test_read_to_end_stops_at_the_ends_seen_at_the_call(client: AsyncClient) -> None:
    await fill(client, "one", 10)
    async with client.reader("one") as reader, client.producer() as producer:
        seen: list[bytes | None] = []
        async for record in reader.read_to_end():
            seen.append(record.value)
            await producer.send("one", b"later")
        assert seen == [b"%d" % n for n in range(10)]
        assert await reader.position(TopicPartition("one", 0)) == 10
        more = [record.value async for record in reader.read_to_end()]
        assert more == [b"later"] * 10


async def test_read_to_end_of_an_empty_topic_and_over_a_control_tail(
    client: AsyncClient, fake: FakeCluster
) -> None:  # F3
    assert await read_all(client, "one") == []
    await fill(client, "one", 3)
    fake.log("one").append_control(1)
    fake.appended()
    async with asyncio.timeout(30):
        assert len(await read_all(client, "one")) == 3
    async with client.reader("one") as reader:
        assert len([record async for record in reader.read_to_end()]) == 3
        assert await reader.lag() == {TopicPartition("one", 0): 0}


async def test_read_to_end_left_early_loses_nothing(client: AsyncClient) -> None:
    await fill(client, "one", 20)
    async with client.reader("one") as reader:
        async for record in reader.read_to_end():
            if record.offset == 4:
                break
        assert await reader.position(TopicPartition("one", 0)) == 5
        assert (await reader.poll(timeout=60))[0].offset == 5


async def test_reader_starts(client: AsyncClient) -> None:
    async with client.producer() as producer:
        for number in range(5):
            await producer.send("one", b"%d" % number, timestamp_ms=1000 * number)

    async def first(reader: AsyncReader) -> list[int]:
        async with reader:
            return [record.offset async for record in reader.read_to_end()]

    assert await first(client.reader("one", start="earliest")) == [0, 1, 2, 3, 4]
    assert await first(client.reader("one", start=3)) == [3, 4]
    moment = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert await first(client.reader("one", start=moment)) == [2, 3, 4]
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert await first(client.reader("one", start=late)) == []
    async with client.reader("one", start="latest") as reader, client.producer() as producer:
        await producer.send("one", b"new")
        assert [record.value for record in await reader.poll(timeout=60)] == [b"new"]


async def test_poll_returns_in_time_and_zero_never_blocks(client: AsyncClient) -> None:  # F107
    async with client.reader("one") as reader:
        assert await reader.poll(timeout=0) == []
        assert await reader.poll(timeout=0.05) == []


async def test_f118_new_data_ends_a_long_poll_and_an_idle_reader_asks_rarely(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.reader("one", fetch_max_wait_ms=20_000) as reader:
        waiting = asyncio.ensure_future(reader.poll(timeout=15))
        async with client.producer() as producer:
            await producer.send("one", b"x")
        assert len(await waiting) == 1
        assert fake.brokers[0].fetch_requests <= 3


async def test_assign_seek_position_pause_resume_lag(client: AsyncClient) -> None:
    await fill(client, "orders", 300)
    async with client.consumer() as consumer:
        with pytest.raises(IllegalStateError):
            await consumer.poll()
        with pytest.raises(IllegalStateError):
            await consumer.seek(P0, 0)
        with pytest.raises(InvalidPartition):
            await consumer.assign([("orders", 3)])
        await consumer.assign([P0])
        assert await consumer.assignment() == [P0]
        end = (await consumer.end_offsets())[P0]
        assert await consumer.position(P0) == end  # default latest
        await consumer.seek_to_beginning()
        assert await consumer.lag() == {P0: end}
        records = await consumer.poll(max_records=7, timeout=60)
        assert [record.offset for record in records] == list(range(7))
        await consumer.seek(P0, 3)
        assert (await consumer.poll(timeout=60))[0].offset == 3  # F8
        await consumer.pause(P0)
        await consumer.seek(P0, 0)
        assert await consumer.poll(timeout=0.05) == []
        await consumer.resume(P0)
        assert (await consumer.poll(timeout=60))[0].offset == 0
        await consumer.seek_to_end(P0)
        assert await consumer.position(P0) == end
        await consumer.seek_to_time(0, P0)
        assert await consumer.position(P0) == 0
        assert await consumer.beginning_offsets() == {P0: 0}


async def test_consumer_of_topics_without_a_group_reads_all_partitions(
    client: AsyncClient,
) -> None:
    await fill(client, "orders", 100)
    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == 100:
                break


async def test_f6_latest_is_fixed_at_the_first_resolution(client: AsyncClient) -> None:  # W12
    async with client.consumer("one") as consumer:
        assert await consumer.poll(timeout=0.05) == []
        await consumer.position(TopicPartition("one", 0))
        async with client.producer() as producer:
            await producer.send("one", b"x")
        records = await consumer.poll(timeout=60)
        assert [record.value for record in records] == [b"x"]


async def test_f6_policy_none_raises_until_a_seek(client: AsyncClient) -> None:
    where = TopicPartition("one", 0)
    async with client.consumer("one", auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffsetForPartition):
            await consumer.poll(timeout=60)
        await consumer.seek(where, 0)
        assert await consumer.poll(timeout=0.05) == []


async def test_f5_below_the_start_resets_above_the_end_is_truncation(
    client: AsyncClient, fake: FakeCluster
) -> None:
    await fill(client, "one", 50)
    fake.log("one").trim(20)
    where = TopicPartition("one", 0)
    async with client.consumer("one", auto_offset_reset="earliest") as consumer:
        await consumer.assignment()
        await consumer.seek(where, 5)
        records = await consumer.poll(timeout=60)
        assert records[0].offset == 20
    async with client.consumer("one", auto_offset_reset="none") as consumer:
        await consumer.assign([where])
        await consumer.seek(where, 1000)
        with pytest.raises(LogTruncated, match="1000"):
            await consumer.poll(timeout=60)


async def test_f9_corrupt_fetch_once_is_healed_twice_is_raised(
    client: AsyncClient, fake: FakeCluster
) -> None:
    await fill(client, "one", 3)
    fake.brokers[0].faults.corrupt_fetches = 1
    assert len(await read_all(client, "one")) == 3
    fake.brokers[0].faults.corrupt_fetches = 2
    async with client.reader("one") as reader:
        with pytest.raises(CorruptBatch, match="one-0 offset 0"):
            await reader.poll(timeout=60)
        assert (await reader.poll(timeout=60))[0].offset == 0


async def test_reading_follows_a_moved_partition(client: AsyncClient, fake: FakeCluster) -> None:
    async with client.producer() as producer, client.reader("one") as reader:
        for number in range(4):
            fake.move("one", 0, number % 2)
            await producer.send("one", b"%d" % number)
            records = await reader.poll(timeout=60)
            assert [record.value for record in records] == [b"%d" % number]


async def test_prefetch_stays_within_its_bounds(client: AsyncClient) -> None:
    async with client.producer(compression_type="none", batch_size=5_000) as producer:
        await producer.send_many("one", (b"x" * 1000 for _ in range(2000)))
    reader = client.reader(
        "one", prefetch_max_partition_bytes=50_000, max_partition_fetch_bytes=50_000
    )
    async with reader:
        total = 0
        while total < 2000:
            total += len(await reader.poll(max_records=10, timeout=60))
            assert reader.buffered_bytes <= 110_000


async def test_closing_ends_an_iteration(client: AsyncClient) -> None:
    reader = client.reader("one")
    await reader.start()

    async def consume() -> int:
        return len([record async for record in reader])

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0)
    await reader.close()
    async with asyncio.timeout(30):
        assert await task == 0


# --- admin --------------------------------------------------------------------------------------


async def test_admin(client: AsyncClient, fake: FakeCluster) -> None:
    admin = client.admin
    made = await admin.create_topic("new", partitions=2, config={"segment.ms": "60000"})
    assert (made.name, len(made.partitions), made.config) == ("new", 2, {"segment.ms": "60000"})
    with pytest.raises(TopicAlreadyExists):
        await admin.create_topic("new", partitions=2)
    assert [topic.name for topic in await admin.list_topics()] == ["new", "one", "orders"]
    described = await admin.describe_topic("new")
    assert described.partitions[1].owner_address == fake.brokers[1].address
    with pytest.raises(UnknownTopic):
        await admin.describe_topic("nope")
    await fill(client, "new", 10)
    ends = await admin.list_offsets("new")
    assert sum(end or 0 for end in ends.values()) == 10
    assert await admin.list_offsets("new", "earliest") == {0: 0, 1: 0}
    assert await admin.list_offsets("new", datetime(2100, 1, 1, tzinfo=UTC)) == {0: None, 1: None}
    log = await admin.describe_log("new", 1)
    assert log.high_watermark == ends[1]
    assert log.segments[0].state == "OPEN"
    assert await admin.roll("new", 1) == ends[1]
    health = await admin.cluster_health()
    assert health.healthy
    assert health.writable_bookies == 3
    ledger = await admin.show_ledger(17)
    assert (ledger.state, ledger.last_entry, ledger.length) == ("CLOSED", 41, 4242)
    assert ledger.holders[0].last_add_confirmed == 41
    fake.move("new", 1, 0)
    assert (await admin.describe_log("new", 1)).owner_epoch == 2
    await admin.delete_topic("new")
    with pytest.raises(UnknownTopic):
        await admin.delete_topic("new")


async def test_a_second_loop_is_refused(client: AsyncClient) -> None:
    await client.connect()

    def elsewhere() -> None:
        asyncio.run(client.connect())

    with pytest.raises(IllegalStateError, match="another event loop"):
        await asyncio.to_thread(elsewhere)


async def test_warnings_name_the_broker(
    client: AsyncClient, fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.producer() as producer:
        await producer.send("one", b"0")
        fake.brokers[0].faults.lose_replies = 1
        with caplog.at_level(logging.WARNING, "octavo.client"):
            await producer.send("one", b"1")
    assert fake.brokers[0].address in caplog.text
