"""Load a partition: from the newest snapshot and the batch headers after it (spec groups I9).

Reads only CLOSED ledgers. A footer names the newest snapshot; without one (the last owner
crashed) the ledger's end is searched backwards, which `snapshot_interval_*` keeps short. A
snapshot that fails its crc gives way to an older one, at worst to a full scan. Sequences are not
judged again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from octavo.client.segments.footers import read_footer
from octavo.client.segments.index import SparseIndex
from octavo.client.segments.pieces import payloads, read_entry
from octavo.client.segments.reader import SegmentReader
from octavo.metadata.topics import PartitionState
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.dedup_ids import is_marked, read_digest
from octavo.proto.entry import payload_of
from octavo.proto.segment_entries import (
    DEDUP_ITEM_BYTES,
    Snapshot,
    decode_snapshot,
    is_batch,
    is_snapshot,
)
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch, CorruptEntry, InvalidRecord, UnsupportedVersion
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.partition.chain import Closed
from octavo.serving.partition.dedup import DedupWindow
from octavo.serving.partition.log import Append, Figures
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.segments import end_of, sealed_segment
from octavo.serving.tiering.reads import TierReads

PIECE_BYTES = 1024 * 1024
"""Of one read while a partition is loaded; one more is on its way."""
FIRST_WINDOW_ENTRIES = 64
WINDOW_ENTRIES_MAX = 1024
PRODUCERS_AT_ONCE = 100
"""Producers of a snapshot that are looked at on the loop, about 2 ms. More are for a thread (the
20,000 that a snapshot may hold take half a second), which costs each small partition more."""
IDS_LIKE_A_PRODUCER_BYTES = 40 * DEDUP_ITEM_BYTES
"""Ids of a snapshot that take as long as one producer of it."""
PRODUCER_BYTES = 64
"""About how many a snapshot takes for one."""

_log = get_logger("octavo.serving.partition.loading")
A = TypeVar("A")
T = TypeVar("T")


@dataclass
class Loaded:
    """What an opener learned about a partition."""

    producers: ProducerStates[Append]
    end_offset: int = 0
    last_append_ms: int = -1
    sealed: dict[LedgerId, Segment] = field(default_factory=dict[LedgerId, Segment])
    indexes: dict[LedgerId, SparseIndex] = field(default_factory=dict[LedgerId, SparseIndex])


class _Found(NamedTuple):
    snapshot: Snapshot
    entry: EntryId


class PartitionLoader:
    """Loads one partition once; `result` is complete after `load`."""

    def __init__(
        self,
        name: PartitionName,
        backend: LedgerBackend,
        producers: ProducerStates[Append],
        dedup: DedupWindow[Append],
        tiered: TierReads,
    ) -> None:
        self._name = name
        self._backend = backend
        self._dedup = dedup
        self._tiered = tiered
        self.result = Loaded(producers)

    async def load(self, state: PartitionState, closed: Closed) -> dict[LedgerId, Segment]:
        """Called by `SegmentChain.claim`, again from the start when the list changed meanwhile."""
        self.result = Loaded(self.result.producers)
        self.result.producers.restore(())
        self._dedup.restore(b"")
        segments = state.segments
        ends = [_last_entry(segment, closed) for segment in segments]
        start, found = await self._newest_snapshot(segments, ends, closed)
        offset = segments[start].base_offset if segments else end_of(state)
        figures = Figures(whole_from=offset)
        if found is not None:
            producers = found.snapshot.producers
            # Nobody else uses these states before the partition is loaded.
            await _apart_if_many(len(producers), self.result.producers.restore, producers)
            ids = found.snapshot.dedup_ids
            await _apart_if_many(len(ids) // IDS_LIKE_A_PRODUCER_BYTES, self._dedup.restore, ids)
            offset = found.snapshot.end_offset
            begins = found.snapshot.end_offset == segments[start].base_offset
            figures = Figures(found.snapshot.figures, whole_from=offset if begins else None)
            self.result.last_append_ms = found.snapshot.figures.last_append_ms
        for i in range(start, len(segments)):
            first = found.entry + 1 if found is not None and i == start else 0
            if i > start:
                figures = Figures(whole_from=segments[i].base_offset)
            offset = await self._replay(
                segments[i], closed, first, ends[i], offset=offset, figures=figures
            )
        self.result.end_offset = offset
        if segments and segments[-1].end_offset is None:
            last = segments[-1]
            end = max(offset, last.base_offset)
            self.result.sealed[last.ledger_id] = sealed_segment(
                last, closed[last.ledger_id], end, figures.value, dense=figures.dense_to == end
            )
        return self.result.sealed

    async def _reader(self, segment: Segment, closed: Closed) -> SegmentReader:
        record = closed.get(segment.ledger_id)
        if record is not None:  # of its recovery, a moment ago
            return self._backend.reader_of(record)
        return await self._backend.open_reader(segment.ledger_id)

    async def _newest_snapshot(
        self, segments: Sequence[Segment], ends: Sequence[int], closed: Closed
    ) -> tuple[int, _Found | None]:
        for i in reversed(range(len(segments))):
            if ends[i] < 0 or not segments[i].in_ledger:  # files hold no snapshots
                continue
            reader = await self._reader(segments[i], closed)
            try:
                found = await self._snapshot_in(reader, segments[i].ledger_id, ends[i])
            finally:
                await reader.close()
            if found is not None:
                return i, found
        return 0, None

    async def _snapshot_in(
        self, reader: SegmentReader, ledger_id: LedgerId, last_entry: int
    ) -> _Found | None:
        footer = await read_footer(reader, ledger_id, last_entry)
        if footer is not None:
            self.result.indexes[ledger_id] = SparseIndex.from_footer(footer)
            at = footer.snapshot_entry
            if 0 <= at < last_entry:
                found = await self._decode(at, payload_of(await read_entry(reader, at)))
                if found is not None:
                    return found
        high, window = last_entry, FIRST_WINDOW_ENTRIES
        while high >= 0:
            low = max(0, high - window + 1)
            around = payloads(reader, low, high, piece_bytes=PIECE_BYTES)
            candidates = [(at, bytes(found)) async for at, found in around if is_snapshot(found)]
            for entry_id, payload in reversed(candidates):
                found = await self._decode(entry_id, payload)
                if found is not None:
                    return found
            high, window = low - 1, min(window * 4, WINDOW_ENTRIES_MAX)
        return None

    async def _decode(self, entry_id: int, payload: bytes) -> _Found | None:
        if not is_snapshot(payload):
            return None
        try:
            snapshot = await _apart_if_many(
                len(payload) // PRODUCER_BYTES, decode_snapshot, payload
            )
        except (CorruptEntry, UnsupportedVersion) as error:
            _log.warning("snapshot-unreadable", partition=str(self._name), cause=error.cause)
            return None
        if snapshot.topic_id != self._name.topic_id:  # I9: another life of the name
            return None
        return _Found(snapshot, EntryId(entry_id))

    async def _replay(
        self,
        segment: Segment,
        closed: Closed,
        first: int,
        last: int,
        *,
        offset: int,
        figures: Figures,
    ) -> int:
        if first > last:
            return offset
        async with aclosing(self._batches(segment, closed, first, last)) as found:
            async for header, payload in found:
                self.result.producers.replay(header)
                if is_marked(header):
                    self._replay_id(header, payload)
                figures.note(header, len(payload))
                self.result.last_append_ms = max(self.result.last_append_ms, header.append_time_ms)
                offset = header.next_offset
        return offset

    async def _batches(
        self, segment: Segment, closed: Closed, first: int, last: int
    ) -> AsyncGenerator[tuple[BatchHeader, Buffer], None]:
        """Among entries first..last; of a segment in files all, where no newer snapshot is."""
        if not segment.in_ledger:
            found = self._tiered.batches_from(self._name, segment, segment.base_offset)
            async with aclosing(found):
                async for one in found:
                    yield one
            return
        reader = await self._reader(segment, closed)
        try:
            async with aclosing(payloads(reader, first, last, piece_bytes=PIECE_BYTES)) as entries:
                async for _, payload in entries:
                    if is_batch(payload):
                        yield decode_header(payload), payload
        finally:
            await reader.close()

    def _replay_id(self, header: BatchHeader, payload: Buffer) -> None:
        """X14. A batch that cannot be opened was taken by another build: it has no id here."""
        try:
            digest = read_digest(payload)
        except (InvalidRecord, CorruptBatch) as error:
            where = f"{self._name}@{header.base_offset}"
            _log.error("dedup-id-unreadable", record=where, cause=error.cause)
            return
        self._dedup.replay(digest, header.base_offset, header.append_time_ms)


def _last_entry(segment: Segment, closed: Closed) -> int:
    record = closed.get(segment.ledger_id)
    if record is not None and record.last_entry is not None:
        return record.last_entry
    return segment.last_entry if segment.end_offset is not None else NO_ENTRY


async def _apart_if_many(producers: int, work: Callable[[A], T], given: A) -> T:
    """Do the work for so many producers here, or beside the loop."""
    if producers <= PRODUCERS_AT_ONCE:
        return work(given)
    return await asyncio.to_thread(work, given)
