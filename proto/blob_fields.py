"""Large `bytes` fields put into and taken out of protobuf messages without copies. Pure.

A protobuf runtime copies every `bytes` field into its arena and out of it again, on both sides.
`split` takes the fields of one number out of a serialized message as spans and leaves the small
rest for the runtime; `blob_prefix` is what goes in front of such a field when a message is put
together. The bytes on the wire are ordinary protobuf. Every declared length is checked before it is
used.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.runtime.errors import InvalidRequest

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
FIELDS_MAX = 100_000
"""Fields of one message, unless its reader expects fewer."""


class Split(NamedTuple):
    """A message taken apart."""

    rest: bytes
    """The message without the wanted fields; for the protobuf runtime."""
    spans: list[tuple[int, int]]
    """(start, end) of each wanted field's content, in order."""


def tag(number: int) -> int:
    """The tag of a length-delimited field; numbers up to 15 only, so that it is one byte."""
    return number << 3 | _BYTES


def blob_prefix(wanted: int, size: int) -> bytes:
    """Tag and length of a field of `size` bytes."""
    out = bytearray((wanted,))
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def split(
    view: memoryview, start: int, end: int, wanted: int, *, fields_max: int = FIELDS_MAX
) -> Split:
    """Take the fields tagged `wanted` out of the message at `start`..`end`.

    Raises InvalidRequest when the bytes are not a protobuf message, or as soon as it turns out to
    have more than `fields_max` fields: a message of tiny fields takes a millisecond a thousand.
    """
    rest: list[memoryview] = []
    spans: list[tuple[int, int]] = []
    at = start
    while at < end:
        if len(spans) + len(rest) >= fields_max:
            raise InvalidRequest(f"the message has more than {fields_max} fields")
        found, after = _read_varint(view, at, end)
        kind = found & 7
        if kind == _BYTES:
            size, first = _read_varint(view, after, end)
            after = first + size
            if found == wanted and after <= end:
                spans.append((first, after))
                at = after
                continue
        elif kind == _VARINT:
            _, after = _read_varint(view, after, end)
        elif kind in (_FIXED64, _FIXED32):
            after += 8 if kind == _FIXED64 else 4
        else:
            raise InvalidRequest(f"not a protobuf message: wire type {kind}")
        if after > end:
            raise InvalidRequest("not a protobuf message: a field ends outside of it")
        rest.append(view[at:after])
        at = after
    return Split(b"".join(rest), spans)


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = view[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise InvalidRequest("not a protobuf message: a number does not end")
