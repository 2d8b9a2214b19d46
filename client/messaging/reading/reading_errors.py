"""Errors that a reading call raises about positions and about ourselves."""

from __future__ import annotations

from octavo.client.messaging.records import TopicPartition
from octavo.runtime.errors import InvariantViolation, OffsetOutOfRange


def beyond_the_end(where: TopicPartition, offset: int, end: int) -> OffsetOutOfRange:
    """The error of a user's offset that no record has yet: the reset policy is not for it (F6)."""
    return OffsetOutOfRange(
        f"offset {offset} of {where} is beyond its end, {end}",
        hint="start at the end to wait for new records, or at an offset up to it",
        topic=where.topic,
        partition=where.partition,
        end=end,
    )


def our_fault(what: str, error: Exception) -> InvariantViolation:
    """What poll() raises when something of ours failed that never should."""
    failure = InvariantViolation(f"{what} failed: {error!r}")
    failure.__cause__ = error
    return failure
