"""Messages of groups.proto to what the coordinator's core takes, and back.

Topics travel by id in bytes; the core knows them by the id in hex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from types import MappingProxyType

from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.proto.group_records import (
    Kind,
    OffsetKey,
    OffsetRecord,
    Record,
    Slot,
    Subscription,
    size_hint_bytes,
)
from octavo.runtime.errors import InvalidRequest
from octavo.serving.coordinating.refusals import error_of
from octavo.serving.groups.append_queue import EVENT_BYTES_MAX
from octavo.serving.groups.values import (
    NO_MEMBER_EPOCH,
    CommitReply,
    Committer,
    FetchReply,
    GroupDescription,
    Heartbeat,
    HeartbeatReply,
    MemberDescription,
    OffsetToCommit,
)

TOPIC_ID_BYTES = 16
SLOTS_MAX = 100_000
"""Partitions that one request names."""
TOPICS_MAX = 10_000
"""Topics that one member subscribes by name."""
TEXT_CHARS_MAX = 1_000
"""Of a client id or a rack."""


def topic_id_of(raw: bytes) -> str:
    """The id as the core knows it; raises InvalidRequest."""
    if len(raw) != TOPIC_ID_BYTES:
        raise InvalidRequest(f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(raw)}")
    return raw.hex()


def slots_of(sent: Iterable[pb.TopicSlots]) -> list[Slot]:
    """The partitions that a request names."""
    slots = [
        Slot(topic_id, partition)
        for part in sent
        for topic_id in (topic_id_of(part.topic_id),)
        for partition in part.partitions
    ]
    if len(slots) > SLOTS_MAX:
        raise InvalidRequest(f"{len(slots)} partitions in one request; at most {SLOTS_MAX}")
    return slots


def to_slots(
    slots: Iterable[Slot],
    name_of: Callable[[str], str] = lambda topic_id: "",
    later: Mapping[str, int] = MappingProxyType({}),
) -> list[pb.TopicSlots]:
    """Partitions, those of a topic together if they come so; `later`: of F6, by topic id."""
    return [
        pb.TopicSlots(
            topic_id=bytes.fromhex(topic_id),
            topic=name_of(topic_id),
            partitions=[slot.partition for slot in given],
            later_from=later.get(topic_id),
        )
        for topic_id, given in groupby(slots, key=lambda slot: slot.topic_id)
    ]


# -- members


def heartbeat_of(request: pb.HeartbeatRequest, host: str) -> Heartbeat:
    """Raises InvalidRequest for what the core is not to judge."""
    return Heartbeat(
        member_id=request.member_id,
        epoch=request.epoch,
        instance_id=request.instance_id if request.HasField("instance_id") else None,
        subscription=(
            _subscription(request.subscription, host) if request.HasField("subscription") else None
        ),
        owned=(frozenset(slots_of(request.owned.slots)) if request.HasField("owned") else None),
        sequence=request.sequence,
        seen=request.seen,
        applied=request.applied,
    )


def _subscription(sent: pb.MemberSubscription, host: str) -> Subscription:
    if len(sent.topics) > TOPICS_MAX:
        raise InvalidRequest(f"{len(sent.topics)} topics subscribed; at most {TOPICS_MAX}")
    for text in (sent.client_id, sent.rack):
        if len(text) > TEXT_CHARS_MAX:
            raise InvalidRequest(f"a client id or rack of {len(text)} characters")
    return Subscription(
        topics=frozenset(sent.topics),
        pattern=sent.pattern if sent.HasField("pattern") else None,
        assignor=sent.assignor if sent.HasField("assignor") else None,
        rack=sent.rack if sent.HasField("rack") else None,
        rebalance_timeout_s=sent.rebalance_timeout_s,
        client_id=sent.client_id,
        host=host,
    )


def to_heartbeat_reply(
    group_id: str,
    reply: HeartbeatReply,
    name_of: Callable[[str], str],
    *,
    interval_ms: int,
    session_timeout_ms: int,
) -> pb.HeartbeatReply:
    """With the broker's settings; topics by name, too: a member of a pattern knows none."""
    if reply.refusal is not None:
        return pb.HeartbeatReply(error=to_wire(error_of(reply.refusal, group_id)))
    return pb.HeartbeatReply(
        epoch=reply.epoch,
        number=reply.number,
        assigned=(
            None
            if reply.assigned is None
            else pb.SlotSet(slots=to_slots(reply.assigned, name_of, reply.later))
        ),
        heartbeat_interval_ms=interval_ms,
        session_timeout_ms=session_timeout_ms,
    )


# -- offsets


def committer_of(sent: pb.Committer) -> Committer:
    """Who commits or reads; nobody's membership when no member is named."""
    if not sent.HasField("member_id"):
        return Committer(None, NO_MEMBER_EPOCH)
    instance_id = sent.instance_id if sent.HasField("instance_id") else None
    return Committer(sent.member_id, sent.epoch, instance_id)


def commit_of(group_id: str, sent: Iterable[pb.OffsetCommit]) -> list[OffsetToCommit]:
    """Offsets to commit; raises InvalidRequest for more than one batch of the log can hold."""
    offsets = [_offset(one) for one in sent]
    size_bytes = sum(
        size_hint_bytes(group_id, Record(Kind.OFFSET, key, OffsetRecord(offset, epoch, text, 0)))
        for key, offset, epoch, text in offsets
    )
    if size_bytes > EVENT_BYTES_MAX:
        raise InvalidRequest(
            f"a commit of {len(offsets)} offsets in about {size_bytes} bytes; at most "
            f"{EVENT_BYTES_MAX}",
            hint="commit fewer partitions at a time",
        )
    return offsets


def _offset(sent: pb.OffsetCommit) -> OffsetToCommit:
    return OffsetToCommit(
        OffsetKey(topic_id_of(sent.topic_id), sent.topic, sent.partition),
        sent.offset,
        sent.owner_epoch if sent.HasField("owner_epoch") else None,
        sent.metadata,
    )


def to_commit_reply(group_id: str, reply: CommitReply) -> pb.CommitOffsetsReply:
    """With an error for each partition that is not stored."""
    if reply.refusal is not None:
        return pb.CommitOffsetsReply(error=to_wire(error_of(reply.refusal, group_id)))
    return pb.CommitOffsetsReply(
        errors=[
            pb.CommitError(
                topic_id=bytes.fromhex(slot.topic_id),
                partition=slot.partition,
                error=to_wire(error_of(refusal, group_id)),
            )
            for slot, refusal in reply.errors.items()
        ]
    )


def to_fetch_reply(
    group_id: str, reply: FetchReply, names: Mapping[str, str]
) -> pb.FetchOffsetsReply:
    """`names` of topics that the request told."""
    if reply.refusal is not None:
        return pb.FetchOffsetsReply(error=to_wire(error_of(reply.refusal, group_id)))
    names = {**names, **reply.names}
    offsets: list[pb.CommittedOffset] = []
    for slot, found in reply.offsets.items():
        offset = pb.CommittedOffset(
            topic_id=bytes.fromhex(slot.topic_id),
            topic=names.get(slot.topic_id, ""),
            partition=slot.partition,
        )
        if found is not None:
            offset.offset = found.offset
            offset.metadata = found.metadata
            offset.committed_ms = found.committed_ms
            if found.owner_epoch is not None:
                offset.owner_epoch = found.owner_epoch
        offsets.append(offset)
    return pb.FetchOffsetsReply(offsets=offsets)


# -- descriptions


def to_description(
    found: GroupDescription, coordinator_id: str, name_of: Callable[[str], str]
) -> pb.GroupDescription:
    """A group with the names of its topics."""
    return pb.GroupDescription(
        group_id=found.listed.group_id,
        state=found.listed.state,
        type=found.listed.type,
        epoch=found.epoch,
        target_epoch=found.target_epoch,
        assignor=found.assignor,
        empty_since_ms=found.empty_since_ms,
        members=[_to_member(member, name_of) for member in found.members],
        coordinator_id=coordinator_id,
    )


def _to_member(member: MemberDescription, name_of: Callable[[str], str]) -> pb.MemberDescription:
    subscription = member.subscription
    return pb.MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        epoch=member.epoch,
        state=member.state,
        client_id=subscription.client_id,
        host=subscription.host,
        topics=sorted(subscription.topics),
        pattern=subscription.pattern,
        rack=subscription.rack,
        left=member.left,
        owned=to_slots(member.owned, name_of),
        pending=to_slots(member.pending, name_of),
        target=to_slots(member.target, name_of),
    )
