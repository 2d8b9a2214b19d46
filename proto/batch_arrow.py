"""The Arrow view of a batch: the same buffers, no copy of keys and values (design.md §3).

`decode_arrow` gives a pyarrow.RecordBatch with the columns
    offset int64 | timestamp timestamp[ms, UTC] | key binary | value binary
    | headers list<struct<key: string, value: binary>>
(headers are null lists where a batch has none). `encode_arrow` is the reverse for columns that
are Arrow already.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import (
    BatchFlags,
    BatchHeader,
    body_of,
    full_validity,
    seal,
    verify,
)
from octavo.proto.compression import Codec
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch, InvalidRecord
from octavo.runtime.invariant import invariant

HEADER_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADER_TYPE),
    ]
)
NAMES = tuple(SCHEMA.names)

_INT32 = struct.Struct("<i")
_TIME = struct.Struct("<q")


def decode_arrow(batch: Buffer, names: Sequence[str] = NAMES) -> pa.RecordBatch:
    """Verify `batch` and give its columns as Arrow, or those of some `names`.

    Raises CorruptBatch. What is not asked for is not looked at beyond the checksum of the batch.
    """
    return join_arrow([(batch, verify(batch))], names)


def join_arrow(
    batches: Iterable[tuple[Buffer, BatchHeader]], names: Sequence[str] = NAMES
) -> pa.RecordBatch:
    """The columns of verified batches, one behind the other; raises CorruptBatch.

    The columns of a single batch lie in its decompressed bytes; those of several are copied once.
    """
    columns = _Columns()
    try:
        for batch, header in batches:
            columns.add(body_of(batch, header), header)
        made = columns.joined(names)
        made.validate(full=True)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise CorruptBatch(f"batch body is not valid Arrow: {error}") from error
    return made


class KeyColumns(NamedTuple):
    """Of each record what says whether it is the last of its key: columns of equal length."""

    offsets: pa.Array
    """int64."""
    keys: pa.Array
    """binary, null where a record has none."""
    deleted: pa.Array
    """bool: whether the value is null, a tombstone where there is a key."""


def join_keys(batches: Iterable[tuple[Buffer, BatchHeader]]) -> KeyColumns:
    """The keys of verified batches, one behind the other; raises CorruptBatch.

    Values are neither copied nor looked at.
    """
    columns = _Columns(whole=False)
    try:
        for batch, header in batches:
            columns.add(body_of(batch, header), header)
        made = columns.keys()
        made.keys.validate(full=True)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise CorruptBatch(f"batch body is not valid Arrow: {error}") from error
    return made


class _Columns:
    """The pieces of each column; of `whole` records, or without values and headers.

    Bodies are untrusted. `_Body` checks what joining relies on: every buffer lies in its body and
    the offsets of a column begin at 0 and end in its data. What lies between is checked by Arrow's
    full validation of the joined columns, once instead of once for each batch: joining only adds a
    constant to the offsets of a piece, so they ascend afterwards exactly if they did before.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._deleted: list[pa.Array] = []
        self._stamps: list[bytes] = []
        self._keys = _Pieces(pa.binary())
        self._values = _Pieces(pa.binary())
        self._headers = _Pieces(HEADER_TYPE)
        self._offsets: list[pa.Array] = []
        self._base = self._next = 0
        """Offsets base..next-1 follow the pieces in `_offsets`."""

    def add(self, body: Buffer, header: BatchHeader) -> None:
        """Take one uncompressed body apart."""
        count = header.record_count
        reader = _Body(body)
        stamps = reader.raw(8 * count)
        if header.flags & BatchFlags.APPEND_TIME:  # X23
            stamps = _TIME.pack(header.append_time_ms) * count
        self._stamps.append(stamps)
        self._keys.add(reader.binary(pa.binary(), count), count)
        values = reader.binary(pa.binary(), count)
        headers = reader.headers(count) if header.flags & BatchFlags.HEADERS else None
        if self._whole:
            self._values.add(values, count)
            self._headers.add(headers, count)
        elif values is None:
            self._deleted.append(pa.repeat(pa.scalar(True, pa.bool_()), count))
        else:
            self._deleted.append(values.is_null())
        base = header.base_offset
        if header.flags & BatchFlags.COMPACTED:
            deltas = pa.Array.from_buffers(pa.int32(), count, [None, reader.take(4 * count)])
            self._end_range()
            self._offsets.append(pc.add(deltas.cast(pa.int64()), base))
        elif base == self._next:
            self._next += count
        else:
            self._end_range()
            self._base, self._next = base, base + count
        reader.expect_end()

    def _end_range(self) -> None:
        count = self._next - self._base
        if count:
            ones = pa.repeat(pa.scalar(1, pa.int64()), count)
            self._offsets.append(pc.add(pc.cumulative_sum(ones), self._base - 1))
        self._base = self._next

    def joined(self, names: Sequence[str]) -> pa.RecordBatch:
        """All pieces of these columns as one record batch, not validated."""
        self._end_range()
        made: dict[str, Callable[[], pa.Array]] = {
            "offset": lambda: _concat(self._offsets, pa.int64()),
            "timestamp": self._timestamps,
            "key": self._keys.joined,
            "value": self._values.joined,
            "headers": self._headers.joined,
        }
        schema = SCHEMA
        if names is not NAMES:
            schema = pa.schema([SCHEMA.field(name) for name in names])
        return pa.RecordBatch.from_arrays([made[name]() for name in names], schema=schema)

    def _timestamps(self) -> pa.Array:
        stamps = pa.py_buffer(b"".join(self._stamps))
        kind = SCHEMA.field("timestamp").type
        return pa.Array.from_buffers(kind, stamps.size // 8, [None, stamps])

    def keys(self) -> KeyColumns:
        """The keys alone, with whether a value is there."""
        self._end_range()
        return KeyColumns(
            _concat(self._offsets, pa.int64()),
            self._keys.joined(),
            _concat(self._deleted, pa.bool_()),
        )


class _Pieces:
    """One column in pieces; neighbouring pieces without any value are one."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._pieces: list[pa.Array] = []
        self._nulls = 0

    def add(self, piece: pa.Array | None, count: int) -> None:
        """Append a piece, or `count` nulls."""
        if piece is None:
            self._nulls += count
            return
        self._end_nulls()
        self._pieces.append(piece)

    def _end_nulls(self) -> None:
        if self._nulls:
            self._pieces.append(pa.nulls(self._nulls, self._kind))
            self._nulls = 0

    def joined(self) -> pa.Array:
        """The whole column."""
        self._end_nulls()
        return _concat(self._pieces, self._kind)


def _concat(pieces: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


@lru_cache(maxsize=256)
def _all_valid(count: int) -> bytes:
    return full_validity(count)[: (count + 7) // 8]


class _Body:
    """Cuts columns off one body in order; see `_Columns` for what is checked here."""

    def __init__(self, body: Buffer) -> None:
        self._body = body
        self._buffer = pa.py_buffer(body)
        self._at = 0

    def _advance(self, size: int) -> int:
        start = self._at
        self._at = start + size + (-size % 8)
        if size < 0 or self._at > len(self._body):
            raise CorruptBatch("batch body ends inside a buffer")
        return start

    def take(self, size: int) -> pa.Buffer:
        """The next buffer, not copied."""
        return self._buffer.slice(self._advance(size), size)

    def raw(self, size: int) -> bytes:
        """The next buffer, copied."""
        start = self._advance(size)
        return bytes(self._body[start : start + size])

    def _offsets(self, count: int) -> tuple[pa.Buffer, int]:
        """i32[count + 1] that begin at 0, and the last of them."""
        size = 4 * (count + 1)
        start = self._advance(size)
        (first,) = _INT32.unpack_from(self._body, start)
        (last,) = _INT32.unpack_from(self._body, start + 4 * count)
        if first != 0 or last < 0:
            raise CorruptBatch("batch body has offsets that do not ascend from 0")
        return self._buffer.slice(start, size), last

    def binary(self, kind: pa.DataType, count: int) -> pa.Array | None:
        """A nullable binary column; None when every value is null."""
        validity = self.raw((count + 7) // 8)
        offsets, size = self._offsets(count)
        data = self.take(size)
        if validity == _all_valid(count):
            return pa.Array.from_buffers(kind, count, [None, offsets, data], null_count=0)
        if size == 0 and count and validity.count(0) == len(validity):
            return None
        return pa.Array.from_buffers(kind, count, [pa.py_buffer(validity), offsets, data])

    def headers(self, count: int) -> pa.Array:
        """The headers of all records."""
        lists, total = self._offsets(count)
        name_offsets, size = self._offsets(total)
        names = pa.Array.from_buffers(
            pa.string(), total, [None, name_offsets, self.take(size)], null_count=0
        )
        values = self.binary(pa.binary(), total)
        if values is None:
            values = pa.nulls(total, pa.binary())
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE.value_type))
        return pa.Array.from_buffers(HEADER_TYPE, count, [None, lists], children=[pairs])

    def expect_end(self) -> None:
        """Raise unless everything was taken."""
        if self._at != len(self._body):
            raise CorruptBatch(f"batch body has {len(self._body) - self._at} bytes too many")


def encode_arrow(
    timestamps_ms: pa.Array,
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None = None,
    *,
    offset_deltas: pa.Array | None = None,
    flags: int = BatchFlags.NONE,
    codec: int = Codec.LZ4,
    producer: tuple[int, int, int] = (-1, -1, -1),
    schema_id: int = 0,
) -> Buffer:
    """Encode Arrow columns of equal length: int64 milliseconds, binary or string keys and values.

    `producer` is (id, epoch, base sequence). `offset_deltas`, int32 from the base offset on, are of
    a batch that lost records (COMPACTED), `flags` those that the columns do not tell. Raises
    InvalidRecord and MessageTooLarge as `batch.encode`.
    """
    count = len(timestamps_ms)
    if count == 0 or len(keys) != count or len(values) != count:
        raise InvalidRecord("columns of a batch must have one equal, positive length")
    stamps = timestamps_ms.cast(pa.int64())
    if stamps.null_count:
        raise InvalidRecord("every record needs a timestamp")
    if headers is not None and headers.null_count < count:
        flags |= BatchFlags.HEADERS
    else:
        headers = None
    if offset_deltas is not None:
        flags |= BatchFlags.COMPACTED
    return seal(
        body_parts(stamps, keys, values, headers, offset_deltas),
        count,
        (_int_of(stamps[0]), _int_of(pc.max(stamps))),
        flags=flags,
        codec=codec,
        producer=producer,
        schema_id=schema_id,
    )


def body_parts(
    timestamps_ms: pa.Array,
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None,
    offset_deltas: pa.Array | None,
) -> list[bytes]:
    """The uncompressed body of these columns, in parts; `octavo.proto.batch` tells its layout.

    Columns have one length, times and deltas no nulls. Raises InvalidRecord.
    """
    count = len(timestamps_ms)
    parts: list[bytes] = []
    _put(parts, _bytes_of(timestamps_ms, 1, 8 * timestamps_ms.offset, 8 * count))
    _put_binary(parts, keys.cast(pa.binary()))
    _put_binary(parts, values.cast(pa.binary()))
    if headers is not None:
        _put_headers(parts, headers)
    if offset_deltas is not None:
        _put(parts, _bytes_of(offset_deltas, 1, 4 * offset_deltas.offset, 4 * count))
    return parts


def _put(parts: list[bytes], data: bytes) -> None:
    parts.append(data)
    parts.append(b"\0" * (-len(data) % 8))


def _bytes_of(column: pa.Array, index: int, start: int, size: int) -> bytes:
    """A region of one buffer; Arrow leaves buffers out where they would be empty."""
    buffer = column.buffers()[index]
    return b"" if buffer is None else buffer.slice(start, size).to_pybytes()


def _int_of(scalar: pa.Scalar) -> int:
    value = scalar.as_py()
    invariant(isinstance(value, int), "Arrow integer expected")
    return cast(int, value)


def _offsets(column: pa.Array) -> pa.Array:
    """The i32 offsets of a sliced binary, string or list array."""
    return pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset
    )


def _put_rebased(parts: list[bytes], offsets: pa.Array) -> tuple[int, int]:
    """Append offsets shifted to start at 0; returns the (start, end) they covered."""
    start, end = _int_of(offsets[0]), _int_of(offsets[-1])
    shifted = pc.subtract(offsets, pa.scalar(start, pa.int32())) if start else offsets
    _put(parts, _bytes_of(shifted, 1, 4 * shifted.offset, 4 * len(shifted)))
    return start, end


def _put_binary(parts: list[bytes], column: pa.Array) -> None:
    count = len(column)
    if column.null_count == 0:
        parts.append(full_validity(count))
    else:
        bitmap = _bytes_of(pc.is_valid(column), 1, 0, (count + 7) // 8)
        # Bits after the last record are unspecified in Arrow; ours are zero.
        bits = int.from_bytes(bitmap, "little") & ((1 << count) - 1)
        _put(parts, bits.to_bytes((count + 7) // 8, "little"))
        # A null may cover bytes of the data buffer; ours never does.
        column = pc.fill_null(column, b"")
    start, end = _put_rebased(parts, _offsets(column))
    _put(parts, _bytes_of(column, 2, start, end - start))


def _put_headers(parts: list[bytes], headers: pa.Array) -> None:
    filled = (
        pc.fill_null(headers.cast(HEADER_TYPE), pa.scalar([], HEADER_TYPE))
        if headers.null_count
        else headers.cast(HEADER_TYPE)
    )
    start, end = _put_rebased(parts, _offsets(filled))
    pairs = filled.values.slice(start, end - start)
    names = pairs.field(0).cast(pa.binary())
    if names.null_count:
        raise InvalidRecord("a header needs a name")
    first, last = _put_rebased(parts, _offsets(names))
    _put(parts, _bytes_of(names, 2, first, last - first))
    _put_binary(parts, pairs.field(1))
