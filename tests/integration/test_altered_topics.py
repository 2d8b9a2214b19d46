"""Topics are changed while brokers serve them and clients use them (F016, P7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from octavo.client.messaging.api.client import AsyncClient
from octavo.client.messaging.partitioner import partition_of
from octavo.proto import broker_pb2 as pb
from octavo.runtime.errors import InvalidPartitions, OctavoError
from octavo.serving.partition.shell import PartitionShell
from tests.serving_rig import make_batch, until
from tests.serving_server import Loopback, batch_of, create_topic, find_owner, loopback

KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


def shells(cluster: Loopback) -> list[PartitionShell]:
    return [shell for server in cluster.servers for shell in server.registry.shells()]


async def test_an_owner_goes_by_new_settings_whoever_took_them(cluster: Loopback) -> None:
    first = await cluster.broker("broker-1", retention_check_interval_ms=100)
    second = await cluster.broker("broker-2", ownership_settle_s=1000)
    await cluster.acquainted()
    await create_topic(first)
    clients = {one.address: one for one in (first, second)}
    owner = clients[await find_owner(clients, "orders", 0)]
    other = second if owner is first else first
    await owner.produce(batch_of(make_batch([b"0"])))
    (shell,) = shells(cluster)
    request = pb.AlterTopicRequest(name="orders", config={"segment.bytes": "65536"})
    reply = await other.stub.AlterTopic(request)
    assert not reply.HasField("error")
    assert reply.topic.effective["segment.bytes"] == "65536"
    await until(lambda: shell.settings.segment_bytes == 65536)
    await owner.produce(batch_of(make_batch([b"x" * 70_000])))
    await until(lambda: shell.described()[0].end_offset == 2)

    unset = pb.AlterTopicRequest(name="orders", unset=["segment.bytes"])
    assert not (await other.stub.AlterTopic(unset)).topic.config
    await until(lambda: shell.settings.segment_bytes > 65536)


async def test_r3_a_shorter_retention_holds_for_what_is_there(cluster: Loopback) -> None:
    client = await cluster.broker()
    await create_topic(client)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    (ack,) = await client.produce(batch_of(make_batch([b"0"])))
    (shell,) = shells(cluster)
    await until(lambda: time.time() * 1000 > ack.append_time_ms + 60)
    request = pb.AlterTopicRequest(name="orders", config={"retention.ms": "50"})
    await client.stub.AlterTopic(request)
    await until(lambda: shell.log_start == 1)


async def test_a1_another_quorum_is_that_of_the_next_ledger(cluster: Loopback) -> None:
    client = await cluster.broker()
    await create_topic(client)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    await client.produce(batch_of(make_batch([b"0"])))
    (shell,) = shells(cluster)
    request = pb.AlterTopicRequest(name="orders", config={"min.insync.replicas": "3"})
    await client.stub.AlterTopic(request)
    await until(lambda: shell.described()[-1].end_offset == 1)
    await client.produce(batch_of(make_batch([b"1"])))
    assert cluster.bookies.writers[-1].metadata.quorum.ack == 3


async def test_p7_a_topic_grows_under_a_keyed_producer_and_a_reader(cluster: Loopback) -> None:
    """Nothing is lost, and the order of a key holds before and after."""
    client = await cluster.broker()
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", 2)
        async with sdk.producer(linger_ms=0) as producer, sdk.reader("orders") as reader:
            sent = 0
            grown = asyncio.Event()
            where: dict[bytes, set[int]] = {key: set() for key in KEYS}

            async def produce() -> None:
                nonlocal sent
                while not (grown.is_set() and producer_knows()):
                    for key in KEYS:
                        stored = await producer.send("orders", b"%d" % sent, key=key)
                        where[key].add(stored.partition)
                        sent += 1

            def producer_knows() -> bool:
                return any(max(partitions) > 1 for partitions in where.values())

            producing = asyncio.ensure_future(produce())
            await until(lambda: sent > 100)
            told = await sdk.admin.create_partitions("orders", 4)
            assert "order of one key" in told.warning
            grown.set()
            await producing
            for key in KEYS:
                assert where[key] <= {partition_of(key, 2), partition_of(key, 4)}
            seen: dict[bytes, list[tuple[int, int]]] = {}
            count = 0
            async with asyncio.timeout(30):
                while count < sent:
                    for record in await reader.poll(timeout=1.0):
                        assert record.key is not None
                        value = int(record.value or b"")
                        seen.setdefault(record.key, []).append((record.partition, value))
                        count += 1
            for key in KEYS:
                for partition in where[key]:
                    values = [value for at, value in seen[key] if at == partition]
                    assert values == sorted(values)
                numbers = [value for _, value in seen[key]]
                assert len(numbers) == len(set(numbers))
        with pytest.raises(InvalidPartitions):
            await sdk.admin.create_partitions("orders", 3)


async def test_a_broker_that_has_not_heard_of_the_growth_looks_before_it_says_no(
    cluster: Loopback,
) -> None:
    first = await cluster.broker("broker-1")
    await create_topic(first)
    directory = cluster.servers[0]._topics  # pyright: ignore[reportPrivateUsage]
    stale = await directory.get("orders")
    await first.stub.AlterTopic(pb.AlterTopicRequest(name="orders", partitions=3))
    await directory.get("orders")
    known = directory._known["orders"]  # pyright: ignore[reportPrivateUsage]
    known.topic = stale
    reply = await first.stub.Lookup(pb.LookupRequest(topic="orders", partition=2))
    assert not reply.HasField("error")
    reply = await first.stub.Lookup(pb.LookupRequest(topic="orders", partition=3))
    assert reply.error.code == "INVALID_PARTITION"


async def test_settings_altered_while_a_partition_is_loaded_are_taken_up(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.broker()
    await create_topic(client)
    real = PartitionShell.open

    async def altered_meanwhile(self: PartitionShell) -> None:
        await real(self)
        request = pb.AlterTopicRequest(name="orders", config={"segment.bytes": "70000"})
        await client.stub.AlterTopic(request)

    monkeypatch.setattr(PartitionShell, "open", altered_meanwhile)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    (shell,) = shells(cluster)
    assert shell.settings.segment_bytes == 70_000


async def test_describe_tells_what_is_set_and_what_is_by_default(cluster: Loopback) -> None:
    client = await cluster.broker()
    async with AsyncClient(client.address) as sdk:
        await sdk.admin.create_topic("orders", 1, {"segment.ms": "9000"})
        found = await sdk.admin.describe_topic("orders")
        assert found.config == {"segment.ms": "9000"}
        assert found.effective["segment.ms"] == "9000"
        assert found.effective["retention.ms"] == str(7 * 86_400_000)
        altered = await sdk.admin.alter_topic("orders", unset=["segment.ms"])
        assert altered.config == {}
        with pytest.raises(OctavoError):
            await sdk.admin.alter_topic("orders")
