"""What the cluster says to the work that a ReadingCore wants done: positions, ranges, owners."""

from __future__ import annotations

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.reading.offsets import list_edges, list_offsets
from octavo.client.messaging.reading.positions import Offsets, Range
from octavo.client.messaging.reading.readings import AskRange, FindOwner, Work
from octavo.client.messaging.records import TopicPartition
from octavo.proto.edges import EARLIEST, LATEST
from octavo.runtime.deadline import Deadline


async def outcome_of(work: Work, cluster: Cluster) -> Offsets | Range | str:
    """What the cluster says within the request timeout, all attempts included.

    Raises OctavoError when it says nothing or no.
    """
    deadline = Deadline(cluster.clock, cluster.calls.request_timeout_s)
    ids: dict[TopicPartition, bytes] = {}
    if isinstance(work, FindOwner):
        where = work.reading.where
        if work.fresh:
            return await cluster.owners.find(*where, avoid=work.avoid)
        return await cluster.owners.of(*where)
    if isinstance(work, AskRange):
        where = work.mark.reading.where
        start = (await list_edges(cluster, [where], EARLIEST, deadline))[where]
        end = (await list_edges(cluster, [where], LATEST, deadline, ids))[where]
        return Range(start, end, ids.get(where, b""))
    names = [mark.reading.where for mark in work.marks]
    if work.policy in ("earliest", "latest"):
        edge = EARLIEST if work.policy == "earliest" else LATEST
        return Offsets(await list_edges(cluster, names, edge, deadline, ids), ids)
    timed = await list_offsets(cluster, dict.fromkeys(names, int(work.policy)), deadline, ids)
    found = {where: offset for where, offset in timed.items() if offset is not None}
    beyond = [where for where in names if where not in found]
    if beyond:  # F6: nothing that late: the end
        found.update(await list_edges(cluster, beyond, LATEST, deadline, ids))
    return Offsets(found, ids)
