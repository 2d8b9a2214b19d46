"""Which entries a segment holds, read without loading it whole: its footer, or its batches (6.2).

A footer lists what was written to its segment while it was open. What the boot that made the
segment carried over from an unproven tail is not among that: its batches say so (ADR 14).
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    FooterRow,
    RecordType,
    SegmentHeader,
    batch_records,
    decode_segment_header,
    find_batch,
    footer_offset,
    footer_rows,
    read_batch,
    trailer_offset,
)
from octavo.proto.entry import HEADER as ENTRY_HEADER
from octavo.proto.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from octavo.runtime.disk import FileReader
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion

TAIL_BYTES = 64 * 1024
"""Read first from the end of a file: the footer of most segments fits."""
WINDOW_BYTES = 8 << 20
"""Read at a time where there is no footer; a batch is smaller unless it holds one large record."""
WINDOW_MAX_BYTES = 2 * MAX_RECORD_BYTES + WINDOW_BYTES


class SegmentRows(NamedTuple):
    """The entries of one segment."""

    header: SegmentHeader | None
    rows: list[FooterRow]
    complete: bool
    """False: some of the segment cannot be read, so that nothing is known of what it holds."""
    torn: bool = False
    """Its last bytes are no batch: a tail that was never acknowledged, or a damaged one."""


def read_rows(file: FileReader) -> SegmentRows:
    """The entries of a segment that is not written to any more (blocking); raises OSError."""
    try:
        header = decode_segment_header(file.read_at(0, HEADER_BYTES))
    except (CorruptEntry, UnsupportedVersion):
        # A creation that a crash cut short left no byte behind the header, and held nothing.
        size = file.size()
        return SegmentRows(None, [], complete=not _has_bytes(file, HEADER_BYTES, size))
    size = file.size()
    tail, base = _footer_bytes(file, header, size)
    try:
        listed = list(footer_rows(tail, header, base))
    except CorruptEntry:
        return _scan(file, header, size)  # the batches say the same
    carried = _scan(file, header, header.carried_end) if header.carried_bytes else None
    if carried is None:
        return SegmentRows(header, listed, complete=True)
    whole = carried.complete and not carried.torn
    return SegmentRows(header, carried.rows + listed, complete=whole)


def has_footer(file: FileReader) -> bool:
    """Whether a segment was written to its end (B-21); raises OSError."""
    try:
        header = decode_segment_header(file.read_at(0, HEADER_BYTES))
    except (CorruptEntry, UnsupportedVersion):
        return False
    tail, base = _footer_bytes(file, header, file.size())
    return footer_offset(tail, header, base) is not None


def _footer_bytes(file: FileReader, header: SegmentHeader, size: int) -> tuple[bytes, int]:
    """The last bytes of a segment, its footer among them if it has one, and where they begin."""
    base = max(0, size - TAIL_BYTES)
    tail = file.read_at(base, size - base)
    offset = trailer_offset(tail, header)
    if offset is not None and HEADER_BYTES <= offset < base:
        return file.read_at(offset, size - offset), offset
    return tail, base


def _scan(file: FileReader, header: SegmentHeader, end: int) -> SegmentRows:
    """The entries of all batches up to `end`; what follows a bad spot is not listed."""
    rows: list[FooterRow] = []
    base, position, window = HEADER_BYTES, HEADER_BYTES, WINDOW_BYTES
    data = file.read_at(base, min(window, end - base))
    while True:
        batch = read_batch(data, position - base, len(data), header, header.salt)
        if batch is None:
            at_end = not data or base + len(data) >= end
            if at_end or (position == base and window >= WINDOW_MAX_BYTES):
                break
            window = WINDOW_MAX_BYTES if position == base else WINDOW_BYTES
            base = position
            data = file.read_at(base, min(window, end - base))
            continue
        for record in batch_records(data, batch):
            if record.type == RecordType.ENTRY and len(record.data) >= ENTRY_HEADER_BYTES:
                ledger_id, entry_id = ENTRY_HEADER.unpack_from(record.data)[:2]
                at = base + record.offset
                rows.append(FooterRow(ledger_id, entry_id, at, len(record.data)))
        position = base + batch.end
    has_more = _has_batch(file, position, end, header)
    return SegmentRows(header, rows, not has_more, torn=_has_bytes(file, position, end))


def _has_batch(file: FileReader, position: int, end: int, header: SegmentHeader) -> bool:
    """Whether a valid batch follows the bad spot: then what lies at the spot was one, too."""
    while position < end:
        data = file.read_at(position, min(WINDOW_MAX_BYTES, end - position))
        if not data:
            return False
        if find_batch(data, 0, len(data), header, header.salt) is not None:
            return True
        if position + len(data) >= end:
            return False
        position += max(1, len(data) // 2)
    return False


def _has_bytes(file: FileReader, position: int, end: int) -> bool:
    """Whether anything but preallocated zeros lies there."""
    while position < end:
        data = file.read_at(position, min(WINDOW_BYTES, end - position))
        if not data:
            return False
        if data.strip(b"\0"):
            return True
        position += len(data)
    return False
