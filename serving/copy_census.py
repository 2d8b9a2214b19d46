"""How many copies the cluster's segments have, as far as their records tell.

A record names the bookies an entry was sent to. That all of them hold it is known of none: an entry
is acknowledged by Qa of Qw. So this counts only what is short for certain, and says when it could
not look at everything; nothing here may be read as "every record has all its copies".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.topics import PartitionCatalog, TopicCatalog
from octavo.proto.segments import Segment
from octavo.runtime.errors import NoSuchLedger
from octavo.runtime.ids import Member
from octavo.serving.storage import Storage

PARTITIONS_MAX = 2_000
"""Partitions whose segments one census looks at."""
SEGMENTS_MAX = 2_000
"""Ledger records that one census reads, newest segments first."""


class CopyCensus(NamedTuple):
    """What was found."""

    degraded_ledgers: int
    """Open ledgers that get fewer copies than their topic asks for (A6)."""
    short_segments: int
    """Segments opened with too few bookies, or named to have copies on bookies that are away."""
    segments: int
    """Segments looked at."""
    complete: bool
    """Whether these are all."""
    returned: Mapping[str, bytes]
    """Bookies that hold ledgers older than their process, and its nonce: while they were away they
    may have missed something."""


async def take_census(
    topics: TopicCatalog, partitions: PartitionCatalog, storage: Storage
) -> CopyCensus:
    """Look at the newest segments of the cluster.

    Raises OctavoError when the catalog or a record cannot be read: then nothing is known.
    """
    bookies = storage.bookies()
    live = {bookie.member for bookie in bookies}
    wanted = [
        (topic.topic_id, number)
        for topic, _ in await topics.list()
        if not topic.deleting
        for number in range(topic.partitions)
    ]
    everything: list[Segment] = []
    for found in await partitions.read_hints(wanted[:PARTITIONS_MAX]):
        if isinstance(found, Exception):
            raise found
        if found is not None:
            everything += (one for one in found.state.segments if one.in_ledger)
    everything.sort(key=lambda segment: segment.ledger_id, reverse=True)
    chosen = everything[:SEGMENTS_MAX]
    degraded = short = 0
    returned: dict[str, bytes] = {}
    records = await storage.read_records([segment.ledger_id for segment in chosen])
    for segment, read in zip(chosen, records, strict=True):
        if isinstance(read, NoSuchLedger):
            continue  # its topic is being deleted, or the list was trimmed meanwhile
        if isinstance(read, Exception):
            raise read
        record = read.metadata
        degraded += int(record.degraded and segment.end_offset is None)
        short += int(is_short(record, live))
        named = {member.bookie_id for _, members in record.fragments for member in members}
        for bookie in bookies:
            before = bookie.ledgers_before
            if bookie.bookie_id in named and (before is None or record.ledger_id <= before):
                returned[bookie.bookie_id] = bookie.process_nonce
    complete = len(wanted) <= PARTITIONS_MAX and len(everything) <= SEGMENTS_MAX
    return CopyCensus(degraded, short, len(chosen), complete, returned)


def is_short(record: LedgerMetadata, live: set[Member]) -> bool:
    """Whether some entry of the ledger surely lacks a copy that a reader could use now."""
    return record.degraded or any(set(members) - live for _, members in record.fragments)
