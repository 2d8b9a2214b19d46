"""Where a group is to go on: what was asked for, and the offset that comes of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from octavo.client.messaging.group_admin.values import OffsetChange
from octavo.client.messaging.reading.limits import (
    INT64_MAX,
    check_offset,
    check_whole,
    epoch_ms,
    partitions_of,
)
from octavo.client.messaging.reading.limits import check_topic as _check_topic
from octavo.client.messaging.records import TopicPartition
from octavo.proto.edges import EDGE_WORDS, Edge
from octavo.runtime.errors import ConfigError


class ShiftBy(NamedTuple):
    """From where the group is, so many records on; negative: back."""

    records: int


class LastRecords(NamedTuple):
    """So many records before the end of each partition."""

    records: int


class AtTime(NamedTuple):
    """The first record at or after a moment; the end where none is that late."""

    ms: int


Target = Edge | int | ShiftBy | LastRecords | AtTime
"""Where to go: an end of the log, an offset, or one of the above."""

ResetTo = Literal["earliest", "latest"] | Target | datetime | timedelta
"""The same as a caller says it: a timedelta is how long ago."""

Named = str | TopicPartition | tuple[str, int]
"""A whole topic by name, or one partition."""


def target_of(to: object, now_ms: int) -> Target:
    """What a caller means; raises ConfigError."""
    match to:
        case Edge():
            return to
        case str() if to in EDGE_WORDS:
            return Edge(to)
        case ShiftBy(records):
            return ShiftBy(check_whole("shift", records, INT64_MAX, -INT64_MAX))
        case LastRecords(records):
            return LastRecords(check_whole("last", records, INT64_MAX))
        case AtTime(ms):
            return AtTime(epoch_ms(ms))
        case datetime():
            return AtTime(epoch_ms(to))
        case timedelta():
            if to < timedelta(0):
                raise ConfigError(f"{to} is not how long ago something was")
            return AtTime(max(now_ms - to // timedelta(milliseconds=1), 0))
        case int() if not isinstance(to, bool):
            return check_offset(to)
        case _:
            raise ConfigError(
                f"a group cannot go to {to!r}",
                hint="earliest, latest, an offset, an aware datetime, a timedelta, ShiftBy or "
                "LastRecords",
            )


def wanted_of(topics: Iterable[Named]) -> dict[str, list[int] | None]:
    """Partitions by topic, None for all of them; raises ConfigError."""
    wanted: dict[str, list[int] | None] = {}
    for one in [topics] if isinstance(topics, str) else topics:
        if isinstance(one, str):
            wanted[_check_topic(one)] = None
            continue
        ((topic, partition),) = partitions_of([one])
        chosen = wanted.setdefault(topic, [])
        if chosen is not None and partition not in chosen:
            chosen.append(partition)
    return wanted


class Place(NamedTuple):
    """What is known of a partition before the reset."""

    topic_id: str
    committed: int | None
    log_start: int
    end: int
    at_time: int | None
    """The first offset at the target's time, where it has one; None: no record is that late."""


def changes_of(target: Target, places: Mapping[TopicPartition, Place]) -> list[OffsetChange]:
    """Before and after, in the order of topics and partitions; each within what is stored.

    Raises ConfigError where a shift has nothing to start from.
    """
    if isinstance(target, ShiftBy):
        unknown = [where for where, place in sorted(places.items()) if place.committed is None]
        if unknown:
            named = ", ".join(map(str, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise ConfigError(
                f"nothing is committed for {named}: there is nothing to shift from",
                hint="name other partitions, or go to earliest, latest, an offset or a time",
            )
    return [
        OffsetChange(
            topic=where.topic,
            topic_id=place.topic_id,
            partition=where.partition,
            before=place.committed,
            after=min(max(_offset(target, place), place.log_start), place.end),
            log_start=place.log_start,
            end=place.end,
        )
        for where, place in sorted(places.items())
    ]


def _offset(target: Target, place: Place) -> int:
    match target:
        case Edge():
            return place.log_start if target is Edge.EARLIEST else place.end
        case ShiftBy(records):
            return (place.committed or 0) + records
        case LastRecords(records):
            return place.end - records
        case AtTime():
            return place.end if place.at_time is None else place.at_time
        case _:
            return target
