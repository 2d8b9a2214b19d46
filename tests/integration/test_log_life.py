"""The beginning of a log goes away under its readers: the wire, the SDK (R4, F5)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from octavo.client.messaging.api.client import AsyncClient
from octavo.metadata.paths import Paths
from octavo.proto import broker_pb2 as pb
from octavo.runtime.errors import ConfigError, NotLeader, OffsetOutOfRange, UnknownTopic
from tests.serving_rig import make_batch, until
from tests.serving_server import Client, Loopback, batch_of, create_topic, fetch_of, loopback


@pytest.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


@pytest.fixture
async def client(cluster: Loopback) -> Client:
    made = await cluster.broker()
    await create_topic(made)
    await made.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    return made


async def fill(client: Client, segments: int) -> None:
    """So many segments of one record; the last one is open."""
    for i in range(segments):
        await client.produce(batch_of(make_batch([b"%d" % i])))
        if i + 1 < segments:
            await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))


async def delete(client: Client, before: int, topic: str = "orders") -> pb.DeleteRecordsReply:
    request = pb.DeleteRecordsRequest(topic=topic, partition=0, before=before)
    return await client.stub.DeleteRecords(request)


async def test_delete_records_answers_the_new_start(client: Client) -> None:
    await fill(client, 3)
    assert (await delete(client, 2)).log_start == 2
    assert (await delete(client, 1)).log_start == 2
    described = await client.stub.DescribeLog(pb.DescribeLogRequest(topic="orders", partition=0))
    assert (described.log_start, described.high_watermark) == (2, 3)
    assert [one.base_offset for one in described.segments] == [2]
    assert (await delete(client, -1)).log_start == 3
    assert (await delete(client, 4)).error.code == "OFFSET_OUT_OF_RANGE"
    assert (await delete(client, 0, "nowhere")).error.code == "UNKNOWN_TOPIC"


async def test_a_fetch_below_the_start_is_out_of_range(client: Client) -> None:
    await fill(client, 3)
    await delete(client, 2)
    (partition,) = (await client.fetch(fetch_of(1))).partitions
    assert partition.error.code == "OFFSET_OUT_OF_RANGE"
    assert (partition.log_start, partition.high_watermark) == (2, 3)
    (partition,) = (await client.fetch(fetch_of(2))).partitions
    assert len(partition.batches) == 1


async def test_a_fetch_that_waits_hears_of_the_trim(cluster: Loopback, client: Client) -> None:
    await fill(client, 3)
    watchers = cluster.servers[0].registry.shells()[0].watchers
    asked = fetch_of(0, max_wait_ms=20_000, min_bytes=1 << 20)
    waiting = asyncio.ensure_future(client.fetch(asked))
    await until(lambda: watchers._callbacks)  # pyright: ignore[reportPrivateUsage]
    await delete(client, 2)
    reply = await asyncio.wait_for(waiting, 15)
    assert reply.partitions[0].error.code == "OFFSET_OUT_OF_RANGE"


async def test_a_read_whose_ledger_goes_meanwhile_is_out_of_range(
    cluster: Loopback, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a bare NO_SUCH_LEDGER, never a record from behind the gap."""
    await fill(client, 3)
    server = cluster.servers[0]
    shell = server.registry.shells()[0]
    cold = server._cold  # pyright: ignore[reportPrivateUsage]
    real = cold.read_segment

    async def trimmed_first(*args: object, **keywords: object) -> object:
        await shell.trim(2)
        await until(lambda: len(cluster.bookies.deleted) == 2)
        return await real(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(cold, "read_segment", trimmed_first)
    shell._driver.tail.close()  # pyright: ignore[reportPrivateUsage]
    (partition,) = (await client.fetch(fetch_of(0))).partitions
    assert partition.error.code == "OFFSET_OUT_OF_RANGE"
    assert not partition.batches


async def test_the_admin_deletes_and_a_consumer_goes_on_by_its_reset_policy(
    client: Client,
) -> None:
    await fill(client, 4)
    async with AsyncClient(client.address) as sdk:
        assert await sdk.admin.delete_records("orders", 0, 2) == 2
        assert await sdk.admin.list_offsets("orders", "earliest") == {0: 2}
        async with sdk.reader("orders", start="earliest") as reader:
            got = [record.value async for record in reader.read_to_end()]
        assert got == [b"2", b"3"]
        assert await sdk.admin.delete_records("orders", 0) == 4
        with pytest.raises(OffsetOutOfRange):
            await sdk.admin.delete_records("orders", 0, 5)
        with pytest.raises(UnknownTopic):
            await sdk.admin.delete_records("nowhere", 0, timeout=2.0)
        with pytest.raises(ConfigError):
            await sdk.admin.delete_records("orders", 0, -2)


async def test_r3_topics_that_nobody_asks_for_empty_too(cluster: Loopback) -> None:
    """Also when their owner died and nobody took over: no ledger is left but the last one.

    Planted: a round ended at the first record that could not be read (M-7).
    """
    client = await cluster.broker("broker-1")
    await create_topic(client, retention_ms="300")
    for number in range(8):  # before and behind the other in the order of a round
        made = await client.stub.CreateTopic(pb.CreateTopicRequest(name=f"b{number}", partitions=1))
        key = Paths("/octavo").partition(uuid.UUID(bytes=made.topic.topic_id), 0)
        await cluster.stores[0].create(key, b"no record")
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    await fill(client, 3)
    server = cluster.servers[0]
    for shell in server.registry.shells():
        await shell.abandon(NotLeader("killed"))
    await server.stop()
    quick = await cluster.broker("broker-2", retention_check_interval_ms=100)
    del quick
    await until(lambda: len(cluster.bookies.deleted) == 3)
    (shell,) = cluster.servers[1].registry.shells()
    assert (shell.log_start, shell.high_watermark) == (3, 3)


async def test_settings_of_retention_are_taken_and_refused(client: Client) -> None:
    for config, code in (
        ({"retention.ms": "1000", "retention.bytes": "-1"}, ""),
        ({"retention.ms": "-2"}, "INVALID_CONFIG"),
        ({"retention.bytes": "1GiB"}, "INVALID_CONFIG"),
    ):
        request = pb.CreateTopicRequest(name=f"t{len(code)}", partitions=1, config=config)
        assert (await client.stub.CreateTopic(request)).error.code == code
