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
from octavo.proto.blob_fields import blob_prefix, split, tag
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest

_BATCH = tag(pb.FetchedPartition.BATCHES_FIELD_NUMBER)
_PARTITION = tag(pb.FetchReply.PARTITIONS_FIELD_NUMBER)
VIEW_SHARE = 16
"""A view keeps its whole message alive: a batch that is a smaller part of it is copied."""


class PartitionReply(NamedTuple):
    """One partition of a reply: its small fields, and its batches beside them."""

    fields: pb.FetchedPartition
    """Without batches."""
    batches: Sequence[Buffer]


class FetchedReply(NamedTuple):
    """A reply taken apart."""

    correlation: int
    partitions: list[PartitionReply]
    throttle_ms: int
    """The client should ask for nothing more for so long; 0: it may."""


def encode_reply(
    correlation: int, partitions: Sequence[PartitionReply], *, throttle_ms: int = 0
) -> bytes:
    """The bytes of a FetchReply; each batch is copied once."""
    head_fields = pb.FetchReply(correlation=correlation, throttle_ms=throttle_ms)
    out: list[Buffer] = [head_fields.SerializeToString()]
    for fields, batches in partitions:
        head = fields.SerializeToString()
        prefixes = [blob_prefix(_BATCH, len(batch)) for batch in batches]
        size = len(head) + sum(map(len, prefixes)) + sum(map(len, batches))
        out.append(blob_prefix(_PARTITION, size) + head)
        for prefix, batch in zip(prefixes, batches, strict=True):
            out.append(prefix)
            out.append(batch)
    return b"".join(out)


def decode_reply(message: bytes) -> FetchedReply:
    """A FetchReply; raises InvalidRequest."""
    view = memoryview(message)
    rest, found = split(view, 0, len(view), _PARTITION)
    partitions: list[PartitionReply] = []
    try:
        head = pb.FetchReply.FromString(rest)
        for start, end in found:
            small, spans = split(view, start, end, _BATCH)
            fields = pb.FetchedPartition.FromString(small)
            partitions.append(PartitionReply(fields, [_batch(view, *span) for span in spans]))
    except DecodeError as error:
        raise InvalidRequest(f"not a FetchReply: {error}") from error
    return FetchedReply(head.correlation, partitions, head.throttle_ms)


def _batch(message: memoryview, start: int, end: int) -> Buffer:
    batch = message[start:end]
    return batch if len(batch) * VIEW_SHARE >= len(message) else bytes(batch)
