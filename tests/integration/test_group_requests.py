"""What clients may send to a coordinator, right and wrong, and what each is answered."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from octavo.proto import broker_pb2, groups_pb2
from octavo.proto.murmur2 import partition_of
from octavo.serving.coordinating.offsets_topic import OFFSETS_PARTITIONS, OFFSETS_TOPIC
from tests.group_brokers import World, world
from tests.group_client import code_of, expand
from tests.serving_rig import make_batch, until
from tests.serving_server import batch_of, create_topic

GARBAGE_ID = bytes(range(16))


async def test_f094_f115_the_internal_topic_is_made_once_hidden_and_not_for_users() -> None:
    async with world(brokers=2) as found:
        first, second = found.brokers
        names = [f"g{number}" for number in range(40)]
        asked = groups_pb2.FindCoordinatorRequest(group_ids=names)
        one, other = await asyncio.gather(
            found.client.stub(first.address).FindCoordinator(asked),
            found.client.stub(second.address).FindCoordinator(asked),
        )
        assert (one.partitions, other.partitions) == (OFFSETS_PARTITIONS, OFFSETS_PARTITIONS)
        for name, told in zip(names, one.coordinators, strict=True):
            assert not code_of(told)
            assert told.partition == partition_of(name.encode(), OFFSETS_PARTITIONS)
        assert {told.address for told in one.coordinators} == {b.address for b in found.brokers}
        listed = await first.stub.ListTopics(broker_pb2.ListTopicsRequest())
        assert [topic.name for topic in listed.topics] == []
        listed = await first.stub.ListTopics(broker_pb2.ListTopicsRequest(include_internal=True))
        assert [(topic.name, len(topic.partitions)) for topic in listed.topics] == [
            (OFFSETS_TOPIC, OFFSETS_PARTITIONS)
        ]
        deleted = await first.stub.DeleteTopic(broker_pb2.DeleteTopicRequest(name=OFFSETS_TOPIC))
        assert code_of(deleted) == "INVALID_TOPIC"
        home = one.coordinators[0]
        (owner,) = [broker for broker in found.brokers if broker.address == home.address]
        await found.client.committed(names[0])
        payload = make_batch([b"forged"])
        sent = batch_of(payload, topic=OFFSETS_TOPIC, partition=home.partition)
        (refused,) = await owner.produce(sent)
        assert refused.error.code == "INVALID_TOPIC", refused


async def test_every_partition_is_listed_by_whom_it_is_asked_for() -> None:
    async with world(brokers=2) as found:
        await create_topic(found.brokers[0], "t")
        groups = {f"g{number}" for number in range(30)}
        one = await found.offset(0, 1)
        for group in groups:
            reply = await found.client.commit(group, one)
            assert not code_of(reply), reply
        asked = groups_pb2.FindCoordinatorRequest(partitions=range(OFFSETS_PARTITIONS))
        homes = await found.client.stub(found.brokers[0].address).FindCoordinator(asked)
        listed: dict[int, set[str]] = {}
        for home in homes.coordinators:
            assert not code_of(home)
            stub = found.client.stub(home.address)
            request = groups_pb2.ListGroupsRequest(partitions=[home.partition])
            async with asyncio.timeout(30):
                while True:
                    (partition,) = (await stub.ListGroups(request)).partitions
                    if not code_of(partition):
                        break
                    assert code_of(partition) in (
                        "COORDINATOR_LOAD_IN_PROGRESS",
                        "COORDINATOR_NOT_AVAILABLE",
                    )
                    await asyncio.sleep(0.02)
            listed[partition.partition] = {group.group_id for group in partition.groups}
            assert all(group.type == "simple" for group in partition.groups)
        assert len(listed) == OFFSETS_PARTITIONS
        assert set().union(*listed.values()) == groups
        for number, names in listed.items():
            for name in names:
                assert partition_of(name.encode(), OFFSETS_PARTITIONS) == number
        stranger = found.client.stub(homes.coordinators[0].address)
        wrong = await stranger.ListGroups(groups_pb2.ListGroupsRequest(partitions=[50, -1]))
        assert [code_of(one) for one in wrong.partitions] == ["INVALID_PARTITION"] * 2


Beat = groups_pb2.HeartbeatRequest
Subscribed = groups_pb2.MemberSubscription


def _joins(**changes: object) -> groups_pb2.HeartbeatRequest:
    request = Beat(group_id="g", member_id="m", sequence=1)
    request.subscription.topics.append("t")
    request.subscription.rebalance_timeout_s = 60
    for name, value in changes.items():
        target: object = request
        *path, last = name.split("__")
        for part in path:
            target = getattr(target, part)
        setattr(target, last, value)
    return request


BAD_HEARTBEATS: list[tuple[str, groups_pb2.HeartbeatRequest, str]] = [
    ("no group", _joins(group_id=""), "INVALID_GROUP_ID"),
    ("a long group", _joins(group_id="g" * 1_001), "INVALID_GROUP_ID"),
    ("no member", _joins(member_id=""), "INVALID_REQUEST"),
    ("a long member", _joins(member_id="m" * 1_001), "INVALID_REQUEST"),
    ("an empty instance", _joins(instance_id=""), "INVALID_REQUEST"),
    ("a stranger", Beat(group_id="g", member_id="x", epoch=3, sequence=1), "UNKNOWN_MEMBER_ID"),
    ("a leaving stranger", Beat(group_id="g", member_id="x", epoch=-1), "UNKNOWN_MEMBER_ID"),
    ("an epoch below all", Beat(group_id="g", member_id="x", epoch=-7), "UNKNOWN_MEMBER_ID"),
    ("an assignor", _joins(subscription__assignor="best"), "INVALID_REQUEST"),
    ("a timeout", _joins(subscription__rebalance_timeout_s=0.0), "INVALID_REQUEST"),
    ("a timeout", _joins(subscription__rebalance_timeout_s=float("nan")), "INVALID_REQUEST"),
    ("a pattern", _joins(subscription__pattern="(a"), "INVALID_REQUEST"),
    ("a look-ahead", _joins(subscription__pattern="(?=a)"), "INVALID_REQUEST"),
    ("a client id", _joins(subscription__client_id="c" * 1_001), "INVALID_REQUEST"),
    (
        "a topic id",
        Beat(
            group_id="g",
            member_id="m",
            owned=groups_pb2.SlotSet(slots=[groups_pb2.TopicSlots(topic_id=b"short")]),
        ),
        "INVALID_REQUEST",
    ),
]


async def test_wrong_heartbeats_are_refused_with_a_reason_and_leave_nothing() -> None:
    async with world() as found:
        await create_topic(found.brokers[0], "t")
        for what, request, code in BAD_HEARTBEATS:
            if not 0 < len(request.group_id) <= 1_000:
                stub = found.client.stub(found.brokers[0].address)
                reply = await stub.Heartbeat(request)
            else:
                reply = await found.client.heartbeat(request)
            assert code_of(reply) == code, (what, reply)
            assert reply.error.cause, what
        group = await found.client.describe("g")
        assert code_of(group) == "GROUP_ID_NOT_FOUND"


async def test_o2_f114_wrong_offsets_are_refused_each_by_itself() -> None:
    async with world(offset_metadata_max_bytes=10) as found:
        await create_topic(found.brokers[0], "t", 3)
        good = await found.offset(0, 3)
        below = await found.offset(1, -1)
        long_text = await found.offset(2, 1)
        long_text.metadata = "x" * 11
        stranger = groups_pb2.OffsetCommit(topic_id=GARBAGE_ID, topic="t", offset=1)
        nowhere = groups_pb2.OffsetCommit(topic_id=GARBAGE_ID, topic="nowhere", offset=1)
        named = groups_pb2.OffsetCommit(topic_id=GARBAGE_ID, topic="a/b\0", offset=1, partition=-5)
        reply = await found.client.commit("g", good, below, long_text, stranger, nowhere, named)
        assert not code_of(reply)
        assert [error.error.code for error in reply.errors] == [
            "INVALID_COMMIT_OFFSET",
            "OFFSET_METADATA_TOO_LARGE",
            "UNKNOWN_TOPIC",
            "UNKNOWN_TOPIC",
        ], "those of one id and partition are told once"
        assert await found.client.committed("g") == {("t", 0): 3}
        short = groups_pb2.OffsetCommit(topic_id=b"", topic="t", offset=1)
        assert code_of(await found.client.commit("g", short)) == "INVALID_REQUEST"
        huge = [await found.offset(0, 3) for _ in range(100)]
        for one in huge:
            one.metadata = "y" * 50_000
        stub = found.client.stub(found.brokers[0].address)
        large = groups_pb2.CommitOffsetsRequest(group_id="g", offsets=huge)
        assert code_of(await stub.CommitOffsets(large)) == "INVALID_REQUEST"
        assert await found.client.committed("g") == {("t", 0): 3}


async def test_o5_offsets_by_name_are_told_with_and_without_a_commit() -> None:
    """G6: offset 0 is not "nothing"."""
    async with world() as found:
        await create_topic(found.brokers[0], "t", 2)
        commit = await found.offset(0, 0)
        commit.metadata = "note"
        commit.owner_epoch = 0
        assert not code_of(await found.client.commit("g", commit))
        slots = groups_pb2.TopicSlots(topic_id=commit.topic_id, topic="t", partitions=[0, 1])
        request = groups_pb2.FetchOffsetsRequest(group_id="g", slots=[slots])
        reply = await found.client.ask("g", lambda stub: stub.FetchOffsets, request)
        assert isinstance(reply, groups_pb2.FetchOffsetsReply)
        zero, none = reply.offsets
        assert (zero.HasField("offset"), zero.offset) == (True, 0)
        assert (zero.HasField("owner_epoch"), zero.owner_epoch) == (True, 0)
        assert (zero.topic, zero.metadata) == ("t", "note")
        assert zero.committed_ms > 1_000_000_000_000
        assert (none.partition, none.HasField("offset")) == (1, False)


async def test_o7_groups_and_offsets_are_deleted_when_nobody_reads() -> None:
    """O7."""
    async with world() as found:
        await create_topic(found.brokers[0], "t", 2)
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 2)
        commit = await found.offset(0, 4)
        assert not code_of(await found.client.commit("g", commit, who=member.committer()))
        slots = [groups_pb2.TopicSlots(topic_id=commit.topic_id, partitions=[0])]
        offsets = groups_pb2.DeleteOffsetsRequest(group_id="g", slots=slots)
        group = groups_pb2.DeleteGroupRequest(group_id="g")
        reply = await found.client.ask("g", lambda stub: stub.DeleteOffsets, offsets)
        assert code_of(reply) == "GROUP_SUBSCRIBED_TO_TOPIC"
        reply = await found.client.ask("g", lambda stub: stub.DeleteGroup, group)
        assert code_of(reply) == "NON_EMPTY_GROUP"
        removal = groups_pb2.RemoveMembersRequest(
            group_id="g",
            members=[
                groups_pb2.RemovedMember(member_id="a"),
                groups_pb2.RemovedMember(instance_id="nobody"),
            ],
        )
        removed = await found.client.ask("g", lambda stub: stub.RemoveMembers, removal)
        assert isinstance(removed, groups_pb2.RemoveMembersReply)
        assert [code_of(one) for one in removed.members] == ["", "UNKNOWN_MEMBER_ID"]
        await until(lambda: member.error is not None)
        assert member.error is not None
        assert member.error.code == "UNKNOWN_MEMBER_ID"
        reply = await found.client.ask("g", lambda stub: stub.DeleteOffsets, offsets)
        assert not code_of(reply)
        assert await found.client.committed("g") == {}
        reply = await found.client.ask("g", lambda stub: stub.DeleteGroup, group)
        assert not code_of(reply)
        reply = await found.client.ask("g", lambda stub: stub.DeleteGroup, group)
        assert code_of(reply) == "GROUP_ID_NOT_FOUND"


async def test_a_group_is_described_with_names() -> None:
    async with world() as found:
        await create_topic(found.brokers[0], "t", 2)
        member = found.member("a", "t")
        await until(lambda: len(member.owned) == 2)
        group = await found.client.describe("g")
        assert (group.state, group.type, group.assignor) == ("STABLE", "consumer", "uniform")
        assert (group.epoch, group.target_epoch) == (1, 1)
        assert group.coordinator_id == "broker-0"
        assert not group.HasField("empty_since_ms")
        (described,) = group.members
        assert (described.member_id, described.client_id, described.state) == ("a", "raw", "STABLE")
        assert described.host.startswith("ipv4:127.0.0.1")
        assert [one.topic for one in described.owned] == ["t"]
        assert expand(described.owned) == member.owned == expand(described.target)
        await member.leave()
        group = await found.client.describe("g")
        assert (group.state, list(group.members)) == ("EMPTY", [])
        assert group.HasField("empty_since_ms")


RawMethod = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


def _all_methods(world_: World) -> list[RawMethod]:
    channel = world_.brokers[0].channel
    (service,) = groups_pb2.DESCRIPTOR.services_by_name.values()
    found: list[RawMethod] = []
    for one in service.methods:
        method: RawMethod = channel.unary_unary(f"/{service.full_name}/{one.name}")
        found.append(method)
    return found


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x05abc", b"\x00" * 50])
async def test_bytes_that_are_no_request_are_invalid_arguments(raw: bytes) -> None:
    async with world() as found:
        methods = _all_methods(found)
        assert len(methods) == 11
        for method in methods:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(raw)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_request_is_answered_with_a_reason() -> None:
    async with world() as found:
        stub = found.client.stub(found.brokers[0].address)
        codes = [
            code_of(await stub.Heartbeat(Beat())),
            code_of(await stub.CommitOffsets(groups_pb2.CommitOffsetsRequest())),
            code_of(await stub.FetchOffsets(groups_pb2.FetchOffsetsRequest())),
            code_of(await stub.DeleteGroup(groups_pb2.DeleteGroupRequest())),
            code_of(await stub.DeleteOffsets(groups_pb2.DeleteOffsetsRequest())),
            code_of(await stub.RemoveMembers(groups_pb2.RemoveMembersRequest())),
        ]
        assert codes == ["INVALID_GROUP_ID"] * 6
        assert not (await stub.DescribeGroups(groups_pb2.DescribeGroupsRequest())).groups
        assert not (await stub.ListGroups(groups_pb2.ListGroupsRequest())).partitions
        many = groups_pb2.DescribeGroupsRequest(group_ids=["g"] * 10_001)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DescribeGroups(many)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_users_do_not_cut_the_log_of_groups() -> None:
    async with world() as found:
        home = await found.client.find("g")
        reply = await found.brokers[0].stub.DeleteRecords(
            broker_pb2.DeleteRecordsRequest(topic=OFFSETS_TOPIC, partition=home.partition, before=0)
        )
        assert code_of(reply) == "INVALID_TOPIC"


async def test_f094_a_broker_that_does_not_coordinate_says_so() -> None:
    async with world(brokers=2) as found:
        await create_topic(found.brokers[0], "t")
        home = (await found.client.find("g")).address
        (other,) = [broker.address for broker in found.brokers if broker.address != home]
        stub = found.client.stub(other)
        beat = groups_pb2.HeartbeatRequest(
            group_id="g",
            member_id="m",
            subscription=groups_pb2.MemberSubscription(topics=["t"]),
            sequence=1,
        )
        commit = groups_pb2.CommitOffsetsRequest(
            group_id="g",
            who=groups_pb2.Committer(epoch=-1),
            offsets=[await found.offset(0, 1)],
        )
        assert code_of(await stub.Heartbeat(beat)) == "NOT_COORDINATOR"
        assert code_of(await stub.CommitOffsets(commit)) == "NOT_COORDINATOR"
        assert await found.client.committed("g") == {}
