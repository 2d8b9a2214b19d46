"""What of one partition is to be copied, and what may leave the bookies (F088). Pure.

A closed segment is copied at the next look, whatever its age: so the files are there when its time
on the bookies is over. `retention.local.*` counts like `retention.*`, in closed segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.metadata.partition_record import RESERVED, PartitionState
from octavo.proto.segments import Segment
from octavo.runtime.ids import LedgerId
from octavo.serving.retention import RetentionRule, retained_from
from octavo.serving.tiering.lists import due_objects, may_go


class TieredSizes(NamedTuple):
    """Where the bytes of one partition are; of the open segment none."""

    local_bytes: int = 0
    """On bookies."""
    tiered_bytes: int = 0
    """In files, as they were in ledgers."""
    waiting_bytes: int = 0
    """Closed and not in files yet."""


def is_rewritten(state: PartitionState) -> bool:
    """Whether a cleaner may be writing a segment in the place of others: its pass began before the
    topic had tiering, and files of what it replaces would stand in the way of what comes."""
    return any(item.reason == RESERVED for item in state.trash)


def to_copy(state: PartitionState) -> tuple[Segment, ...]:
    """Closed segments of the log that no file holds yet, in order."""
    return tuple(
        one
        for one in state.segments
        if one.end_offset is not None
        and one.object_version is None
        and one.end_offset > state.log_start_offset
    )


def to_free(
    state: PartitionState,
    rule: RetentionRule,
    *,
    open_bytes: int,
    open_snapshot: LedgerId | None,
    now_ms: int,
) -> tuple[Segment, ...]:
    """Segments in files whose ledgers `rule`, the topic's local retention, does not keep.

    What lies below the log's start is not among them: its files go, and the list drops it soon.

    Args:
        open_bytes: size of the open segment, which counts and stays.
        open_snapshot: its ledger, when its first entry is durable.
    """
    closed = [one for one in state.segments if one.closed]
    cut = retained_from(
        closed, rule, log_start=state.log_start_offset, open_bytes=open_bytes, now_ms=now_ms
    )
    return tuple(
        one
        for one in may_go(state, open_snapshot)
        if (one.end_offset or 0) <= cut
        and ((one.end_offset or 0) > state.log_start_offset or one.end_offset == one.base_offset)
    )


def wants_an_owner(
    state: PartitionState, rule: RetentionRule | None, *, now_ms: int, trash_delay_ms: int
) -> bool:
    """Whether a partition that nobody serves has something to copy, to free or to remove.

    Args:
        rule: the topic's local retention; None: it has no tiering.
    """
    if due_objects(state, now_ms, trash_delay_ms):
        return True
    if rule is None:
        return False
    return bool(
        to_copy(state) or to_free(state, rule, open_bytes=0, open_snapshot=None, now_ms=now_ms)
    )


def sizes(segments: Sequence[Segment], log_start: int) -> TieredSizes:
    """Of the closed segments of a list."""
    closed = [one for one in segments if one.end_offset is not None]
    waiting = [
        one for one in closed if one.object_version is None and (one.end_offset or 0) > log_start
    ]
    return TieredSizes(
        sum(one.size_bytes for one in closed if one.in_ledger),
        sum(one.size_bytes for one in closed if one.object_version is not None),
        sum(one.size_bytes for one in waiting),
    )
