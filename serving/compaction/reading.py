"""Segments as a cleaner reads them: verified batches in pieces of bounded memory, off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from octavo.client.segments.footers import read_footer
from octavo.client.segments.pieces import entry_runs, read_entry
from octavo.client.segments.reader import SegmentReader
from octavo.client.segments.scan import start_entry
from octavo.proto.batch import verify
from octavo.proto.entry import payload_of, payload_view
from octavo.proto.segment_entries import (
    SegmentFigures,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    is_batch,
    is_snapshot,
)
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion
from octavo.serving.compaction.cleaning import Verified
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.partition.name import PartitionName

PIECE_BYTES = 2 << 20
"""Of one read; one more is on its way."""
CHUNK_BYTES = 16 << 20
"""Uncompressed bytes whose keys are looked up together; a batch that is larger comes alone."""


async def chunks(
    backend: LedgerBackend, segment: Segment, from_offset: int
) -> AsyncGenerator[list[Verified]]:
    """Batches of a closed segment from the one with `from_offset` on, in order.

    Close it (`aclosing`) to leave early. Raises CorruptBatch and what reading raises: nothing is
    ever left out.
    """
    reader = await backend.open_reader(segment.ledger_id)
    try:
        start = await start_entry(reader, segment, from_offset, segment.last_entry)
        gathered: list[Verified] = []
        size = 0
        runs = entry_runs(reader, start, segment.last_entry, piece_bytes=PIECE_BYTES)
        async with aclosing(runs) as found:
            async for _, entries in found:
                for one in await asyncio.to_thread(_verified, entries):
                    if one[1].next_offset <= from_offset:
                        continue
                    if gathered and size + one[1].uncompressed_bytes > CHUNK_BYTES:
                        yield gathered
                        gathered, size = [], 0
                    gathered.append(one)
                    size += one[1].uncompressed_bytes
        if gathered:
            yield gathered
    finally:
        await reader.close()


def _verified(entries: Iterable[Buffer]) -> list[Verified]:
    payloads = [payload_view(entry) for entry in entries]
    return [(one, verify(one)) for one in payloads if is_batch(one)]


async def snapshot_at(
    backend: LedgerBackend,
    name: PartitionName,
    end_offset: int,
    *,
    last: Segment,
    following: Segment,
    figures: SegmentFigures,
) -> bytes | None:
    """The state of producers at the end of `last`, to be stored with `figures` (I9, I10).

    The segment that follows begins with it; so does `last` end with it when it was cleaned before.
    None: neither does, which only makes a loader look further when all that follow are damaged.
    """
    for segment in (following, last):
        found = await _snapshot_of(backend, name, end_offset, segment, is_last=segment is last)
        if found is not None:
            return await asyncio.to_thread(encode_snapshot, found._replace(figures=figures))
    return None


async def _snapshot_of(
    backend: LedgerBackend,
    name: PartitionName,
    end_offset: int,
    segment: Segment,
    *,
    is_last: bool,
) -> Snapshot | None:
    reader = await backend.open_reader(segment.ledger_id)
    try:
        entry = await _entry_of_last(reader, segment) if is_last else 0
        if entry < 0:
            return None
        payload = payload_of(await read_entry(reader, entry))
        if not is_snapshot(payload):
            return None
        found = await asyncio.to_thread(decode_snapshot, payload)
    except (CorruptEntry, UnsupportedVersion):
        return None
    finally:
        await reader.close()
    is_it = found.topic_id == name.topic_id and found.end_offset == end_offset
    return found if is_it else None


async def _entry_of_last(reader: SegmentReader, segment: Segment) -> int:
    footer = await read_footer(reader, segment.ledger_id, segment.last_entry)
    return footer.snapshot_entry if footer is not None else -1


def total_bytes(batches: Sequence[Verified]) -> int:
    """Stored bytes of these batches."""
    return sum(len(batch) for batch, _ in batches)
