"""A topic grows from 4 to 8 partitions under a keyed load while a group reads it (P7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from octavo import AsyncClient, AsyncGroupConsumer, TopicPartition
from octavo.client.messaging.partitioner import partition_of
from tests.group_cluster import QUICK
from tests.serving_rig import until
from tests.serving_server import Loopback, loopback

KEYS = [b"key-%d" % number for number in range(40)]
BEFORE, AFTER = 4, 8
Making = Coroutine[Any, Any, object]


@pytest.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


class Load:
    """A producer that writes numbers, key after key, and what it was told of each."""

    def __init__(self, sdk: AsyncClient) -> None:
        self._sdk = sdk
        self.ends = asyncio.Event()
        self.sent: dict[bytes, list[tuple[int, int]]] = {key: [] for key in KEYS}
        """Partition and number, in the order in which they were sent."""
        self.count = 0

    def has_grown(self) -> bool:
        return any(max(at for at, _ in sent) >= BEFORE for sent in self.sent.values() if sent)

    async def run(self) -> None:
        async with self._sdk.producer(linger_ms=0) as producer:
            while not self.ends.is_set():
                for key in KEYS:
                    stored = await producer.send("orders", b"%d" % self.count, key=key)
                    self.sent[key].append((stored.partition, self.count))
                    self.count += 1


class Members:
    """What members of one group got, all of them together."""

    def __init__(self) -> None:
        self.ends = asyncio.Event()
        self.got: dict[bytes, list[tuple[int, int]]] = {key: [] for key in KEYS}
        self.numbers: set[int] = set()
        self.holders: dict[int, int] = {}
        """How many partitions each of them holds."""

    async def run(self, number: int, sdk: AsyncClient) -> None:
        async with sdk.consumer("orders", group="g", auto_offset_reset="earliest") as member:
            while not self.ends.is_set():
                for record in await member.poll(timeout=0.1):
                    assert record.key is not None
                    value = int(record.value or b"")
                    self.got[record.key].append((record.partition, value))
                    self.numbers.add(value)
                self.holders[number] = len(await member.assignment())


async def test_p7_a_group_reads_on_while_its_topic_grows(cluster: Loopback) -> None:
    """Nothing is lost or comes twice; a key's order holds in the old partition and in the new."""
    client = await cluster.broker("broker-1", **QUICK)
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", BEFORE)
        load, members = Load(sdk), Members()
        tasks = [asyncio.ensure_future(members.run(number, sdk)) for number in range(2)]
        producing = asyncio.ensure_future(load.run())
        await until(lambda: len(members.numbers) > 2 * len(KEYS))
        await sdk.admin.create_partitions("orders", AFTER)
        await until(load.has_grown)
        at = load.count
        await until(lambda: load.count > at + 2 * len(KEYS))
        load.ends.set()
        await producing
        await until(lambda: len(members.numbers) == load.count, "all records")
        await until(lambda: sorted(members.holders.values()) == [4, 4])
        members.ends.set()
        await asyncio.gather(*tasks)
    moved = 0
    for key in KEYS:
        old, new = partition_of(key, BEFORE), partition_of(key, AFTER)
        assert {at for at, _ in load.sent[key]} <= {old, new}
        for where in {old, new}:
            sent = [number for at, number in load.sent[key] if at == where]
            assert [number for at, number in members.got[key] if at == where] == sent
        first_new = [at for at, _ in load.sent[key]].index(new)
        assert {at for at, _ in load.sent[key][first_new:]} == {new}, "it never goes back"
        moved += old != new
    assert moved, "some keys went to other partitions"


async def _late_records(sdk: AsyncClient, consumer: AsyncGroupConsumer, make: Making) -> None:
    """What is sent before the group hears of the new partition is read, from the first record."""
    sent = set[bytes]()
    await make
    async with sdk.producer(linger_ms=0, acks="all") as producer:
        for number in range(10):
            value = b"%d" % number
            await producer.send("orders", value, partition=AFTER - 1)
            sent.add(value)
    got = set[bytes]()
    async with asyncio.timeout(20):
        while got < sent:
            got |= {bytes(one.value or b"") for one in await consumer.poll(timeout=0.2)}
    assert got == sent


async def test_f6_latest_is_not_for_a_partition_that_came_behind_the_subscription(
    cluster: Loopback,
) -> None:
    client = await cluster.broker("broker-1", **QUICK)
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", BEFORE)
        async with sdk.producer() as producer:
            await producer.send("orders", b"before the group", partition=0)
        async with sdk.consumer("orders", group="g", auto_offset_reset="latest") as consumer:
            while len(await consumer.assignment()) < BEFORE:
                assert not await consumer.poll(timeout=0.1)
            for where in await consumer.assignment():
                await consumer.position(where)  # chosen
            await _late_records(sdk, consumer, sdk.admin.create_partitions("orders", AFTER))
            await consumer.unsubscribe()
            await sdk.admin.create_partitions("orders", AFTER + 1)
            async with sdk.producer() as producer:
                await producer.send("orders", b"before the next subscription", partition=AFTER)
            await consumer.subscribe(["orders"])
            while len(await consumer.assignment()) <= AFTER:
                assert not await consumer.poll(timeout=0.1)
            assert await consumer.position(TopicPartition("orders", AFTER)) == 1


async def test_f6_latest_is_not_for_a_topic_that_came_behind_the_subscription(
    cluster: Loopback,
) -> None:
    client = await cluster.broker("broker-1", **QUICK)
    async with (
        AsyncClient(client.address, metadata_max_age_ms=100) as sdk,
        sdk.consumer("orders", group="g", auto_offset_reset="latest") as consumer,
    ):
        assert not await consumer.poll(timeout=0.5)
        await _late_records(sdk, consumer, sdk.admin.create_topic("orders", AFTER))
