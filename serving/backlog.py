"""How much of a partition is unread by its slowest group, and what a quota says of it (F162). Pure.

A backlog begins at the lowest offset that any group has committed in the partition. A group that
has committed none there has no place that is known, and counts for nothing; a partition without a
committed offset has no backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.proto.segments import Segment
from octavo.serving.retention import UNLIMITED

HOLD, REFUSE, EVICT = BACKLOG_POLICIES = (
    "producer_hold",
    "producer_exception",
    "evict_oldest",
)
EVICTION_LEAVES = 0.9
"""Part of a quota that an eviction leaves: groups that stay behind are not moved with every
record that comes in."""


class BacklogQuota(NamedTuple):
    """Of each partition of a topic; either limit alone counts."""

    size_bytes: int
    """`backlog.quota.bytes`; UNLIMITED: whatever its size."""
    age_ms: int
    """`backlog.quota.time.ms`: of the oldest record, by its append; UNLIMITED: whatever its age."""
    policy: str

    @property
    def is_off(self) -> bool:
        """Whether no backlog is too large."""
        return self.size_bytes == self.age_ms == UNLIMITED

    def eviction(self) -> BacklogQuota:
        """What an eviction leaves."""
        return self._replace(
            size_bytes=_part(self.size_bytes, EVICTION_LEAVES),
            age_ms=_part(self.age_ms, EVICTION_LEAVES),
        )


class Backlog(NamedTuple):
    """Of one partition, as it was measured."""

    size_bytes: int
    age_ms: int
    """Of its oldest record; 0: there is none, or no limit asks for it."""

    def excess(self, quota: BacklogQuota) -> str | None:
        """What of it is more than the quota, in words; None: nothing."""
        if quota.size_bytes != UNLIMITED and self.size_bytes > quota.size_bytes:
            return f"{self.size_bytes} bytes, backlog.quota.bytes={quota.size_bytes}"
        if quota.age_ms != UNLIMITED and self.age_ms > quota.age_ms:
            return f"{self.age_ms} ms old, backlog.quota.time.ms={quota.age_ms}"
        return None


EMPTY = Backlog(0, 0)


def unread_bytes(segments: Sequence[Segment], offset: int, high_watermark: int) -> int:
    """Payload bytes from `offset` on; inside of a segment in proportion to its offsets.

    Args:
        segments: in order, the open one with its running figures.
    """
    size = 0
    for segment in reversed(segments):
        base, end = segment.base_offset, segment.end_below(high_watermark)
        if end <= offset:
            break
        size += _share(segment.size_bytes, end - max(base, offset), end - base)
    return size


def offset_of_newest(segments: Sequence[Segment], size_bytes: int, high_watermark: int) -> int:
    """Where the newest `size_bytes` begin, by the same arithmetic: no earlier, so that from there
    on it is not more."""
    left = size_bytes
    for segment in reversed(segments):
        base, end = segment.base_offset, segment.end_below(high_watermark)
        if end <= base:
            continue
        if segment.size_bytes > left:
            return end - (end - base) * left // segment.size_bytes
        left -= segment.size_bytes
    return segments[0].base_offset if segments else high_watermark


def _share(size_bytes: int, part: int, whole: int) -> int:
    return size_bytes * part // whole if whole > 0 else 0


def _part(limit: int, ratio: float) -> int:
    return limit if limit == UNLIMITED else int(limit * ratio)
