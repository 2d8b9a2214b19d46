"""Stored batches of segments that only files of the tier hold, for the export (F088, ADR 70)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from octavo.client.exports.cold import ColdFile
from octavo.client.exports.log_view import TopicLog
from octavo.client.exports.tree import LocalTree
from octavo.proto.batch import decode_header
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import StorageFailed
from octavo.spark.tiered import tier_state

CHUNK_BYTES = 4 << 20
"""Rebuilt at once."""


async def tiered_batches(
    log: TopicLog, segment: Segment, start_offset: int
) -> AsyncGenerator[StoredBatch, None]:
    """The batches of a segment in files, from the one that holds `start_offset`, to its end.

    Raises ConfigError as `tier_state`, StorageFailed for what is damaged or missing.
    """
    state = await asyncio.to_thread(tier_state, log)
    files = state.files.values() if state is not None else ()
    mine = sorted(
        (one for one in files if segment.ledger_id in one.ledgers and one.last >= start_offset),
        key=lambda one: one.first,
    )
    offset, end = max(start_offset, segment.base_offset), segment.end_offset or 0
    tree = LocalTree(log.tier_tree)
    for entry in mine:
        file = await asyncio.to_thread(ColdFile, tree, log.topic, entry)
        try:
            while offset < end:
                found = await asyncio.to_thread(file.batches, offset, CHUNK_BYTES, end)
                if not found:
                    break
                for stored in found:
                    yield stored
                offset = decode_header(found[-1].batch).next_offset
        finally:
            await asyncio.to_thread(file.close)
    if offset < end and not segment.compacted:
        raise StorageFailed(f"no exported file holds offset {offset} of ledger {segment.ledger_id}")
