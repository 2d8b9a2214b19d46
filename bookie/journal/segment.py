"""Pure codec of one journal segment (spec/ledger.md §6.2): no files, no clock.

    segment  header (128 bytes) | batch* | footer?                      all of it big-endian
    batch    magic u32 | segment u64 | sequence u64 | body bytes u32 | records u32
             | durable_up_to: segment u64, offset u64 | crc32c u32 | body
    body     word u32 * records | the records back to back; word = type << 24 | length
    footer   magic u32 | segment u64 | ledgers u32 | (ledger i64, rows u32, row*)* | crc32c u32
             | trailer
    row      entry i64 | offset u32 | length u32, sorted
    trailer  footer offset u64 | magic u32 | crc32c u32

Every crc is salted with the segment's uuid, so a stale block of a reused inode never validates. The
header of a segment names the position from which it goes on (`durable_up_to`): that is what makes a
damaged tail of the predecessor, or a missing predecessor, visible at replay (B-13, B-15), and what
declares everything between that position and this segment superseded. A boot copies what it found
there behind the header (`carried_bytes`); until that copy is whole, the segment counts as not
created (ADR 14). Segments are never reused; numbers only grow.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from octavo.runtime.checksum import Buffer, crc32c, crc32c_parts
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion

FORMAT_VERSION = 2
HEADER_BYTES = 128
MAX_RECORD_BYTES = (1 << 24) - 1
"""A record's length shares a 32-bit word with its type."""
MAX_SEGMENT_BYTES = (1 << 32) - 1
"""Offsets inside a segment are 32-bit in the footer and the index."""

_MAGIC = b"OCTVSEG\x01"
_HEADER = struct.Struct(">8sHHI16s16s16sQqQQQ")
_CRC = struct.Struct(">I")
_HEADER_1_BYTES = 96
"""What the header of format 1 covered with its crc."""
_BATCH = struct.Struct(">IQQIIQQ")
_BATCH_MAGIC = 0x0C7AB47C
_BATCH_MAGIC_BYTES = struct.pack(">I", _BATCH_MAGIC)
BATCH_HEADER_BYTES = _BATCH.size + _CRC.size
_FOOTER = struct.Struct(">IQI")
_FOOTER_MAGIC = 0x0C7AF007
_FOOTER_LEDGER = struct.Struct(">qI")
_ROW = struct.Struct(">qII")
_TRAILER = struct.Struct(">QI")
TRAILER_BYTES = _TRAILER.size + _CRC.size
CONTROL = struct.Struct(">qQ")
"""Bytes of a record that is not an entry: ledger id, value."""


class RecordType(IntEnum):
    """What a record is. ENTRY is 0, so that the word of an entry is its length."""

    ENTRY = 0
    FENCE = 1
    EXPLICIT_LAC = 2
    """value = the LAC."""
    ADMIT = 3
    """value = tag of the incarnation that was admitted (6.12)."""
    DELETE = 4
    """Everything of this ledger in front of this record is deleted (6.14); value = 0."""


class Position(NamedTuple):
    """A place in a stream; ordered."""

    segment: int
    offset: int


START = Position(0, 0)


class SegmentHeader(NamedTuple):
    """The fixed head of a segment file."""

    stream: int
    instance_id: uuid.UUID
    incarnation: uuid.UUID
    segment_uuid: uuid.UUID
    number: int
    created_ms: int
    durable_up_to: Position
    """Proven durable end of the log when this segment was created, from which it goes on; START
    for the first. What lies between there and this segment is not part of the log.
    """
    carried_bytes: int = 0
    """Bytes of batches behind the header that repeat what the creating boot found after
    `durable_up_to`, where nothing proved it durable.
    """

    @property
    def carried_end(self) -> int:
        """Offset from which the segment is appended to."""
        return HEADER_BYTES + self.carried_bytes

    @property
    def salt(self) -> int:
        """Start value of every crc of this segment."""
        return crc32c(self.segment_uuid.bytes)


class Record(NamedTuple):
    """One record of a batch and where its bytes lie in the segment."""

    type: int
    data: bytes
    offset: int

    def control(self) -> tuple[int, int]:
        """(ledger id, value) of a record that is not an entry."""
        ledger_id, value = CONTROL.unpack(self.data)
        return ledger_id, value


class BatchInfo(NamedTuple):
    """A valid batch found in a segment."""

    offset: int
    end: int
    sequence: int
    record_count: int
    durable_up_to: Position


class FooterRow(NamedTuple):
    """One entry listed by a footer."""

    ledger_id: int
    entry_id: int
    offset: int
    length: int


SORTED_BASE = 1 << 62
"""Numbers from here on are those of sorted segments, which compaction writes and no boot replays
(B-19)."""


def segment_name(number: int) -> str:
    """File name of a segment; names sort as numbers do."""
    return f"{number:016x}.{'seg' if number < SORTED_BASE else 'sorted'}"


def segment_number(name: str) -> int | None:
    """The number in the file name of a segment of the journal, or None for another file."""
    return _number(name, "seg")


def sorted_number(name: str) -> int | None:
    """The number in a sorted segment's file name, or None for another file."""
    return _number(name, "sorted")


def _number(name: str, kind: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != kind or len(stem) != 16:
        return None
    try:
        number = int(stem, 16)
    except ValueError:
        return None
    return number if (number >= SORTED_BASE) == (kind == "sorted") else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first 128 bytes of a segment file."""
    head = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        0,
        header.stream,
        header.instance_id.bytes,
        header.incarnation.bytes,
        header.segment_uuid.bytes,
        header.number,
        header.created_ms,
        *header.durable_up_to,
        header.carried_bytes,
    )
    return (head + _CRC.pack(crc32c(head))).ljust(HEADER_BYTES, b"\0")


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Read and check a header; raises CorruptEntry or UnsupportedVersion."""
    if len(data) < HEADER_BYTES:
        raise CorruptEntry(f"segment header of {len(data)} bytes, expected {HEADER_BYTES}")
    head = data[: _HEADER.size]
    padding = data[_HEADER.size + _CRC.size : HEADER_BYTES]
    if _CRC.unpack_from(data, _HEADER_1_BYTES)[0] == crc32c(data[:_HEADER_1_BYTES]):
        raise UnsupportedVersion(
            f"segment format 1, this release reads and writes {FORMAT_VERSION}",
            hint="the directory was written by an older release; nothing was changed in it",
        )
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(head) or any(padding):
        raise CorruptEntry("segment header fails its crc32c")
    magic, version, _, stream, instance, incarnation, ident, number, created, seg, off, carried = (
        _HEADER.unpack(head)
    )
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"segment format {magic!r} version {version}, this release reads {FORMAT_VERSION}",
            hint="the directory was written by another release; nothing was changed in it",
        )
    return SegmentHeader(
        stream,
        uuid.UUID(bytes=instance),
        uuid.UUID(bytes=incarnation),
        uuid.UUID(bytes=ident),
        number,
        created,
        Position(seg, off),
        carried,
    )


def encode_batch(
    salt: int,
    number: int,
    sequence: int,
    durable_up_to: Position,
    words: Sequence[int],
    data: Sequence[Buffer],
    data_bytes: int,
) -> bytes:
    """Head and word table of a batch; the caller writes it, then `data` uncopied.

    `words` has one word per record; `data` may be cut differently, only its concatenation counts.
    """
    table = struct.pack(f">{len(words)}I", *words)
    head = _BATCH.pack(
        _BATCH_MAGIC, number, sequence, len(table) + data_bytes, len(words), *durable_up_to
    )
    crc = crc32c_parts(data, crc32c(table, crc32c(head, salt)))
    return head + _CRC.pack(crc) + table


def read_batch(
    data: bytes, offset: int, limit: int, header: SegmentHeader, salt: int
) -> BatchInfo | None:
    """The batch at `offset` that ends at or before `limit`; None when no valid one starts there."""
    if offset + BATCH_HEADER_BYTES > limit:
        return None
    head = data[offset : offset + _BATCH.size]
    magic, number, sequence, body_bytes, count, seg, off = _BATCH.unpack(head)
    start = offset + BATCH_HEADER_BYTES
    end = start + body_bytes
    if magic != _BATCH_MAGIC or number != header.number or end > limit:
        return None
    (crc,) = _CRC.unpack_from(data, offset + _BATCH.size)
    if crc32c(data[start:end], crc32c(head, salt)) != crc or 4 * count > body_bytes:
        return None
    return BatchInfo(offset, end, sequence, count, Position(seg, off))


def batch_records(data: bytes, batch: BatchInfo) -> Iterator[Record]:
    """The records of a valid batch in stream order; CorruptEntry if lengths do not add up."""
    table = batch.offset + BATCH_HEADER_BYTES
    words = struct.unpack_from(f">{batch.record_count}I", data, table)
    offset = table + 4 * batch.record_count
    if offset + sum(word & MAX_RECORD_BYTES for word in words) != batch.end:
        raise CorruptEntry(f"record lengths of the batch at {batch.offset} do not add up")
    for word in words:
        length = word & MAX_RECORD_BYTES
        yield Record(word >> 24, data[offset : offset + length], offset)
        offset += length


def find_batch(
    data: bytes, offset: int, limit: int, header: SegmentHeader, salt: int
) -> BatchInfo | None:
    """The first valid batch that starts at or after `offset` (the scan ahead of B-15)."""
    position = data.find(_BATCH_MAGIC_BYTES, offset, limit)
    while position >= 0:
        batch = read_batch(data, position, limit, header, salt)
        if batch is not None:
            return batch
        position = data.find(_BATCH_MAGIC_BYTES, position + 1, limit)
    return None


def claimed_batch_end(head: bytes, header: SegmentHeader) -> int:
    """How many bytes the batch that begins with `head` says it has; 0: no batch begins so."""
    if len(head) < BATCH_HEADER_BYTES:
        return 0
    magic, number, _, body_bytes, _, _, _ = _BATCH.unpack_from(head)
    if magic != _BATCH_MAGIC or number != header.number:
        return 0
    return int(BATCH_HEADER_BYTES + body_bytes)


def find_batch_magic(data: bytes, offset: int) -> int:
    """Where a batch may begin; -1: nowhere."""
    return data.find(_BATCH_MAGIC_BYTES, offset)


def has_footer_magic(data: bytes) -> bool:
    """Whether a footer may begin here, whole or not."""
    return data[:4] == struct.pack(">I", _FOOTER_MAGIC)


class FooterBuilder:
    """Collects the rows of a segment while it is written."""

    def __init__(self) -> None:
        self._rows: dict[int, bytearray] = {}
        self._last: dict[int, int] = {}
        self._unsorted: set[int] = set()

    def add(self, ledger_id: int, entry_id: int, offset: int, length: int) -> None:
        """Add one entry, in any order."""
        rows = self._rows.get(ledger_id)
        if rows is None:
            rows = self._rows[ledger_id] = bytearray()
        elif entry_id <= self._last[ledger_id]:
            self._unsorted.add(ledger_id)
        self._last[ledger_id] = entry_id
        rows += _ROW.pack(entry_id, offset, length)

    def encode(self, header: SegmentHeader, offset: int) -> list[bytes]:
        """Buffers of the footer that starts at `offset`."""
        for ledger_id in self._unsorted:
            self._rows[ledger_id] = bytearray(
                b"".join(_ROW.pack(*row) for row in sorted(_ROW.iter_unpack(self._rows[ledger_id])))
            )
        return encode_footer(header, offset, self._rows)


def encode_footer(
    header: SegmentHeader, offset: int, rows: Mapping[int, bytes | bytearray]
) -> list[bytes]:
    """Buffers of a footer; `rows` holds packed rows, sorted, per ledger."""
    parts = [_FOOTER.pack(_FOOTER_MAGIC, header.number, len(rows))]
    for ledger_id in sorted(rows):
        packed = bytes(rows[ledger_id])
        parts.append(_FOOTER_LEDGER.pack(ledger_id, len(packed) // _ROW.size))
        parts.append(packed)
    parts.append(_CRC.pack(crc32c_parts(parts, header.salt)))
    trailer = _TRAILER.pack(offset, _FOOTER_MAGIC)
    parts.append(trailer + _CRC.pack(crc32c(trailer, header.salt)))
    return parts


def trailer_offset(data: bytes, header: SegmentHeader) -> int | None:
    """Where the footer begins in its file, as the last bytes of the file (`data`) say."""
    start = len(data) - TRAILER_BYTES
    if start < 0:
        return None
    trailer = data[start : start + _TRAILER.size]
    offset, magic = _TRAILER.unpack(trailer)
    (crc,) = _CRC.unpack_from(data, start + _TRAILER.size)
    if magic != _FOOTER_MAGIC or crc != crc32c(trailer, header.salt):
        return None
    return int(offset)


def footer_offset(data: bytes, header: SegmentHeader, base: int = 0) -> int | None:
    """Where the batches of a sealed segment end, or None when there is no valid footer.

    `data`: the file from offset `base` to its end.
    """
    offset = trailer_offset(data, header)
    table_end = len(data) - TRAILER_BYTES - _CRC.size
    if offset is None or not max(HEADER_BYTES, base) <= offset <= base + table_end - _FOOTER.size:
        return None
    (table_crc,) = _CRC.unpack_from(data, table_end)
    if table_crc != crc32c(data[offset - base : table_end], header.salt):
        return None
    return offset


def footer_rows(data: bytes, header: SegmentHeader, base: int = 0) -> Iterable[FooterRow]:
    """The rows of a sealed segment's footer; raises CorruptEntry when there is none."""
    position = footer_offset(data, header, base)
    if position is None:
        raise CorruptEntry(f"segment {header.number} has no valid footer")
    position -= base
    _, _, ledgers = _FOOTER.unpack_from(data, position)
    position += _FOOTER.size
    rows: list[FooterRow] = []
    for _ in range(ledgers):
        ledger_id, count = _FOOTER_LEDGER.unpack_from(data, position)
        position += _FOOTER_LEDGER.size
        end = position + count * _ROW.size
        rows.extend(FooterRow(ledger_id, *row) for row in _ROW.iter_unpack(data[position:end]))
        position = end
    return rows


class SegmentScan(NamedTuple):
    """What a whole segment file says about itself."""

    header: SegmentHeader
    batches: list[BatchInfo]
    """Valid batches, unbroken, from the start of the scan."""
    end: int
    """End of the last of them."""
    proven_end: int
    """Largest offset of this segment that something valid in this file says is durable."""
    sealed: bool
    beyond: list[BatchInfo]
    """Valid batches after the first bad spot; only salvage (B-25) reads them."""

    @property
    def number(self) -> int:
        """Number of the segment."""
        return self.header.number

    @property
    def established(self) -> bool:
        """What its creation had to carry over is there; else it is not part of the log yet."""
        return self.end >= self.header.carried_end


def scan_segment(data: bytes, start: int) -> SegmentScan:
    """Walk the batches from `start`; raises CorruptEntry or UnsupportedVersion for a bad header."""
    header = decode_segment_header(data[:HEADER_BYTES])
    salt = header.salt
    footer = footer_offset(data, header)
    limit = len(data) if footer is None else footer
    batches: list[BatchInfo] = []
    end = min(max(start, HEADER_BYTES), len(data))
    while (batch := read_batch(data, end, limit, header, salt)) is not None:
        if batches and batch.sequence != batches[-1].sequence + 1:
            break
        batches.append(batch)
        end = batch.end
    beyond: list[BatchInfo] = []
    position = end
    while (found := find_batch(data, position, limit, header, salt)) is not None:
        beyond.append(found)
        position = found.end
    proofs = [b.durable_up_to for b in [*batches, *beyond]]
    own = [proof.offset for proof in proofs if proof.segment == header.number]
    proven = max([0, footer or 0, *own])
    return SegmentScan(header, batches, end, proven, footer is not None, beyond)
