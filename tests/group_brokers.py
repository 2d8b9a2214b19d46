"""Brokers on loopback ports with ledgers in memory, and raw members of groups on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from octavo.proto import broker_pb2, groups_pb2
from octavo.serving.coordinating.group_partition import GroupPartition
from octavo.serving.server import BrokerServer
from tests.group_client import GroupsClient, RawMember
from tests.serving_server import Client, Loopback, loopback

QUICK = {
    "group_min_session_timeout_ms": 100,
    "group_session_timeout_ms": 10_000,
    "group_heartbeat_interval_ms": 200,
}
"""Sessions that a busy machine does not end; a test of their end has shorter ones."""


class World:
    def __init__(self, made: Loopback, brokers: list[Client]) -> None:
        self.loopback = made
        self.brokers = brokers
        self.client = GroupsClient(broker.address for broker in brokers)
        self.members: list[RawMember] = []

    def member(self, name: str, *topics: str, group: str = "g") -> RawMember:
        made = RawMember(self.client, group, name, topics)
        self.members.append(made)
        made.start()
        return made

    def server(self, address: str) -> BrokerServer:
        """The broker at that address."""
        (found,) = [one for one in self.loopback.servers if one.address == address]
        return found

    async def stop_broker(self, address: str) -> None:
        """In good order; its clients find another."""
        number = [server.address for server in self.loopback.servers].index(address)
        self.client.addresses.remove(address)
        await self.loopback.servers.pop(number).stop()
        await self.loopback.stores.pop(number).close()

    def waiting(self) -> int:
        """Requests about groups that wait at the only broker."""
        (server,) = self.loopback.servers
        return server._group_service.waiting  # pyright: ignore[reportPrivateUsage]

    async def partition(self, group_id: str = "g") -> GroupPartition:
        """The coordinator's side of a group, of the only broker."""
        (server,) = self.loopback.servers
        coordinator = server._groups  # pyright: ignore[reportPrivateUsage]
        return await coordinator.of_group(group_id)

    async def topic_id(self, name: str) -> bytes:
        reply = await self.brokers[0].stub.Metadata(broker_pb2.MetadataRequest(topics=[name]))
        return reply.topics[0].topic_id

    async def offset(
        self, partition: int, offset: int, topic: str = "t"
    ) -> groups_pb2.OffsetCommit:
        return groups_pb2.OffsetCommit(
            topic_id=await self.topic_id(topic), topic=topic, partition=partition, offset=offset
        )


@asynccontextmanager
async def world(brokers: int = 1, **changes: object) -> AsyncGenerator[World]:
    async with loopback() as made:
        clients = [
            await made.broker(f"broker-{number}", **(QUICK | changes)) for number in range(brokers)
        ]
        await made.acquainted()
        found = World(made, clients)
        try:
            yield found
        finally:
            for member in found.members:
                await member.stop()
            await found.client.close()


def shared(members: list[RawMember], partitions: int) -> bool:
    """Whether the partitions are spread over the members, each once."""
    owned = [slot for member in members for slot in member.owned]
    return len(owned) == len(set(owned)) == partitions
