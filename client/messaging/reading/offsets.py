"""ListOffsets against the owners of many partitions (F5, F6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from octavo.client.messaging.cluster.calls import is_silence, with_answer
from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.records import TopicPartition
from octavo.proto import broker_pb2 as pb
from octavo.proto.edges import Edge
from octavo.proto.errors import from_wire
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import OctavoError, RequestTimedOut, Retry, UnknownTopic

At = Edge | int
"""What is asked for: an end of the log, or the first record at or after an epoch time in ms."""


async def list_edges(
    cluster: Cluster,
    wanted: Iterable[TopicPartition],
    edge: Edge,
    deadline: Deadline,
    ids: dict[TopicPartition, bytes] | None = None,
) -> dict[TopicPartition, int]:
    """The first or the end offset of each partition; `ids` and errors as in `list_offsets`."""
    found = await list_offsets(cluster, dict.fromkeys(wanted, edge), deadline, ids)
    return {where: offset for where, offset in found.items() if offset is not None}


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, At],
    deadline: Deadline,
    ids: dict[TopicPartition, bytes] | None = None,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's end, or of its first record at or after a time.

    None: no record is that late; an end always has an offset. Asks the owners and retries what is
    retriable until `deadline`; then raises the last error. `ids` is told which topic each offset
    belongs to: one deleted and created again under its name is another.
    """
    ids = {} if ids is None else ids
    found: dict[TopicPartition, int | None] = {}
    errors: dict[TopicPartition, OctavoError] = {}
    backoff = cluster.calls.backoff()
    answered: OctavoError | None = None
    while True:
        missing = {where: at for where, at in wanted.items() if where not in found}
        if not missing:
            return found
        await _round(cluster, missing, found, ids, errors, deadline)
        if len(found) == len(wanted):
            return found
        delay_s = backoff.next_s()
        for error in errors.values():
            if not (error.retriable or isinstance(error, UnknownTopic)):
                raise error
        if deadline.left_s() <= delay_s:
            last = next(iter(errors.values()), RequestTimedOut("offsets are not known in time"))
            raise with_answer(last, answered) from last.__cause__
        answered = next((e for e in errors.values() if not is_silence(e)), answered)
        await cluster.clock.sleep(delay_s)


async def _round(
    cluster: Cluster,
    missing: Mapping[TopicPartition, At],
    found: dict[TopicPartition, int | None],
    ids: dict[TopicPartition, bytes],
    errors: dict[TopicPartition, OctavoError],
    deadline: Deadline,
) -> None:
    """One attempt for every missing partition, all owners at once."""
    errors.clear()
    owners: dict[str, list[TopicPartition]] = {}
    for where in missing:
        try:
            owner = await cluster.owners.of(where.topic, where.partition, deadline.left_s())
        except OctavoError as error:
            errors[where] = error
        else:
            owners.setdefault(owner, []).append(where)
    limit_s = deadline.left_s(cluster.calls.request_timeout_s)
    async with asyncio.TaskGroup() as group:  # what somebody cancels of it is asked again
        for owner, part in owners.items():
            wanted = {where: missing[where] for where in part}
            group.create_task(_ask(cluster, owner, wanted, found, ids, errors, limit_s))


async def _ask(
    cluster: Cluster,
    owner: str,
    part: Mapping[TopicPartition, At],
    found: dict[TopicPartition, int | None],
    ids: dict[TopicPartition, bytes],
    errors: dict[TopicPartition, OctavoError],
    timeout_s: float,
) -> None:
    request = pb.ListOffsetsRequest(offsets=[_asked(where, at) for where, at in part.items()])
    try:
        reply = await cluster.calls.ask(
            owner, lambda stub, limit: stub.ListOffsets(request, timeout=limit), timeout_s
        )
    except OctavoError as error:
        for where in part:
            errors[where] = error
            cluster.topics.owner_is(where.topic, where.partition, "")
        return
    for item in reply.offsets:
        where = TopicPartition(item.topic, item.partition)
        if not item.HasField("error"):
            found[where] = item.offset if item.HasField("offset") else None
            ids[where] = item.topic_id
            continue
        refusal = from_wire(item.error)
        errors[where] = refusal
        if refusal.retry in (Retry.AFTER_REFRESH, Retry.OTHER_PEER):
            cluster.topics.owner_is(where.topic, where.partition, "")


def _asked(where: TopicPartition, at: At) -> pb.ListOffset:
    asked = pb.ListOffset(topic=where.topic, partition=where.partition)
    if at is Edge.EARLIEST:
        asked.earliest = True
    elif at is Edge.LATEST:
        asked.latest = True
    else:
        asked.timestamp_ms = at
    return asked
