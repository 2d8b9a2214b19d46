"""Messages of groups.proto as what the admin tells. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.client.messaging.group_admin.values import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    MemberDescription,
)
from octavo.client.messaging.records import TopicPartition
from octavo.proto import groups_pb2 as pb


def partitions_in(slots: Iterable[pb.TopicSlots]) -> tuple[TopicPartition, ...]:
    """Partitions by topic and number."""
    return tuple(
        sorted(TopicPartition(part.topic, number) for part in slots for number in part.partitions)
    )


def member_of(told: pb.MemberDescription) -> MemberDescription:
    """A member as its coordinator tells of it."""
    return MemberDescription(
        member_id=told.member_id,
        instance_id=told.instance_id if told.HasField("instance_id") else None,
        client_id=told.client_id,
        host=told.host,
        epoch=told.epoch,
        state=told.state,
        topics=tuple(sorted(told.topics)),
        pattern=told.pattern if told.HasField("pattern") else None,
        rack=told.rack if told.HasField("rack") else None,
        left=told.left,
        owned=partitions_in(told.owned),
        pending=partitions_in(told.pending),
        target=partitions_in(told.target),
    )


def group_of(told: pb.GroupDescription) -> GroupDescription:
    """A group as its coordinator tells of it."""
    members = sorted(map(member_of, told.members), key=lambda member: member.member_id)
    return GroupDescription(
        group_id=told.group_id,
        state=told.state,
        type=told.type,
        epoch=told.epoch,
        target_epoch=told.target_epoch,
        assignor=told.assignor,
        coordinator_id=told.coordinator_id,
        empty_since_ms=told.empty_since_ms if told.HasField("empty_since_ms") else None,
        members=tuple(members),
    )


def listing_of(told: pb.ListedGroup) -> GroupListing:
    """A group in a list."""
    return GroupListing(told.group_id, told.state, told.type, told.members)


def committed_of(told: Iterable[pb.CommittedOffset]) -> list[CommittedOffset]:
    """By topic and partition; what was asked for and never committed is left out."""
    found = [
        CommittedOffset(
            topic=one.topic,
            topic_id=one.topic_id.hex(),
            partition=one.partition,
            offset=one.offset,
            owner_epoch=one.owner_epoch if one.HasField("owner_epoch") else None,
            metadata=one.metadata,
            committed_ms=one.committed_ms,
        )
        for one in told
        if one.HasField("offset")
    ]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.topic_id))


def slots_of(partitions: Iterable[tuple[str, int]]) -> list[pb.TopicSlots]:
    """Partitions told by the id of their topic, in hex, as a request names them."""
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        pb.TopicSlots(topic_id=bytes.fromhex(topic_id), partitions=sorted(numbers))
        for topic_id, numbers in sorted(by_topic.items())
    ]
