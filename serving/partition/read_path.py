"""Reads of one partition: tail cache first, then storage (F077, F078); offsets by time.

Storage is the segment's ledger while it is there, and exported files afterwards, or when no bookie
answers (F088).

Records have two times: their timestamp, which need not ascend, and that of their append by the
owner, which never goes back inside of a partition (G5).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from octavo.proto.batch import BatchHeader, decode_header, decode_rows
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError, OffsetOutOfRange
from octavo.serving.cache import PartitionTail
from octavo.serving.cold import ColdRead, ColdReader, Source
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.open_segment import OpenSource
from octavo.serving.segments import segment_at
from octavo.serving.tiering.reads import TierReads


class ReadView(NamedTuple):
    """What one read of a partition is made of, taken in one step of the event loop."""

    segments: tuple[Segment, ...]  # with counts
    opened: OpenSource | None
    log_start: int
    high_watermark: int
    tail: PartitionTail
    cold: ColdReader
    name: PartitionName
    tiered: TierReads


class Found(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp_ms: int


def check_offset(view: ReadView, offset: int) -> None:
    """Raise OffsetOutOfRange unless log_start <= offset <= high watermark (F5)."""
    if not view.log_start <= offset <= view.high_watermark:
        raise OffsetOutOfRange(
            f"offset {offset} is outside {view.log_start}..{view.high_watermark}",
            hint="reset the position; see log_start and high_watermark",
            log_start=view.log_start,
            high_watermark=view.high_watermark,
        )


def check_start(view: ReadView, offset: int) -> None:
    """Raise OffsetOutOfRange when what begins at `offset` is deleted (R4)."""
    if offset < view.log_start:
        check_offset(view, offset)


def available_bytes(view: ReadView, offset: int) -> int:
    """Bytes a read could return now; what is not cached counts as more than any minimum (F1)."""
    if offset >= view.high_watermark:
        return 0
    if view.tail.holds(offset):
        return view.tail.bytes_from(offset)
    return 1 << 62


def warm_at(view: ReadView, offset: int) -> None:
    """Begin what `read_at` would wait for, without waiting: a ledger to open, a footer, a piece."""
    if offset >= view.high_watermark or view.tail.holds(offset):
        return
    segment = segment_at(view.segments, offset)
    if segment is not None:
        if segment.in_ledger:
            view.cold.warm_segment(segment, offset)
        else:
            view.tiered.warm_segment(view.name, segment, offset)
        return
    source = _open_source(view, offset)
    if source is not None:
        view.cold.warm(source, offset)


async def read_at(view: ReadView, offset: int, max_bytes: int, *, at_least_one: bool) -> ColdRead:
    """Whole batches from the one with `offset` on, below the high watermark (A3)."""
    if view.tail.holds(offset):
        return ColdRead(*view.tail.read(offset, max_bytes, at_least_one=at_least_one))
    while offset < view.high_watermark:
        segment = segment_at(view.segments, offset)
        if segment is None:
            break
        found = await _read_segment(view, segment, offset, max_bytes, at_least_one=at_least_one)
        if found.batches or found.next_offset == offset:
            return found
        offset = found.next_offset  # the rest of this segment holds no batch
    source = _open_source(view, offset)
    if source is None or offset >= view.high_watermark:
        return ColdRead([], offset, 0)
    return await view.cold.read(source, offset, max_bytes, at_least_one=at_least_one)


async def _read_segment(
    view: ReadView, segment: Segment, offset: int, max_bytes: int, *, at_least_one: bool
) -> ColdRead:
    if segment.in_ledger:
        try:
            return await view.cold.read_segment(
                segment, offset, max_bytes, at_least_one=at_least_one
            )
        except OctavoError:
            if segment.object_version is None:
                raise
    return await view.tiered.read_segment(
        view.name, segment, offset, max_bytes, at_least_one=at_least_one
    )


def _open_source(view: ReadView, offset: int) -> Source | None:
    opened = view.opened
    start = opened.sparse.entry_for_offset(offset) if opened is not None else None
    if opened is None or start is None:
        return None
    return Source(opened.ledger_id, start, opened.last_entry, view.high_watermark)


async def offset_for_time(view: ReadView, timestamp_ms: int) -> Found | None:
    """The first record whose timestamp is at least `timestamp_ms`; None when there is none (F6).

    Timestamps need not ascend: a segment or batch is skipped only by its highest timestamp. One
    batch is opened to find the record inside it; this is not the hot path.
    """
    for segment in view.segments:
        newest_ms = segment.max_timestamp_ms
        if segment.end_offset is not None and (newest_ms is None or newest_ms >= timestamp_ms):
            found = await _time_in(view, segment, segment.end_offset, timestamp_ms)
            if found is not None:
                return found
    if view.opened is not None:
        start = view.opened.sparse.entry_for_time(timestamp_ms)
        if start is not None and view.opened.sparse.max_timestamp_ms >= timestamp_ms:
            source = Source(
                view.opened.ledger_id, start, view.opened.last_entry, view.high_watermark
            )
            found = await _scan(view, view.cold.batches_from(source), timestamp_ms)
            if found is not None:
                return found
    return None


async def _time_in(
    view: ReadView, segment: Segment, end_offset: int, timestamp_ms: int
) -> Found | None:
    """The same in one segment with counts."""
    if segment.in_ledger:
        try:
            index = await view.cold.time_index(segment)
            start = index.entry_for_time(timestamp_ms)
            if start is None:
                return None
            source = Source(segment.ledger_id, start, segment.last_entry, end_offset)
            return await _scan(view, view.cold.batches_from(source), timestamp_ms)
        except OctavoError:
            if segment.object_version is None:
                raise
    late = view.tiered.batches_for_time(view.name, segment, timestamp_ms, view.log_start)
    return await _scan(view, late, timestamp_ms)


async def _scan(
    view: ReadView, batches: AsyncIterator[tuple[BatchHeader, Buffer]], timestamp_ms: int
) -> Found | None:
    async for header, payload in batches:
        if header.max_timestamp_ms >= timestamp_ms and header.next_offset > view.log_start:
            found = await asyncio.to_thread(
                _first_in, header, payload, timestamp_ms, view.log_start
            )
            if found is not None:
                return found
    return None


def _first_in(
    _header: BatchHeader, payload: Buffer, timestamp_ms: int, log_start: int
) -> Found | None:
    rows = decode_rows(payload)
    for offset, found_ms in zip(rows.offsets, rows.timestamps_ms, strict=True):
        if found_ms >= timestamp_ms and offset >= log_start:
            return Found(offset, found_ms)
    return None


async def batch_at(view: ReadView, offset: int) -> BatchHeader | None:
    """The header of the first batch that ends above `offset`; None when there is none to read.

    Of what is not in memory only what lies around it is read, and nothing ahead.
    """
    if view.tail.holds(offset):
        (batch, *_), *_ = view.tail.read(offset, 0, at_least_one=True)
        return decode_header(batch)
    while offset < view.high_watermark:
        segment = segment_at(view.segments, offset)
        if segment is None or segment.end_offset is None:
            break
        header = await _header_in(view, segment, offset)
        if header is not None:
            return header
        offset = segment.end_offset  # the rest of this segment holds no batch
    source = _open_source(view, offset)
    if source is None or offset >= view.high_watermark:
        return None
    return await view.cold.header_at(source, offset)


async def _header_in(view: ReadView, segment: Segment, offset: int) -> BatchHeader | None:
    if segment.in_ledger:
        try:
            return await view.cold.header_in(segment, offset)
        except OctavoError:
            if segment.object_version is None:
                raise
    return await view.tiered.header_in(view.name, segment, offset)


async def first_appended_since(view: ReadView, low: int, append_ms: int) -> int:
    """The first offset from `low` on whose batch was appended at `append_ms` or later; the high
    watermark when there is none. Halves what is left with each batch it reads."""
    high = view.high_watermark
    while low < high:
        middle = (low + high) // 2
        header = await batch_at(view, middle)
        if header is None or header.append_time_ms >= append_ms:
            high = middle if header is None else min(middle, max(header.base_offset, low))
        else:
            low = max(header.next_offset, middle + 1)
    return low
