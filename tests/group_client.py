"""A raw client of the coordinator service, as tests of the wire use it, and a member on it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

import grpc
from google.protobuf.message import Message

from octavo.proto import groups_pb2, groups_pb2_grpc
from octavo.proto.errors import from_wire
from octavo.runtime.errors import OctavoError

ASK_AGAIN = {
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "REQUEST_TIMED_OUT",
}
PAUSE_S = 0.02

Slots = frozenset[tuple[bytes, int]]


def code_of(reply: Message) -> str:
    """The code of a reply's error; empty when it has none."""
    error = cast("groups_pb2.HeartbeatReply", reply).error
    return error.code if reply.HasField("error") else ""


def expand(slots: Iterable[groups_pb2.TopicSlots]) -> Slots:
    return frozenset((part.topic_id, number) for part in slots for number in part.partitions)


def packed(slots: Slots) -> groups_pb2.SlotSet:
    return groups_pb2.SlotSet(
        slots=[
            groups_pb2.TopicSlots(topic_id=topic_id, partitions=[number])
            for topic_id, number in sorted(slots)
        ]
    )


class GroupsClient:
    """Finds coordinators through any of the brokers, and asks again until they answer."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = list(addresses)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._coordinators: dict[str, str] = {}
        """By group."""

    def stub(self, address: str) -> groups_pb2_grpc.GroupsAsyncStub:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address)
        return groups_pb2_grpc.GroupsStub(channel)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def find(self, group_id: str, timeout_s: float = 60.0) -> groups_pb2.Coordinator:
        """The coordinator, as any broker names it."""
        request = groups_pb2.FindCoordinatorRequest(group_ids=[group_id])
        async with asyncio.timeout(timeout_s):
            for address in itertools.cycle(self.addresses):
                try:
                    reply = await self.stub(address).FindCoordinator(request, timeout=5.0)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                (found,) = reply.coordinators
                if not found.HasField("error"):
                    return found
                if found.error.code not in ASK_AGAIN | {"METADATA_UNAVAILABLE"}:
                    raise from_wire(found.error)
                await asyncio.sleep(PAUSE_S)
        raise AssertionError("no broker")

    async def ask(
        self,
        group_id: str,
        call: Callable[[groups_pb2_grpc.GroupsAsyncStub], Callable[..., Awaitable[Message]]],
        request: Message,
        timeout_s: float = 60.0,
    ) -> Message:
        """The first answer that is not about finding the coordinator."""
        async with asyncio.timeout(timeout_s):
            while True:
                address = self._coordinators.get(group_id)
                if address is None:
                    address = (await self.find(group_id)).address
                    self._coordinators[group_id] = address
                try:
                    reply = await call(self.stub(address))(request, timeout=10.0)
                except grpc.aio.AioRpcError:
                    code = "NOT_COORDINATOR"
                else:
                    code = code_of(reply)
                    if code not in ASK_AGAIN:
                        return reply
                if code != "COORDINATOR_LOAD_IN_PROGRESS":
                    self._coordinators.pop(group_id, None)
                await asyncio.sleep(PAUSE_S)

    async def heartbeat(self, request: groups_pb2.HeartbeatRequest) -> groups_pb2.HeartbeatReply:
        reply = await self.ask(request.group_id, lambda stub: stub.Heartbeat, request)
        assert isinstance(reply, groups_pb2.HeartbeatReply)
        return reply

    async def commit(
        self,
        group_id: str,
        *offsets: groups_pb2.OffsetCommit,
        who: groups_pb2.Committer | None = None,
    ) -> groups_pb2.CommitOffsetsReply:
        request = groups_pb2.CommitOffsetsRequest(group_id=group_id, who=who, offsets=offsets)
        reply = await self.ask(group_id, lambda stub: stub.CommitOffsets, request)
        assert isinstance(reply, groups_pb2.CommitOffsetsReply)
        return reply

    async def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """By topic and partition."""
        request = groups_pb2.FetchOffsetsRequest(group_id=group_id, all=True)
        reply = await self.ask(group_id, lambda stub: stub.FetchOffsets, request)
        assert isinstance(reply, groups_pb2.FetchOffsetsReply)
        assert not code_of(reply), reply
        return {(one.topic, one.partition): one.offset for one in reply.offsets}

    async def describe(self, group_id: str) -> groups_pb2.GroupDescription:
        """The group, when its coordinator answers."""
        request = groups_pb2.DescribeGroupsRequest(group_ids=[group_id])
        async with asyncio.timeout(30):
            while True:
                found = await self.find(group_id)
                try:
                    reply = await self.stub(found.address).DescribeGroups(request, timeout=5.0)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                (group,) = reply.groups
                if code_of(group) not in ASK_AGAIN:
                    return group
                await asyncio.sleep(PAUSE_S)


@dataclass
class RawMember:
    """A member that takes what it is given and gives up what it is asked for, at once."""

    client: GroupsClient
    group_id: str
    member_id: str
    topics: tuple[str, ...]
    pattern: str | None = None
    instance_id: str | None = None
    rebalance_timeout_s: float = 300.0
    epoch: int = 0
    epochs: list[int] = field(default_factory=list[int])
    """Each that it had, in order."""
    number: int = 0
    sequence: int = 1
    owned: Slots = frozenset()
    error: OctavoError | None = None
    on_change: Callable[[RawMember, Slots, Slots], None] = lambda member, lost, won: None
    _task: asyncio.Task[None] | None = None
    _whole: bool = True

    def request(self) -> groups_pb2.HeartbeatRequest:
        self.sequence += 1
        request = groups_pb2.HeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance_id,
            sequence=self.sequence,
            seen=self.number,
            applied=self.number,
        )
        if self._whole:
            request.subscription.CopyFrom(
                groups_pb2.MemberSubscription(
                    topics=self.topics,
                    pattern=self.pattern,
                    rebalance_timeout_s=self.rebalance_timeout_s,
                    client_id="raw",
                )
            )
            request.owned.CopyFrom(packed(self.owned))
        return request

    async def beat(self) -> groups_pb2.HeartbeatReply:
        """One heartbeat and what follows from it; raises what the coordinator refuses."""
        reply = await self.client.heartbeat(self.request())
        if reply.HasField("error"):
            raise from_wire(reply.error)
        self._whole = False
        if reply.epoch != self.epoch:
            self.epochs.append(reply.epoch)
        self.epoch = reply.epoch
        if reply.HasField("assigned") and reply.number != self.number:
            new = expand(reply.assigned.slots)
            lost, won = self.owned - new, new - self.owned
            self.owned, self.number = new, reply.number
            self.on_change(self, lost, won)
            self._whole = True
        return reply

    async def run(self) -> None:
        """Until it is stopped or refused."""
        try:
            while True:
                await self.beat()
        except OctavoError as error:
            self.error = error

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.run())

    async def stop(self) -> None:
        """As a process that is killed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def leave(self, epoch: int = -1) -> groups_pb2.HeartbeatReply:
        await self.stop()
        self.epoch = epoch
        return await self.client.heartbeat(self.request())

    def committer(self) -> groups_pb2.Committer:
        return groups_pb2.Committer(
            member_id=self.member_id, epoch=self.epoch, instance_id=self.instance_id
        )
