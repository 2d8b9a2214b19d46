"""Which records a topic's settings no longer keep (spec groups R1-R4). Pure.

The unit is a closed segment. Its age is that of its newest append by the broker's clock, so that
no timestamp of a producer keeps data alive or kills them. What is not known is never a reason to
delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.metadata.topics import PartitionState
from octavo.proto.segments import Segment
from octavo.serving import segments as lists

UNLIMITED = -1
AS_RETENTION = -2
"""Of `retention.local.*`: as the setting without `local`."""


class RetentionRule(NamedTuple):
    """What a topic keeps; either rule alone may delete."""

    age_ms: int
    """`retention.ms`; UNLIMITED: whatever its age."""
    size_bytes: int
    """`retention.bytes` of one partition; UNLIMITED: whatever its size."""

    def is_past(self, last_append_ms: int, now_ms: int) -> bool:
        """Whether what was appended last at `last_append_ms` is not kept any more (R1)."""
        return self.age_ms != UNLIMITED and last_append_ms + self.age_ms < now_ms


KEEP_ALL = RetentionRule(UNLIMITED, UNLIMITED)


def retained_from(
    closed: Sequence[Segment],
    rule: RetentionRule,
    *,
    log_start: int,
    open_bytes: int,
    now_ms: int,
) -> int:
    """The offset at which the log should begin: `log_start`, or the end of a segment (R1, R2).

    Args:
        closed: segments with counts, in order.
        open_bytes: size of the open segment, which counts and stays.
    """
    size_bytes = open_bytes + sum(segment.size_bytes for segment in closed)
    cut = log_start
    for segment in closed:
        end = segment.end_offset
        if end is None:
            break
        if end > log_start and end > segment.base_offset:
            newest_ms = segment.last_append_ms
            is_old = newest_ms is not None and rule.is_past(newest_ms, now_ms)
            is_much = (
                rule.size_bytes != UNLIMITED and size_bytes - segment.size_bytes >= rule.size_bytes
            )
            if not is_old and not is_much:
                break
        cut = max(cut, end)
        size_bytes -= segment.size_bytes
    return cut


def consumed_from(closed: Sequence[Segment], log_start: int, consumed_to: int) -> int:
    """The offset at which the log should begin when all groups have consumed what lies below one:
    `log_start`, or the end of a segment (R5)."""
    cut = log_start
    for segment in closed:
        end = segment.end_offset
        if end is None or end > consumed_to:
            break
        cut = max(cut, end)
    return cut


def holds_records(state: PartitionState) -> bool:
    """Whether something is in a partition that nobody serves, as far as its list tells."""
    if not state.segments:
        return False
    end = state.segments[-1].end_offset
    return end is None or end > state.log_start_offset


def wants_an_owner(
    state: PartitionState, rule: RetentionRule, *, now_ms: int, trash_delay_ms: int
) -> bool:
    """Whether a partition that nobody serves has something to delete, as far as its list tells.

    Where a segment has no counts, because its owner died, only an opener can tell (ML-4).
    """
    if lists.due_trash(state, now_ms, trash_delay_ms):
        return True
    closed = [segment for segment in state.segments if segment.end_offset is not None]
    if len(closed) < len(state.segments):
        return rule != KEEP_ALL
    log_start = state.log_start_offset
    cut = retained_from(closed, rule, log_start=log_start, open_bytes=0, now_ms=now_ms)
    if cut > log_start or not closed:
        return cut > log_start
    newest = closed[-1]
    holds_only_what_goes = newest.base_offset < (newest.end_offset or 0) <= cut
    return holds_only_what_goes or (len(closed) > 1 and (closed[0].end_offset or 0) <= cut)
