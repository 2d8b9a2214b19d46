"""How far every group has consumed a topic, asked of all coordinators (R5, F009, F162).

A group may live in any partition of `__consumer_offsets`: what is deleted by consumption, and what
counts as backlog, goes by the answers of all of them. One that does not answer, loads, or is not
certain of its office leaves the whole question open: nothing is deleted, held or evicted then.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import grpc

from octavo.proto import groups_pb2 as pb
from octavo.proto.endpoints import open_channel
from octavo.proto.errors import from_wire
from octavo.proto.groups_pb2_grpc import GroupsStub
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.coordinating.coordinator import GroupCoordinator

if TYPE_CHECKING:
    from octavo.proto.groups_pb2_grpc import GroupsAsyncStub

ASK_TIMEOUT_S = 10.0
"""A coordinator that does not answer within this time is not known."""

_log = get_logger("octavo.serving.consumption")

_Part = TypeVar("_Part", pb.ConsumedPart, pb.EvictedPart)


class Consumed(NamedTuple):
    """What all registered groups of a topic have committed."""

    groups: int
    lowest: Mapping[int, int]
    """By partition the lowest committed offset, where every group has committed one."""
    slowest: Mapping[int, int] = {}
    """By partition the lowest committed offset, where any group has committed one."""

    def up_to(self, partition: int) -> int:
        """All groups have consumed what lies below; 0 where one has not begun, or there is none."""
        return self.lowest.get(partition, 0) if self.groups else 0


def merged(parts: Iterable[pb.ConsumedPart]) -> Consumed:
    """Out of the answers of all coordinators; raises the error of one that has none."""
    groups = 0
    lowest: dict[int, int] = {}
    committed: dict[int, int] = {}
    for part in parts:
        if part.HasField("error"):
            raise from_wire(part.error)
        groups += part.groups
        for one in part.lowest:
            lowest[one.partition] = min(one.offset, lowest.get(one.partition, one.offset))
            committed[one.partition] = committed.get(one.partition, 0) + one.groups
    of_all = {p: offset for p, offset in lowest.items() if committed[p] == groups}
    return Consumed(groups, of_all, lowest)


class Evicted(NamedTuple):
    """What an eviction moved."""

    groups: int
    offsets: int


class Consumption:
    """Asks for one broker."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def of(self, topic: str, topic_id: uuid.UUID) -> Consumed | None:
        """How far every group of the topic has come; None: not known at this time."""

        async def consumed(stub: GroupsAsyncStub, numbers: list[int]) -> list[pb.ConsumedPart]:
            request = pb.ConsumedRequest(partitions=numbers, topic=topic, topic_id=topic_id.bytes)
            return list((await stub.Consumed(request, timeout=ASK_TIMEOUT_S)).parts)

        parts = await self._asked_of_all(consumed, topic)
        try:
            return None if parts is None else merged(parts)
        except OctavoError as error:
            _log.info("consumption-not-known", topic=topic, cause=error.cause)
            return None

    async def evict(self, topic: str, topic_id: uuid.UUID, lowest: Mapping[int, int]) -> Evicted:
        """Have no group stay below `lowest`, by partition; those whose coordinator does not answer
        are moved when they are asked for again."""

        async def evict(stub: GroupsAsyncStub, numbers: list[int]) -> list[pb.EvictedPart]:
            request = pb.EvictRequest(
                partitions=numbers,
                topic=topic,
                topic_id=topic_id.bytes,
                lowest=[
                    pb.LowestOffset(partition=number, offset=offset)
                    for number, offset in lowest.items()
                ],
            )
            return list((await stub.Evict(request, timeout=ASK_TIMEOUT_S)).parts)

        parts = await self._asked_of_all(evict, topic) or []
        for part in parts:
            if part.HasField("error"):
                cause = from_wire(part.error).cause
                _log.info("eviction-not-certain", topic=topic, cause=cause)
        return Evicted(sum(one.groups for one in parts), sum(one.offsets for one in parts))

    async def _asked_of_all(
        self, ask: Callable[[GroupsAsyncStub, list[int]], Awaitable[list[_Part]]], topic: str
    ) -> list[_Part] | None:
        """Every partition's answer, once; None when one is missing."""

        async def at(address: str, numbers: list[int]) -> list[_Part]:
            async with open_channel(address) as channel:
                parts = await ask(GroupsStub(channel), numbers)
            return parts if sorted(part.partition for part in parts) == sorted(numbers) else []

        try:
            count = await self._coordinator.known_partitions()
            homes = await self._homes(count)
            found = await asyncio.gather(*(at(*home) for home in homes.items()))
        except OctavoError as error:
            _log.info("consumption-not-known", topic=topic, cause=error.cause)
            return None
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            _log.info("consumption-not-known", topic=topic, cause=repr(error))
            return None
        answered = sum(map(len, found))
        if answered != count:
            _log.warning("consumption-not-known", topic=topic, answers=answered, of=count)
            return None
        return [part for some in found for part in some]

    async def _homes(self, count: int) -> dict[str, list[int]]:
        """Partitions of groups by the address of their coordinator."""
        homes: dict[str, list[int]] = {}
        for number in range(count):
            located = await self._coordinator.find_partition(number)
            homes.setdefault(located.address, []).append(number)
        return homes
