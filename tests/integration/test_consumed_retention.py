"""Records that go when every group has committed past them, on brokers (R5, F009)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from octavo.proto import broker_pb2 as pb
from octavo.proto import groups_pb2
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress
from octavo.serving.coordinating.coordinator import GroupCoordinator
from octavo.serving.coordinating.group_partition import GroupPartition
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.retention_rounds import RetentionRounds
from octavo.serving.server import BrokerServer
from tests.group_brokers import World, world
from tests.serving_rig import make_batch, until
from tests.serving_server import batch_of, create_topic, find_owner

SETTINGS = {"retention_check_interval_ms": 600_000}
"""Rounds are made by the tests."""


class Setup:
    """A topic of one partition with closed segments [0, 1), [1, 2), [2, 3), and an open one."""

    def __init__(self, made: World, owner: BrokerServer, shell: PartitionShell) -> None:
        self.world = made
        self.owner = owner
        self.shell = shell
        self._rounds: RetentionRounds = owner._retention_rounds(owner.ownership)  # pyright: ignore[reportPrivateUsage]

    def offset(self, offset: int) -> groups_pb2.OffsetCommit:
        topic_id = self.shell.name.topic_id.bytes
        return groups_pb2.OffsetCommit(topic_id=topic_id, topic="t", partition=0, offset=offset)

    async def commit(self, group: str, offset: int) -> None:
        reply = await self.world.client.commit(group, self.offset(offset))
        assert not reply.HasField("error")

    async def owner_rolls(self) -> None:
        """Close the open segment."""
        await self.shell.roll()

    async def _round(self) -> int:
        """The log's start after a round and the ticks that follow it."""
        await self._rounds.round()
        for _ in range(5):
            self.shell.tick()
            await asyncio.sleep(0.005)
        return self.shell.log_start

    async def stays(self, offset: int) -> None:
        """Rounds leave the log's start where it is."""
        for _ in range(2):
            assert await self._round() == offset

    async def goes_to(self, offset: int) -> None:
        """Rounds bring the log's start there, and not further."""
        async with asyncio.timeout(30):
            while (start := await self._round()) != offset:
                assert start < offset
        await self.stays(offset)


@asynccontextmanager
async def prepared(brokers: int = 1) -> AsyncGenerator[Setup]:
    async with world(brokers, **SETTINGS) as made:
        await create_topic(made.brokers[0], "t", retention_mode="consumed")
        clients = {client.address: client for client in made.brokers}
        address = await find_owner(clients, "t", 0)
        owner = made.server(address)
        for _ in range(4):
            (ack,) = await clients[address].produce(batch_of(make_batch([b"v"]), topic="t"))
            assert not ack.HasField("error")
            if ack.base_offset < 3:
                await clients[address].stub.Roll(pb.RollRequest(topic="t", partition=0))
        shell = owner.registry.find("t", 0)
        assert shell is not None
        await until(lambda: shell.high_watermark == 4)
        yield Setup(made, owner, shell)


async def test_r5_f009_a_segment_goes_when_the_last_group_is_past_it() -> None:
    async with prepared() as found:
        await found.stays(0)  # no group has consumed anything
        await found.commit("fast", 4)
        await found.commit("slow", 1)
        await found.goes_to(1)
        await found.commit("slow", 2)
        await found.goes_to(2)
        await found.commit("slow", 4)
        await found.goes_to(3)  # the open segment stays
        await found.commit("fast", 0)  # it goes back (O2): what is gone is gone, the rest stays
        await found.owner_rolls()
        await found.stays(3)
        await found.commit("fast", 4)
        await found.goes_to(4)


async def test_r5_a_group_that_reads_and_has_committed_nothing_holds_everything() -> None:
    async with prepared() as found:
        await found.commit("done", 4)
        member = found.world.member("m", "t", group="new")
        await until(lambda: member.owned)
        await found.stays(0)
        await found.world.client.commit("new", found.offset(2), who=member.committer())
        await found.goes_to(2)
        await member.leave()
        await found.stays(2)  # without members it holds what it has not consumed


async def test_r5_a_group_that_comes_later_begins_where_the_log_begins() -> None:
    async with prepared() as found:
        await found.commit("first", 3)
        await found.goes_to(3)
        await found.commit("later", 3)
        await found.commit("first", 4)
        await found.owner_rolls()
        await found.stays(3)
        listed = pb.ListOffsetsRequest(offsets=[pb.ListOffset(topic="t", earliest=True)])
        reply = await found.world.brokers[0].stub.ListOffsets(listed)
        assert reply.offsets[0].offset == 3


async def test_r5_a_coordinator_that_is_away_is_never_taken_for_consumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition of groups in turn: one that does not answer keeps everything."""
    async with prepared(brokers=2) as found:
        await found.commit("slow", 1)
        await found.commit("fast", 4)
        home = (await found.world.client.find("slow")).partition
        real = GroupCoordinator.of_partition
        silent = {home}

        async def of_partition(self: GroupCoordinator, partition: int) -> GroupPartition:
            if partition in silent:
                raise CoordinatorLoadInProgress("it is being read")
            return await real(self, partition)

        monkeypatch.setattr(GroupCoordinator, "of_partition", of_partition)
        for number in (home, (home + 1) % 50):  # also one that has no group of the topic
            silent = {number}
            await found.stays(0)
        silent.clear()
        await found.goes_to(1)


async def test_r5_coordinators_move_and_what_they_know_still_holds() -> None:
    async with prepared(brokers=2) as found:
        for number in range(20):
            await found.commit(f"g{number}", 2 + number % 2)
        await found.goes_to(2)
        other = next(b.address for b in found.world.brokers if b.address != found.owner.address)
        await found.world.stop_broker(other)
        for number in range(0, 20, 2):
            await found.stays(2)  # this one is not past it yet
            await found.commit(f"g{number}", 4)
        await found.goes_to(3)
