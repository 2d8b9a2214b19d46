"""Batches straight from the entries of a ledger, without a broker (design.md §8, RD-9).

Closed ledgers are read to their last entry. An open one is read as far as the bookies' LAC, which
may trail the broker's high watermark for a moment (RD-6): the scan waits for it, up to a
deadline. Nothing here opens a ledger with recovery: a scan never evicts a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from octavo.proto import batch as batches
from octavo.proto.batch import BatchHeader
from octavo.proto.entry import payload_of
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import NoSuchEntry, OctavoError, ReadUnknown
from octavo.runtime.ids import NO_ENTRY, EntryId
from octavo.runtime.tasks import TaskOwner
from octavo.spark.log_view import Segment, StoredBatch

READ_ENTRIES_MAX = 4096
READ_BYTES_MAX = 4 << 20
"""One read; with the read ahead, a scan holds at most two of these."""
LAC_WAIT_S = 30.0
"""How long an open ledger may hide entries below the high watermark."""
LAC_POLL_S = 1.5


class EntryReader(Protocol):
    """What a scan needs of `octavo.client.ledger.LedgerReader`."""

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> Sequence[Buffer]:
        """Whole verified entries, consecutive from `first`, at least one."""
        ...

    async def last_add_confirmed(self) -> EntryId:
        """The LAC known to the bookies."""
        ...

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        """The LAC once it is above `entry`, or as it is after the timeout."""
        ...


def batch_of(entry: Buffer) -> bytes | None:
    """The batch an entry holds, None for snapshot and footer entries."""
    payload = payload_of(entry)
    return payload if payload[:1] == bytes((batches.MAGIC,)) else None


async def scan(
    reader: EntryReader, segment: Segment, start_offset: int
) -> AsyncGenerator[StoredBatch, None]:
    """Batches of `segment` from the one that holds `start_offset`; see `BatchSource.batches`.

    Reads one chunk ahead of the consumer. Raises ReadUnknown when an open ledger does not confirm
    what its broker has acknowledged, and whatever `reader.read` raises.
    """
    if not segment.closed and segment.end_offset <= segment.base_offset:
        return
    async with aclosing(_chunks(reader, segment, start_offset)) as chunks:
        async for first, entries in chunks:
            for entry_id, entry in enumerate(entries, first):
                batch = batch_of(entry)
                if batch is None:
                    continue
                next_offset = batches.decode_header(batch).next_offset
                if next_offset > start_offset:
                    yield StoredBatch(segment.ledger_id, entry_id, batch)
                if not segment.closed and next_offset >= segment.end_offset:
                    return


async def _chunks(
    reader: EntryReader, segment: Segment, start_offset: int
) -> AsyncGenerator[tuple[EntryId, list[Buffer]], None]:
    """Runs of consecutive entries and the id of their first; endless while a ledger is open."""
    if segment.closed:
        last = EntryId(segment.last_entry)
    else:
        last = await reader.last_add_confirmed()
    position = EntryId(0)
    if start_offset > segment.base_offset and last > NO_ENTRY:
        position = await find_entry(reader, start_offset, last)
    tasks = TaskOwner("ledger-scan")
    ahead: asyncio.Task[list[Buffer] | OctavoError] | None = None
    try:
        while not segment.closed or position <= last:
            if position > last:
                last = await _confirmed_beyond(reader, EntryId(position - 1), segment)
            entries = await (ahead or _attempt(reader, position))
            ahead = None
            if isinstance(entries, OctavoError):
                raise entries
            del entries[last - position + 1 :]
            first, position = position, EntryId(position + len(entries))
            if position <= last:
                ahead = tasks.spawn(_attempt(reader, position), name=f"read {position}")
            yield first, entries
    finally:
        await tasks.close()


async def _attempt(reader: EntryReader, position: EntryId) -> list[Buffer] | OctavoError:
    """One read; its error is a value, so that one read ahead in vain is nobody's failure."""
    try:
        entries = await reader.read(position, max_count=READ_ENTRIES_MAX, max_bytes=READ_BYTES_MAX)
    except OctavoError as error:
        return error
    if not entries:
        return NoSuchEntry(f"entry {position} is below the last entry and was not returned")
    return list(entries)


async def _confirmed_beyond(reader: EntryReader, entry: EntryId, segment: Segment) -> EntryId:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAC_WAIT_S
    while loop.time() < deadline:
        lac = await reader.wait_beyond(entry, min(LAC_POLL_S, deadline - loop.time()))
        if lac > entry:
            return lac
    raise ReadUnknown(
        f"bookies confirm ledger {segment.ledger_id} only to entry {entry}, "
        f"offset {segment.end_offset} was acknowledged",
        hint="its broker may have lost it meanwhile: run the query again",
    )


async def find_entry(reader: EntryReader, offset: int, last: EntryId) -> EntryId:
    """The entry whose batch holds `offset`, else the last batch before it, else 0."""
    low, high, found = 0, int(last), 0
    while low <= high:
        middle = (low + high) // 2
        at, header = await _first_batch(reader, middle, high)
        if header is None or header.base_offset > offset:
            high = middle - 1
            continue
        found = at
        if header.next_offset > offset:
            break
        low = at + 1
    return EntryId(found)


async def _first_batch(
    reader: EntryReader, first: int, last: int
) -> tuple[int, BatchHeader | None]:
    """The first batch among entries first..last, skipping snapshots and footers."""
    for entry_id in range(first, last + 1):
        entries = await reader.read(EntryId(entry_id), max_count=1, max_bytes=READ_BYTES_MAX)
        batch = batch_of(entries[0])
        if batch is not None:
            return entry_id, batches.decode_header(batch)
    return last, None
