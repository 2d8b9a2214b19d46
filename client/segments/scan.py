"""Batches of one segment in order, from an offset on (design.md §8, RD-9).

A closed segment is read to its last entry. An open one is read as far as the bookies' LAC, which
may trail the broker's high watermark for a moment (RD-6): the scan waits for it, up to a deadline.
Nothing here opens a ledger with recovery: a scan never evicts a broker.

What cannot be read ends a scan with the reader's error: it is never the end and never left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from octavo.client.segments.footers import read_footer
from octavo.client.segments.index import SparseIndex
from octavo.client.segments.pieces import entry_runs, first_batch
from octavo.client.segments.reader import SegmentReader
from octavo.client.segments.search import find_entry
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.entry import payload_view
from octavo.proto.segment_entries import is_batch
from octavo.proto.segments import Segment, StoredBatch, StoredHeader
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError, ReadUnknown
from octavo.runtime.ids import NO_ENTRY, EntryId

LAC_WAIT_S = 30.0
"""How long an open ledger may hide entries below the high watermark."""
LAC_POLL_S = 1.5

_log = logging.getLogger("octavo.segments")


async def scan(
    reader: SegmentReader, segment: Segment, start_offset: int, visible_end: int
) -> AsyncGenerator[StoredBatch, None]:
    """Batches of `segment` from the one that holds `start_offset`, copied out of their entries.

    A closed segment is read to its last entry, an open one until `visible_end` is reached. Entries
    that are no batches are left out. Reads one piece ahead of the consumer; close it (`aclosing`)
    to leave early. Raises ReadUnknown when an open ledger does not confirm what its broker has
    acknowledged, CorruptBatch, and whatever `reader.read` raises.
    """
    async with aclosing(_runs(reader, segment, start_offset, visible_end)) as runs:
        async for run in runs:
            for entry_id, _, payload in run:
                yield StoredBatch(segment.ledger_id, entry_id, bytes(payload))


async def scan_headers(
    reader: SegmentReader, segment: Segment, start_offset: int, visible_end: int
) -> AsyncGenerator[list[StoredHeader], None]:
    """The headers of the same batches, some at a time: bodies are neither copied nor opened.

    The entries are verified all the same (INV-3). Raises as `scan`.
    """
    async with aclosing(_runs(reader, segment, start_offset, visible_end)) as runs:
        async for run in runs:
            yield [StoredHeader(entry_id, header) for entry_id, header, _ in run]


async def _runs(
    reader: SegmentReader, segment: Segment, start_offset: int, visible_end: int
) -> AsyncGenerator[list[tuple[EntryId, BatchHeader, memoryview]], None]:
    """The batches of each piece that was read; payloads are views of it."""
    if not segment.closed and visible_end <= max(start_offset, segment.base_offset):
        return
    last = segment.last_entry if segment.closed else await reader.last_add_confirmed()
    position = await start_entry(reader, segment, start_offset, last)
    until = None if segment.closed else visible_end  # nobody may see more yet (A3)
    while True:
        async with aclosing(entry_runs(reader, position, last)) as runs:
            async for first, entries in runs:
                found, ended = _batches_of(first, entries, start_offset, until)
                if found:
                    yield found
                if ended:
                    return
        if segment.closed:
            return
        position = EntryId(last + 1)
        last = await _confirmed_beyond(reader, last, segment, visible_end)


def _batches_of(
    first: EntryId, entries: Sequence[Buffer], start_offset: int, until: int | None
) -> tuple[list[tuple[EntryId, BatchHeader, memoryview]], bool]:
    """The batches among some entries that reach `start_offset`, and whether `until` is reached."""
    found: list[tuple[EntryId, BatchHeader, memoryview]] = []
    for entry_id, entry in enumerate(entries, first):
        payload = payload_view(entry)
        if not is_batch(payload):
            continue
        header = decode_header(payload)
        if until is not None and header.base_offset >= until:
            return found, True
        if header.next_offset > start_offset:
            found.append((EntryId(entry_id), header, payload))
        if until is not None and header.next_offset >= until:
            return found, True
    return found, False


async def start_entry(
    reader: SegmentReader, segment: Segment, offset: int, last: EntryId
) -> EntryId:
    """The entry at which a reader of `offset` starts.

    By the footer, else by search over entries 0..last; `last` + 1 when none of them holds it or a
    later one.
    """
    if offset <= segment.base_offset or last <= NO_ENTRY:
        return EntryId(0)
    index = await _by_footer(reader, segment)
    if index is not None:
        return EntryId(index.entry_for_offset(offset) or 0)
    found = await find_entry(offset, last, partial(first_batch, reader))
    return EntryId(last + 1 if found is None else found)


async def _by_footer(reader: SegmentReader, segment: Segment) -> SparseIndex | None:
    if not segment.closed:
        return None
    try:
        footer = await read_footer(reader, segment.ledger_id, segment.last_entry)
    except OctavoError as error:  # the search does without it, and says so if it cannot either
        _log.info("no footer of ledger %d: %s", segment.ledger_id, error.cause)
        return None
    return SparseIndex.from_footer(footer) if footer is not None else None


async def _confirmed_beyond(
    reader: SegmentReader, entry: EntryId, segment: Segment, visible_end: int
) -> EntryId:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAC_WAIT_S
    while loop.time() < deadline:
        lac = await reader.wait_beyond(entry, min(LAC_POLL_S, deadline - loop.time()))
        if lac > entry:
            return lac
    raise ReadUnknown(
        f"bookies confirm ledger {segment.ledger_id} only to entry {entry}, "
        f"offset {visible_end} was acknowledged",
        hint="its broker may have lost it meanwhile: run the query again",
    )
