"""How often brokers read the metadata store for topics: constant for each, whatever exists."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import median_low

import pytest

from octavo.metadata.keys import SCAN_KEYS_MAX
from octavo.metadata.memory import MemoryStore
from octavo.proto import broker_pb2 as pb
from tests.serving_rig import make_batch, until
from tests.serving_server import batch_of, create_topic, find_owner, loopback

READS_PER_TOPIC_MAX = 16
TOPICS = 100
LIST_REPEATS = 5


async def test_reads_of_a_created_topic_do_not_grow_with_the_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: Counter[str] = Counter()
    for operation in ("get", "children"):
        real = getattr(MemoryStore, operation)

        async def counted(self: MemoryStore, key: str, real: object = real) -> object:
            reads["all"] += 1
            return await real(self, key)  # type: ignore[operator]

        monkeypatch.setattr(MemoryStore, operation, counted)

    async with loopback() as cluster:
        clients = [await cluster.broker(f"broker-{n}", ownership_settle_s=1000) for n in (1, 2)]
        by_address = {client.address: client for client in clients}
        costs: list[int] = []
        for number in range(TOPICS):
            before = reads["all"]
            await create_topic(clients[0], f"t{number}")
            owner = await find_owner(by_address, f"t{number}", 0)
            sent = batch_of(make_batch([b"x"]), topic=f"t{number}")
            (ack,) = await by_address[owner].produce(sent)
            assert not ack.HasField("error")
            costs.append(reads["all"] - before)
        assert median_low(costs[-40:]) <= READS_PER_TOPIC_MAX
        # The least of many: brokers also read by themselves, now and then and not in each window.
        assert min(costs[-40:]) <= min(costs[10:40]) + 1

        pages: list[int] = []
        found = pb.ListTopicsReply()
        for _ in range(LIST_REPEATS):
            before = reads["all"]
            request = pb.ListTopicsRequest(limit=5, after="t1")
            found = await clients[0].stub.ListTopics(request)
            pages.append(reads["all"] - before)
        keys = sorted(key for key in cluster.metadata.snapshot() if key.count("/") == 4)
        names = [key.rpartition("/")[2] for key in keys if "/topics/" in key]
        behind = names[names.index("t1") + 1 :]
        assert [topic.name for topic in found.topics] == behind[:5]
        assert found.more
        assert min(pages) <= 2 + SCAN_KEYS_MAX * (1 + 6)


async def test_each_broker_notices_a_change_of_a_topic_it_knows() -> None:
    async with loopback() as cluster:
        first = await cluster.broker("broker-1")
        second = await cluster.broker("broker-2", ownership_settle_s=1000)
        await create_topic(first)
        await create_topic(first, "other")
        for name in ("orders", "other"):
            await second.stub.Metadata(pb.MetadataRequest(topics=[name]))
        directory = cluster.servers[1]._topics  # pyright: ignore[reportPrivateUsage]
        kept = directory.cached("other")
        assert directory.cached("orders") is not None
        await first.stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
        await until(lambda: directory.cached("orders") is None)
        assert directory.cached("other") is kept is not None
        reply = await second.stub.Metadata(pb.MetadataRequest(topics=["orders"]))
        assert reply.topics[0].error.code == "UNKNOWN_TOPIC"
        await asyncio.sleep(0)


async def test_f028_a_list_says_of_each_topic_what_its_description_says() -> None:
    """Also where partitions of topics share a number, but not a bundle or a state (F027)."""
    async with loopback() as cluster:
        clients = [await cluster.broker(f"broker-{n}", ownership_settle_s=1000) for n in (1, 2)]
        by_address = {client.address: client for client in clients}
        names = [f"t{number}" for number in range(6)]
        for name in names:
            await create_topic(clients[0], name, partitions=3)
            for partition in range(3):
                await find_owner(by_address, name, partition)
        changed = await clients[0].stub.AlterTopic(
            pb.AlterTopicRequest(name="t3", decommission=[1])
        )
        assert not changed.HasField("error")
        told: dict[str, pb.TopicInfo] = {}
        for client in clients:
            owners: set[str] = set()
            async with asyncio.timeout(30):
                while owners != {"broker-1", "broker-2"}:  # seen by watches, a moment later
                    described = await client.stub.Metadata(pb.MetadataRequest(topics=names))
                    told = {info.name: info for info in described.topics}
                    owners = {part.owner_id for info in told.values() for part in info.partitions}
            listed = await client.stub.ListTopics(pb.ListTopicsRequest())
            assert {info.name: info for info in listed.topics} == told
            shared = await client.stub.ListTopics(pb.ListTopicsRequest(shares=True))
            assert not any(info.partitions for info in shared.topics)
            for info in shared.topics:
                info.partitions.extend(shared.partitions[place] for place in info.shared)
                info.ClearField("shared")
            assert {info.name: info for info in shared.topics} == told
            assert [part.decommissioned for part in told["t3"].partitions] == [False, True, False]
