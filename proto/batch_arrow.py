"""The Arrow view of a batch: the same buffers, no copy of keys and values (design.md §3).

`decode_arrow` gives a pyarrow.RecordBatch with the columns
    offset int64 | timestamp timestamp[ms, UTC] | key binary | value binary
    | headers list<struct<key: string, value: binary>>
(headers are null lists where a batch has none). `encode_arrow` is the reverse for columns that
are Arrow already.
"""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import (
    BatchFlags,
    BatchHeader,
    Codec,
    body_of,
    full_validity,
    seal,
    verify,
)
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


def decode_arrow(batch: bytes) -> pa.RecordBatch:
    """Verify `batch` and give its columns as Arrow; raises CorruptBatch."""
    header = verify(batch)
    body = pa.py_buffer(body_of(batch, header))
    try:
        made = _columns(body, header)
        made.validate(full=True)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise CorruptBatch(f"batch body is not valid Arrow: {error}") from error
    return made


def _columns(body: pa.Buffer, header: BatchHeader) -> pa.RecordBatch:
    count = header.record_count
    reader = _BufferReader(body)
    timestamps = pa.Array.from_buffers(
        SCHEMA.field("timestamp").type, count, [None, reader.take(8 * count)]
    )
    key = reader.binary(pa.binary(), count)
    value = reader.binary(pa.binary(), count)
    if header.flags & BatchFlags.HEADERS:
        headers = reader.headers(count)
    else:
        headers = pa.nulls(count, HEADER_TYPE)
    base = header.base_offset
    if header.flags & BatchFlags.COMPACTED:
        deltas = pa.Array.from_buffers(pa.int32(), count, [None, reader.take(4 * count)])
        offsets = pc.add(deltas.cast(pa.int64()), base)
    else:
        offsets = pa.array(range(base, base + count), pa.int64())
    if reader.at != body.size:
        raise CorruptBatch(f"batch body has {body.size - reader.at} bytes too many")
    return pa.RecordBatch.from_arrays([offsets, timestamps, key, value, headers], schema=SCHEMA)


class _BufferReader:
    """Cuts Arrow buffers off a body in order.

    Bounds are checked here, contents by Arrow's validation.
    """

    def __init__(self, body: pa.Buffer) -> None:
        self._body = body
        self.at = 0

    def take(self, size: int) -> pa.Buffer:
        start = self.at
        self.at = start + size + (-size % 8)
        if size < 0 or self.at > self._body.size:
            raise CorruptBatch("batch body ends inside a buffer")
        return self._body.slice(start, size)

    def _last_offset(self, offsets: pa.Buffer) -> int:
        return int.from_bytes(
            offsets.slice(offsets.size - 4, 4).to_pybytes(), "little", signed=True
        )

    def binary(self, kind: pa.DataType, count: int) -> pa.Array:
        validity = self.take((count + 7) // 8)
        offsets = self.take(4 * (count + 1))
        data = self.take(self._last_offset(offsets))
        return pa.Array.from_buffers(kind, count, [validity, offsets, data])

    def headers(self, count: int) -> pa.Array:
        lists = self.take(4 * (count + 1))
        total = self._last_offset(lists)
        name_offsets = self.take(4 * (total + 1))
        names = pa.Array.from_buffers(
            pa.string(), total, [None, name_offsets, self.take(self._last_offset(name_offsets))]
        )
        values = self.binary(pa.binary(), total)
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE.value_type))
        return pa.Array.from_buffers(HEADER_TYPE, count, [None, lists], children=[pairs])


def encode_arrow(
    timestamps_ms: pa.Array,
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None = None,
    *,
    codec: int = Codec.LZ4,
    producer: tuple[int, int, int] = (-1, -1, -1),
    schema_id: int = 0,
) -> bytes:
    """Encode Arrow columns of equal length: int64 milliseconds, binary or string keys and values.

    `producer` is (id, epoch, base sequence). Raises InvalidRecord and MessageTooLarge as
    `batch.encode`.
    """
    count = len(timestamps_ms)
    if count == 0 or len(keys) != count or len(values) != count:
        raise InvalidRecord("columns of a batch must have one equal, positive length")
    stamps = timestamps_ms.cast(pa.int64())
    parts: list[bytes] = []
    if stamps.null_count:
        raise InvalidRecord("every record needs a timestamp")
    _put(parts, _bytes_of(stamps, 1, 8 * stamps.offset, 8 * count))
    _put_binary(parts, keys.cast(pa.binary()))
    _put_binary(parts, values.cast(pa.binary()))
    flags = 0
    if headers is not None and headers.null_count < count:
        flags = int(BatchFlags.HEADERS)
        _put_headers(parts, headers)
    return seal(
        b"".join(parts),
        count,
        (_int_of(stamps[0]), _int_of(pc.max(stamps))),
        flags=flags,
        codec=codec,
        producer=producer,
        schema_id=schema_id,
    )


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
