"""Entries of a topic's ledger that are no batches: snapshot 0xB8, footer 0xB9, mark 0xBA.

None takes an offset (spec groups I8). A *snapshot* holds what a new owner needs to go on: end
offset, producer windows, open transactions, aborted transactions and running figures of the
segment. A *footer* is the last entry of a ledger that was closed in good order: the sparse offset
and time index, and where the newest snapshot lies. A *mark* is empty: that it was acknowledged
proves that nobody had taken the ledger over. Little-endian; the last four bytes are a crc32c over
everything before them.

    u8 magic | u8 version | u16 zero | u32 body bytes | body | u32 crc32c

Readers skip entries whose first byte is not the batch magic.
"""

from __future__ import annotations

import struct
import sys
import uuid
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from octavo.proto.batch import BROKER_AT, HEADER_BYTES, BatchFlags, BatchHeader
from octavo.proto.batch import MAGIC as BATCH_MAGIC
from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.errors import CorruptBatch, CorruptEntry, UnsupportedVersion
from octavo.runtime.invariant import invariant

SNAPSHOT_MAGIC = 0xB8
FOOTER_MAGIC = 0xB9
MARK_MAGIC = 0xBA
VERSION = 1
DEDUP_VERSION = 2
"""Of snapshots that hold ids of records (X14), which builds before them pass over."""
DEDUP_ITEM_BYTES = 32
"""An id in a snapshot: digest, offset and append time (`serving/partition/dedup.py`)."""
_BATCH, _SNAPSHOT_FIRST, _FOOTER_FIRST = (
    bytes((magic,)) for magic in (BATCH_MAGIC, SNAPSHOT_MAGIC, FOOTER_MAGIC)
)

_NOT_FOR_ALL = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL | BatchFlags.COMPACTED
_PREFIX = struct.Struct("<BBHI")
_CRC = struct.Struct("<I")
_TOPIC_ID_BYTES = 16
_SNAPSHOT = struct.Struct("<iqiqqqqqIII")
_PRODUCER = struct.Struct("<qhHiq")
_WINDOW = struct.Struct("<iiqq")
_TXN = struct.Struct("<qq")
_ABORTED = struct.Struct("<qqq")
_FOOTER = struct.Struct("<qqqqqqqI")
_OFFSETS = struct.Struct("<qi")

invariant(sys.byteorder == "little", "index arrays are stored in little-endian order")


class WindowItem(NamedTuple):
    """One remembered batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


class ProducerSnapshot(NamedTuple):
    """One producer's durable state with its whole window (I7)."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_used_ms: int
    window: tuple[WindowItem, ...]


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    producer_id: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction whose data may still be stored."""

    producer_id: int
    first_offset: int
    last_offset: int


class SegmentFigures(NamedTuple):
    """Running figures of the segment up to an entry; times are -1 while it has no batch."""

    payload_bytes: int = 0
    first_append_ms: int = -1
    last_append_ms: int = -1
    max_timestamp_ms: int = -1


def known_time(figure_ms: int) -> int | None:
    """A time of SegmentFigures as segments have it: None while there is none."""
    return figure_ms if figure_ms >= 0 else None


class Snapshot(NamedTuple):
    """State of a partition as of the entries before this one."""

    topic_id: uuid.UUID
    partition: int
    end_offset: int
    owner_epoch: int
    written_ms: int
    figures: SegmentFigures
    producers: tuple[ProducerSnapshot, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    dedup_ids: bytes = b""
    """DEDUP_ITEM_BYTES each, oldest first."""


class Footer(NamedTuple):
    """Sparse index of a closed ledger: parallel columns, one element for each point."""

    base_offset: int
    end_offset: int
    snapshot_entry: int
    figures: SegmentFigures
    offsets: Sequence[int]
    entries: Sequence[int]
    max_timestamps_before: Sequence[int]


def is_batch(payload: Buffer) -> bool:
    """Whether an entry's payload is a batch (0xB7)."""
    return payload[:1] == _BATCH


def holds_each_offset(header: BatchHeader) -> bool:
    """Whether each offset of a batch is a record that every reader gets."""
    return not header.flags & _NOT_FOR_ALL and header.record_count == header.last_offset_delta + 1


def peek_offsets(begins: Buffer) -> tuple[int, int]:
    """Base and next offset of a batch, by no more of it than its header.

    For whoever keeps only the beginnings of entries that were verified. Raises CorruptBatch.
    """
    if len(begins) < HEADER_BYTES:
        raise CorruptBatch(f"batch of {len(begins)} bytes is shorter than its header")
    base_offset, last_delta = _OFFSETS.unpack_from(begins, BROKER_AT)
    return base_offset, base_offset + last_delta + 1


def is_snapshot(payload: Buffer) -> bool:
    """Whether an entry's payload is a snapshot."""
    return payload[:1] == _SNAPSHOT_FIRST


def is_footer(payload: Buffer) -> bool:
    """Whether an entry's payload is a footer."""
    return payload[:1] == _FOOTER_FIRST


def encode_mark() -> bytes:
    """The payload of a mark entry."""
    return _seal(MARK_MAGIC, b"")


def pack_producer(producer: ProducerSnapshot) -> bytes:
    """One producer as it lies in a snapshot's body: 24 bytes and 24 for each window item."""
    head = _PRODUCER.pack(
        producer.producer_id,
        producer.epoch,
        len(producer.window),
        producer.last_sequence,
        producer.last_used_ms,
    )
    return head + b"".join([_WINDOW.pack(*item) for item in producer.window])


def encode_snapshot(snapshot: Snapshot, packed: Sequence[bytes] | None = None) -> bytes:
    """The payload of a snapshot entry.

    Args:
        snapshot: the state.
        packed: its producers as `pack_producer` gave them, instead of `snapshot.producers`; then
            tens of thousands are joined in a few milliseconds.
    """
    producers = [pack_producer(item) for item in snapshot.producers] if packed is None else packed
    parts = [
        snapshot.topic_id.bytes,
        _SNAPSHOT.pack(
            snapshot.partition,
            snapshot.end_offset,
            snapshot.owner_epoch,
            snapshot.written_ms,
            *snapshot.figures,
            len(producers),
            len(snapshot.open_transactions),
            len(snapshot.aborted),
        ),
    ]
    parts.extend(producers)
    parts.extend(_TXN.pack(*item) for item in snapshot.open_transactions)
    parts.extend(_ABORTED.pack(*item) for item in snapshot.aborted)
    if not snapshot.dedup_ids:
        return _seal(SNAPSHOT_MAGIC, b"".join(parts))
    parts += (_CRC.pack(len(snapshot.dedup_ids) // DEDUP_ITEM_BYTES), snapshot.dedup_ids)
    return _seal(SNAPSHOT_MAGIC, b"".join(parts), DEDUP_VERSION)


def decode_snapshot(payload: bytes) -> Snapshot:
    """Read a snapshot; raises CorruptEntry (also bad crc, I9) or UnsupportedVersion."""
    body = _Body(_open(SNAPSHOT_MAGIC, payload, DEDUP_VERSION))
    topic_id = uuid.UUID(bytes=body.take_bytes(_TOPIC_ID_BYTES))
    head = body.take(_SNAPSHOT)
    producer_count, open_count, aborted_count = head[8:]
    producers: list[ProducerSnapshot] = []
    body.expect(producer_count, _PRODUCER.size)
    for _ in range(producer_count):
        producer_id, epoch, items, last_sequence, last_used_ms = body.take(_PRODUCER)
        window = tuple(WindowItem._make(body.take(_WINDOW)) for _ in range(items))
        producers.append(ProducerSnapshot(producer_id, epoch, last_sequence, last_used_ms, window))
    body.expect(open_count, _TXN.size)
    opened = tuple(OpenTransaction._make(body.take(_TXN)) for _ in range(open_count))
    body.expect(aborted_count, _ABORTED.size)
    aborted = tuple(AbortedTransaction._make(body.take(_ABORTED)) for _ in range(aborted_count))
    dedup_ids = b""
    if payload[1] == DEDUP_VERSION:
        (id_count,) = body.take(_CRC)
        dedup_ids = body.take_bytes(id_count * DEDUP_ITEM_BYTES)
    body.expect_end()
    return Snapshot(
        topic_id=topic_id,
        partition=head[0],
        end_offset=head[1],
        owner_epoch=head[2],
        written_ms=head[3],
        figures=SegmentFigures._make(head[4:8]),
        producers=tuple(producers),
        open_transactions=opened,
        aborted=aborted,
        dedup_ids=dedup_ids,
    )


def encode_footer(footer: Footer) -> bytes:
    """The payload of a footer entry."""
    count = len(footer.offsets)
    invariant(
        len(footer.entries) == count and len(footer.max_timestamps_before) == count,
        "the columns of a footer have equal lengths",
    )
    head = _FOOTER.pack(
        footer.base_offset, footer.end_offset, footer.snapshot_entry, *footer.figures, count
    )
    columns = (footer.offsets, footer.entries, footer.max_timestamps_before)
    return _seal(FOOTER_MAGIC, head + b"".join(array("q", column).tobytes() for column in columns))


def decode_footer(payload: bytes) -> Footer:
    """Read a footer; raises CorruptEntry or UnsupportedVersion."""
    body = _Body(_open(FOOTER_MAGIC, payload))
    head = body.take(_FOOTER)
    count = head[7]
    body.expect(count, 24)
    columns = [body.int64s(count) for _ in range(3)]
    body.expect_end()
    footer = Footer(head[0], head[1], head[2], SegmentFigures._make(head[3:7]), *columns)
    for column in (footer.offsets, footer.entries):
        if any(a >= b for a, b in pairwise(column)):
            raise CorruptEntry("footer index does not ascend")
    return footer


def _seal(magic: int, body: bytes, version: int = VERSION) -> bytes:
    payload = _PREFIX.pack(magic, version, 0, len(body)) + body
    return payload + _CRC.pack(crc32c(payload))


def _open(magic: int, payload: bytes, version_max: int = VERSION) -> bytes:
    if len(payload) < _PREFIX.size + _CRC.size:
        raise CorruptEntry(f"control entry of {len(payload)} bytes is too short")
    found, version, _, body_bytes = _PREFIX.unpack_from(payload)
    if found != magic:
        raise CorruptEntry(f"control entry starts with {found:#x}, expected {magic:#x}")
    if not VERSION <= version <= version_max:
        raise UnsupportedVersion(f"control entry version {version}, this build knows {version_max}")
    if body_bytes != len(payload) - _PREFIX.size - _CRC.size:
        raise CorruptEntry("control entry declares another length than it has")
    if crc32c(payload[: -_CRC.size]) != _CRC.unpack_from(payload, len(payload) - _CRC.size)[0]:
        raise CorruptEntry("control entry fails its crc32c")
    return payload[_PREFIX.size : -_CRC.size]


class _Body:
    """Cuts fixed structures off a body; every overrun is CorruptEntry."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def expect(self, count: int, size: int) -> None:
        """Check that `count` items of `size` can follow, before anything is allocated."""
        if count * size > len(self._body) - self._at:
            raise CorruptEntry(f"control entry declares {count} items it does not hold")

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        self.expect(1, layout.size)
        values = layout.unpack_from(self._body, self._at)
        self._at += layout.size
        return values

    def take_bytes(self, count: int) -> bytes:
        self.expect(count, 1)
        self._at += count
        return self._body[self._at - count : self._at]

    def int64s(self, count: int) -> array[int]:
        out = array("q")
        out.frombytes(self._body[self._at : self._at + 8 * count])
        self._at += 8 * count
        return out

    def expect_end(self) -> None:
        if self._at != len(self._body):
            raise CorruptEntry("control entry has bytes too many")
