"""The values users see: records read, where records went, and names of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]
NO_HEADERS: Headers = ()


SHOWN_BYTES = 200
"""A longer key or value is cut in the repr of a record, with its size."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read, and a text that is kept with it."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group, for those who commit in its name (transactions)."""

    group_id: str
    member_id: str
    epoch: int
    """0 while it is no member."""
    instance_id: str | None


class Record(NamedTuple):
    """One record as it was stored. A `value` of None is a tombstone; b"" is an empty value."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    def __repr__(self) -> str:
        key, value = _shown(self.key), _shown(self.value)
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"key={key}, value={value}, headers={self.headers!r}, "
            f"timestamp_ms={self.timestamp_ms})"
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it was read from."""
        return TopicPartition(self.topic, self.partition)


def _shown(data: bytes | None) -> str:
    if data is None or len(data) <= SHOWN_BYTES:
        return repr(data)
    return f"{data[:SHOWN_BYTES]!r}... ({len(data)} bytes)"


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is.

    A tuple of five: `topic, partition, offset, *_ = meta` takes the place alone. Two are equal when
    all five are, so the second send of a `dedup_id` is not equal to the first: it has the offset of
    that, and its own timestamp and `duplicate`. `offset` is -1 when it is not known: with acks=0,
    or when a lost reply was resolved by a later acknowledgement (I5).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Of the record that was sent, also where an earlier one is kept."""
    duplicate: bool = False
    """Of a record with a `dedup_id`: it was there already, at `offset`, and was not stored again.
    It may have been stored by an earlier attempt of the same send, whose answer was lost."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it went to."""
        return TopicPartition(self.topic, self.partition)


_new_record: Callable[[tuple[object, ...]], Record] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Record,
)


def make_records(
    where: TopicPartition,
    offsets: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers] | None,
    timestamps_ms: Sequence[int],
) -> list[Record]:
    """Records of equally long columns, built without a Python frame per record."""
    rows: Iterator[tuple[object, ...]] = zip(
        repeat(where.topic),
        repeat(where.partition),
        offsets,
        keys,
        values,
        repeat(NO_HEADERS) if headers is None else headers,
        timestamps_ms,
        strict=False,
    )
    return list(map(_new_record, rows))
