"""How far every group has consumed a topic, asked of all coordinators (R5, F009).

A group may live in any partition of `__consumer_offsets`: what is deleted by consumption goes by
the answers of all of them. One that does not answer, loads, or is not certain of its office leaves
the whole question open, and nothing is deleted then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import grpc

from octavo.metadata.topics import Topic
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


class Consumed(NamedTuple):
    """What all registered groups of a topic have committed."""

    groups: int
    lowest: Mapping[int, int]
    """By partition the lowest committed offset, where every group has committed one."""

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
    return Consumed(groups, {p: offset for p, offset in lowest.items() if committed[p] == groups})


class Consumption:
    """Asks for one broker."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def of(self, topic: Topic) -> Consumed | None:
        """How far every group of the topic has come; None: not known at this time."""
        try:
            count = await self._coordinator.known_partitions()
            homes = await self._homes(count)
            parts = await asyncio.gather(
                *(self._ask(address, topic, numbers) for address, numbers in homes.items())
            )
            found = merged(part for some in parts for part in some)
        except OctavoError as error:
            _log.info("consumption-not-known", topic=topic.name, cause=error.cause)
            return None
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            _log.info("consumption-not-known", topic=topic.name, cause=repr(error))
            return None
        answered = sum(map(len, parts))
        if answered != count:
            _log.warning("consumption-not-known", topic=topic.name, answers=answered, of=count)
            return None
        return found

    async def _homes(self, count: int) -> dict[str, list[int]]:
        """Partitions of groups by the address of their coordinator."""
        homes: dict[str, list[int]] = {}
        for number in range(count):
            located = await self._coordinator.find_partition(number)
            homes.setdefault(located.address, []).append(number)
        return homes

    @staticmethod
    async def _ask(address: str, topic: Topic, numbers: list[int]) -> list[pb.ConsumedPart]:
        request = pb.ConsumedRequest(
            partitions=numbers, topic=topic.name, topic_id=topic.topic_id.bytes
        )
        async with open_channel(address) as channel:
            stub: GroupsAsyncStub = GroupsStub(channel)
            reply = await stub.Consumed(request, timeout=ASK_TIMEOUT_S)
        parts = list(reply.parts)
        return parts if sorted(part.partition for part in parts) == sorted(numbers) else []
