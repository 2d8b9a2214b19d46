"""The batch: the unit a producer sends, a bookie stores and a consumer reads (design.md §3).

A fixed 80-byte header, then a body. Little-endian; every buffer of the body is padded to 8 bytes.

    off size field                                           off size field
    0   u8   magic 0xB7                                      32  i64  base timestamp ms
    1   u8   header length in 8-byte words (10)              40  i64  max timestamp ms
    2   u8   codec, see `octavo.proto.compression`           48  i32  base sequence
    3   u8   flags                                           52  i32  schema id, 0 = opaque bytes
    4   u32  crc32c of bytes 0-3, 8-55 and the body          -- set by the broker, not in the crc --
    8   u32  body length as stored                           56  i64  base offset
    12  u32  body length uncompressed                        64  i32  last offset delta
    16  u32  record count                                    68  i32  owner epoch
    20  i16  producer epoch, 22 u16 marks                    72  i64  append time ms
    24  i64  producer id

The body is Arrow buffers in order, compressed in one piece: timestamps i64[n]; keys as validity
bitmap, i32 offsets[n+1], bytes; values likewise; with flag HEADERS: list offsets i32[n+1],
header-name offsets i32[m+1], name bytes, header-value validity bitmap, i32 offsets[m+1], bytes;
with flag COMPACTED: i32 offset deltas[n]. The Arrow view of the same bytes is
`octavo.proto.batch_arrow`.

Declared sizes are checked before anything is allocated or decompressed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple, cast

from octavo.proto.batch_body import BodyReader
from octavo.proto.compression import Codec, compress, decompress, is_known
from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.errors import CorruptBatch, InvalidRecord, MessageTooLarge, UnsupportedVersion

MAGIC = 0xB7
HEADER_BYTES = 80
_HEADER_WORDS = HEADER_BYTES // 8
DEFAULT_RECORD_BYTES = 1 << 20
"""Key, value and headers of one record together, where neither topic nor producer say otherwise."""
MAX_RECORD_BYTES = 4 << 20
"""The same at most, whatever they say."""
RECORD_ENVELOPE_BYTES = 256
"""A batch of one record is never larger than the record by more: header, offsets, padding."""
MAX_BATCH_BYTES = MAX_RECORD_BYTES + RECORD_ENVELOPE_BYTES
"""A batch as stored and sent, header included: the largest record fits one."""
MAX_BODY_BYTES = 8 << 20
"""An uncompressed body: the bound that makes decompression bombs harmless."""
MAX_RECORDS = 100_000
_RECORD_OVERHEAD_BYTES = 64 * 1024
"""Slack above MAX_RECORD_BYTES per declared record for buffers and padding."""

_HEADER = struct.Struct("<BBBBIIIIhHqqqiiqiiq")
_CRC = struct.Struct("<I")
_TIMESTAMP = struct.Struct("<q")
_BROKER_FIELDS = struct.Struct("<qiiq")
BROKER_AT = 56
"""Where base offset and last offset delta lie in the header."""
_TIMES = struct.Struct("<qq")
_TIMES_AT = 32
CODEC_AT = 2
"""Where the codec stands, for who wants no more of a header."""
_FLAGS_AT = 3

RecordHeaders = Sequence[tuple[str, bytes | None]]


class BatchFlags:
    """Bits of the flags field. Plain ints: `&` with a member of an IntFlag takes a microsecond."""

    NONE: Final = 0
    TRANSACTIONAL: Final = 1
    CONTROL: Final = 2
    APPEND_TIME: Final = 4
    COMPACTED: Final = 8
    ARROW_IPC: Final = 16
    HEADERS: Final = 32


KNOWN_FLAGS = 63
PRODUCER_FLAGS = BatchFlags.HEADERS
"""Flags a producer may set today; a broker refuses others."""


class BatchMarks:
    """Bits of the marks field, which builds that know none of them ignore."""

    NONE: Final = 0
    DEDUP: Final = 1
    """One record, to be kept once by its id (X14, `octavo.proto.dedup_ids`)."""


KNOWN_MARKS = 1


class BatchHeader(NamedTuple):
    """The decoded header; see the module's table."""

    codec: int
    flags: int
    body_crc: int
    body_bytes: int
    uncompressed_bytes: int
    record_count: int
    producer_epoch: int
    marks: int
    producer_id: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    base_sequence: int
    schema_id: int
    base_offset: int
    last_offset_delta: int
    owner_epoch: int
    append_time_ms: int

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1


class Rows(NamedTuple):
    """A decoded batch as parallel columns, one entry per record.

    Timestamps are those that count: the append time where the batch is marked so (X23).
    """

    header: BatchHeader
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]] | None


def encode(
    timestamps_ms: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[RecordHeaders] | None = None,
    *,
    codec: int = Codec.LZ4,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    schema_id: int = 0,
    marks: int = BatchMarks.NONE,
) -> Buffer:
    """Encode columns of equal length into a batch.

    A body that the codec does not shrink is stored raw. Raises InvalidRecord for unequal columns or
    no records, MessageTooLarge when a limit is passed.
    """
    count = len(timestamps_ms)
    if not 0 < count <= MAX_RECORDS:
        raise InvalidRecord(f"a batch holds 1 to {MAX_RECORDS} records, not {count}")
    if len(keys) != count or len(values) != count or (headers and len(headers) != count):
        raise InvalidRecord("columns of a batch must have equal lengths")
    first = timestamps_ms[0]
    try:
        if timestamps_ms.count(first) == count:  # a chunk of records appended at one time
            parts, latest = [_TIMESTAMP.pack(first) * count], first
        else:
            parts, latest = [struct.pack(f"<{count}q", *timestamps_ms)], max(timestamps_ms)
    except struct.error as error:
        raise InvalidRecord(f"a timestamp does not fit 64 bits: {error}") from error
    _put_binary(parts, keys, count)
    _put_binary(parts, values, count)
    flags = 0
    if headers is not None and any(headers):
        flags = BatchFlags.HEADERS
        _put_headers(parts, headers)
    return seal(
        parts,
        count,
        (first, latest),
        flags=flags,
        codec=codec,
        producer=(producer_id, producer_epoch, base_sequence),
        schema_id=schema_id,
        marks=marks,
    )


def seal(
    parts: Sequence[bytes],
    count: int,
    timestamps_ms: tuple[int, int],
    *,
    flags: int,
    codec: int,
    producer: tuple[int, int, int],
    schema_id: int,
    marks: int = BatchMarks.NONE,
) -> Buffer:
    """Compress an encoded body, given as parts, and put the header before it.

    `timestamps_ms` is (base, max). The bytes of an uncompressed body are copied once.
    """
    producer_id, producer_epoch, base_sequence = producer
    body = _packed(parts, codec)
    head = _HEADER.pack(
        MAGIC,
        _HEADER_WORDS,
        body.codec,
        flags,
        0,
        body.stored_bytes,
        body.size_bytes,
        count,
        producer_epoch,
        marks,
        producer_id,
        *timestamps_ms,
        base_sequence,
        schema_id,
        0,
        count - 1,
        0,
        0,
    )
    return _with_crc(bytearray().join((head, *body.parts)))


def with_body(header: BatchHeader, parts: Sequence[bytes]) -> Buffer:
    """A batch with every field of `header` around another encoded body of as many records.

    Codec (where the body does not shrink), sizes and crc are those of the body. Raises
    MessageTooLarge.
    """
    body = _packed(parts, header.codec)
    fields = header._replace(
        codec=body.codec,
        body_crc=0,
        body_bytes=body.stored_bytes,
        uncompressed_bytes=body.size_bytes,
    )
    head = _HEADER.pack(MAGIC, _HEADER_WORDS, *fields)
    return _with_crc(bytearray().join((head, *body.parts)))


class _Packed(NamedTuple):
    """A body as it is stored."""

    codec: int
    parts: Sequence[bytes]
    stored_bytes: int
    size_bytes: int


def _packed(parts: Sequence[bytes], codec: int) -> _Packed:
    """Compress a body unless that makes it larger; raises MessageTooLarge."""
    body_bytes = sum(map(len, parts))
    if body_bytes > MAX_BODY_BYTES:
        raise MessageTooLarge(f"batch body of {body_bytes} bytes, limit {MAX_BODY_BYTES}")
    stored_bytes = body_bytes
    if codec != Codec.NONE:
        packed = compress(codec, b"".join(parts))
        if len(packed) < body_bytes:
            parts, stored_bytes = [packed], len(packed)
        else:
            codec = Codec.NONE
    if HEADER_BYTES + stored_bytes > MAX_BATCH_BYTES:
        raise MessageTooLarge(
            f"batch of {HEADER_BYTES + stored_bytes} bytes, limit {MAX_BATCH_BYTES}"
        )
    return _Packed(codec, parts, stored_bytes, body_bytes)


def _with_crc(batch: bytearray) -> Buffer:
    """`batch` with its crc filled in; nobody else may hold it."""
    view = memoryview(batch)
    _CRC.pack_into(batch, 4, _crc_of(view))
    return view.toreadonly()


def _crc_of(batch: Buffer) -> int:
    return crc32c(batch[HEADER_BYTES:], crc32c(batch[8:BROKER_AT], crc32c(batch[:4])))


def with_sequence(
    batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int
) -> Buffer:
    """The same records under another producer identity; the crc is computed anew."""
    changed = bytearray(batch)
    struct.pack_into("<h", changed, 20, producer_epoch)
    struct.pack_into("<q", changed, 24, producer_id)
    struct.pack_into("<i", changed, 48, base_sequence)
    return _with_crc(changed)


def decode_header(batch: Buffer) -> BatchHeader:
    """Read the header and check every declared size and limit, but not the crc.

    Raises CorruptBatch, UnsupportedVersion or MessageTooLarge.
    """
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"batch of {len(batch)} bytes is shorter than its header")
    magic, words, *rest = _HEADER.unpack_from(batch)
    if magic != MAGIC or words != _HEADER_WORDS:
        raise UnsupportedVersion(f"batch magic {magic:#x}, header of {words * 8} bytes is unknown")
    header = BatchHeader._make(rest)
    if len(batch) > MAX_BATCH_BYTES:
        raise MessageTooLarge(f"batch of {len(batch)} bytes, limit {MAX_BATCH_BYTES}")
    if not is_known(header.codec):
        raise UnsupportedVersion(f"batch codec {header.codec} is unknown")
    if header.flags & ~KNOWN_FLAGS or header.flags & BatchFlags.ARROW_IPC:
        raise UnsupportedVersion(f"batch flags {header.flags:#x} are unknown")
    if header.body_bytes != len(batch) - HEADER_BYTES:
        raise CorruptBatch(
            f"batch declares {header.body_bytes} body bytes, has {len(batch) - HEADER_BYTES}"
        )
    count = header.record_count
    if not 0 < count <= MAX_RECORDS:
        raise CorruptBatch(f"batch declares {count} records, allowed are 1 to {MAX_RECORDS}")
    limit = min(MAX_BODY_BYTES, count * (MAX_RECORD_BYTES + _RECORD_OVERHEAD_BYTES))
    if header.uncompressed_bytes > limit:
        raise MessageTooLarge(
            f"{count} records declare {header.uncompressed_bytes} uncompressed bytes, limit {limit}"
        )
    if header.codec == Codec.NONE and header.uncompressed_bytes != header.body_bytes:
        raise CorruptBatch("uncompressed batch declares two different body lengths")
    return header


def verify(batch: Buffer) -> BatchHeader:
    """decode_header, then the crc over the producer's fields and the body; raises CorruptBatch."""
    header = decode_header(batch)
    if _crc_of(memoryview(batch)) != header.body_crc:
        raise CorruptBatch("batch fails its crc32c")
    return header


def stamp(
    batch: Buffer,
    *,
    base_offset: int,
    owner_epoch: int,
    append_time_ms: int,
    last_offset_delta: int | None = None,
) -> bytes:
    """The broker's fields set in a copy of `batch`; the body is not opened (F066).

    `last_offset_delta`: of a batch that lost records; else each record has an offset.
    """
    if last_offset_delta is None:
        (count,) = _CRC.unpack_from(batch, 16)
        last_offset_delta = count - 1
    fields = _BROKER_FIELDS.pack(base_offset, last_offset_delta, owner_epoch, append_time_ms)
    view = memoryview(batch)
    return b"".join((view[:BROKER_AT], fields, view[HEADER_BYTES:]))


def stamp_append_time(
    batch: Buffer, *, base_offset: int, owner_epoch: int, append_time_ms: int
) -> bytes:
    """As `stamp`, and the time of each record is that of the append (X23).

    Marked so in the flags; base and max timestamp become the append time, and the crc is computed
    anew. What the producer said stays in the body, which is not opened.
    """
    changed = bytearray(batch)
    changed[_FLAGS_AT] |= BatchFlags.APPEND_TIME
    _TIMES.pack_into(changed, _TIMES_AT, append_time_ms, append_time_ms)
    (count,) = _CRC.unpack_from(changed, 16)
    _BROKER_FIELDS.pack_into(
        changed, BROKER_AT, base_offset, count - 1, owner_epoch, append_time_ms
    )
    return bytes(_with_crc(changed))


def body_of(batch: Buffer, header: BatchHeader) -> Buffer:
    """The uncompressed body, a view where it is stored so; raises CorruptBatch."""
    stored = memoryview(batch)[HEADER_BYTES:]
    return decompress(header.codec, stored, header.uncompressed_bytes)


def decode_rows(batch: Buffer) -> Rows:
    """Verify and decode into Python rows.

    Raises CorruptBatch, UnsupportedVersion, MessageTooLarge.
    """
    header = verify(batch)
    body = body_of(batch, header)
    count = header.record_count
    reader = BodyReader(body)
    timestamps: Sequence[int] = reader.int64s(count)
    if header.flags & BatchFlags.APPEND_TIME:
        timestamps = [header.append_time_ms] * count
    keys = reader.binaries(count)
    values = reader.binaries(count)
    headers: list[list[tuple[str, bytes | None]]] | None = None
    if header.flags & BatchFlags.HEADERS:
        headers = reader.headers(count)
    base = header.base_offset
    offsets: Sequence[int] = range(base, base + count)
    if header.flags & BatchFlags.COMPACTED:
        offsets = [base + delta for delta in reader.int32s(count)]
    reader.expect_end()
    return Rows(header, offsets, timestamps, keys, values, headers)


# --- body layout -------------------------------------------------------------------------------


def _padding(size: int) -> bytes:
    return b"\0" * (-size % 8)


def full_validity(count: int) -> bytes:
    """A padded validity bitmap with `count` ones."""
    full, rest = divmod(count, 8)
    bitmap = b"\xff" * full + (bytes(((1 << rest) - 1,)) if rest else b"")
    return bitmap + _padding(len(bitmap))


def _put_binary(parts: list[bytes], column: Sequence[bytes | None], count: int) -> None:
    """Append validity, offsets and data of one nullable binary column, each padded."""
    absent = column.count(None)
    if absent == count:
        size = (count + 7) // 8
        offsets_bytes = 4 * (count + 1)
        parts.append(bytes(size) + _padding(size) + bytes(offsets_bytes) + _padding(offsets_bytes))
        return
    if absent:
        bits = "".join(["0" if item is None else "1" for item in reversed(column)])
        bitmap = int(bits or "0", 2).to_bytes((count + 7) // 8, "little")
        parts.append(bitmap + _padding(len(bitmap)))
    else:
        parts.append(full_validity(count))
    filled = [item or b"" for item in column] if absent else cast("Sequence[bytes]", column)
    ends = list(accumulate(map(len, filled), initial=0))
    if ends[-1] > MAX_BODY_BYTES:
        raise MessageTooLarge(f"a column of {ends[-1]} bytes, limit of a body {MAX_BODY_BYTES}")
    # The values go in as they are: they are copied once, into the batch.
    offsets = struct.pack(f"<{count + 1}i", *ends)
    parts.append(offsets)
    parts.append(_padding(len(offsets)))
    parts.extend(filled)
    parts.append(_padding(ends[-1]))


def _put_headers(parts: list[bytes], headers: Sequence[RecordHeaders]) -> None:
    offsets = array("i", accumulate(map(len, headers), initial=0)).tobytes()
    parts.append(offsets)
    parts.append(_padding(len(offsets)))
    flat = list(chain.from_iterable(headers))
    names = [name.encode() for name, _ in flat]
    offsets = array("i", accumulate(map(len, names), initial=0)).tobytes()
    parts.append(offsets)
    parts.append(_padding(len(offsets)))
    data = b"".join(names)
    parts.append(data)
    parts.append(_padding(len(data)))
    _put_binary(parts, [value for _, value in flat], len(flat))
