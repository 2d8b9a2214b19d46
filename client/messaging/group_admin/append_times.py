"""When the records at some offsets were appended (M3): the header of one batch of each is read.

Runs on the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.reading.fetch_link import FetchLink
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import decode_header
from octavo.proto.errors import from_wire
from octavo.proto.fetch_wire import decode_reply
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import OctavoError

_log = ClientLog("octavo.client")


async def append_times(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Epoch ms of the batch with the first record at or after each offset; one try at each.

    Left out is what is not told: an owner that is away costs its partitions only.
    """
    owners: dict[str, list[TopicPartition]] = {}
    for where in wanted:
        try:
            owner = await cluster.owners.of(where.topic, where.partition, deadline.left_s())
        except OctavoError as error:
            _log.debug("no append time of %s: %s", where, error)
        else:
            owners.setdefault(owner, []).append(where)
    found: dict[TopicPartition, int] = {}
    async with asyncio.TaskGroup() as group:
        for owner, places in owners.items():
            part = {where: wanted[where] for where in places}
            group.create_task(_ask(cluster, owner, part, found, deadline))
    return found


async def _ask(
    cluster: Cluster,
    owner: str,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int],
    deadline: Deadline,
) -> None:
    """One partition after the other on one stream: a reply holds at most one batch (F2)."""
    link = FetchLink(cluster, owner)
    try:
        for where, offset in wanted.items():
            request = pb.FetchRequest(
                correlation=1,
                partitions=[
                    pb.FetchPartition(
                        topic=where.topic, partition=where.partition, offset=offset, max_bytes=1
                    )
                ],
                min_bytes=1,
                max_bytes=1,
            )
            limit_s = deadline.left_s(cluster.calls.request_timeout_s)
            parts = decode_reply(await link.exchange(request, limit_s, 0.0)).partitions
            for part in parts:
                if part.fields.HasField("error"):
                    raise from_wire(part.fields.error)
                headers = map(decode_header, part.batches)
                times = [one.append_time_ms for one in headers if one.next_offset > offset]
                if times:
                    found[where] = times[0]
    except OctavoError as error:
        _log.debug("%s tells no append times: %s", owner, error)
    finally:
        link.end()
