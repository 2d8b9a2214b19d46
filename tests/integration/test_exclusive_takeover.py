"""X32 over real processes: the broker dies while a producer is the only writer, and after it."""

from __future__ import annotations

import asyncio

import pytest

from octavo import AsyncClient
from octavo.runtime.errors_of_writers import (
    ExclusiveWriterBusy,
    ExclusiveWriterRequired,
    ProducerFenced,
)
from octavo.testing import LocalCluster
from tests.integration.test_dedup_takeover import owner_of

LEASE_MS = 4_000


async def kill_owner(client: AsyncClient, cluster: LocalCluster) -> None:
    """Kill the broker that serves the topic's partition."""
    await asyncio.to_thread(cluster.kill, await owner_of(client, cluster))


async def test_x32_the_writer_stays_the_writer_when_the_broker_dies_and_fencing_holds() -> None:
    with LocalCluster(brokers=2, broker_settings={"writer_lease_ms": str(LEASE_MS)}) as cluster:
        async with (
            AsyncClient(cluster.bootstrap_servers) as client,
            AsyncClient(cluster.bootstrap_servers) as other,
        ):
            await client.admin.create_topic("orders", 1, config={"exclusive.writer": "true"})
            old = client.producer(access_mode="exclusive")
            for number in range(10):
                await old.send("orders", b"old-%d" % number)
            await kill_owner(client, cluster)
            await old.send("orders", b"old-10")  # by the next owner, under the same epoch
            async with other.producer(access_mode="exclusive") as polite:
                with pytest.raises(ExclusiveWriterBusy):
                    await polite.send("orders", b"no")
            async with other.producer() as anybody:
                with pytest.raises(ExclusiveWriterRequired):
                    await anybody.send("orders", b"no")
            async with other.producer(access_mode="exclusive_with_fencing") as new:
                await new.send("orders", b"new")
                with pytest.raises(ProducerFenced):
                    await old.send("orders", b"late")
                await old.close()
                async with client.producer(access_mode="wait_for_exclusive") as waiting:
                    turn = asyncio.ensure_future(waiting.send("orders", b"its turn"))
                    await new.close()
                    assert (await turn).offset == 12
            async with client.reader("orders", start="earliest") as reader:
                values = [record.value async for record in reader.read_to_end()]
            assert values == [*(b"old-%d" % n for n in range(11)), b"new", b"its turn"]
