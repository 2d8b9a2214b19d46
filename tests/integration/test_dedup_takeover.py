"""X14 over real processes: the broker that stored the first record is killed before the second."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from octavo import AsyncClient
from octavo.runtime.errors import DedupWindowFull, DeliveryFailed, InvalidRecord
from octavo.testing import LocalCluster

HEARD_S = 60
IDS = [f"order-{number}" for number in range(40)]


async def owner_of(client: AsyncClient, cluster: LocalCluster) -> str:
    """Name of the broker that serves the topic's partition, once whoever is asked has heard."""
    names = {one.address: name for name, one in cluster.processes.items()}
    async with asyncio.timeout(HEARD_S):
        while True:
            told = await client.admin.describe_topic("orders")
            if (address := told.partitions[0].owner_address) in names:
                return names[address]


async def test_x14_a_broker_is_killed_between_two_sends() -> None:
    """Neither the broker nor the producer lives on, and each record is there once."""
    with LocalCluster(brokers=2) as cluster:
        async with AsyncClient(cluster.bootstrap_servers) as client:
            settings = {"dedup.window.ms": "600000", "dedup.window.ids": "40"}
            await client.admin.create_topic("orders", 1, config=settings)
            async with client.producer() as producer:
                first = [await producer.send("orders", one, dedup_id=one) for one in IDS]
            assert [meta.offset for meta in first] == list(range(40))
            await asyncio.to_thread(cluster.kill, await owner_of(client, cluster))
        async with AsyncClient(cluster.bootstrap_servers) as client:
            async with client.producer() as producer:
                again = await producer.send_many("orders", [b"other"] * 40, dedup_ids=IDS)
                assert (again.duplicates, again.offsets(0)) == (40, [range(40)])
            async with client.producer(
                delivery_timeout_ms=3_000, request_timeout_ms=2_500
            ) as hasty:
                # either what it heard last, or that with its last request still on its way
                with pytest.raises((DedupWindowFull, DeliveryFailed), match="40 ids count"):
                    await hasty.send("orders", b"one too many", dedup_id="order-40")
            await client.admin.alter_topic("orders", {"dedup.window.ids": "50"})
            async with client.producer() as producer:
                meta = await producer.send("orders", b"last", dedup_id="order-40")
                assert (meta.offset, meta.duplicate) == (40, False)
            async with client.reader("orders", start="earliest") as reader:
                values = [record.value async for record in reader.read_to_end()]
            assert values == [*(one.encode() for one in IDS), b"last"]
            await client.admin.alter_topic("orders", unset=["dedup.window.ms"])
            async with client.producer() as producer:
                # its owner may hear of the change after the broker that made it
                async def sent_until_refused() -> None:
                    for number in itertools.count(41):
                        await producer.send("orders", b"v", dedup_id=f"order-{number % 50}")

                with pytest.raises(InvalidRecord, match="its topic remembers none"):
                    await asyncio.wait_for(sent_until_refused(), HEARD_S)
