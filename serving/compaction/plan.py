"""What a pass may clean, and when one is due (spec groups K2, K3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.metadata.partition_record import CleanMark
from octavo.proto.segments import Segment
from octavo.serving.topic_config import TopicSettings


class CompactionRule(NamedTuple):
    """What a topic says of its compaction."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int
    segment_bytes: int

    @classmethod
    def of(cls, settings: TopicSettings) -> CompactionRule:
        """The rule of a topic."""
        return cls(
            settings.min_cleanable_dirty_ratio,
            settings.min_compaction_lag_ms,
            settings.max_compaction_lag_ms,
            settings.delete_retention_ms,
            settings.segment_bytes,
        )


class Listed(NamedTuple):
    """A partition's list at one moment, as a cleaner needs it."""

    closed: tuple[Segment, ...]
    """In the list and with counts."""
    follows: Segment | None
    """The open segment, when its first entry, a snapshot, is durable."""
    log_start: int
    stable_end: int
    """Nothing at or above it may be cleaned: the high watermark, or the last stable offset."""
    cleaned_to: int
    marks: tuple[CleanMark, ...]


class Dirtiness(NamedTuple):
    """How much of a log is to be cleaned."""

    dirty_bytes: int
    total_bytes: int
    oldest_ms: int | None
    """Append time of the oldest dirty record; None: none, or not known."""

    @property
    def ratio(self) -> float:
        """Dirty part of what can be cleaned, 0 to 1."""
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0

    def is_due(self, rule: CompactionRule, now_ms: int) -> bool:
        """Whether a pass is to run although nobody asks (K3)."""
        if not self.dirty_bytes:
            return False
        is_old = self.oldest_ms is not None and self.oldest_ms + rule.max_lag_ms < now_ms
        return is_old or self.ratio > rule.min_dirty_ratio


def files_end(listed: Listed) -> int | None:
    """The end of what files hold of a log; None: they hold nothing of it."""
    ends = [one.end_offset or 0 for one in listed.closed if one.object_version is not None]
    return max(ends, default=None)


def cleanable(listed: Listed, rule: CompactionRule, now_ms: int) -> tuple[Segment, ...]:
    """The segments of a pass: a beginning of the list, in order (K2).

    Without an open ledger that begins with a snapshot the last closed segment stays as it is: its
    snapshot is the newest (I10). A log of which files hold a part is not cleaned: older records of
    a key would be back there when its tombstone goes (F088).
    """
    if files_end(listed) is not None:
        return ()
    candidates = listed.closed if listed.follows is not None else listed.closed[:-1]
    count = 0
    for segment in candidates:
        end = segment.end_offset
        if end is None or end > listed.stable_end:
            break
        holds_records = end > max(segment.base_offset, listed.log_start)
        newest_ms = segment.last_append_ms
        is_dirty = end > listed.cleaned_to
        if (
            rule.min_lag_ms
            and holds_records
            and is_dirty
            and (newest_ms is None or newest_ms + rule.min_lag_ms > now_ms)
        ):
            break
        count += 1
    return candidates[:count]


def dirtiness(segments: Sequence[Segment], cleaned_to: int) -> Dirtiness:
    """Of the segments that a pass would clean."""
    dirty = [one for one in segments if (one.end_offset or 0) > cleaned_to]
    times = [one.first_append_ms for one in dirty if one.first_append_ms is not None]
    return Dirtiness(
        sum(one.size_bytes for one in dirty),
        sum(one.size_bytes for one in segments),
        min(times, default=None),
    )
