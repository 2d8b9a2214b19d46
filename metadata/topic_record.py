"""A topic as it is stored, and which names topics may have (F015, F016). Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.proto import records_pb2
from octavo.runtime.errors import InvalidTopic, MetadataCorrupt, UnsupportedVersion

FORMAT_VERSION = 2
"""Of records with decommissioned partitions, which builds before them would write to."""
PLAIN_FORMAT_VERSION = 1
"""Of all others."""
PARTITIONS_MAX = 10_000
"""F016; also keeps a topic's directory within L-1."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic_name(name: str, *, internal: bool = False) -> str:
    """Return `name` if a topic may have it, else raise InvalidTopic.

    `internal` allows a leading "__" (F015).
    """
    if not _NAME.fullmatch(name) or name in (".", "..") or (is_internal(name) and not internal):
        raise InvalidTopic(f"{name[:260]!r} is not a topic name")
    return name


def is_internal(name: str) -> bool:
    """Whether a topic of this name is the cluster's own, which users read at most (F015)."""
    return name.startswith("__")


def check_for_users(name: str) -> None:
    """Raise InvalidTopic for a topic that only the cluster itself may change (F015)."""
    if is_internal(name):
        raise InvalidTopic(f"topic {name!r} is the cluster's own: users may only read it")


class Decommissioned(NamedTuple):
    """A partition that takes no new records (F027)."""

    partition: int
    since_ms: int
    removed: bool = False
    """Nothing is in it any more, and nobody is assigned to it."""


@dataclass(frozen=True)
class Topic:
    """A topic's record."""

    name: str
    topic_id: uuid.UUID
    """Fresh for every creation: a topic deleted and created again is another topic."""
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    created_ms: int = 0
    deleting: bool = False
    """Set before its partitions are removed; such a topic is unknown to clients."""
    creation_token: bytes = b""
    """Of the request that made it: recognises a repetition whose first reply was lost."""
    decommissioned: tuple[Decommissioned, ...] = ()
    """In order of their numbers."""

    @property
    def writable(self) -> int:
        """How many partitions take records."""
        return self.partitions - len(self.decommissioned)

    @property
    def removed(self) -> frozenset[int]:
        """Partitions that nobody is assigned to."""
        return frozenset(one.partition for one in self.decommissioned if one.removed)

    def to_bytes(self) -> bytes:
        """The record as stored."""
        return records_pb2.TopicRecord(
            format_version=FORMAT_VERSION if self.decommissioned else PLAIN_FORMAT_VERSION,
            name=self.name,
            topic_id=self.topic_id.bytes,
            partitions=self.partitions,
            config=dict(self.config),
            created_ms=self.created_ms,
            deleting=self.deleting,
            creation_token=self.creation_token,
            decommissioned=[
                records_pb2.DecommissionedPartition(**one._asdict()) for one in self.decommissioned
            ],
        ).SerializeToString(deterministic=True)

    def is_life(self, stored: bytes) -> bool:
        """Whether `stored` is a record of this life of the name, changed or not."""
        return Topic.from_bytes(stored).topic_id == self.topic_id

    @classmethod
    def from_bytes(cls, data: bytes) -> Topic:
        """Parse; raises MetadataCorrupt or UnsupportedVersion."""
        record = records_pb2.TopicRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"topic record: {error}") from error
        if record.format_version > FORMAT_VERSION:
            raise UnsupportedVersion(f"topic record has format {record.format_version}")
        if (
            record.format_version < 1
            or len(record.topic_id) != 16
            or not _NAME.fullmatch(record.name)
            or not 1 <= record.partitions <= PARTITIONS_MAX
            or (record.decommissioned and not _is_possible(record))
        ):
            raise MetadataCorrupt("topic record breaks its rules")
        return cls(
            name=record.name,
            topic_id=uuid.UUID(bytes=record.topic_id),
            partitions=record.partitions,
            config=dict(record.config),
            created_ms=record.created_ms,
            deleting=record.deleting,
            creation_token=record.creation_token,
            decommissioned=_decommissioned(record) if record.decommissioned else (),
        )


def _decommissioned(record: records_pb2.TopicRecord) -> tuple[Decommissioned, ...]:
    return tuple(
        Decommissioned(one.partition, one.since_ms, one.removed) for one in record.decommissioned
    )


def _is_possible(record: records_pb2.TopicRecord) -> bool:
    """Decommissioned partitions exist, are named once and in order, and are not all there are."""
    numbers = [one.partition for one in record.decommissioned]
    in_order = sorted(set(numbers)) == numbers
    return (
        in_order
        and len(numbers) < record.partitions
        and all(0 <= number < record.partitions for number in numbers)
    )
