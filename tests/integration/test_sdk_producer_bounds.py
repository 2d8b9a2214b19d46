"""What a producer holds and how large its batches get: within its settings and the topic's."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

import pytest

from octavo import AsyncClient
from octavo.runtime.errors import BufferFull, MessageTooLarge
from tests.bookie_rig import until
from tests.fake_broker import FakeCluster

MIB = 1 << 20
TRANSPORT_BYTES = 32 * MIB
"""What gRPC and the sockets may hold between the producer and a broker that reads nothing."""


async def test_acks_0_obeys_buffer_memory(client: AsyncClient, fake: FakeCluster) -> None:
    producer = client.producer(
        acks=0, buffer_memory=4 * MIB, compression_type="none", linger_ms=0, max_block_ms=300
    )
    await producer.send("one", b"first")
    fake.brokers[0].faults.hold.clear()  # the broker takes nothing more
    value = os.urandom(60_000)
    accepted = 0
    refused = ""
    while not refused and accepted * len(value) < 2 * TRANSPORT_BYTES:
        try:
            producer.send_nowait("one", value)
            accepted += 1
        except BufferFull as error:
            refused = str(error)
        await asyncio.sleep(0)
    assert "buffer_memory of 4194304 bytes is full, and this call does not wait" in refused
    assert accepted * len(value) < 4 * MIB + TRANSPORT_BYTES
    fake.brokers[0].faults.hold.set()
    await producer.send("one", b"last")  # the memory comes back
    await producer.close(20)
    await until(lambda: fake.log("one").values()[-1] == b"last")
    assert len(fake.log("one").values()) >= accepted + 2


async def test_buffer_full_says_how_long_the_call_waited(
    client: AsyncClient, fake: FakeCluster
) -> None:
    producer = client.producer(buffer_memory=4 * MIB, linger_ms=0, max_block_ms=300)
    await producer.send("one", b"first")
    fake.brokers[0].faults.hold.clear()
    value = os.urandom(900_000)
    for _ in range(4):
        producer.send_nowait("one", value)
    with pytest.raises(BufferFull, match="is full, and this call does not wait; 4 records wait"):
        producer.send_nowait("one", value)
    sends = [asyncio.create_task(producer.send("one", value)) for _ in range(3)]
    for send in sends:
        with pytest.raises(BufferFull, match=r"stayed full for 0\.3 s \(max_block_ms\); 4 records"):
            await send
    fake.brokers[0].faults.hold.set()
    await producer.close(20)


@pytest.mark.parametrize("limit", [1_500, 10_000, 65_536])
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_a_topic_that_takes_less_than_batch_size_gets_smaller_batches(
    client: AsyncClient, fake: FakeCluster, limit: int, compression: Literal["none", "lz4"]
) -> None:
    fake.create("small", 1, **{"max.message.bytes": str(limit)})
    values = [os.urandom(1_000) for _ in range(100)]
    async with client.producer(compression_type=compression, batch_size=262_144) as producer:
        await producer.send("small", values[0])
        futures = [producer.send_nowait("small", value) for value in values]
        for future in futures:
            await future
        assert (await producer.send_many("small", values)).count == 100
        with pytest.raises(MessageTooLarge):  # alone above the limit: it fails, nothing else does
            await producer.send("small", os.urandom(limit + 1))
        await producer.send("small", b"later")
    log = fake.log("small")
    assert max(len(batch) for batch in log.batches) <= limit
    assert log.values() == [values[0], *values, *values, b"later"]
