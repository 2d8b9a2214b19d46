"""Reads that the tail cache cannot serve: old segments, with a budget and read-ahead (F078).

A cold read finds its entry through the segment's index (footer, or binary search over headers when
the last owner crashed), reads about 1 MiB around it and starts reading the next piece while the
first is sent. Bytes live in the cold cache only; storage reads in flight are bounded (BP-2).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from octavo.client.segments.footers import read_footer
from octavo.client.segments.index import SparseIndex
from octavo.client.segments.pieces import payloads
from octavo.client.segments.reader import SegmentReader
from octavo.client.segments.search import find_entry
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.entry import HEADER_BYTES, payload_of
from octavo.proto.segment_entries import is_batch
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError, ReadUnknown
from octavo.runtime.ids import EntryId, LedgerId
from octavo.runtime.tasks import TaskOwner
from octavo.serving.budget import ByteBudget
from octavo.serving.cache import ColdCache
from octavo.serving.cold_pace import ColdPace
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend

HINTS_MAX = 10_000
CHUNK_ENTRIES = 4_096
VIEW_SHARE = 16
"""An entry that is a smaller part of one read is copied out of it for the cache."""
LAC_WAIT_S = 2.0
"""How long a read of an open ledger waits for bookies to learn the LAC (RD-6)."""


class ColdRead(NamedTuple):
    """Batches found, and where to go on."""

    batches: Sequence[Buffer]
    next_offset: int
    size_bytes: int


class Source(NamedTuple):
    """Where a cold read happens."""

    ledger_id: LedgerId
    start_entry: int
    last_entry: int
    limit_offset: int
    """Batches from here on are not to be shown (high watermark, or the end of the segment)."""


class _OpenReader:
    """A reader kept open, and how many calls use it."""

    def __init__(self, reader: SegmentReader) -> None:
        self.reader = reader
        self.users = 0
        self.known_lac = -1


class ColdReader:
    """Shared by all partitions of one broker."""

    def __init__(self, backend: LedgerBackend, config: BrokerConfig, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._usual_chunk_bytes = config.cold_chunk_bytes
        self.pace = ColdPace(config.cold_read_bytes_per_s)
        """How fast readers are given what is read here."""
        self._readers_max = config.open_readers
        self._indexes_max = config.segment_indexes
        self._index_interval_bytes = config.index_interval_bytes
        self._cache = ColdCache(config.cold_cache_bytes)
        self._budget = ByteBudget(config.cold_read_budget_bytes)
        self._tasks = TaskOwner("cold-reader")
        self._readers: OrderedDict[LedgerId, _OpenReader] = OrderedDict()
        self._opening: dict[LedgerId, asyncio.Task[_OpenReader | OctavoError]] = {}
        self._loading: dict[tuple[int, int], asyncio.Task[OctavoError | None]] = {}
        self._indexes: OrderedDict[LedgerId, SparseIndex | None] = OrderedDict()
        self._hints: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._warming: set[tuple[int, int]] = set()
        self.reads = 0
        """Reads that went to bookies."""

    @property
    def _chunk_bytes(self) -> int:
        return self.pace.piece_bytes(self._usual_chunk_bytes, self._clock.monotonic())

    async def close(self) -> None:
        """Stop read-ahead and close all readers."""
        await self._tasks.close()
        for opened in self._readers.values():
            await opened.reader.close()
        self._readers.clear()

    def remember_index(self, ledger_id: LedgerId, index: SparseIndex) -> None:
        """The index of a segment that was just closed by its owner."""
        self._indexes[ledger_id] = index
        self._indexes.move_to_end(ledger_id)
        while len(self._indexes) > self._indexes_max:
            self._indexes.popitem(last=False)

    # --- fetch --------------------------------------------------------------------------------

    async def read_segment(
        self, segment: Segment, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> ColdRead:
        """Batches of a segment with counts, from the one with `offset` on."""
        end = segment.end_offset if segment.end_offset is not None else segment.base_offset
        start = self._hints.get((segment.ledger_id, offset))
        if start is None:
            start = await self._locate(segment, offset)
        if start is None:
            return ColdRead([], end, 0)
        source = Source(segment.ledger_id, start, segment.last_entry, end)
        found = await self.read(source, offset, max_bytes, at_least_one=at_least_one)
        if not found.batches and at_least_one:
            return ColdRead([], end, 0)  # a tail without batches: F3, the reader must move on
        return found

    def warm_segment(self, segment: Segment, offset: int) -> None:
        """Begin what `read_segment` will need, without waiting, as far as the budget allows."""
        key = (segment.ledger_id, offset)
        if key not in self._hints and key not in self._warming:
            self._warming.add(key)
            self._tasks.spawn(self._warm(segment, offset), name=f"warm {segment.ledger_id}")

    def warm(self, source: Source, offset: int) -> None:
        """The same for `read`."""
        key = (source.ledger_id, offset)
        self._read_ahead(source, self._hints.get(key, source.start_entry))

    async def _warm(self, segment: Segment, offset: int) -> None:
        try:
            start = await self._locate(segment, offset)
        except OctavoError:
            return  # whoever reads meets the same error and answers it
        finally:
            self._warming.discard((segment.ledger_id, offset))
        if start is not None:
            self._hint(segment.ledger_id, offset, start)
            end = segment.end_offset if segment.end_offset is not None else segment.base_offset
            self._read_ahead(Source(segment.ledger_id, start, segment.last_entry, end), start)

    async def read(
        self, source: Source, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> ColdRead:
        """Whole batches from `source`, skipping entries that are none."""
        batches: list[Buffer] = []
        size = 0
        next_offset = offset
        entry = self._hints.get((source.ledger_id, offset), source.start_entry)
        while entry <= source.last_entry:
            payload = self._cache.get(source.ledger_id, entry)
            if payload is None:
                if batches:
                    break
                payload = await self._fetch(source, entry)
            if is_batch(payload):
                header = decode_header(payload)
                if header.base_offset >= source.limit_offset:
                    break
                if header.next_offset > offset:
                    if size + len(payload) > max_bytes and (batches or not at_least_one):
                        break
                    batches.append(payload)
                    size += len(payload)
                    next_offset = header.next_offset
            entry += 1
        if batches:
            self._hint(source.ledger_id, next_offset, entry)
            self._read_ahead(source, entry)
        return ColdRead(batches, next_offset, size)

    def _hint(self, ledger_id: LedgerId, offset: int, entry: int) -> None:
        self._hints[(ledger_id, offset)] = entry
        self._hints.move_to_end((ledger_id, offset))
        while len(self._hints) > HINTS_MAX:
            self._hints.popitem(last=False)

    async def header_in(self, segment: Segment, offset: int) -> BatchHeader | None:
        """The header of the batch with `offset`, or of the next one, of a segment with counts;
        None when it has none behind it. Nothing is read ahead."""
        start = await self._locate(segment, offset)
        if start is None:
            return None
        end = segment.end_offset if segment.end_offset is not None else segment.base_offset
        return await self.header_at(
            Source(segment.ledger_id, start, segment.last_entry, end), offset
        )

    async def header_at(self, source: Source, offset: int) -> BatchHeader | None:
        """The same, from `source.start_entry` on."""
        for entry in range(source.start_entry, source.last_entry + 1):
            payload = self._cache.get(source.ledger_id, entry)
            if payload is None:
                payload = await self._fetch(source, entry, self._index_interval_bytes)
            if is_batch(payload):
                header = decode_header(payload)
                if header.base_offset >= source.limit_offset:
                    return None
                if header.next_offset > offset:
                    return header
        return None

    # --- time ---------------------------------------------------------------------------------

    async def batches_from(self, source: Source) -> AsyncIterator[tuple[BatchHeader, Buffer]]:
        """Headers and batches from `source.start_entry` up to the limit."""
        for entry in range(source.start_entry, source.last_entry + 1):
            payload = self._cache.get(source.ledger_id, entry)
            if payload is None:
                payload = await self._fetch(source, entry)
            if is_batch(payload):
                header = decode_header(payload)
                if header.base_offset >= source.limit_offset:
                    return
                yield header, payload

    async def time_index(self, segment: Segment) -> SparseIndex:
        """The index of a segment, rebuilt by one scan if its footer is lost (F075)."""
        index = await self._index_of(segment)
        if index is not None:
            return index
        index = SparseIndex(self._index_interval_bytes)
        opened = await self._acquire(segment.ledger_id)
        try:
            found = payloads(opened.reader, 0, segment.last_entry, piece_bytes=self._chunk_bytes)
            async with aclosing(found):
                async for entry, payload in found:
                    if is_batch(payload):
                        index.note(decode_header(payload), entry, len(payload))
        finally:
            opened.users -= 1
        self.remember_index(segment.ledger_id, index)
        return index

    # --- finding ------------------------------------------------------------------------------

    async def _index_of(self, segment: Segment) -> SparseIndex | None:
        ledger_id = segment.ledger_id
        if ledger_id in self._indexes:
            self._indexes.move_to_end(ledger_id)
            return self._indexes[ledger_id]
        opened = await self._acquire(ledger_id)
        try:
            footer = await read_footer(opened.reader, ledger_id, segment.last_entry)
        finally:
            opened.users -= 1
        index = SparseIndex.from_footer(footer) if footer is not None else None
        self._indexes[ledger_id] = index
        while len(self._indexes) > self._indexes_max:
            self._indexes.popitem(last=False)
        return index

    async def _locate(self, segment: Segment, offset: int) -> int | None:
        index = await self._index_of(segment)
        if index is not None:
            return index.entry_for_offset(offset)

        async def first_batch(first: int, last: int) -> tuple[int, BatchHeader] | None:
            source = Source(segment.ledger_id, first, last, segment.end_offset or 0)
            for entry in range(first, last + 1):
                payload = self._cache.get(source.ledger_id, entry)
                if payload is None:
                    payload = await self._fetch(source, entry, max_bytes=1)
                if is_batch(payload):
                    return entry, decode_header(payload)
            return None

        return await find_entry(offset, segment.last_entry, first_batch)

    # --- storage ------------------------------------------------------------------------------

    async def _fetch(self, source: Source, entry: int, max_bytes: int | None = None) -> Buffer:
        """The payload of `entry`, read with what follows it; one read serves all who ask."""
        key = (source.ledger_id, entry)
        for _ in range(2):
            task = self._loading.get(key)
            if task is None:
                size = max_bytes or self._chunk_bytes
                await self._budget.take(size)
                task = self._start(source, entry, size)
            error = await asyncio.shield(task)
            if error is not None:
                raise error
            payload = self._cache.get(source.ledger_id, entry)
            if payload is not None:
                return payload
        raise ReadUnknown(f"entry {source.ledger_id}/{entry} left the cold cache before its use")

    def _read_ahead(self, source: Source, entry: int) -> None:
        key = (source.ledger_id, entry)
        if entry > source.last_entry or key in self._loading:
            return
        size = self._chunk_bytes
        if self._cache.get(*key) is None and self._budget.try_take(size):
            self._start(source, entry, size)

    def _start(self, source: Source, entry: int, size: int) -> asyncio.Task[OctavoError | None]:
        key = (source.ledger_id, entry)
        known = self._loading.get(key)
        if known is not None:  # somebody was faster while the budget was awaited
            self._budget.release(size)
            return known
        task: asyncio.Task[OctavoError | None] = self._tasks.spawn(
            self._load(source, entry, size), name=f"read {source.ledger_id}/{entry}"
        )
        self._loading[key] = task
        return task

    async def _load(self, source: Source, entry: int, size: int) -> OctavoError | None:
        """Read one piece into the cache; an error is a value, so that read-ahead may ignore it."""
        try:
            opened = await self._acquire(source.ledger_id)
            try:
                await self._reach(opened, entry)
                count = min(CHUNK_ENTRIES, source.last_entry - entry + 1)
                found = await opened.reader.read(EntryId(entry), max_count=count, max_bytes=size)
            finally:
                opened.users -= 1
            self.reads += 1
            # A view keeps all that was read alive: small entries are copied.
            view_min = sum(map(len, found)) // VIEW_SHARE
            # Backwards, so that the entry asked for is the last to leave a small cache.
            for i in reversed(range(len(found))):
                whole = found[i]
                kept = payload_of(whole) if len(whole) < view_min else whole[HEADER_BYTES:]
                self._cache.put(source.ledger_id, entry + i, kept)
        except OctavoError as error:
            return error
        finally:
            self._budget.release(size)
            del self._loading[(source.ledger_id, entry)]
        return None

    async def _reach(self, opened: _OpenReader, entry: int) -> None:
        """Only confirmed entries may be read (RD-1); a closed ledger's end is known at once."""
        if opened.known_lac >= entry:
            return
        opened.known_lac = await opened.reader.last_add_confirmed()
        if opened.known_lac < entry:
            opened.known_lac = await opened.reader.wait_beyond(EntryId(entry - 1), LAC_WAIT_S)

    async def _acquire(self, ledger_id: LedgerId) -> _OpenReader:
        opened = self._readers.get(ledger_id)
        if opened is None:
            task = self._opening.get(ledger_id)
            if task is None:
                task = self._tasks.spawn(self._open(ledger_id), name=f"open {ledger_id}")
                self._opening[ledger_id] = task
            made = await asyncio.shield(task)
            if isinstance(made, OctavoError):
                raise made
            opened = made
        opened.users += 1
        if ledger_id in self._readers:
            self._readers.move_to_end(ledger_id)
        return opened

    async def _open(self, ledger_id: LedgerId) -> _OpenReader | OctavoError:
        try:
            opened = _OpenReader(await self._backend.open_reader(ledger_id))
        except OctavoError as error:
            return error
        finally:
            del self._opening[ledger_id]
        self._readers[ledger_id] = opened
        idle = [key for key, kept in self._readers.items() if not kept.users and kept is not opened]
        for key in idle[: max(0, len(self._readers) - self._readers_max)]:
            await self._readers.pop(key).reader.close()
        return opened
