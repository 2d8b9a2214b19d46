"""Changes of a partition's segment list and the decision to roll (ledger §8.2, ML-1..ML-9). Pure.

Every function takes the state last read and gives the one to compare-and-set. The list's counts
come from closed ledgers' metadata, never from a writer's memory (ML-6).
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from octavo.metadata.ledger_record import LedgerMetadata, LedgerState
from octavo.metadata.topics import PartitionState, TrashedLedger
from octavo.proto.segment_entries import SegmentFigures, known_time
from octavo.proto.segments import Segment
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from octavo.runtime.invariant import invariant


def first_state(topic_id: uuid.UUID, partition: int) -> PartitionState:
    """The state of a partition that was never opened."""
    return PartitionState(topic_id=topic_id, partition=partition)


def sealed_segment(
    segment: Segment,
    closed: LedgerMetadata,
    end_offset: int,
    figures: SegmentFigures,
    *,
    dense: bool = False,
) -> Segment:
    """`segment` with the counts of its CLOSED ledger (ML-4, ML-6).

    `dense`: whether each of its offsets is known to be a record that every reader gets.
    """
    invariant(
        closed.state is LedgerState.CLOSED and closed.ledger_id == segment.ledger_id,
        f"ledger {segment.ledger_id} must be CLOSED before its counts are recorded",
    )
    return replace(
        segment,
        end_offset=end_offset,
        size_bytes=closed.length or 0,
        first_append_ms=known_time(figures.first_append_ms),
        last_append_ms=known_time(figures.last_append_ms),
        last_entry=EntryId(closed.last_entry if closed.last_entry is not None else NO_ENTRY),
        max_timestamp_ms=known_time(figures.max_timestamp_ms),
        dense=dense,
    )


def to_recover(state: PartitionState) -> list[Segment]:
    """Segments whose ledgers an opener must see CLOSED: without counts, and the last two (ML-4).

    Of a ledger that is gone everything is known: its list said so after it was closed.
    """
    last_two = {segment.ledger_id for segment in state.segments[-2:]}
    return [
        segment
        for segment in state.segments
        if segment.end_offset is None or (segment.ledger_id in last_two and segment.in_ledger)
    ]


def claimed(
    state: PartitionState, sealed: Mapping[LedgerId, Segment], now_ms: int
) -> PartitionState:
    """The opener's claim: all counts filled, empty ledgers to the trash, owner epoch + 1 (ML-4)."""
    segments: list[Segment] = []
    trash = list(state.trash)
    for segment in state.segments:
        full = sealed.get(segment.ledger_id, segment)
        invariant(full.end_offset is not None, "a claim leaves no segment without counts")
        if full.last_entry == NO_ENTRY:  # nothing was ever written to it, not even a snapshot
            trash.append(TrashedLedger(full.ledger_id, "empty", now_ms))
        else:
            segments.append(full)
    return replace(
        state, segments=tuple(segments), trash=tuple(trash), owner_epoch=state.owner_epoch + 1
    )


def advanced(
    state: PartitionState,
    *,
    sealed: Segment | None,
    opened: tuple[LedgerId, int] | None,
    now_ms: int,
) -> PartitionState:
    """One roll step: record what was closed, append the ledger that takes over (ML-5).

    A ledger that was closed without any entry goes to the trash instead. A seal that the list
    shows already, because an earlier write of unknown outcome had happened, stays as it is.
    """
    segments = list(state.segments)
    trash = list(state.trash)
    if sealed is not None and all(item.ledger_id != sealed.ledger_id for item in trash):
        invariant(
            bool(segments) and segments[-1].ledger_id == sealed.ledger_id,
            "only the last segment can be sealed",
        )
        if sealed.last_entry == NO_ENTRY:
            segments.pop()
            trash.append(TrashedLedger(sealed.ledger_id, "empty", now_ms))
        else:
            segments[-1] = sealed
    highest = state.max_ledger_id_ever
    if opened is not None:
        ledger_id, base_offset = opened
        invariant(
            not segments or segments[-1].end_offset is not None,
            "a list has one open segment: what was listed before must be sealed first",
        )
        segments.append(Segment(ledger_id, base_offset))
        highest = max(highest, ledger_id)
    return replace(state, segments=tuple(segments), trash=tuple(trash), max_ledger_id_ever=highest)


def names(state: PartitionState, ledger_id: LedgerId) -> bool:
    """Whether the list has the ledger as a segment."""
    return any(segment.ledger_id == ledger_id for segment in state.segments)


def emptied(state: PartitionState, reason: str, now_ms: int) -> PartitionState:
    """All ledgers to the trash, and an epoch nobody owns: the topic is being deleted (ML-9)."""
    trash = _with_trashed(state.trash, state.segments, reason, now_ms)
    return replace(state, segments=(), trash=trash, owner_epoch=state.owner_epoch + 1)


def _with_trashed(
    trash: Sequence[TrashedLedger], gone: Sequence[Segment], reason: str, now_ms: int
) -> tuple[TrashedLedger, ...]:
    """Each ledger once: of one that lies there already, because files have its records, these go
    with it from now on."""
    added = {
        one.ledger_id: TrashedLedger(
            one.ledger_id, reason, now_ms, has_objects=one.object_version is not None
        )
        for one in gone
    }
    kept = [added.pop(item.ledger_id, item) for item in trash]
    return (*kept, *added.values())


def trimmed(
    state: PartitionState,
    log_start: int,
    *,
    reason: str,
    now_ms: int,
    open_snapshot: LedgerId | None = None,
) -> PartitionState:
    """The log begins at `log_start`; segments wholly below it go to the trash (R4, ML-8, ML-9).

    The log start never goes back. Of the segments the newest one that surely begins with a snapshot
    stays with all that follow it: the state of producers and the end outlive the data (I10).

    Args:
        open_snapshot: the open segment's ledger, when its first entry is durable.
    """
    start = max(log_start, state.log_start_offset)
    segments = state.segments
    droppable = newest_snapshot(state, open_snapshot)
    count = 0
    while count < droppable and _ends_by(segments[count], start):
        count += 1
    return replace(
        state,
        segments=segments[count:],
        log_start_offset=start,
        trash=_with_trashed(state.trash, segments[:count], reason, now_ms),
    )


def newest_snapshot(state: PartitionState, open_snapshot: LedgerId | None) -> int:
    """The place in the list of the newest ledger that surely begins with a snapshot; 0 when no
    later one does. It stays with all that follow it (I10).

    Args:
        open_snapshot: the open segment's ledger, when its first entry is durable.
    """
    keeps = [
        at
        for at, segment in enumerate(state.segments)
        if segment.in_ledger
        and (
            segment.ledger_id == open_snapshot
            or (segment.end_offset is not None and segment.last_entry != NO_ENTRY)
        )
    ]
    return keeps[-1] if keeps else 0


def decommissioned(state: PartitionState) -> PartitionState:
    """Takes no new batches, whoever owns it (F027)."""
    return replace(state, decommissioned=True)


def _ends_by(segment: Segment, offset: int) -> bool:
    return segment.end_offset is not None and segment.end_offset <= offset


def due_trash(state: PartitionState, now_ms: int, delay_ms: int) -> list[TrashedLedger]:
    """Trashed ledgers old enough to delete and, re-verified, in no list (ML-9).

    Not those whose files are still named by a manifest: these go first (F088).
    """
    listed = {segment.ledger_id for segment in state.segments if segment.in_ledger}
    return [
        item
        for item in state.trash
        if item.since_ms + delay_ms <= now_ms
        and item.ledger_id not in listed
        and not item.has_objects
    ]


def without_trash(state: PartitionState, gone: Sequence[TrashedLedger]) -> PartitionState:
    """The state after the ledgers `gone` were deleted.

    What a trim has put there again meanwhile stays: it has files (F088).
    """
    known = set(gone)
    return replace(state, trash=tuple(item for item in state.trash if item not in known))


def end_of(state: PartitionState) -> int:
    """The end offset of a list in which every segment has counts."""
    if not state.segments:
        return state.log_start_offset
    end = state.segments[-1].end_offset
    invariant(end is not None, "the list still has an open segment")
    return end or 0


def closed_segments(state: PartitionState, sealed: Segment | None) -> tuple[Segment, ...]:
    """Segments with counts, the one included that is closed but not in the list yet.

    Each once: after a list write of unknown outcome the list may have `sealed` already, before
    the ledger that follows it.
    """
    segments = state.segments
    if segments and segments[-1].end_offset is None:
        listed_open, segments = segments[-1], segments[:-1]
        is_missing = sealed is not None and sealed.ledger_id == listed_open.ledger_id
        if sealed is not None and is_missing and sealed.last_entry != NO_ENTRY:
            segments = (*segments, sealed)
    return segments


def segment_at(segments: Sequence[Segment], offset: int) -> Segment | None:
    """The segment that holds `offset`; segments are in offset order without holes (ML-2)."""
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    if at < 0:
        return None
    # Segments without records share their base with the next one: bisect picks the last of them.
    end = segments[at].end_offset
    return None if end is not None and offset >= end else segments[at]


class RollReason(Enum):
    """Why the open segment ends."""

    SIZE = "size"
    AGE = "age"
    WRITER = "writer"
    """The ledger writer asks: degraded and bookies are back, or too many ensemble changes (M-6)."""
    ASKED = "asked"
    EXPIRED = "expired"
    """All of it is past retention (R3)."""
    UNLOAD = "unload"


class RollLimits(NamedTuple):
    """When an open segment is full."""

    segment_bytes: int
    segment_ms: int
    write_quorum: int
    age_jitter: float = 0.0
    """0..0.05: spreads the rolls of many partitions (ML-5)."""


HARD_SIZE_FACTOR = 4
"""A postponed roll (A6) happens at this multiple of segment.bytes in any case."""


def roll_reason(
    limits: RollLimits, *, size_bytes: int, age_ms: float, writer_wants: bool, live_bookies: int
) -> RollReason | None:
    """Whether the open segment must roll now.

    With fewer than Qw bookies live, size and age rolls are postponed (A6): the open ledger still
    has its full ensemble in metadata, a new one would start degraded.
    """
    if writer_wants:
        return RollReason.WRITER
    if size_bytes >= limits.segment_bytes * HARD_SIZE_FACTOR:
        return RollReason.SIZE
    if live_bookies < limits.write_quorum:
        return None
    if size_bytes >= limits.segment_bytes:
        return RollReason.SIZE
    if age_ms >= limits.segment_ms * (1 + limits.age_jitter):
        return RollReason.AGE
    return None
