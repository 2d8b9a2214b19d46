"""A topic grows from 4 to 8 partitions under a keyed load while a group reads it (P7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

import pytest

from octavo import AsyncClient, AsyncGroupConsumer, TopicPartition
from octavo.client.messaging.partitioner import partition_of
from octavo.runtime.errors_of_groups import GroupIdNotFound
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


async def _late_records(
    sdk: AsyncClient, consumer: AsyncGroupConsumer, make: Making, topic: str = "orders"
) -> None:
    """What is sent before the group hears of the new partition is read, from the first record."""
    await make
    await _read(consumer, await _sent(sdk, topic))


async def _sent(sdk: AsyncClient, topic: str) -> set[bytes]:
    """Ten values that are in the last partition."""
    values = {b"%d" % number for number in range(10)}
    async with sdk.producer(linger_ms=0, acks="all") as producer:
        for value in sorted(values):
            await producer.send(topic, value, partition=AFTER - 1)
    return values


async def _polled(consumer: AsyncGroupConsumer) -> set[bytes]:
    return {bytes(one.value or b"") for one in await consumer.poll(timeout=0.2)}


async def _read(consumer: AsyncGroupConsumer, sent: set[bytes], got: Iterable[bytes] = ()) -> None:
    """All of it, of which some was got before, and nothing else."""
    found = set(got)
    async with asyncio.timeout(30):
        while found < sent:
            found |= await _polled(consumer)
    assert found == sent


async def _begun(consumer: AsyncGroupConsumer) -> None:
    """It has all that there is before, and stands at its end."""
    while len(await consumer.assignment()) < BEFORE:
        assert not await consumer.poll(timeout=0.1)
    for where in await consumer.assignment():
        await consumer.position(where)  # chosen


async def _joined(sdk: AsyncClient) -> None:
    """The coordinator knows a member: the group's subscription has begun."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(GroupIdNotFound):
                if (await sdk.admin.describe_group("g")).members:
                    return
            await asyncio.sleep(0.01)


async def test_f6_latest_is_not_for_a_partition_that_came_behind_the_subscription(
    cluster: Loopback,
) -> None:
    client = await cluster.broker("broker-1", **QUICK)
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", BEFORE)
        async with sdk.producer() as producer:
            await producer.send("orders", b"before the group", partition=0)
        async with sdk.consumer("orders", group="g", auto_offset_reset="latest") as consumer:
            await _begun(consumer)
            await _late_records(sdk, consumer, sdk.admin.create_partitions("orders", AFTER))
            await consumer.unsubscribe()
            await sdk.admin.create_partitions("orders", AFTER + 1)
            async with sdk.producer() as producer:
                await producer.send("orders", b"before the next subscription", partition=AFTER)
            async with sdk.consumer("orders", group="other") as other:  # until coordinators know
                while len(await other.assignment()) <= AFTER:
                    await other.poll(timeout=0.1)
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
        await consumer.poll(timeout=0)  # begins to join; it gets nothing by which to tell
        await _joined(sdk)
        await _late_records(sdk, consumer, sdk.admin.create_topic("orders", AFTER))


async def test_f6_latest_is_not_for_what_a_pattern_matches_later(cluster: Loopback) -> None:
    """A partition, and then a topic, that came behind the subscription."""
    client = await cluster.broker("broker-1", **QUICK)
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", BEFORE)
        async with sdk.producer() as producer:
            await producer.send("orders", b"before the group", partition=0)
        async with sdk.consumer(pattern="ord.*", group="g", auto_offset_reset="latest") as consumer:
            await _begun(consumer)
            await _late_records(sdk, consumer, sdk.admin.create_partitions("orders", AFTER))
            await _late_records(
                sdk, consumer, sdk.admin.create_topic("ordinary", AFTER), "ordinary"
            )


async def test_f6_latest_of_a_member_that_joins_behind_a_new_partition(cluster: Loopback) -> None:
    """The subscription is the group's: it began before the partition, and this member after it."""
    client = await cluster.broker("broker-1", **QUICK)
    async with AsyncClient(client.address, metadata_max_age_ms=100) as sdk:
        await sdk.admin.create_topic("orders", BEFORE)
        async with sdk.producer() as producer:
            await producer.send("orders", b"before the group", partition=0)
        first = sdk.consumer("orders", group="g", auto_offset_reset="latest")
        await _begun(first)
        await sdk.admin.create_partitions("orders", AFTER)
        sent = await _sent(sdk, "orders")
        async with sdk.consumer("orders", group="g", auto_offset_reset="latest") as second:
            got = set[bytes]()
            while not await second.assignment():
                got |= await _polled(second)
            await first.close()
            await _read(second, sent, got)
