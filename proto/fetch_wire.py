"""FetchReply on the wire without protobuf's copies of the batches (design.md §10).

The bytes are those of the message in `proto/broker.proto`; only the way there differs. Protobuf
copies each batch into its arena and out of it again, on both sides: a fifth of the CPU of a read.
Here the small fields go through protobuf, the batches are put between them as they are, and
received batches are views of the message. Declared lengths are checked before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.proto import broker_pb2 as pb
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest

_BATCH = b"\x1a"
"""Tag of FetchedPartition.batches: field 3, length-delimited."""
_PARTITION = b"\x12"
"""Tag of FetchReply.partitions: field 2, length-delimited."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
VIEW_SHARE = 16
"""A view keeps its whole message alive: a batch that is a smaller part of it is copied."""


class PartitionReply(NamedTuple):
    """One partition of a reply: its small fields, and its batches beside them."""

    fields: pb.FetchedPartition
    """Without batches."""
    batches: Sequence[Buffer]


def encode_reply(correlation: int, partitions: Sequence[PartitionReply]) -> bytes:
    """The bytes of a FetchReply; each batch is copied once."""
    out: list[Buffer] = [pb.FetchReply(correlation=correlation).SerializeToString()]
    for fields, batches in partitions:
        head = fields.SerializeToString()
        prefixes = [_BATCH + _varint(len(batch)) for batch in batches]
        size = len(head) + sum(map(len, prefixes)) + sum(map(len, batches))
        out.append(_PARTITION + _varint(size) + head)
        for prefix, batch in zip(prefixes, batches, strict=True):
            out.append(prefix)
            out.append(batch)
    return b"".join(out)


def decode_reply(message: bytes) -> tuple[int, list[PartitionReply]]:
    """Correlation and partitions of a FetchReply; raises InvalidRequest."""
    view = memoryview(message)
    rest, found = _split(view, 0, len(view), _PARTITION[0])
    partitions: list[PartitionReply] = []
    try:
        head = pb.FetchReply.FromString(rest)
        for start, end in found:
            small, spans = _split(view, start, end, _BATCH[0])
            fields = pb.FetchedPartition.FromString(small)
            partitions.append(PartitionReply(fields, [_batch(view, *span) for span in spans]))
    except DecodeError as error:
        raise InvalidRequest(f"not a FetchReply: {error}") from error
    return head.correlation, partitions


def _batch(message: memoryview, start: int, end: int) -> Buffer:
    batch = message[start:end]
    return batch if len(batch) * VIEW_SHARE >= len(message) else bytes(batch)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _split(
    view: memoryview, start: int, end: int, wanted: int
) -> tuple[bytes, list[tuple[int, int]]]:
    """The fields between `start` and `end` without those tagged `wanted`, and where those lie."""
    rest: list[memoryview] = []
    found: list[tuple[int, int]] = []
    at = start
    while at < end:
        tag, after = _read_varint(view, at, end)
        kind = tag & 7
        if kind == _BYTES:
            size, first = _read_varint(view, after, end)
            after = first + size
            if tag == wanted and after <= end:
                found.append((first, after))
                at = after
                continue
        elif kind == _VARINT:
            _, after = _read_varint(view, after, end)
        elif kind in (_FIXED64, _FIXED32):
            after += 8 if kind == _FIXED64 else 4
        else:
            raise InvalidRequest(f"not a FetchReply: wire type {kind}")
        if after > end:
            raise InvalidRequest("not a FetchReply: a field ends outside its message")
        rest.append(view[at:after])
        at = after
    return b"".join(rest), found


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = view[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise InvalidRequest("not a FetchReply: a number does not end")
