"""A backlog is read at its pace while another topic is written (F078)."""

from __future__ import annotations

import asyncio
import time

from octavo.proto import broker_pb2 as pb
from tests.serving_rig import make_batch
from tests.serving_server import batch_of, create_topic, find_owner, loopback

PIECE = bytes(200_000)
BATCHES = 10
PER_S = 2_000_000


async def test_f078_storage_is_read_at_its_pace_beside_a_tail_and_freely_without() -> None:
    async with loopback() as made:
        client = await made.broker(tail_cache_bytes=0, cold_read_bytes_per_s=PER_S)
        for topic in ("backlog", "tail"):
            await create_topic(client, topic)
            await find_owner({client.address: client}, topic, 0)
        for _ in range(BATCHES):
            await client.produce(batch_of(make_batch([PIECE]), topic="backlog"))

        async def read() -> float:
            """Seconds to read all of it on one stream."""
            call, offset = client.stub.Fetch(), 0
            began_s = time.monotonic()
            while offset < BATCHES:
                asked = pb.FetchPartition(topic="backlog", offset=offset)
                await call.write(pb.FetchRequest(partitions=[asked], min_bytes=1, max_wait_ms=100))
                reply = await call.read()
                assert isinstance(reply, pb.FetchReply)
                offset = reply.partitions[0].next_offset
            call.cancel()
            return time.monotonic() - began_s

        async def write() -> None:
            while True:
                await client.produce(batch_of(make_batch([b"v"]), topic="tail"))
                await asyncio.sleep(0.05)

        await asyncio.sleep(1.1)  # what came in last is so long ago
        least_s = (BATCHES - 3) * len(PIECE) / PER_S  # the last piece is not waited for
        free_s = min([await read() for _ in range(3)])  # a busy machine may hold one up
        writes = asyncio.ensure_future(write())
        await client.produce(batch_of(make_batch([b"v"]), topic="tail"))
        paced_s = await read()
        writes.cancel()
        await asyncio.wait({writes})
        assert paced_s > least_s > free_s
