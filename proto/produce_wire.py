"""ProduceRequest of proto/broker.proto without the copies of a protobuf runtime. Pure.

A protobuf runtime copies each batch twice when a message is built and once when it is parsed. Here
a message is joined once from the batches' own buffers, and parsed into views of the message. The
bytes are ordinary protobuf: any client may build them with its own runtime, fields in any order,
unknown fields included; tests hold both against each other.

    ProduceRequest = (tag 1, length, ProduceBatch)*
    ProduceBatch   = 1 correlation varint | 2 topic | 3 partition varint | 4 acks varint | 5 batch
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_VARINT_BYTES_MAX = 10
_UINT64 = (1 << 64) - 1
_TOPIC, _BATCH = 2, 5
_BATCHES_TAG = 1 << 3 | _BYTES
_TOPIC_TAG = _TOPIC << 3 | _BYTES
_BATCH_TAG = _BATCH << 3 | _BYTES


class ProduceItem(NamedTuple):
    """One batch on its way to a partition."""

    correlation: int
    topic: str
    partition: int
    acks: int
    batch: Buffer
    """In a parsed message: a view of the message."""


def encode_produce(items: Iterable[ProduceItem]) -> bytes:
    """The serialized ProduceRequest; every batch is copied once, into it."""
    parts: list[Buffer] = []
    for correlation, topic, partition, acks, batch in items:
        name = topic.encode()
        head = b"".join(
            (
                b"\x08",
                _varint(correlation),
                bytes((_TOPIC_TAG,)),
                _varint(len(name)),
                name,
                b"\x18",
                _varint(partition & _UINT64),
                b"\x20",
                _varint(acks & _UINT64),
                bytes((_BATCH_TAG,)),
                _varint(len(batch)),
            )
        )
        parts.append(bytes((_BATCHES_TAG,)) + _varint(len(head) + len(batch)) + head)
        parts.append(batch)
    return b"".join(parts)


def decode_produce(message: Buffer) -> list[ProduceItem]:
    """Parse a ProduceRequest; raises InvalidRequest when the bytes are not one."""
    view = memoryview(message)
    items: list[ProduceItem] = []
    at, end = 0, len(view)
    while at < end:
        key, at = _read_varint(view, at, end)
        if key == _BATCHES_TAG:
            size, at = _read_varint(view, at, end)
            if size > end - at:
                raise InvalidRequest("a batch of a ProduceRequest is longer than its message")
            items.append(_decode_item(view, at, at + size))
            at += size
        else:
            at = _skip(view, key, at, end)
    return items


def _decode_item(view: memoryview, at: int, end: int) -> ProduceItem:
    numbers = [0, 0, 0, 0, 0]
    topic = ""
    batch: Buffer = b""
    while at < end:
        key, at = _read_varint(view, at, end)
        field, kind = key >> 3, key & 7
        if kind == _VARINT and field in (1, 3, 4):
            numbers[field], at = _read_varint(view, at, end)
        elif key in (_TOPIC_TAG, _BATCH_TAG):
            size, at = _read_varint(view, at, end)
            if size > end - at:
                raise InvalidRequest(f"field {field} of a batch is longer than the batch")
            if key == _BATCH_TAG:
                batch = view[at : at + size]
            else:
                topic = _text(view[at : at + size])
            at += size
        else:
            at = _skip(view, key, at, end)
    return ProduceItem(numbers[1], topic, _int32(numbers[3]), _int32(numbers[4]), batch)


def _text(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("a topic name in a ProduceRequest is not UTF-8") from error


def _int32(number: int) -> int:
    """What a varint means in an int32 field: its low 32 bits, signed."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """(value, position behind it)."""
    if at < end:
        byte = view[at]
        if byte < 0x80:
            return byte, at + 1
    number = shift = 0
    for position in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = view[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _UINT64, position + 1
        shift += 7
    raise InvalidRequest("a ProduceRequest ends inside a number, or a number is too long")


def _skip(view: memoryview, key: int, at: int, end: int) -> int:
    """The position behind an unknown field."""
    kind = key & 7
    if key >> 3 == 0 or key > 0xFFFFFFFF:
        raise InvalidRequest("a ProduceRequest has a field without a valid number")
    if kind == _VARINT:
        at = _read_varint(view, at, end)[1]
    elif kind == _BYTES:
        size, at = _read_varint(view, at, end)
        at += size
    elif kind in (_FIXED64, _FIXED32):
        at += 8 if kind == _FIXED64 else 4
    else:
        raise InvalidRequest(f"a ProduceRequest has a field of wire type {kind}")
    if at > end:
        raise InvalidRequest("a field of a ProduceRequest is longer than its message")
    return at
