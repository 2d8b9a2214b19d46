"""A topic deleted and created again under live producers and readers: what each of them says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo.client.messaging.api.client import AsyncClient
from octavo.client.messaging.partitioner import partition_of
from octavo.client.messaging.records import TopicPartition
from octavo.runtime.errors import InconsistentTopicId, OctavoError
from tests.fake_broker import FakeCluster
from tests.serving_rig import until
from tests.serving_server import create_topic, loopback

KEYS = [b"key-%d" % i for i in range(16)]


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    made = FakeCluster(1)
    await made.start()
    made.create("t", 6)
    yield made
    await made.stop()


@pytest.fixture
async def client(fake: FakeCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(fake.bootstrap, retry_backoff_ms=10) as made:
        yield made


def create_again(fake: FakeCluster, partitions: int) -> None:
    fake.topics.pop("t")
    fake.create("t", partitions)
    fake.appended()


@pytest.mark.parametrize("after", [3, 4, 12])
async def test_p2_keys_go_to_the_partitions_the_topic_has_now(
    client: AsyncClient, fake: FakeCluster, after: int
) -> None:
    async with client.producer(linger_ms=0) as producer:
        await producer.send("t", b"old", key=b"a")
        create_again(fake, after)
        refused: list[OctavoError] = []
        async with asyncio.timeout(30):
            while True:  # the first ones may meet the change: they fail and say so
                try:
                    await producer.send("t", b"probe", key=b"a")
                    break
                except InconsistentTopicId as error:
                    refused.append(error)
        assert all("created again" in error.cause for error in refused)
        for key in KEYS:
            assert (await producer.send("t", b"new", key=key)).partition == partition_of(key, after)
        report = await producer.send_many("t", [b"v"] * len(KEYS), keys=KEYS)
        assert report.partitions == sorted({partition_of(key, after) for key in KEYS})


async def test_what_waits_for_the_old_topic_fails_and_close_reports_it(
    client: AsyncClient, fake: FakeCluster
) -> None:
    producer = client.producer(linger_ms=60_000)
    await producer.send("t", b"old", partition=0)
    waiting = [producer.send_nowait("t", b"w", partition=p) for p in range(6)]
    create_again(fake, 2)
    with pytest.raises(InconsistentTopicId):
        await producer.send("t", b"meets the change", partition=1)
    for future in waiting:
        with pytest.raises(InconsistentTopicId, match="created again"):
            await future
    await producer.close()
    assert fake.log("t", 0).end == fake.log("t", 1).end == 0


async def test_f6_a_reader_by_name_goes_on_at_the_start_of_the_next_life_and_says_so(
    client: AsyncClient, fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        client.producer() as producer,
        client.reader("t", start="latest", fetch_max_wait_ms=50) as reader,
    ):
        await producer.send("t", b"old", partition=5)
        assert [r.value for r in await reader.poll(timeout=60)] == [b"old"]
        create_again(fake, 2)
        async with AsyncClient(fake.bootstrap) as other, other.producer() as again:
            for number in range(8):
                await again.send("t", b"new-%d" % number, partition=number % 2)
        got: list[bytes] = []
        async with asyncio.timeout(30):
            while len(got) < 8:
                got += [record.value or b"" for record in await reader.poll(timeout=1)]
        assert sorted(got) == [b"new-%d" % number for number in range(8)]
        assert await reader.assignment() == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert "topic t was deleted and created again" in caplog.text


@pytest.mark.parametrize("after", [1, 6])
async def test_a_position_of_the_old_topic_raises_at_each_poll_until_a_seek(
    client: AsyncClient, fake: FakeCluster, after: int
) -> None:
    where = TopicPartition("t", 0)
    async with client.producer() as producer, client.consumer(fetch_max_wait_ms=50) as consumer:
        for _ in range(3):
            await producer.send("t", b"old", partition=0)
        await consumer.assign([where, TopicPartition("t", 5)])
        await consumer.seek(where, 2)
        assert len(await consumer.poll(timeout=60)) == 1
        create_again(fake, after)
        for _ in range(3):
            with pytest.raises(InconsistentTopicId, match="position"):
                await consumer.poll(timeout=60)
        async with AsyncClient(fake.bootstrap) as other, other.producer() as again:
            await again.send("t", b"new", partition=0)
        await consumer.assign([where])
        await consumer.seek(where, 0)
        async with asyncio.timeout(30):
            while not (records := await consumer.poll(timeout=1)):
                pass
        assert [record.value for record in records] == [b"new"]


async def test_reading_to_the_end_of_a_topic_that_was_created_again_raises(
    client: AsyncClient, fake: FakeCluster
) -> None:
    async with client.producer() as producer:
        await producer.send_many("t", [b"old"] * 100, partition=0)
    async with client.reader("t", fetch_max_wait_ms=50) as reader:
        ends = await reader.begin_to_end()
        ends[TopicPartition("t", 0)] += 1  # as if one record more were on its way
        assert await reader.hand_over.refill_until(ends)
        reader.handout.ready.clear()
        create_again(fake, 6)
        with pytest.raises(InconsistentTopicId):
            await reader.hand_over.refill_until(ends)


async def test_new_partitions_are_seen_by_readers_by_name(fake: FakeCluster) -> None:
    async with AsyncClient(fake.bootstrap, metadata_max_age_ms=100) as client:  # noqa: SIM117
        async with client.reader("t", start="latest", fetch_max_wait_ms=50) as reader:
            grown = fake.create("t", 8)
            grown.topic_id = fake.topic_ids[0]  # the same topic, with two partitions more
            async with client.producer() as producer:
                await client.admin.describe_topic("t")
                await producer.send("t", b"late", partition=7)
            async with asyncio.timeout(30):
                while not (records := await reader.poll(timeout=1)):
                    pass
            assert (records[0].partition, records[0].value) == (7, b"late")


async def test_p5_partitions_nobody_asked_for_get_owners_and_then_the_client_is_quiet() -> None:
    async with loopback() as rig:
        a = await rig.broker()
        await create_topic(a, partitions=6)
        async with (
            AsyncClient(a.address, retry_backoff_ms=10) as client,
            client.producer(linger_ms=0) as producer,
        ):
            await producer.send("orders", b"first")
            cluster = client._binding.cluster()  # pyright: ignore[reportPrivateUsage]

            def is_settled() -> bool:
                busy = cluster.owners.completing
                return not busy and "" not in cluster.topics.views["orders"].owners

            await until(is_settled, "every partition has an owner and nobody asks any more")
            # An owner is named when it has the bundle: the partition may still be loading.
            await until(lambda: len(rig.servers[0].registry) == 6)
            report = await producer.send_many("orders", [b"x" * 1000] * 4_000)
            assert report.partitions == list(range(6))


async def test_m3_a_deletion_is_repeated_for_the_topic_it_was_meant_for(
    client: AsyncClient, fake: FakeCluster
) -> None:
    await client.admin.describe_topic("t")
    fake.topics.pop("t")
    made = fake.create("t", 1)
    await client.admin.delete_topic("t")  # the name's topic now: what the metadata say by then
    assert "t" not in fake.topics
    fake.topics["t"] = made
    assert (await client.admin.create_topic("u", 2)).name == "u"
