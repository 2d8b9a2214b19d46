"""Entries of one segment, read in bounded pieces.

A reader may give fewer entries than asked for, never none: an empty answer says nothing about what
exists, so it is ReadUnknown here (INV-3: unknown is not no).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo.client.segments.reader import SegmentReader
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.entry import payload_view
from octavo.proto.segment_entries import is_batch
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError, ReadUnknown
from octavo.runtime.ids import EntryId
from octavo.runtime.tasks import TaskOwner

PIECE_ENTRIES_MAX = 4096
PIECE_BYTES_MAX = 4 << 20
"""Of one read. With the one ahead a scan holds at most two of these; an entry that is larger comes
alone."""


async def entry_runs(
    reader: SegmentReader, first: int, last: int, *, piece_bytes: int = PIECE_BYTES_MAX
) -> AsyncGenerator[tuple[EntryId, Sequence[Buffer]], None]:
    """Runs of consecutive entries that together are first..last, each with the id of its first.

    Reads one piece ahead of the consumer; close it (`aclosing`) to leave early. Raises whatever
    `reader.read` raises, once the entries before it were given.
    """
    position = EntryId(first)
    tasks = TaskOwner("segment-scan")
    ahead: asyncio.Task[Sequence[Buffer] | OctavoError] | None = None
    try:
        while position <= last:
            entries = await (ahead or _attempt(reader, position, last, piece_bytes))
            ahead = None
            if isinstance(entries, OctavoError):
                raise entries
            start, position = position, EntryId(position + len(entries))
            if position <= last:
                ahead = tasks.spawn(
                    _attempt(reader, position, last, piece_bytes), name=f"read {position}"
                )
            yield start, entries
    finally:
        await tasks.close()


async def _attempt(
    reader: SegmentReader, first: EntryId, last: int, piece_bytes: int
) -> Sequence[Buffer] | OctavoError:
    """One read; its error is a value, so that one read ahead in vain is nobody's failure."""
    count = min(PIECE_ENTRIES_MAX, last - first + 1)
    try:
        return await read_piece(reader, first, count, piece_bytes)
    except OctavoError as error:
        return error


async def read_piece(
    reader: SegmentReader, first: EntryId, count: int, max_bytes: int
) -> Sequence[Buffer]:
    """One answer of a reader, at least one entry and no more than `count`."""
    entries = await reader.read(first, max_count=count, max_bytes=max_bytes)
    if not entries:
        raise ReadUnknown(f"entry {first} is not beyond the end and was not returned")
    return entries if len(entries) <= count else entries[:count]


async def read_entry(reader: SegmentReader, entry: int) -> Buffer:
    """One whole entry."""
    (found,) = await read_piece(reader, EntryId(entry), 1, PIECE_BYTES_MAX)
    return found


async def payloads(
    reader: SegmentReader, first: int, last: int, *, piece_bytes: int = PIECE_BYTES_MAX
) -> AsyncGenerator[tuple[EntryId, memoryview], None]:
    """Entry ids and payloads of first..last: views, which keep their piece alive."""
    async with aclosing(entry_runs(reader, first, last, piece_bytes=piece_bytes)) as runs:
        async for start, entries in runs:
            for entry_id, entry in enumerate(entries, start):
                yield EntryId(entry_id), payload_view(entry)


async def first_batch(
    reader: SegmentReader, first: int, last: int
) -> tuple[int, BatchHeader] | None:
    """The first batch among entries first..last and its entry, past snapshots, marks, footers."""
    for entry_id in range(first, last + 1):
        payload = payload_view(await read_entry(reader, entry_id))
        if is_batch(payload):
            return entry_id, decode_header(payload)
    return None
