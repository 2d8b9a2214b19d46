"""Coordinators under faults: frozen bookies, lost appends, moves, clients and topics that go."""

from __future__ import annotations

import asyncio

import pytest

from octavo.proto import broker_pb2, groups_pb2
from octavo.runtime.errors import ConfigError
from octavo.serving.config import BrokerConfig
from tests.group_brokers import World, shared, world
from tests.group_client import RawMember, code_of
from tests.serving_rig import make_batch, produce, until
from tests.serving_server import create_topic


async def until_stored(found: World, one: groups_pb2.OffsetCommit) -> None:
    """Commit; again where a busy machine took longer than the coordinator waits."""
    async with asyncio.timeout(30):
        while code := code_of(await found.client.commit("g", one)):
            assert code == "REQUEST_TIMED_OUT"


async def test_o4_a_commit_to_frozen_bookies_times_out_and_may_be_repeated() -> None:
    """O4."""
    async with world(offset_commit_timeout_ms=300) as found:
        await create_topic(found.brokers[0], "t")
        one = await found.offset(0, 1)
        await until_stored(found, one)
        found.loopback.bookies.hold = True
        stub = found.client.stub(found.brokers[0].address)
        later = await found.offset(0, 2)
        request = groups_pb2.CommitOffsetsRequest(group_id="g", offsets=[later])
        reply = await stub.CommitOffsets(request)
        assert code_of(reply) == "REQUEST_TIMED_OUT"
        fetched = await stub.FetchOffsets(groups_pb2.FetchOffsetsRequest(group_id="g", all=True))
        assert code_of(fetched) == "REQUEST_TIMED_OUT", "RB8: what is not durable is not told"
        found.loopback.bookies.release()
        await until_stored(found, later)
        assert await found.client.committed("g") == {("t", 0): 2}


async def test_heartbeats_without_news_go_on_while_bookies_are_frozen() -> None:
    async with world() as found:
        await create_topic(found.brokers[0], "t")
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 1)
        found.loopback.bookies.hold = True
        before = member.sequence
        await until(lambda: member.sequence > before + 3)
        assert member.error is None
        found.loopback.bookies.release()


async def test_an_append_of_unknown_fate_drops_the_state_until_it_is_settled() -> None:
    """G2: what is read again holds what became of it."""
    async with world(produce_timeout_s=0.3, offset_commit_timeout_ms=2_000) as found:
        await create_topic(found.brokers[0], "t")
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 1)
        first = await found.offset(0, 1)
        assert not code_of(await found.client.commit("g", first, who=member.committer()))
        partition = await found.partition()
        found.loopback.bookies.hold = True
        stub = found.client.stub(found.brokers[0].address)
        later = await found.offset(0, 2)
        request = groups_pb2.CommitOffsetsRequest(
            group_id="g", offsets=[later], who=member.committer()
        )
        reply = await stub.CommitOffsets(request)
        assert code_of(reply) == "NOT_COORDINATOR", "unknown is not no: it is asked for again"
        reply = await stub.CommitOffsets(request)
        assert code_of(reply) in ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")
        assert partition.shell.pending
        found.loopback.bookies.release()
        assert await found.client.committed("g") == {("t", 0): 2}, "it was stored after all"
        before = member.sequence
        await until(lambda: member.sequence > before + 2)
        assert member.error is None
        assert member.epochs == [1], "RB8"


async def test_a_partition_that_cannot_be_read_says_why() -> None:
    async with world() as found:
        await create_topic(found.brokers[0], "t")
        assert not code_of(await found.client.commit("g", await found.offset(0, 1)))
        partition = await found.partition()
        shell = partition.shell
        await produce(shell, make_batch([b"?"]))
        registry = found.loopback.servers[0].registry
        await registry.unload_bundle(registry.bundle(shell.name.topic_id, shell.name.partition))
        stub = found.client.stub(found.brokers[0].address)
        request = groups_pb2.FetchOffsetsRequest(group_id="g", all=True)
        async with asyncio.timeout(30):
            while True:
                reply = await stub.FetchOffsets(request)
                if code_of(reply) == "COORDINATOR_NOT_AVAILABLE":
                    break
                assert code_of(reply) == "COORDINATOR_LOAD_IN_PROGRESS"
        assert "has no key" in reply.error.cause


async def test_a_client_that_goes_away_holds_nothing() -> None:
    async with world(group_heartbeat_interval_ms=400) as found:
        await create_topic(found.brokers[0], "t")
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 1)
        await member.stop()
        await until(lambda: found.waiting() == 0)
        request = member.request()
        request.ClearField("owned")  # it knows everything: held
        call = found.client.stub(found.brokers[0].address).Heartbeat(request)
        await until(lambda: found.waiting() == 1)
        call.cancel()
        await until(lambda: found.waiting() == 0)


async def test_more_requests_than_may_wait_are_throttled() -> None:
    async with world(group_requests_max=1) as found:
        await create_topic(found.brokers[0], "t")
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 1)
        stub = found.client.stub(found.brokers[0].address)
        async with asyncio.timeout(30):
            while True:  # the member's own request is over now and then
                await until(lambda: found.waiting() == 1)
                request = groups_pb2.FetchOffsetsRequest(group_id="g", all=True)
                if code_of(await stub.FetchOffsets(request)) == "THROTTLED":
                    break


async def test_rb1_topics_that_grow_come_and_go_reach_their_groups() -> None:
    """RB1, O1, O7: a topic that is made again inherits nothing."""
    async with world() as found:
        await create_topic(found.brokers[0], "orders.eu", 2)
        member = RawMember(found.client, "g", "a", (), pattern=r"orders\..*")
        found.members.append(member)
        member.start()
        await until(lambda: len(member.owned) == 2)
        await create_topic(found.brokers[0], "orders.us", 3)
        await until(lambda: len(member.owned) == 5)
        commit = await found.offset(0, 9, topic="orders.us")
        assert not code_of(await found.client.commit("g", commit, who=member.committer()))
        assert await found.client.committed("g") == {("orders.us", 0): 9}
        stub = found.brokers[0].stub
        await stub.DeleteTopic(broker_pb2.DeleteTopicRequest(name="orders.us"))
        await until(lambda: len(member.owned) == 2)
        await create_topic(found.brokers[0], "orders.us", 1)
        await until(lambda: len(member.owned) == 3)
        async with asyncio.timeout(30):
            while await found.client.committed("g"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_new_topic_counts_at_once_for_who_names_it() -> None:
    """The watch may not have told it yet."""
    async with world() as found:
        await create_topic(found.brokers[0], "old")
        member = found.member("a", "old")
        await until(lambda: len(member.owned) == 1)
        for number in range(5):
            name = f"new{number}"
            await create_topic(found.brokers[0], name)
            reply = await found.client.commit(f"h{number}", await found.offset(0, 1, topic=name))
            assert not code_of(reply)
            assert not reply.errors, number


async def test_x01_a_static_member_that_comes_back_moves_nothing() -> None:
    """RB6."""
    async with world() as found:
        await create_topic(found.brokers[0], "t", 4)
        first = RawMember(found.client, "g", "a-1", ("t",), instance_id="a")
        second = RawMember(found.client, "g", "b-1", ("t",), instance_id="b")
        found.members += [first, second]
        first.start()
        second.start()
        await until(lambda: shared([first, second], 4) and len(first.owned) == 2)
        epoch = (await found.client.describe("g")).epoch
        owned = first.owned
        await first.leave(-2)
        back = RawMember(found.client, "g", "a-2", ("t",), instance_id="a")
        found.members.append(back)
        back.start()
        await until(lambda: back.owned == owned)
        group = await found.client.describe("g")
        assert group.epoch == epoch
        assert {one.member_id for one in group.members} == {"a-2", "b-1"}
        twin = RawMember(found.client, "g", "a-3", ("t",), instance_id="a")
        found.members.append(twin)
        twin.start()
        await until(lambda: back.error is not None)
        assert back.error is not None
        assert back.error.code == "FENCED_INSTANCE_ID"


async def test_a_session_in_doubt_is_proved_by_bookies_or_not_answered_for() -> None:
    """G3: whoever took over fenced the log before it answered anybody."""
    async with world(session_timeout_s=1.5) as found:
        await create_topic(found.brokers[0], "t")
        assert not code_of(await found.client.commit("g", await found.offset(0, 1)))
        registry = found.loopback.servers[0].registry
        found.loopback.stores[0].suspend()
        await until(lambda: not registry.certain())
        stub = found.client.stub(found.brokers[0].address)
        request = groups_pb2.FetchOffsetsRequest(group_id="g", all=True)
        reply = await stub.FetchOffsets(request)
        assert [one.offset for one in reply.offsets] == [1], "a mark was acknowledged"
        found.loopback.bookies.hold = True
        reply = await stub.FetchOffsets(request)
        assert code_of(reply) == "NOT_COORDINATOR"
        stranger = await stub.Heartbeat(
            groups_pb2.HeartbeatRequest(group_id="g", member_id="x", epoch=3)
        )
        assert code_of(stranger) == "NOT_COORDINATOR", "UNKNOWN_MEMBER_ID would be a guess"
        found.loopback.bookies.release()
        found.loopback.stores[0].resume()
        await until(registry.certain)
        assert await found.client.committed("g") == {("t", 0): 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_session_timeout_ms": 5_000},
        {"group_heartbeat_interval_ms": 20_000},
        {"group_session_timeout_ms": 1_800_001},
    ],
)
def test_settings_must_fit_together(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="session"):
        BrokerConfig.load(broker_id="b", **wrong)


async def test_a_long_log_is_compacted_and_a_next_coordinator_reads_little() -> None:
    async with world(brokers=2, group_log_records_max=100) as found:
        await create_topic(found.brokers[0], "t", 3)
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 3)
        commits = [await found.offset(partition, 0) for partition in range(3)]
        address = (await found.client.find("g")).address
        server = found.server(address)
        partition = await server._groups.of_group("g")  # pyright: ignore[reportPrivateUsage]
        for number in range(400):
            commits[number % 3].offset = number
            reply = await found.client.commit("g", commits[number % 3], who=member.committer())
            assert not code_of(reply)
        await until(lambda: partition.shell.log_start > 200)
        assert partition.shell.high_watermark - partition.shell.log_start < 200
        committed = {("t", 0): 399, ("t", 1): 397, ("t", 2): 398}
        assert await found.client.committed("g") == committed
        epochs = list(member.epochs)
        await found.stop_broker(address)
        assert await found.client.committed("g") == committed
        before = member.sequence
        await until(lambda: member.sequence > before + 2)
        assert (member.epochs, member.error) == (epochs, None), "RB8"


async def test_a_compaction_that_bookies_interrupt_loses_nothing() -> None:
    async with world(group_log_records_max=100, produce_timeout_s=0.3) as found:
        await create_topic(found.brokers[0], "t")
        one = await found.offset(0, 0)
        for number in range(95):
            one.offset = number
            assert not code_of(await found.client.commit("g", one))
        partition = await found.partition()
        found.loopback.bookies.hold = True
        stub = found.client.stub(found.brokers[0].address)
        one.offset = 1_000
        request = groups_pb2.CommitOffsetsRequest(group_id="g", offsets=[one])
        reply = await stub.CommitOffsets(request)
        assert code_of(reply) == "NOT_COORDINATOR"
        found.loopback.bookies.release()
        for number in range(2_000, 2_050):
            one.offset = number
            assert not code_of(await found.client.commit("g", one))
        await until(lambda: partition.shell.log_start > 90)
        assert await found.client.committed("g") == {("t", 0): 2_049}
