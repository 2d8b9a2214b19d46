"""The pure core of compaction: which segments are removed, which are copied together (B-18..B-21).

Events in, actions out. A round is

    wake → FlushIndex → TakeSurvey → per segment without live bytes: CheckSegment → RemoveSegment
         → CopyLive → RepointCopied → FlushIndex → per source: CheckSegment → RemoveSegment
         → FlushIndex → TakeSurvey → … until nothing is worth it

What holds: a segment is removed only below a mark that was flushed before, after each of its
entries was compared with the index and none was found to lie in it, and, where its entries were
copied, after a flush behind their repoints (B-20). Whatever a check cannot read keeps its segment
(B-21). A copy never takes the space that is kept back for fences and recovery (6.13).
A segment with entries that wait for their repair is left as it is; one that is damaged otherwise is
emptied first (6.15).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from octavo.bookie.reclaim.compaction_actions import (
    Action,
    CheckSegment,
    CopyLive,
    FlushIndex,
    Hold,
    RemoveSegment,
    RepointCopied,
    Report,
    SegmentUse,
    Survey,
    TakeSurvey,
)
from octavo.runtime.invariant import invariant

SOURCES_MAX = 16
"""Segments that are copied together."""
COPY_OVERHEAD = 1.05
"""Size of a copy for a byte of its entries: heads, tables, footer."""


class CompactionLimits(NamedTuple):
    """Settings of compaction."""

    check_s: float
    """How often segments without live bytes are looked for."""
    minor_ratio: float
    minor_interval_s: float
    major_ratio: float
    major_interval_s: float
    output_bytes: int
    """Live bytes that are copied together at most."""
    reserve_bytes: int
    """Free space that a bookie keeps to be writable (6.13)."""
    last_reserve_bytes: int
    """Free space that belongs to fences and recovery, also while the bookie is read-only."""
    full_ratio: float
    """A fuller disk makes every round a major one."""
    retry_s: float
    """How long a segment is left alone that could not be removed or copied."""


class Step(Enum):
    """What the round waits for."""

    IDLE = "its time"
    FLUSH = "a flush in front of a survey"
    SURVEY = "the survey"
    CHECK = "a check of a segment"
    REMOVE = "the removal of a segment"
    COPY = "a copy"
    REPOINT = "repoints"
    FLUSH_COPY = "a flush behind repoints"


class CompactionCore:
    """Compaction of one bookie's segments."""

    def __init__(self, limits: CompactionLimits, *, now_s: float) -> None:
        self._limits = limits
        self.step = Step.IDLE
        self.reclaimed_bytes = 0
        """Bytes of files removed, less those of copies made for it."""
        self.removed = 0
        self.compactions = 0
        self.copied_bytes = 0
        self.live_bytes = 0
        """Of all segments that are not written to, as of the last survey."""
        self.stored_bytes = 0
        """Sizes of their files."""
        self._due_s = now_s + limits.check_s
        self._minor_s = now_s + limits.minor_interval_s
        self._major_s = now_s + limits.major_interval_s
        self._ratio = 0.0
        """Segments below this live ratio are copied in this round."""
        self.asked = False
        """Somebody is in a hurry, and no round has begun since."""
        self._sizes: dict[int, int] = {}
        """Sizes of the segments of the last survey."""
        self._live: dict[int, int] = {}
        self._mark_segment = 0
        """Below this one the mark is flushed."""
        self._to_check: list[int] = []
        self._sources: tuple[int, ...] = ()
        self._current = -1
        self._full: dict[int, int] = {}
        """Copies made by this process, and their live bytes then: as long as those are all live,
        another copy gains nothing, however much of the file is not entries."""
        self._left_alone: dict[int, float] = {}
        """Segment → until when it is not tried again."""
        self._round_removed = 0
        self._round_bytes = 0

    def next_deadline_s(self) -> float | None:
        """When a round begins; None while one is under way."""
        return self._due_s if self.step is Step.IDLE else None

    # --- events -----------------------------------------------------------------------------

    def hurry(self, now_s: float) -> None:
        """Ledgers were deleted: look for segments without live bytes at once."""
        self.asked = True
        self._due_s = min(self._due_s, now_s)

    def compact_all(self, now_s: float) -> None:
        """Make the next round a major one, and begin it at once."""
        self._major_s = now_s
        self.hurry(now_s)

    def evacuate(self, number: int, now_s: float) -> None:
        """A segment is damaged and nothing in it waits for its repair any more (6.15): what is
        live in it is copied elsewhere by the next round, which begins at once."""
        self._left_alone.pop(number, None)
        self.hurry(now_s)

    def wake(self, now_s: float) -> list[Action]:
        """Begin a round if it is time."""
        if self.step is not Step.IDLE or now_s < self._due_s:
            return []
        self.asked = False
        self._round_removed = self._round_bytes = 0
        self._ratio = 0.0
        if now_s >= self._minor_s:
            self._ratio = self._limits.minor_ratio
            self._minor_s = now_s + self._limits.minor_interval_s
        if now_s >= self._major_s:
            self._ratio = self._limits.major_ratio
            self._major_s = now_s + self._limits.major_interval_s
        self._left_alone = {k: s for k, s in self._left_alone.items() if s > now_s}
        self.step = Step.FLUSH
        return [FlushIndex()]

    def flushed(self, mark_segment: int, now_s: float) -> list[Action]:
        """No crash takes the index back behind what it was when the flush began."""
        self._mark_segment = mark_segment
        if self.step is Step.FLUSH:
            self.step = Step.SURVEY
            return [TakeSurvey(mark_segment)]
        self._expect(Step.FLUSH_COPY)
        self._to_check = list(self._sources)
        return self._next(now_s)

    def surveyed(self, survey: Survey, now_s: float) -> list[Action]:
        """What there is."""
        self._expect(Step.SURVEY)
        self._sizes = {use.number: use.size_bytes for use in survey.segments}
        self._live = {use.number: use.live_bytes for use in survey.segments}
        self.live_bytes = sum(self._live.values())
        self.stored_bytes = sum(self._sizes.values())
        self._full = {n: live for n, live in self._full.items() if self._live.get(n) == live}
        usable = [
            use
            for use in survey.segments
            if use.number not in self._left_alone and use.hold is not Hold.KEPT
        ]
        self._to_check = [use.number for use in usable if not use.live_bytes]
        self._sources = () if self._to_check else self._choose(usable, survey)
        return self._next(now_s)

    def checked(self, *, live_bytes: int, complete: bool, now_s: float) -> list[Action]:
        """How many bytes of the segment are live, and whether all of it could be read."""
        self._expect(Step.CHECK)
        if live_bytes or not complete:
            self._left_alone[self._current] = now_s + self._limits.retry_s
            return self._next(now_s)
        self.step = Step.REMOVE
        return [RemoveSegment(self._current)]

    def removed_segment(self, now_s: float) -> list[Action]:
        """The file is gone for good, and so is its count."""
        self._expect(Step.REMOVE)
        size = self._sizes.get(self._current, 0)
        self._round_removed += 1
        self._round_bytes += size
        self.removed += 1
        self.reclaimed_bytes += size
        self.live_bytes -= self._live.get(self._current, 0)
        self.stored_bytes -= size
        return self._next(now_s)

    def copied(self, made: SegmentUse, damaged: Iterable[int], now_s: float) -> list[Action]:
        """The copy is durable. `damaged`: sources with entries that could not be copied (B-21).

        A size of 0: nothing was live, and there is no copy.
        """
        size_bytes = made.size_bytes
        self._expect(Step.COPY)
        for number in damaged:
            self._left_alone[number] = now_s + self._limits.retry_s
        self._sources = tuple(n for n in self._sources if n not in self._left_alone)
        if not size_bytes:
            self._to_check = list(self._sources)
            return self._next(now_s)
        self._full[made.number] = made.live_bytes
        self.compactions += 1
        self.copied_bytes += size_bytes
        self.reclaimed_bytes -= size_bytes
        self._round_bytes -= size_bytes
        self.step = Step.REPOINT
        return [RepointCopied()]

    def no_space(self, now_s: float) -> list[Action]:
        """The disk is too full for the copy; nothing is left of it."""
        self._expect(Step.COPY)
        for number in self._sources:
            self._left_alone[number] = now_s + self._limits.retry_s
        return self._rest(now_s)

    def repointed(self, now_s: float) -> list[Action]:
        """The index names the copy."""
        del now_s
        self._expect(Step.REPOINT)
        self.step = Step.FLUSH_COPY
        return [FlushIndex()]

    # --- what is worth it -------------------------------------------------------------------

    def is_full(self, survey: Survey) -> bool:
        """Whether space is what everything else waits for."""
        used = 1 - survey.free_bytes / survey.total_bytes if survey.total_bytes else 0.0
        return used >= self._limits.full_ratio

    def _choose(self, usable: list[SegmentUse], survey: Survey) -> tuple[int, ...]:
        """Segments to copy together: those with the least in use first, as space allows."""
        limits = self._limits
        ratio = limits.major_ratio if self.is_full(survey) else self._ratio
        writable = survey.free_bytes >= limits.reserve_bytes
        kept = limits.reserve_bytes if writable else limits.last_reserve_bytes
        room = min(limits.output_bytes, (survey.free_bytes - kept) / COPY_OVERHEAD)
        chosen: list[int] = []
        for use in sorted(usable, key=_order_of):
            if use.hold is Hold.LEFT:
                if len(chosen) < SOURCES_MAX and use.live_bytes <= room:
                    room -= use.live_bytes
                    chosen.append(use.number)
                continue
            if use.number in self._full:
                continue
            if _ratio_of(use) >= ratio or len(chosen) == SOURCES_MAX or use.live_bytes > room:
                break
            room -= use.live_bytes
            chosen.append(use.number)
        return tuple(chosen)

    def _next(self, now_s: float) -> list[Action]:
        """The next segment to check; then the next copy; then the end, or another survey."""
        if self._to_check:
            self._current = self._to_check.pop(0)
            self.step = Step.CHECK
            return [CheckSegment(self._current)]
        if self.step is Step.SURVEY and self._sources:
            self.step = Step.COPY
            return [CopyLive(self._sources)]
        if self.step is Step.SURVEY:
            return self._rest(now_s)
        self._sources = ()
        self.step = Step.FLUSH
        return [FlushIndex()]

    def _rest(self, now_s: float) -> list[Action]:
        self._due_s = now_s if self.asked else now_s + self._limits.check_s
        self._sources = ()
        self.step = Step.IDLE
        return [Report(self._round_removed, self._round_bytes)]

    def _expect(self, step: Step) -> None:
        invariant(self.step is step, f"compaction: {step.value} came, {self.step.value} was due")

    def validate(self) -> None:
        """Check the core's own promises."""
        invariant(
            self.step not in (Step.COPY, Step.REPOINT, Step.FLUSH_COPY) or not self._to_check,
            "a copy while segments are to be checked",
        )
        invariant(len(self._sources) <= SOURCES_MAX, "too many sources")


def _order_of(use: SegmentUse) -> tuple[bool, float, int]:
    """Damaged segments first, then those with the least in use."""
    return use.hold is not Hold.LEFT, _ratio_of(use), use.number


def _ratio_of(use: SegmentUse) -> float:
    return use.live_bytes / use.size_bytes if use.size_bytes else 0.0
