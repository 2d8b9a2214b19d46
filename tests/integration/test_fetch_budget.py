"""What a reply holds of the broker's budget is what it has in memory (BP-2)."""

from __future__ import annotations

import pytest

from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import SystemClock
from octavo.serving.budget import ByteBudget
from octavo.serving.fetch import COPIES_IN_FLIGHT, Fetcher
from octavo.serving.quotas.clients import ClientUse
from tests.serving_rig import make_batch
from tests.serving_server import batch_of, create_topic, find_owner, loopback

MIB = 1 << 20


@pytest.mark.parametrize("limit", [1, 64 * 1024, 4 * MIB])
@pytest.mark.parametrize("sizes", [(3 * MIB,), (1000, 1000), (10, 2 * MIB, 10)])
async def test_bp2_f2_the_budget_counts_the_batch_that_comes_in_any_case(
    limit: int, sizes: tuple[int, ...]
) -> None:
    async with loopback() as cluster:
        client = await cluster.broker("broker-1")
        await create_topic(client, partitions=1, max_message_bytes=str(4 * MIB))
        await find_owner({client.address: client}, "orders", 0)
        batches = [make_batch([b"\0\1" * (size // 2)]) for size in sizes]
        for batch in batches:
            (ack,) = await client.produce(batch_of(batch, topic="orders"))
            assert not ack.HasField("error"), ack.error
        server = cluster.servers[0]
        budget = ByteBudget(1 << 30)
        client_use = ClientUse("test", {})
        fetcher = Fetcher(server.registry, budget, server.config, SystemClock(), client_use)
        asked = pb.FetchPartition(topic="orders", partition=0, offset=0, max_bytes=limit)
        result = await fetcher.fetch(pb.FetchRequest(partitions=[asked], max_bytes=limit))
        assert len(result.message) >= len(batches[0])
        told = budget.taken_bytes / COPIES_IN_FLIGHT
        assert 0 <= len(result.message) - told < 1000, "all but the envelope of the reply"
        result.written()
        assert budget.taken_bytes == 0
