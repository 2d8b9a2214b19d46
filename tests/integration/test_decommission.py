"""A partition is decommissioned under load, drained by a group, and removed (F027)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from octavo import AsyncClient, Record, TopicPartition
from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.partitioner import partition_of
from octavo.errors import PartitionDecommissioned
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process
PARTITIONS, GONE = 4, 2
KEYS = [b"key-%d" % number for number in range(24)]
AGE_MS, GRACE_MS = 200, 1_000
PATIENCE_S = 60.0
SETTINGS = {
    "decommission_grace_ms": GRACE_MS,
    "retention_check_interval_ms": 200,
    "housekeeping_interval_s": 0.1,
}


class Load:
    """A producer of numbered records with keys; where each record went."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self.sent: list[tuple[bytes, int, int]] = []
        """Key, number, partition, in the order in which they were sent."""
        self.stops = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.stops:
                return
            key = KEYS[number % len(KEYS)]
            stored = await self._producer.send("orders", b"%d" % number, key=key)
            self.sent.append((key, number, stored.partition))

    async def until_sent(self, more: int) -> None:
        wanted = len(self.sent) + more
        async with asyncio.timeout(PATIENCE_S):
            while len(self.sent) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def read(consumer: AsyncGroupConsumer, found: list[Record], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await consumer.poll(timeout=0.2)


def judge(load: Load, found: list[Record]) -> None:
    """Every record once, and the order of each key within each partition."""
    assert Counter(int(record.value or b"") for record in found) == Counter(
        number for _, number, _ in load.sent
    )
    for key in KEYS:
        for partition in range(PARTITIONS):
            got = [
                int(one.value or b"")
                for one in found
                if (one.key, one.partition) == (key, partition)
            ]
            assert got == [n for k, n, p in load.sent if (k, p) == (key, partition)]


async def states(client: AsyncClient) -> list[str]:
    return [one.state for one in (await client.admin.describe_topic("orders")).partitions]


async def test_f027_a_partition_is_decommissioned_under_load_and_its_owner_dies() -> None:
    """No send fails, nothing is lost or doubled, keys go on in order; then it disappears."""
    with LocalCluster(brokers=2, broker_settings=SETTINGS) as cluster:
        servers = cluster.bootstrap_servers
        async with AsyncClient(servers, metadata_max_age_ms=AGE_MS) as client:
            await client.admin.create_topic("orders", PARTITIONS)
            async with (
                client.producer(linger_ms=0) as producer,
                client.consumer("orders", group="g", auto_offset_reset="earliest") as consumer,
            ):
                load, found = Load(producer), list[Record]()
                running = asyncio.ensure_future(load.run())
                await load.until_sent(100)
                told = await client.admin.decommission_partition("orders", GONE)
                assert "order of one key" in told.warning
                await load.until_sent(100)
                names = {one.address: name for name, one in cluster.processes.items()}
                while (owner := told.partitions[GONE].owner_address) not in names:
                    told = await client.admin.describe_topic("orders")  # it has not heard of it
                await asyncio.to_thread(cluster.kill, names[owner])
                await load.until_sent(300)
                load.stops = True
                await running
                after = {partition for _, _, partition in load.sent[-200:]}
                assert after == {0, 1, 3}
                writable = [0, 1, 3]
                for key, _, partition in load.sent[-200:]:
                    assert partition == writable[partition_of(key, 3)]
                with pytest.raises(PartitionDecommissioned):
                    await producer.send("orders", b"x", partition=GONE)
                await read(consumer, found, len(load.sent))
                await consumer.commit()
                judge(load, found)
                await drained_and_removed(client, consumer)
                await refused_of_a_client_that_has_not_heard(servers)


async def drained_and_removed(client: AsyncClient, consumer: AsyncGroupConsumer) -> None:
    """Retention empties it; the group is not assigned to it any more; commits stay."""
    assert (await states(client))[GONE] == "decommissioned"
    here = TopicPartition("orders", GONE)
    assert here in await consumer.assignment()
    await client.admin.alter_topic("orders", {"retention.ms": "1"})
    async with asyncio.timeout(PATIENCE_S):
        while (await states(client))[GONE] != "removed" or here in await consumer.assignment():
            await consumer.poll(timeout=0.1)
    assert await states(client) == ["active", "active", "removed", "active"]
    assert {one.partition for one in await consumer.assignment()} == {0, 1, 3}
    committed = await consumer.committed(here)
    assert committed[here] is not None
    grown = await client.admin.create_partitions("orders", PARTITIONS + 1)
    assert [one.state for one in grown.partitions][GONE] == "removed"


async def refused_of_a_client_that_has_not_heard(servers: str) -> None:
    """The owner says so; the same call is right the second time."""
    async with (
        AsyncClient(servers, metadata_max_age_ms=600_000) as stale,
        stale.producer(linger_ms=0) as producer,
    ):
        view = await stale.admin.describe_topic("orders")
        topics = stale._binding.cluster().topics  # pyright: ignore[reportPrivateUsage]
        lives = topics._lives  # pyright: ignore[reportPrivateUsage]
        assert view.partitions[GONE].removed
        forgotten = topics.views["orders"]._replace(decommissioned=frozenset())
        lives._newest["orders"] = forgotten  # pyright: ignore[reportPrivateUsage]
        topics.views["orders"] = forgotten
        with pytest.raises(PartitionDecommissioned):
            await producer.send("orders", b"x", partition=GONE)
        async with asyncio.timeout(PATIENCE_S):
            while not topics.views["orders"].decommissioned:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await producer.send("orders", b"x", key=b"k")
