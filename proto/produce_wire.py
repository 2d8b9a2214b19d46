"""ProduceRequest on the wire without protobuf's copies of the batches (design.md §10).

A message is joined once from the batches' own buffers, and parsed into views of the message; the
small fields go through protobuf. The bytes are those of the message in `proto/broker.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.proto import broker_pb2 as pb
from octavo.proto.blob_fields import blob_prefix, split, tag
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRequest

_BATCHES = tag(pb.ProduceRequest.BATCHES_FIELD_NUMBER)
_BATCH = tag(pb.ProduceBatch.BATCH_FIELD_NUMBER)
MESSAGE_BATCHES_MAX = 1_000
"""Batches of one message; the SDK sends 16 at most. What one message asks for holds a loop for some
ten milliseconds at most.
"""
BATCH_FIELDS_MAX = 64
"""Fields of one batch, of which there are nine kinds at most."""


class ProduceItem(NamedTuple):
    """One batch on its way to a partition."""

    correlation: int
    topic: str
    partition: int
    acks: int
    batch: Buffer
    """In a parsed message: a view of the message."""
    topic_id: bytes = b""
    """Which life of the topic's name is meant; empty: whichever has it now."""
    min_insync_replicas: int = 0
    """What the topic must ask for at least; 0: it may ask for what it likes (F032)."""
    writer_epoch: int = 0
    """Under which the producer claimed the partition; 0: it did not (X32)."""
    traceparent: str = ""
    """Of the span that sent its first record; empty: there is none (F171)."""


def encode_produce(items: Iterable[ProduceItem]) -> bytes:
    """The bytes of a ProduceRequest; every batch is copied once, into it."""
    parts: list[Buffer] = []
    for one in items:
        batch = one.batch
        fields = pb.ProduceBatch(
            correlation=one.correlation,
            topic=one.topic,
            partition=one.partition,
            acks=one.acks,
            topic_id=one.topic_id,
            min_insync_replicas=one.min_insync_replicas,
            writer_epoch=one.writer_epoch,
            traceparent=one.traceparent,
        )
        head = fields.SerializeToString() + blob_prefix(_BATCH, len(batch))
        parts.append(blob_prefix(_BATCHES, len(head) + len(batch)) + head)
        parts.append(batch)
    return b"".join(parts)


def decode_produce(message: Buffer) -> list[ProduceItem]:
    """Parse a ProduceRequest.

    Raises InvalidRequest when the bytes are not one, or before any work when it holds more than
    MESSAGE_BATCHES_MAX batches.
    """
    view = memoryview(message)
    items: list[ProduceItem] = []
    for start, end in split(view, 0, len(view), _BATCHES, fields_max=MESSAGE_BATCHES_MAX).spans:
        small, spans = split(view, start, end, _BATCH, fields_max=BATCH_FIELDS_MAX)
        try:
            fields = pb.ProduceBatch.FromString(small)
        except DecodeError as error:
            raise InvalidRequest(f"not a ProduceRequest: {error}") from error
        batch: Buffer = b""
        for first, last in spans:  # of a field that comes twice, the last one counts
            batch = view[first:last]
        items.append(
            ProduceItem(
                fields.correlation,
                fields.topic,
                fields.partition,
                fields.acks,
                batch,
                fields.topic_id,
                fields.min_insync_replicas,
                fields.writer_epoch,
                fields.traceparent,
            )
        )
    return items
