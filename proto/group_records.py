"""Records of `__consumer_offsets`: groups, members, targets, assignments and committed offsets.

Owns their types and their bytes (RB8, O1). A *slot* is one partition of one life of a topic. A key
is laid out by hand, because two keys are one key only when their bytes are equal (little-endian;
texts are UTF-8 behind a u16 of their length in bytes):

    u8 version | u8 kind | group | GROUP: nothing
                                 | MEMBER, TARGET, ASSIGNMENT: member id
                                 | OFFSET: topic id | topic | u32 partition

A value is a version byte and a message of group_records.proto; no value at all is a tombstone.
Versions are of this format, not of the software: UnsupportedVersion when one, or a kind, is not
known here; CorruptEntry when the bytes are not what they say.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from octavo.proto import group_records_pb2 as pb
from octavo.runtime.errors import CorruptEntry, InvalidRequest, UnsupportedVersion

VERSION = 1
TEXT_BYTES_MAX = 0xFFFF

_HINT_BYTES = 40
"""Of a record without its names."""
_HINT_BYTES_OF_A_SLOT = 40
"""The id of its topic, a number, an epoch."""

_HEAD = struct.Struct("<BB")
_LENGTH = struct.Struct("<H")
_PARTITION = struct.Struct("<I")


class Slot(NamedTuple):
    """A partition of one life of a topic."""

    topic_id: str
    partition: int


class Subscription(NamedTuple):
    """What a member declares; sent whole on join, on change and after an unknown outcome."""

    topics: frozenset[str] = frozenset()
    """Names."""
    pattern: str | None = None
    """A regular expression that whole names match, besides `topics`."""
    assignor: str | None = None
    """None leaves it to the others."""
    rack: str | None = None
    rebalance_timeout_s: float = 300.0
    client_id: str = ""
    host: str = ""

    def same_reading(self, other: Subscription) -> bool:
        """Whether both read the same topics by the same assignor (RB6)."""
        return self[:3] == other[:3]

    def same_target(self, other: Subscription) -> bool:
        """Whether nothing differs that an assignor looks at (RB1)."""
        return self[:4] == other[:4]


class GroupRecord(NamedTuple):
    """The group itself."""

    epoch: int
    target_epoch: int
    topics_hash: int = 0
    """Of the topics that `epoch` was raised for (RB1)."""
    empty_since_ms: int | None = None
    """Wall clock; None while it has members (O6)."""
    later: tuple[tuple[str, int], ...] = ()
    """Topics with partitions that came to be since it has members, by id, and the first of them
    (F6)."""


class MemberRecord(NamedTuple):
    """What a member declared."""

    instance_id: str | None
    subscription: Subscription


class TargetRecord(NamedTuple):
    """What a member shall own."""

    slots: tuple[Slot, ...]


class AssignmentRecord(NamedTuple):
    """What a member owns, and still has to give up."""

    epoch: int
    previous_epoch: int
    joined_epoch: int
    """Group epoch of its join: it takes no step toward an older target."""
    number: int
    sequence: int
    """Of the newest heartbeat that was carried out when this was written."""
    left: bool
    """A static member that said it will be back."""
    owned: tuple[tuple[Slot, int], ...]
    """With the epoch at which each was given."""
    pending: tuple[tuple[Slot, int], ...]


class OffsetKey(NamedTuple):
    """Whose offset (O1)."""

    topic_id: str
    topic: str
    partition: int

    @property
    def slot(self) -> Slot:
        """Without the name, which belongs to the topic's id."""
        return Slot(self.topic_id, self.partition)


class OffsetRecord(NamedTuple):
    """A committed offset: the next to read (O2)."""

    offset: int
    owner_epoch: int | None
    """Of the partition's owner that the consumer had read from."""
    metadata: str
    committed_ms: int


class Kind(enum.IntEnum):
    """What a record is about; part of its key."""

    GROUP = 1
    MEMBER = 2
    TARGET = 3
    ASSIGNMENT = 4
    OFFSET = 5


Value = GroupRecord | MemberRecord | TargetRecord | AssignmentRecord | OffsetRecord


class Record(NamedTuple):
    """One record of a group."""

    kind: Kind
    subject: str | OffsetKey
    """"" for the group itself, a member id, or whose offset."""
    value: Value | None
    """None is a tombstone."""


class StoredRecord(NamedTuple):
    """A record as its bytes."""

    key: bytes
    value: bytes | None


def encode(group_id: str, record: Record) -> StoredRecord:
    """Bytes of a record. InvalidRequest when a name is longer than a key can say."""
    head = _HEAD.pack(VERSION, record.kind) + _text(group_id)
    match record.subject:
        case OffsetKey(topic_id, topic, partition):
            head += _text(topic_id) + _text(topic) + _PARTITION.pack(partition)
        case str(member_id):
            head += b"" if record.kind is Kind.GROUP else _text(member_id)
    if record.value is None:
        return StoredRecord(head, None)
    return StoredRecord(head, bytes((VERSION,)) + _message(record.value).SerializeToString())


def size_hint_bytes(group_id: str, record: Record) -> int:
    """About as many bytes as `encode` makes, without making them; never less by half."""
    size = _HINT_BYTES + 3 * len(group_id)
    match record.subject:
        case OffsetKey(topic_id, topic, _):
            size += len(topic_id) + len(topic)
        case str(member_id):
            size += 3 * len(member_id)
    match record.value:
        case TargetRecord(slots):
            size += _HINT_BYTES_OF_A_SLOT * len(slots)
        case AssignmentRecord():
            slots_of = len(record.value.owned) + len(record.value.pending)
            size += _HINT_BYTES_OF_A_SLOT * slots_of
        case MemberRecord(instance_id, subscription):
            texts = [*subscription.topics, *(str(one) for one in subscription[1:4])]
            size += 3 * sum(map(len, [instance_id or "", *texts]))
            size += 3 * (len(subscription.client_id) + len(subscription.host))
        case OffsetRecord():
            size += 3 * len(record.value.metadata)
        case GroupRecord():
            size += _HINT_BYTES_OF_A_SLOT * len(record.value.later)
        case _:
            pass
    return size


def decode(stored: StoredRecord) -> tuple[str, Record]:
    """Group and record of the bytes. Raises UnsupportedVersion, CorruptEntry."""
    key = _Reader(stored.key)
    version, number = key.unpack(_HEAD)
    _known("key", version)
    try:
        kind = Kind(number)
    except ValueError as error:
        raise _unsupported(f"a group record is of kind {number}") from error
    group_id = key.text()
    subject: str | OffsetKey = ""
    if kind is Kind.OFFSET:
        subject = OffsetKey(key.text(), key.text(), key.unpack(_PARTITION)[0])
    elif kind is not Kind.GROUP:
        subject = key.text()
    key.end()
    if stored.value is None:
        return group_id, Record(kind, subject, None)
    if not stored.value:
        raise CorruptEntry("the value of a group record has no version")
    _known("value", stored.value[0])
    try:
        value = _PARSERS[kind](stored.value[1:])
    except (DecodeError, ValueError) as error:
        raise CorruptEntry(f"the value of a {kind.name} record cannot be read: {error}") from error
    return group_id, Record(kind, subject, value)


def _known(part: str, version: int) -> None:
    if version != VERSION:
        raise _unsupported(f"the {part} of a group record has version {version}")


def _unsupported(cause: str) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{cause}, which this build does not know",
        hint="a newer broker wrote it: run this broker with that version",
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"a name of {len(encoded)} bytes; at most {TEXT_BYTES_MAX}")
    return _LENGTH.pack(len(encoded)) + encoded


class _Reader:
    """A key from its first to its last byte."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise CorruptEntry("the key of a group record ends too early")
        piece, self._at = self._data[self._at : end], end
        return piece

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        numbers: tuple[int, ...] = layout.unpack(self.take(layout.size))
        return numbers

    def text(self) -> str:
        piece = self.take(self.unpack(_LENGTH)[0])
        try:
            return piece.decode()
        except UnicodeDecodeError as error:
            raise CorruptEntry(f"a name in the key of a group record: {error}") from error

    def end(self) -> None:
        if self._at != len(self._data):
            raise CorruptEntry("the key of a group record does not end")


# --- values ------------------------------------------------------------------------------------


def _message(value: Value) -> Message:
    match value:
        case GroupRecord():
            fields = value._asdict()
            fields["later"] = [
                pb.LaterPartitions(topic_id=topic_id, first=first)
                for topic_id, first in value.later
            ]
            return pb.GroupValue(**fields)
        case MemberRecord(instance_id, subscription):
            return pb.MemberValue(
                instance_id=instance_id,
                topics=sorted(subscription.topics),
                pattern=subscription.pattern,
                assignor=subscription.assignor,
                rack=subscription.rack,
                rebalance_timeout_s=subscription.rebalance_timeout_s,
                client_id=subscription.client_id,
                host=subscription.host,
            )
        case TargetRecord(slots):
            return pb.TargetValue(slots=_packed((slot, 0) for slot in slots))
        case AssignmentRecord():
            fields = value._asdict()
            fields |= {"owned": _packed(value.owned), "pending": _packed(value.pending)}
            return pb.AssignmentValue(**fields)
        case OffsetRecord():
            return pb.OffsetValue(**value._asdict())


def _packed(slots: Iterable[tuple[Slot, int]]) -> list[pb.Slots]:
    packed: list[pb.Slots] = []
    for topic_id, given in groupby(slots, key=lambda one: one[0].topic_id):
        pairs = list(given)
        epochs = [epoch for _, epoch in pairs]
        packed.append(
            pb.Slots(
                topic_id=topic_id,
                partitions=[slot.partition for slot, _ in pairs],
                epochs=epochs if any(epochs) else (),
            )
        )
    return packed


def _slots(packed: Iterable[pb.Slots]) -> tuple[tuple[Slot, int], ...]:
    return tuple(
        (Slot(part.topic_id, partition), epoch)
        for part in packed
        for partition, epoch in zip(
            part.partitions, part.epochs or [0] * len(part.partitions), strict=True
        )
    )


def _group(data: bytes) -> GroupRecord:
    found = pb.GroupValue.FromString(data)
    empty_since_ms = found.empty_since_ms if found.HasField("empty_since_ms") else None
    later = tuple((one.topic_id, one.first) for one in found.later)
    return GroupRecord(found.epoch, found.target_epoch, found.topics_hash, empty_since_ms, later)


def _member(data: bytes) -> MemberRecord:
    found = pb.MemberValue.FromString(data)
    subscription = Subscription(
        topics=frozenset(found.topics),
        pattern=found.pattern if found.HasField("pattern") else None,
        assignor=found.assignor if found.HasField("assignor") else None,
        rack=found.rack if found.HasField("rack") else None,
        rebalance_timeout_s=found.rebalance_timeout_s,
        client_id=found.client_id,
        host=found.host,
    )
    return MemberRecord(found.instance_id if found.HasField("instance_id") else None, subscription)


def _target(data: bytes) -> TargetRecord:
    return TargetRecord(tuple(slot for slot, _ in _slots(pb.TargetValue.FromString(data).slots)))


def _assignment(data: bytes) -> AssignmentRecord:
    found = pb.AssignmentValue.FromString(data)
    return AssignmentRecord(
        epoch=found.epoch,
        previous_epoch=found.previous_epoch,
        joined_epoch=found.joined_epoch,
        number=found.number,
        sequence=found.sequence,
        left=found.left,
        owned=_slots(found.owned),
        pending=_slots(found.pending),
    )


def _offset(data: bytes) -> OffsetRecord:
    found = pb.OffsetValue.FromString(data)
    owner_epoch = found.owner_epoch if found.HasField("owner_epoch") else None
    return OffsetRecord(found.offset, owner_epoch, found.metadata, found.committed_ms)


_PARSERS: dict[Kind, Callable[[bytes], Value]] = {
    Kind.GROUP: _group,
    Kind.MEMBER: _member,
    Kind.TARGET: _target,
    Kind.ASSIGNMENT: _assignment,
    Kind.OFFSET: _offset,
}
