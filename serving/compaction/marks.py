"""When a tombstone may go: since when the log below it is clean (spec groups K5). Pure.

A tombstone stays for `delete.retention.ms` from the moment a pass first covered it with everything
before it clean, so that a reader who gets from the start to the end within that time sees every
deletion. Marks say which stretch became clean when; a mark that is past goes with the tombstones.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.metadata.partition_record import CLEAN_MARKS_MAX, CleanMark

PARTS = CLEAN_MARKS_MAX // 4
"""The newest mark moves on while the one before it is younger than such a part of the retention:
a tombstone stays longer by that at most, and marks stay few however often a log is cleaned."""


def tombstones_below(marks: Sequence[CleanMark], retention_ms: int, now_ms: int) -> int:
    """Tombstones with a lower offset have been kept for long enough."""
    due = [mark.end_offset for mark in marks if mark.since_ms + retention_ms <= now_ms]
    return max(due, default=0)


def after_pass(
    marks: Sequence[CleanMark],
    *,
    removed_below: int,
    end_offset: int,
    retention_ms: int,
    now_ms: int,
) -> tuple[CleanMark, ...]:
    """The marks once a pass that began at `now_ms` or before cleaned the log up to `end_offset`.

    Args:
        removed_below: what `tombstones_below` said to that pass.
    """
    left = [mark for mark in marks if mark.end_offset > removed_below]
    if end_offset > max((mark.end_offset for mark in left), default=removed_below):
        is_crowded = len(left) >= 2 and now_ms - left[-2].since_ms < retention_ms // PARTS
        if is_crowded or len(left) >= CLEAN_MARKS_MAX:
            left.pop()
        left.append(CleanMark(end_offset, now_ms))
    return tuple(left)
