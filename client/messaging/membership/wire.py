"""What a member says and is told, as messages of `proto/groups.proto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.client.messaging.membership.values import Beat, Slot, Told
from octavo.client.messaging.records import OffsetAndMetadata
from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.proto.group_records import Subscription
from octavo.runtime.errors import OctavoError
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress

NOBODY = pb.Committer(epoch=-1)
"""Who commits or reads offsets without being a member (O3)."""


def topic_slots(slots: Iterable[Slot]) -> list[pb.TopicSlots]:
    """Slots by topic, as they are told."""
    by_topic: dict[tuple[bytes, str], list[int]] = {}
    for slot in slots:
        by_topic.setdefault((slot.topic_id, slot.topic), []).append(slot.partition)
    return [
        pb.TopicSlots(topic_id=topic_id, topic=topic, partitions=sorted(partitions))
        for (topic_id, topic), partitions in by_topic.items()
    ]


def slots_of(told: Iterable[pb.TopicSlots], names: Mapping[bytes, str]) -> frozenset[Slot]:
    """The same the other way; `names` are those of topics that are read already.

    Raises CoordinatorLoadInProgress while nobody knows the name of one.
    """
    found: set[Slot] = set()
    for part in told:
        name = part.topic or names.get(part.topic_id)
        if name is None:
            raise CoordinatorLoadInProgress(f"topic {part.topic_id.hex()} has no name yet")
        found.update(Slot(name, partition, part.topic_id) for partition in part.partitions)
    return frozenset(found)


def heartbeat(
    beat: Beat, group_id: str, member_id: str, instance_id: str | None
) -> pb.HeartbeatRequest:
    """The request of a heartbeat."""
    return pb.HeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        epoch=beat.epoch,
        instance_id=instance_id,
        subscription=None if beat.subscription is None else _subscription(beat.subscription),
        owned=None if beat.owned is None else pb.SlotSet(slots=topic_slots(sorted(beat.owned))),
        sequence=beat.sequence,
        seen=beat.seen,
        applied=beat.applied,
    )


def _subscription(subscription: Subscription) -> pb.MemberSubscription:
    return pb.MemberSubscription(
        topics=sorted(subscription.topics),
        pattern=subscription.pattern,
        assignor=subscription.assignor,
        rack=subscription.rack,
        rebalance_timeout_s=subscription.rebalance_timeout_s,
        client_id=subscription.client_id,
    )


def told(reply: pb.HeartbeatReply, names: Mapping[bytes, str]) -> Told:
    """What a reply without an error says, as `slots_of`; what it leaves out is as always."""
    usual = Told(reply.epoch)
    interval_s, session_s = reply.heartbeat_interval_ms / 1000, reply.session_timeout_ms / 1000
    return Told(
        reply.epoch,
        reply.number,
        slots_of(reply.assigned.slots, names) if reply.HasField("assigned") else None,
        interval_s or usual.heartbeat_interval_s,
        session_s or usual.session_timeout_s,
        {
            one.topic_id: one.later_from
            for one in reply.assigned.slots
            if one.HasField("later_from")
        },
    )


def commit(
    group_id: str, who: pb.Committer, offsets: Mapping[Slot, OffsetAndMetadata]
) -> pb.CommitOffsetsRequest:
    """The request of a commit."""
    return pb.CommitOffsetsRequest(
        group_id=group_id,
        who=who,
        offsets=[
            pb.OffsetCommit(
                topic_id=slot.topic_id,
                topic=slot.topic,
                partition=slot.partition,
                offset=value.offset,
                metadata=value.metadata,
            )
            for slot, value in offsets.items()
        ],
    )


def commit_errors(reply: pb.CommitOffsetsReply, offsets: Iterable[Slot]) -> dict[Slot, OctavoError]:
    """What was not stored, and why; each error names its partition (O2, F114)."""
    errors = {(one.topic_id, one.partition): from_wire(one.error) for one in reply.errors}
    found: dict[Slot, OctavoError] = {}
    for slot in offsets:
        error = errors.get((slot.topic_id, slot.partition))
        if error is not None:
            error.cause = f"{slot.where}: {error.cause}"
            error.details |= {"topic": slot.topic, "partition": slot.partition}
            found[slot] = error
    return found


def committed_offsets(
    reply: pb.FetchOffsetsReply, slots: Iterable[Slot]
) -> dict[Slot, OffsetAndMetadata]:
    """Offsets that were committed; those of other lives of a topic are not among them (O1)."""
    found = {
        (one.topic_id, one.partition): OffsetAndMetadata(one.offset, one.metadata)
        for one in reply.offsets
        if one.HasField("offset")
    }
    return {
        slot: found[slot.topic_id, slot.partition]
        for slot in slots
        if (slot.topic_id, slot.partition) in found
    }
