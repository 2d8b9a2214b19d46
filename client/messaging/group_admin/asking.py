"""What coordinators are asked by tools: one group at its own, or every group at all of them.

A list is whole or an error: every partition of `__consumer_offsets` was answered by its
coordinator. Runs on the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo.client.messaging.cluster.calls import GroupCall
from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.group_admin.values import GroupListing
from octavo.client.messaging.group_admin.wire import listing_of
from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import ConfigError, OctavoError, UnknownTopic
from octavo.runtime.errors_of_groups import CoordinatorNotAvailable

if TYPE_CHECKING:
    from octavo.proto.groups_pb2_grpc import GroupsAsyncStub

OFFSETS_TOPIC = "__consumer_offsets"
GROUP_ID_BYTES_MAX = 65_535
CONCURRENT_GROUPS = 16
"""Groups asked for at a time."""


def check_group(group_id: object) -> str:
    """ConfigError unless it is text that the wire can carry, and not empty."""
    if not isinstance(group_id, str) or not group_id:
        raise ConfigError(f"{group_id!r} is no group id", hint="a group id is text, not empty")
    try:
        size = len(group_id.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"group id {group_id!r} is no UTF-8 text") from error
    if size > GROUP_ID_BYTES_MAX:
        raise ConfigError(f"a group id of {size} bytes; at most {GROUP_ID_BYTES_MAX}")
    return group_id


async def partitions_of_groups(cluster: Cluster, timeout_s: float) -> int:
    """Over how many partitions groups are spread; 0: there never was a group here.

    Asked of metadata, because looking for a coordinator would make the topic.
    """

    async def attempt() -> int:
        reply = await cluster.topics.metadata([OFFSETS_TOPIC], timeout_s=timeout_s)
        for topic in reply.topics:
            if topic.name == OFFSETS_TOPIC and topic.HasField("error"):
                error = from_wire(topic.error)
                if isinstance(error, UnknownTopic):
                    return 0
                raise error
            if topic.name == OFFSETS_TOPIC:
                return len(topic.partitions)
        return 0

    return await cluster.calls.retrying(attempt, timeout_s)


async def describe(cluster: Cluster, group_id: str, timeout_s: float) -> pb.GroupDescription:
    """A group at its coordinator; raises GroupIdNotFound."""
    request = pb.DescribeGroupsRequest(group_ids=[group_id])

    async def call(stub: GroupsAsyncStub, limit_s: float) -> pb.GroupDescription:
        for group in (await stub.DescribeGroups(request, timeout=limit_s)).groups:
            return group
        raise CoordinatorNotAvailable(f"the coordinator says nothing of group {group_id!r}")

    return await cluster.coordinators.insist(group_id, call, timeout_s)


class GroupList:
    """Groups of all partitions, gathered until each partition was answered by its coordinator."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self._cluster = cluster
        self._missing = set(range(partitions))
        self._errors: dict[int, OctavoError] = {}
        self._found: list[GroupListing] = []

    async def gather(self, timeout_s: float) -> list[GroupListing]:
        """By id. Raises why a partition is not answered, and how many are not."""
        deadline = Deadline(self._cluster.clock, timeout_s)
        total = len(self._missing)
        backoff = self._cluster.calls.backoff()
        while self._missing:
            await self._round(deadline)
            fatal = next((e for e in self._errors.values() if not e.retriable), None)
            delay_s = backoff.next_s()
            if self._missing and (fatal is not None or deadline.left_s() <= delay_s):
                raise _incomplete(fatal, self._errors, len(self._missing), total)
            if self._missing:
                await self._cluster.clock.sleep(delay_s)
        return sorted(self._found, key=lambda group: group.group_id)

    async def _round(self, deadline: Deadline) -> None:
        """Every missing partition once: found, then asked at its coordinator, all at once."""
        self._errors.clear()
        calls = self._cluster.calls
        request = pb.FindCoordinatorRequest(partitions=sorted(self._missing))
        find: GroupCall[pb.FindCoordinatorReply] = lambda stub, limit_s: (  # noqa: E731
            stub.FindCoordinator(request, timeout=limit_s)
        )
        try:
            reply = await calls.any_of(
                lambda address, limit_s: calls.ask_group(address, find, limit_s),
                deadline.left_s(),
                attempt_s=deadline.left_s(calls.request_timeout_s),
            )
        except OctavoError as error:
            self._errors.update(dict.fromkeys(self._missing, error))
            return
        at: dict[str, list[int]] = {}
        for told in reply.coordinators:
            if told.HasField("error"):
                self._errors[told.partition] = from_wire(told.error)
            elif told.address and told.partition in self._missing:
                at.setdefault(told.address, []).append(told.partition)
        async with asyncio.TaskGroup() as group:
            for address, partitions in at.items():
                group.create_task(self._ask(address, partitions, deadline))

    async def _ask(self, address: str, partitions: list[int], deadline: Deadline) -> None:
        calls = self._cluster.calls
        request = pb.ListGroupsRequest(partitions=partitions)
        ask: GroupCall[pb.ListGroupsReply] = lambda stub, limit_s: (  # noqa: E731
            stub.ListGroups(request, timeout=limit_s)
        )
        try:
            reply = await calls.ask_group(address, ask, deadline.left_s(calls.request_timeout_s))
        except OctavoError as error:
            self._errors.update(dict.fromkeys(partitions, error))
            return
        for told in reply.partitions:
            if told.HasField("error"):
                self._errors[told.partition] = from_wire(told.error)
            elif told.partition in self._missing:
                self._missing.discard(told.partition)
                self._found += map(listing_of, told.groups)


def _incomplete(
    fatal: OctavoError | None, errors: dict[int, OctavoError], missing: int, total: int
) -> OctavoError:
    why = fatal or next(iter(errors.values()), None)
    cause = "no coordinator answered" if why is None else why.cause
    kind = CoordinatorNotAvailable if why is None else type(why)
    return kind(
        f"the groups of {missing} of {total} partitions of {OFFSETS_TOPIC} are not known: {cause}",
        hint="" if why is None else why.hint,
    )


async def describe_all(
    cluster: Cluster, group_ids: Iterable[str], timeout_s: float
) -> list[pb.GroupDescription]:
    """The groups in the order of their names, CONCURRENT_GROUPS at a time; or the first error."""
    gate = asyncio.Semaphore(CONCURRENT_GROUPS)
    deadline = Deadline(cluster.clock, timeout_s)

    async def one(group_id: str) -> pb.GroupDescription | OctavoError:
        async with gate:
            try:
                return await describe(cluster, group_id, deadline.left_s())
            except OctavoError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(group_id)) for group_id in group_ids]
    found: list[pb.GroupDescription] = []
    for task in tasks:
        told = task.result()
        if isinstance(told, OctavoError):
            raise told
        found.append(told)
    return found
