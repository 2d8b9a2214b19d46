"""What one group committed beside what is stored: its lag, and what a reset would change.

Offsets count for the life of a topic they were committed in (O1): of a topic that is gone, or was
created again, they say nothing. Runs on the client's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.group_admin.append_times import append_times
from octavo.client.messaging.group_admin.resets import AtTime, Place, Target
from octavo.client.messaging.group_admin.values import (
    CommittedOffset,
    GroupDescription,
    GroupLag,
    MemberDescription,
    PartitionLag,
)
from octavo.client.messaging.group_admin.wire import committed_of
from octavo.client.messaging.reading.offsets import list_edges, list_offsets
from octavo.client.messaging.records import TopicPartition
from octavo.proto import groups_pb2 as pb
from octavo.proto.edges import Edge
from octavo.proto.errors import from_wire
from octavo.proto.lag import Measured, ResetTarget, measure
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import InvalidPartition, NotLeader, UnknownTopic

NOBODY = pb.Committer(epoch=-1)
"""Who reads and commits offsets without being a member (O3)."""
TIMES_TIMEOUT_S = 5.0
"""For the append times of all partitions together: the lag in records does not wait for them."""


async def committed_offsets(
    cluster: Cluster, group_id: str, timeout_s: float
) -> list[CommittedOffset]:
    """Everything that the group committed, by topic and partition."""
    request = pb.FetchOffsetsRequest(group_id=group_id, who=NOBODY, all=True)
    reply = await cluster.coordinators.insist(
        group_id, lambda stub, limit_s: stub.FetchOffsets(request, timeout=limit_s), timeout_s
    )
    return committed_of(reply.offsets)


class Life(NamedTuple):
    """A topic as it is now."""

    topic_id: str
    partitions: int


async def lives_of(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> dict[str, Life]:
    """The topics that exist, by name; the others are left out."""
    names = sorted({name for name in topics if name})
    if not names:
        return {}

    async def attempt() -> dict[str, Life]:
        reply = await cluster.topics.metadata(names, timeout_s=deadline.left_s())
        found: dict[str, Life] = {}
        for topic in reply.topics:
            if not topic.HasField("error"):
                found[topic.name] = Life(topic.topic_id.hex(), len(topic.partitions))
            elif not isinstance(error := from_wire(topic.error), UnknownTopic):
                raise error
        return found

    return await cluster.calls.retrying(attempt, deadline.left_s())


class Edges(NamedTuple):
    """The ends of one partition's log; what is stored lies between them."""

    log_start: int
    end: int


async def edges_of(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    lives: Mapping[str, Life],
    deadline: Deadline,
) -> dict[TopicPartition, Edges]:
    """The start is asked for before the end, which so never lies below it.

    Raises NotLeader when a topic was created again meanwhile: look again at everything.
    """
    wanted = list(places)
    before: dict[TopicPartition, bytes] = {}
    after: dict[TopicPartition, bytes] = {}
    starts = await list_edges(cluster, wanted, Edge.EARLIEST, deadline, before)
    ends = await list_edges(cluster, wanted, Edge.LATEST, deadline, after)
    for where in wanted:
        if not before[where].hex() == after[where].hex() == lives[where.topic].topic_id:
            raise NotLeader(f"topic {where.topic!r} was created again meanwhile")
    return {where: Edges(starts[where], ends[where]) for where in wanted}


def readers_of(group: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    """Who owns, or shall own, each partition; an owner comes before whoever waits for it."""
    found: dict[TopicPartition, MemberDescription] = {}
    for member in group.members:
        found.update(dict.fromkeys(member.target, member))
    for member in group.members:
        found.update(dict.fromkeys((*member.pending, *member.owned), member))
    return found


async def lag_of(
    cluster: Cluster,
    group: GroupDescription,
    deadline: Deadline,
    *,
    reset: ResetTarget,
    time_lag: bool,
) -> GroupLag:
    """Of every partition that the group committed or that a member reads (M1 to M3)."""

    async def attempt() -> GroupLag:
        readers = readers_of(group)
        committed = await committed_offsets(cluster, group.group_id, deadline.left_s())
        names = [one.topic for one in committed] + [where.topic for where in readers]
        lives = await lives_of(cluster, names, deadline)
        offsets = {
            one.topic_partition: one.offset
            for one in committed
            if one.topic in lives and one.topic_id == lives[one.topic].topic_id
        }
        places = sorted({*offsets, *(where for where in readers if where.topic in lives)})
        edges = await edges_of(cluster, places, lives, deadline)
        measured = {where: measure(offsets.get(where), *edges[where], reset) for where in places}
        ages_s = await _ages_s(cluster, measured, deadline) if time_lag else {}
        parts: list[PartitionLag] = []
        for where, (position, lag, uncommitted, ahead) in measured.items():
            reader = readers.get(where)
            parts.append(
                PartitionLag(
                    topic=where.topic,
                    topic_id=lives[where.topic].topic_id,
                    partition=where.partition,
                    committed=offsets.get(where),
                    position=position,
                    log_start=edges[where].log_start,
                    end=edges[where].end,
                    lag=lag,
                    time_lag_s=ages_s.get(where) if lag else 0.0,
                    uncommitted=uncommitted,
                    ahead=ahead,
                    member_id=None if reader is None else reader.member_id,
                    client_id=None if reader is None else reader.client_id,
                )
            )
        return GroupLag(
            group_id=group.group_id,
            state=group.state,
            members=len(group.members),
            taken_s=cluster.clock.monotonic(),
            partitions=tuple(parts),
        )

    return await cluster.calls.retrying(attempt, deadline.left_s())


async def _ages_s(
    cluster: Cluster, measured: Mapping[TopicPartition, Measured], deadline: Deadline
) -> dict[TopicPartition, float]:
    """How long what each partition waits for has been there; unknown ones are left out."""
    behind = {where: one.position for where, one in measured.items() if one.lag}
    if not behind:
        return {}
    limit = Deadline(cluster.clock, deadline.left_s(TIMES_TIMEOUT_S))
    times_ms = await append_times(cluster, behind, limit)
    now_ms = cluster.clock.wall_ms()
    return {where: max(now_ms - ms, 0) / 1000 for where, ms in times_ms.items()}


async def places_of(
    cluster: Cluster,
    group_id: str,
    wanted: Mapping[str, list[int] | None] | None,
    target: Target,
    deadline: Deadline,
) -> dict[TopicPartition, Place]:
    """What a reset has to know of the partitions it is for; None: of all that were committed.

    Raises UnknownTopic, InvalidPartition.
    """

    async def attempt() -> dict[TopicPartition, Place]:
        committed = await committed_offsets(cluster, group_id, deadline.left_s())
        names = {one.topic for one in committed} if wanted is None else set(wanted)
        lives = await lives_of(cluster, names, deadline)
        offsets = {
            one.topic_partition: one.offset
            for one in committed
            if one.topic in lives and one.topic_id == lives[one.topic].topic_id
        }
        places = list(offsets) if wanted is None else _named(wanted, lives)
        edges = await edges_of(cluster, places, lives, deadline)
        at_time: dict[TopicPartition, int | None] = {}
        if isinstance(target, AtTime):
            at_time = await list_offsets(cluster, dict.fromkeys(places, target.ms), deadline)
        return {
            where: Place(
                lives[where.topic].topic_id, offsets.get(where), *edges[where], at_time.get(where)
            )
            for where in places
        }

    return await cluster.calls.retrying(attempt, deadline.left_s())


def _named(
    wanted: Mapping[str, list[int] | None], lives: Mapping[str, Life]
) -> list[TopicPartition]:
    places: list[TopicPartition] = []
    for topic, chosen in wanted.items():
        life = lives.get(topic)
        if life is None:
            raise UnknownTopic(f"topic {topic!r} does not exist")
        for number in range(life.partitions) if chosen is None else chosen:
            if number >= life.partitions:
                raise InvalidPartition(
                    f"topic {topic!r} has partitions 0..{life.partitions - 1}, not {number}"
                )
            places.append(TopicPartition(topic, number))
    return places
