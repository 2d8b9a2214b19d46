"""A topic's name is not its identity: requests and deletions across two lives of one name."""

from __future__ import annotations

import asyncio
import uuid

from octavo.proto import broker_pb2 as pb
from octavo.runtime.errors import InconsistentTopicId, TopicAlreadyExists
from tests.serving_rig import make_batch
from tests.serving_server import Client, Loopback, batch_of, create_topic, fetch_of, loopback

WRONG = InconsistentTopicId.code


async def topic_id(client: Client, name: str = "orders") -> bytes:
    reply = await client.stub.Metadata(pb.MetadataRequest(topics=[name]))
    return reply.topics[0].topic_id


async def delete(client: Client, wanted: bytes = b"") -> str:
    reply = await client.stub.DeleteTopic(pb.DeleteTopicRequest(name="orders", topic_id=wanted))
    return reply.error.code


async def stored(client: Client) -> int:
    reply = await client.fetch(fetch_of(0, max_wait_ms=200))
    return len(reply.partitions[0].batches)


async def test_every_request_with_the_id_of_an_earlier_life_does_nothing() -> None:
    async with loopback() as rig:
        a = await rig.broker(bundles=1)
        await create_topic(a, partitions=3)
        await a.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
        old = await topic_id(a)
        for partition in range(3):
            (ack,) = await a.produce(
                batch_of(make_batch(pid=7, epoch=0, sequence=0), partition=partition)
            )
            assert not ack.HasField("error")
        assert await delete(a, old) == ""
        await create_topic(a, partitions=1)
        new = await topic_id(a)
        assert new != old
        for partition in (0, 2):  # one that exists again and one that does not
            sent = batch_of(make_batch(pid=7, epoch=0, sequence=1), partition=partition)
            sent.topic_id = old
            (ack,) = await a.produce(sent)
            assert ack.error.code == WRONG
            asked = fetch_of(1, partitions=(partition,))
            asked.partitions[0].topic_id = old
            assert (await a.fetch(asked)).partitions[0].error.code == WRONG
            listed = pb.ListOffset(topic="orders", partition=partition, latest=True, topic_id=old)
            offsets = await a.stub.ListOffsets(pb.ListOffsetsRequest(offsets=[listed]))
            assert offsets.offsets[0].error.code == WRONG
            lookup = pb.LookupRequest(topic="orders", partition=partition, topic_id=old)
            assert (await a.stub.Lookup(lookup)).error.code == WRONG
            log = pb.DescribeLogRequest(topic="orders", partition=partition, topic_id=old)
            assert (await a.stub.DescribeLog(log)).error.code == WRONG
            roll = pb.RollRequest(topic="orders", partition=partition, topic_id=old)
            assert (await a.stub.Roll(roll)).error.code == WRONG
        assert await delete(a, old) == WRONG
        assert await stored(a) == 0
        sent = batch_of(make_batch(pid=7, epoch=0, sequence=1))
        sent.topic_id = new
        (ack,) = await a.produce(sent)
        assert (ack.base_offset, ack.producer_was_unknown) == (0, True)
        asked = fetch_of(0)
        asked.partitions[0].topic_id = new
        part = (await a.fetch(asked)).partitions[0]
        assert (len(part.batches), part.topic_id) == (1, new)


async def test_f134_a_late_deletion_leaves_the_next_topic_of_the_name_alone() -> None:
    async with loopback() as rig:
        a, b = await rig.broker("broker-1"), await rig.broker("broker-2")
        await create_topic(a)
        gate, entered = asyncio.Event(), asyncio.Event()
        store, plain = rig.stores[1], rig.stores[1].put

        async def paused(key: str, value: bytes, *, expected: int | None) -> int:
            if "/topics/" in key:
                entered.set()
                await gate.wait()
            return await plain(key, value, expected=expected)

        store.put = paused  # type: ignore[method-assign]
        late = asyncio.ensure_future(delete(b))
        async with asyncio.timeout(30):
            await entered.wait()
        assert await delete(a) == ""
        await create_topic(a)
        gate.set()
        assert await late == WRONG
        assert await topic_id(a)


async def test_a_partition_loaded_behind_the_deletion_leaves_nothing() -> None:
    """Its list would stay for ever, and its owner would go on acknowledging."""
    async with loopback() as rig:
        a = await rig.broker(bundles=1)
        await create_topic(a)
        server = rig.servers[0]
        found = await server._topics.get("orders")  # pyright: ignore[reportPrivateUsage]
        assert await delete(a) == ""
        error = await server.registry.loads.open(found, 0, 0)
        assert error is not None
        assert error.code == "UNKNOWN_TOPIC"
        assert not server.registry.shells()
        left = [
            key for key in rig.metadata.tree.snapshot() if key.endswith(f"{found.topic_id.hex}/0")
        ]
        assert left == []


async def test_m3_a_creation_is_repeated_by_its_token_and_by_nothing_else() -> None:
    async with loopback() as rig:
        a = await rig.broker()
        token = uuid.uuid4().bytes

        async def create(creation_token: bytes, partitions: int = 2) -> pb.CreateTopicReply:
            return await a.stub.CreateTopic(
                pb.CreateTopicRequest(
                    name="orders", partitions=partitions, creation_token=creation_token
                )
            )

        made = await create(token)
        again = await create(token)
        assert made.topic.topic_id == again.topic.topic_id != b""
        for other in (b"", uuid.uuid4().bytes):
            assert (await create(other)).error.code == TopicAlreadyExists.code
        assert await delete(a) == ""
        assert (await create(token)).topic.topic_id != made.topic.topic_id


async def test_o3_a_late_release_or_eviction_leaves_the_next_owner_alone() -> None:
    rig = Loopback()
    try:
        await rig.broker("broker-1", bundles=1)
        store = rig.metadata.connect()
        found = await store.get("/octavo/bundles/0")
        if found is None:
            await create_topic(rig.clients[0])
            await rig.clients[0].stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
            found = await store.get("/octavo/bundles/0")
        assert found is not None
        gate, entered = asyncio.Event(), asyncio.Event()
        slow, plain = rig.stores[0], rig.stores[0].delete

        async def paused(key: str, *, expected: int | None) -> None:
            entered.set()
            await gate.wait()
            await plain(key, expected=expected)

        slow.delete = paused  # type: ignore[method-assign]
        ownership = rig.servers[0].ownership
        mine = ownership._mine  # pyright: ignore[reportPrivateUsage]
        registry = ownership._registry  # pyright: ignore[reportPrivateUsage]
        late = asyncio.ensure_future(registry.release(0, mine))
        async with asyncio.timeout(30):
            await entered.wait()
        await store.delete("/octavo/bundles/0", expected=None)
        await store.create("/octavo/bundles/0", b"another broker", ephemeral=True)
        gate.set()
        await late
        after = await store.get("/octavo/bundles/0")
        assert after is not None
        assert after.value == b"another broker"
        slow.delete = plain  # type: ignore[method-assign]
        await store.close()
    finally:
        await rig.close()
