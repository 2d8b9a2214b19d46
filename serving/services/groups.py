"""What members of consumer groups and tools ask coordinators for (spec group-protocol; O1 to O7).

Errors travel in the reply (G4). A request whose client goes away is cancelled by gRPC: nobody is
told then, and a heartbeat is not held any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.proto.group_records import Subscription
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, OctavoError, RequestTimedOut, Throttled
from octavo.runtime.errors_of_groups import UnknownMemberId
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.coordinating.coordinator import GroupCoordinator
from octavo.serving.coordinating.group_partition import Event
from octavo.serving.coordinating.refusals import error_of
from octavo.serving.groups.values import (
    CommitReply,
    ConsumedReply,
    DeleteReply,
    DescribeReply,
    EvictReply,
    FetchReply,
    HeartbeatReply,
    ListReply,
    MemberName,
    RemoveReply,
    Reply,
)
from octavo.serving.services.caller import Caller
from octavo.serving.services.group_wire import (
    commit_of,
    committer_of,
    heartbeat_of,
    slots_of,
    to_commit_reply,
    to_description,
    to_fetch_reply,
    to_heartbeat_reply,
)
from octavo.serving.services.rpc import Handlers, unary

NAMES_MAX = 10_000
"""Groups, partitions or members that one request names."""
CONCURRENT_ASKED = 16
"""Groups or partitions of one request that are asked for at a time."""

_log = get_logger("octavo.serving.groups")

_Reply = TypeVar("_Reply", bound=Reply)
_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


class GroupService:
    """The service octavo.coordinator.Groups."""

    def __init__(self, coordinator: GroupCoordinator, config: BrokerConfig, clock: Clock) -> None:
        self._coordinator = coordinator
        self._config = config
        self._clock = clock
        self.waiting = 0
        """Requests that wait for an answer; at most `group_requests_max`."""

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "FindCoordinator": unary(pb.FindCoordinatorRequest, self.find_coordinator),
            "Heartbeat": unary(pb.HeartbeatRequest, self.heartbeat),
            "CommitOffsets": unary(pb.CommitOffsetsRequest, self.commit_offsets),
            "FetchOffsets": unary(pb.FetchOffsetsRequest, self.fetch_offsets),
            "DescribeGroups": unary(pb.DescribeGroupsRequest, self.describe_groups),
            "ListGroups": unary(pb.ListGroupsRequest, self.list_groups),
            "Consumed": unary(pb.ConsumedRequest, self.consumed),
            "Evict": unary(pb.EvictRequest, self.evict),
            "DeleteGroup": unary(pb.DeleteGroupRequest, self.delete_group),
            "DeleteOffsets": unary(pb.DeleteOffsetsRequest, self.delete_offsets),
            "RemoveMembers": unary(pb.RemoveMembersRequest, self.remove_members),
        }

    # -- finding

    async def find_coordinator(
        self, request: pb.FindCoordinatorRequest, _caller: Caller
    ) -> pb.FindCoordinatorReply:
        """Whom to ask, by group or by partition."""
        _check_count("groups", len(request.group_ids))
        _check_count("partitions", len(request.partitions))

        async def of_group(group_id: str) -> pb.Coordinator:
            found = pb.Coordinator(group_id=group_id)
            try:
                partition, located = await self._coordinator.find(group_id)
            except OctavoError as error:
                found.error.CopyFrom(to_wire(error))
            else:
                found.partition = partition
                found.broker_id, found.address = located.broker_id, located.address
            return found

        async def of_partition(partition: int) -> pb.Coordinator:
            found = pb.Coordinator(partition=partition)
            try:
                located = await self._coordinator.find_partition(partition)
            except OctavoError as error:
                found.error.CopyFrom(to_wire(error))
            else:
                found.broker_id, found.address = located.broker_id, located.address
            return found

        return pb.FindCoordinatorReply(
            coordinators=[
                *await _each(request.group_ids, of_group),
                *await _each(request.partitions, of_partition),
            ],
            partitions=await self._coordinator.partitions(),
        )

    # -- members

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatReply:
        """RB3, RB6; held while there is nothing to tell (RB5)."""
        config, group_id = self._config, request.group_id
        patience_ms = config.group_heartbeat_interval_ms + config.offset_commit_timeout_ms
        try:
            async with self._bounded(patience_ms):
                heartbeat = heartbeat_of(request, caller.peer)
                partition = await self._coordinator.of_group(group_id)
                if heartbeat.subscription is not None:
                    await self._prepare(heartbeat.subscription)
                reply = await partition.heartbeat(group_id, heartbeat)
        except OctavoError as error:
            return pb.HeartbeatReply(error=to_wire(error))
        return to_heartbeat_reply(
            group_id,
            cast("HeartbeatReply", reply),
            self._coordinator.topics.name_of,
            interval_ms=config.group_heartbeat_interval_ms,
            session_timeout_ms=config.group_session_timeout_ms,
        )

    async def _prepare(self, subscription: Subscription) -> None:
        """So that a topic of a moment ago counts at once, and a pattern costs no long turn."""
        topics = self._coordinator.topics
        await topics.learn((name, None) for name in subscription.topics)
        if subscription.pattern is not None:
            await topics.patterns.prepare(subscription.pattern)

    async def remove_members(
        self, request: pb.RemoveMembersRequest, _caller: Caller
    ) -> pb.RemoveMembersReply:
        """C6."""
        try:
            _check_count("members", len(request.members))
            names = [_member_name(member) for member in request.members]
            reply = await self._ask(
                request.group_id,
                lambda core, token: core.remove_members(
                    token, request.group_id, names, now_ms=self._now_ms, now_s=self._now_s
                ),
                RemoveReply,
            )
        except OctavoError as error:
            return pb.RemoveMembersReply(error=to_wire(error))
        removed = [
            pb.RemovedMember(member_id=name.member_id, instance_id=name.instance_id)
            for name in names
        ]
        for member, name in zip(removed, names, strict=True):
            if name in reply.unknown:
                unknown = UnknownMemberId(f"group {request.group_id!r} has no such member")
                member.error.CopyFrom(to_wire(unknown))
        return pb.RemoveMembersReply(members=removed)

    # -- offsets

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, _caller: Caller
    ) -> pb.CommitOffsetsReply:
        """O2 to O4, RB7."""
        group_id = request.group_id
        try:
            offsets = commit_of(group_id, request.offsets)
            who = committer_of(request.who)
            async with self._bounded(self._config.offset_commit_timeout_ms):
                partition = await self._coordinator.of_group(group_id)
                named = {(offset.key.topic, offset.key.topic_id) for offset in offsets}
                await self._coordinator.topics.learn(named)
                reply = await partition.ask(
                    lambda core, token: core.commit(
                        token, group_id, who, offsets, now_ms=self._now_ms, now_s=self._now_s
                    )
                )
        except OctavoError as error:
            return pb.CommitOffsetsReply(error=to_wire(error))
        return to_commit_reply(group_id, cast("CommitReply", reply))

    async def fetch_offsets(
        self, request: pb.FetchOffsetsRequest, _caller: Caller
    ) -> pb.FetchOffsetsReply:
        """O5. Without transactions every offset is stable."""
        group_id = request.group_id
        try:
            slots = None if request.all else slots_of(request.slots)
            who = committer_of(request.who)
            reply = await self._ask(
                group_id,
                lambda core, token: core.fetch(token, group_id, who, slots),
                FetchReply,
            )
        except OctavoError as error:
            return pb.FetchOffsetsReply(error=to_wire(error))
        names = {part.topic_id.hex(): part.topic for part in request.slots}
        return to_fetch_reply(group_id, reply, names)

    async def delete_offsets(
        self, request: pb.DeleteOffsetsRequest, _caller: Caller
    ) -> pb.DeleteOffsetsReply:
        """O7."""
        group_id = request.group_id
        try:
            slots = slots_of(request.slots)
            await self._ask(
                group_id,
                lambda core, token: core.delete_offsets(token, group_id, slots),
                DeleteReply,
            )
        except OctavoError as error:
            return pb.DeleteOffsetsReply(error=to_wire(error))
        return pb.DeleteOffsetsReply()

    # -- groups

    async def delete_group(
        self, request: pb.DeleteGroupRequest, _caller: Caller
    ) -> pb.DeleteGroupReply:
        """O7."""
        group_id = request.group_id
        try:
            await self._ask(
                group_id, lambda core, token: core.delete_group(token, group_id), DeleteReply
            )
        except OctavoError as error:
            return pb.DeleteGroupReply(error=to_wire(error))
        return pb.DeleteGroupReply()

    async def describe_groups(
        self, request: pb.DescribeGroupsRequest, _caller: Caller
    ) -> pb.DescribeGroupsReply:
        """Groups with their members; of each its own error."""
        _check_count("groups", len(request.group_ids))

        async def describe(group_id: str) -> pb.GroupDescription:
            try:
                reply = await self._ask(
                    group_id, lambda core, token: core.describe(token, group_id), DescribeReply
                )
            except OctavoError as error:
                return pb.GroupDescription(group_id=group_id, error=to_wire(error))
            if reply.group is None:
                raise TypeError("a description says neither what is so nor why not")
            return to_description(
                reply.group, self._config.broker_id, self._coordinator.topics.name_of
            )

        return pb.DescribeGroupsReply(groups=await _each(request.group_ids, describe))

    async def list_groups(
        self, request: pb.ListGroupsRequest, _caller: Caller
    ) -> pb.ListGroupsReply:
        """Groups of the named partitions; of each its own error."""
        _check_count("partitions", len(request.partitions))

        async def of(partition: int) -> pb.ListedPartition:
            listed = pb.ListedPartition(partition=partition)
            try:
                async with self._bounded(self._config.offset_commit_timeout_ms):
                    found = await self._coordinator.of_partition(partition)
                    reply = await found.ask(lambda core, token: core.list_groups(token))
                if reply.refusal is not None:
                    raise error_of(reply.refusal, "")
            except OctavoError as error:
                listed.error.CopyFrom(to_wire(error))
                return listed
            for group in cast("ListReply", reply).groups:
                listed.groups.add(**group._asdict())
            return listed

        return pb.ListGroupsReply(partitions=await _each(request.partitions, of))

    async def consumed(self, request: pb.ConsumedRequest, _caller: Caller) -> pb.ConsumedReply:
        """How far the groups of a topic have come (R5), by partition; of each its own error."""
        _check_count("partitions", len(request.partitions))
        topic, topic_id = request.topic, request.topic_id.hex()

        async def of(partition: int) -> pb.ConsumedPart:
            part = pb.ConsumedPart(partition=partition)
            try:
                async with self._bounded(self._config.offset_commit_timeout_ms):
                    found = await self._coordinator.of_partition(partition)
                    await self._coordinator.topics.learn([(topic, topic_id)])
                    reply = await found.ask(
                        lambda core, token: core.progress.consumed(token, topic, topic_id)
                    )
                if reply.refusal is not None:
                    raise error_of(reply.refusal, "")
            except OctavoError as error:
                part.error.CopyFrom(to_wire(error))
                return part
            told = cast("ConsumedReply", reply)
            part.groups = told.groups
            for number, (offset, groups) in sorted(told.lowest.items()):
                part.lowest.add(partition=number, offset=offset, groups=groups)
            return part

        return pb.ConsumedReply(parts=await _each(request.partitions, of))

    async def evict(self, request: pb.EvictRequest, _caller: Caller) -> pb.EvictReply:
        """Move groups on that are too far behind (F162), by partition; of each its own error."""
        _check_count("partitions", len(request.partitions))
        _check_count("partitions of a topic", len(request.lowest))
        topic_id = request.topic_id.hex()
        lowest = {one.partition: one.offset for one in request.lowest}

        async def of(partition: int) -> pb.EvictedPart:
            part = pb.EvictedPart(partition=partition)
            try:
                async with self._bounded(self._config.offset_commit_timeout_ms):
                    found = await self._coordinator.of_partition(partition)
                    now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
                    reply = await found.ask(
                        lambda core, token: core.progress.evict(
                            token, topic_id, lowest, now_ms=now_ms, now_s=now_s
                        )
                    )
                if reply.refusal is not None:
                    raise error_of(reply.refusal, "")
            except OctavoError as error:
                part.error.CopyFrom(to_wire(error))
                return part
            told = cast("EvictReply", reply)
            part.groups, part.offsets = told.groups, told.offsets
            if told.groups:
                _log.warning(
                    "groups-evicted", topic=request.topic, groups=told.groups, offsets=told.offsets
                )
            return part

        return pb.EvictReply(parts=await _each(request.partitions, of))

    # -- what they have in common

    async def _ask(self, group_id: str, event: Event, _kind: type[_Reply]) -> _Reply:
        """The reply to one request about a group; raises its refusal."""
        async with self._bounded(self._config.offset_commit_timeout_ms):
            partition = await self._coordinator.of_group(group_id)
            reply = await partition.ask(event)
        if reply.refusal is not None:
            raise error_of(reply.refusal, group_id)
        return cast("_Reply", reply)

    @asynccontextmanager
    async def _bounded(self, timeout_ms: int) -> AsyncGenerator[None]:
        """One of the requests that may wait, for so long (O4)."""
        if self.waiting >= self._config.group_requests_max:
            raise Throttled(f"{self.waiting} requests about groups wait at this broker")
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                yield
        except TimeoutError:
            raise RequestTimedOut(
                f"not stored within {timeout_ms} ms, and not known whether it will be",
                hint="ask again: to repeat it is safe",
            ) from None
        finally:
            self.waiting -= 1

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_ms()

    @property
    def _now_s(self) -> float:
        return self._clock.monotonic()


def _member_name(member: pb.RemovedMember) -> MemberName:
    instance_id = member.instance_id if member.HasField("instance_id") else None
    return MemberName(member.member_id, instance_id)


def _check_count(what: str, count: int) -> None:
    if count > NAMES_MAX:
        raise InvalidRequest(f"{count} {what} in one request; at most {NAMES_MAX}")


async def _each(
    asked: Iterable[_Asked], answer: Callable[[_Asked], Awaitable[_Found]]
) -> list[_Found]:
    """The answers about each, in their order, some at a time."""
    gate = asyncio.Semaphore(CONCURRENT_ASKED)

    async def one(name: _Asked) -> _Found:
        async with gate:
            return await answer(name)

    return list(await asyncio.gather(*(one(name) for name in asked)))
