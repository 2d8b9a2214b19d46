"""What a caller may name: offsets, moments, partitions and topics that the wire can carry.

Checked where the caller stands, so that nothing that cannot be encoded ever reaches a task in the
background (offsets and times are int64, partitions int32, names UTF-8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import cast

from octavo.client.messaging.records import TopicPartition
from octavo.runtime.errors import ConfigError

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

When = datetime | int | float
"""A point in time: an aware datetime or epoch milliseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_whole(name: str, value: object, most: int, least: int = 0) -> int:
    """ConfigError unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(
            f"{name}={value!r} is not allowed",
            hint=f"{name} must be a whole number from {least} to {most}",
        )
    return value


def check_offset(offset: object, name: str = "offset") -> int:
    """ConfigError naming `name` unless `offset` is a whole number from 0 to 2**63 - 1."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
        raise ConfigError(
            f"{name}={offset!r} is not allowed",
            hint="offsets are whole numbers from 0 to 2**63 - 1",
        )
    return offset


def epoch_ms(when: object) -> int:
    """Epoch milliseconds from 0 to 2**63 - 1; raises ConfigError.

    A datetime without time zone is refused as ambiguous, a moment before 1970 as no record's.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigError(
                f"{when!r} has no time zone", hint="use datetime(..., tzinfo=timezone.utc)"
            )
        ms: int | float = (when - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(when, bool) or not isinstance(when, int | float) or not math.isfinite(when):
        raise ConfigError(f"{when!r} is no point in time")
    else:
        ms = when
    if not 0 <= ms <= INT64_MAX:
        raise ConfigError(
            f"{when!r} is out of range", hint="times lie between 1970 and 2**63 - 1 ms after it"
        )
    return int(ms)


def check_topic(name: object) -> str:
    """ConfigError unless `name` is text that the wire can carry and not empty."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} is no topic name", hint="a topic name is text, not empty")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"topic name {name!r} is no UTF-8 text") from error
    return name


def partitions_of(wanted: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
    """Named partitions, checked and each once; raises ConfigError."""
    out: dict[TopicPartition, None] = {}
    if not isinstance(cast("object", wanted), Iterable):
        raise ConfigError(
            f"{wanted!r} are no partitions", hint='for example [TopicPartition("orders", 0)]'
        )
    for item in wanted:
        try:
            topic, number = item
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{item!r} is no partition", hint='for example TopicPartition("orders", 0)'
            ) from error
        out[TopicPartition(check_topic(topic), check_whole("partition", number, INT32_MAX))] = None
    return list(out)
