"""Groups on real processes and disks: the coordinator's broker is killed, bookies stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from octavo import AsyncClient
from octavo.proto import groups_pb2
from octavo.testing import LocalCluster
from tests.group_brokers import shared
from tests.group_client import GroupsClient, RawMember, code_of

pytestmark = pytest.mark.process

SETTINGS = {
    "group_min_session_timeout_ms": 100,
    "group_session_timeout_ms": 20_000,
    "group_heartbeat_interval_ms": 500,
    "offset_commit_timeout_ms": 1_500,
}
PATIENCE_S = 60.0


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def two_members(
    cluster: LocalCluster,
) -> AsyncGenerator[tuple[GroupsClient, list[RawMember], bytes]]:
    """A topic of six partitions shared by two members that know each broker."""
    client = GroupsClient(cluster.bootstrap_servers.split(","))
    async with AsyncClient(cluster.bootstrap_servers) as sdk:
        await sdk.admin.create_topic("t", 6)
        topic_id = bytes.fromhex((await sdk.admin.describe_topic("t")).topic_id.replace("-", ""))
    members = [RawMember(client, "g", name, ("t",)) for name in ("a", "b")]
    for member in members:
        member.start()
    try:
        await until(lambda: shared(members, 6) and all(len(one.owned) == 3 for one in members))
        yield client, members, topic_id
    finally:
        for member in members:
            await member.stop()
        await client.close()


def _name_of(cluster: LocalCluster, address: str) -> str:
    (name,) = [name for name, one in cluster.processes.items() if one.address == address]
    return name


async def test_rb8_f103_the_coordinators_broker_is_killed() -> None:
    """RB8: no epoch changes, no partition moves, and what was acknowledged is there."""
    with LocalCluster(bookies=3, brokers=2, broker_settings=SETTINGS) as cluster:
        async with two_members(cluster) as (client, members, topic_id):
            for partition in range(6):
                (owner,) = [one for one in members if (topic_id, partition) in one.owned]
                offset = groups_pb2.OffsetCommit(
                    topic_id=topic_id, topic="t", partition=partition, offset=10 + partition
                )
                reply = await client.commit("g", offset, who=owner.committer())
                assert not code_of(reply), reply
            await until(lambda: len({one.epoch for one in members}) == 1)
            epochs = [list(one.epochs) for one in members]
            owned = [one.owned for one in members]
            address = (await client.find("g")).address
            victim = _name_of(cluster, address)
            client.addresses.remove(address)
            await asyncio.to_thread(cluster.kill, victim)
            beats = [one.sequence for one in members]
            committed = await client.committed("g")
            assert committed == {("t", partition): 10 + partition for partition in range(6)}
            await until(
                lambda: all(
                    one.sequence > before + 2 for one, before in zip(members, beats, strict=True)
                )
            )
            assert [one.epochs for one in members] == epochs
            assert [one.owned for one in members] == owned
            assert not any(one.error for one in members)
            await members[0].leave()
            await until(lambda: len(members[1].owned) == 6)


async def test_o4_a_commit_to_bookies_that_stand_still_times_out_and_is_stored_in_the_end() -> None:
    """O4."""
    with LocalCluster(bookies=3, brokers=1, broker_settings=SETTINGS) as cluster:
        async with two_members(cluster) as (client, members, topic_id):
            (owner,) = [one for one in members if (topic_id, 0) in one.owned]
            offset = groups_pb2.OffsetCommit(topic_id=topic_id, topic="t", partition=0, offset=1)
            assert not code_of(await client.commit("g", offset, who=owner.committer()))
            for name in ("bookie-1", "bookie-2"):
                await asyncio.to_thread(cluster.freeze, name)
            offset.offset = 2
            request = groups_pb2.CommitOffsetsRequest(
                group_id="g", who=owner.committer(), offsets=[offset]
            )
            stub = client.stub((await client.find("g")).address)
            reply = await stub.CommitOffsets(request, timeout=30)
            assert code_of(reply) == "REQUEST_TIMED_OUT"
            for name in ("bookie-1", "bookie-2"):
                await asyncio.to_thread(cluster.thaw, name)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    reply = await client.commit("g", offset, who=owner.committer())
                    if not code_of(reply):
                        break
                    assert code_of(reply) == "THROTTLED", reply
                    await asyncio.sleep(0.1)
            assert await client.committed("g") == {("t", 0): 2}
            assert not any(one.error for one in members)
