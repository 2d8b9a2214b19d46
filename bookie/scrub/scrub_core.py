"""The pure core of a scrub: which segment is read next, and what a restart goes on from (6.15).

    wake → ListSegments → CheckSegment → (KeepFindings) → SaveProgress → … → PassEnded

A pass goes over all segments that are not written to, in the order of their numbers. What it says
to have done never runs ahead of what was found: a segment counts as read once its findings are
durable. Segments that somebody met damage in are read first, whether a pass is due or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from octavo.bookie.scrub.scrub_actions import (
    CheckSegment,
    KeepFindings,
    ListSegments,
    PassEnded,
    Progress,
    SaveProgress,
    ScrubAction,
)
from octavo.runtime.invariant import invariant

URGENT_MAX = 1024
"""Segments that wait to be read at once; the pass comes to those beyond it."""


class ScrubLimits(NamedTuple):
    """Settings of a scrub."""

    interval_s: float
    """From the beginning of a pass to that of the next one."""
    reserve_bytes: int
    """With less free space nothing is read: the space belongs to fences and recovery (6.13)."""
    pause_s: float
    """How long a scrub waits then."""


class Step(Enum):
    """What is waited for."""

    IDLE = "its time"
    LIST = "the list of segments"
    CHECK = "a look at a segment"
    KEEP = "its findings to be durable"
    SAVE = "its progress to be noted"


class ScrubCore:
    """The passes over one bookie's segments.

    Args:
        progress: what the last process noted.
        first_s: when this one begins at the earliest.
    """

    def __init__(
        self, limits: ScrubLimits, progress: Progress, *, first_s: float, now_s: float, now_ms: int
    ) -> None:
        self._limits = limits
        self.progress = progress
        self.step = Step.IDLE
        self.passes = 0
        """Whole ones of this process."""
        self.checked_segments = 0
        wait_s = 0.0
        if progress.after < 0 and progress.began_ms <= now_ms:
            wait_s = limits.interval_s - (now_ms - progress.began_ms) / 1000
        self._pass_s = max(first_s, now_s + min(wait_s, limits.interval_s))
        """When the pass under way may go on, or the next one begins."""
        self._began_s = now_s
        self._pass_segments = 0
        self._in_pass = progress.after >= 0
        self._restart = False
        self._queue: list[int] = []
        """Segments of the pass, the next one last."""
        self._urgent: dict[int, None] = {}
        self._urgent_s: float | None = None
        self._current = -1
        self.is_urgent = False
        """The segment that is being read is read out of order."""
        self._low = False
        """There is too little free space to go on."""

    @property
    def in_pass(self) -> bool:
        """A pass is under way, if perhaps not at this moment."""
        return self._in_pass

    def is_late(self, now_ms: int) -> bool:
        """Whether a pass takes longer than there is from the beginning of one to the next."""
        progress = self.progress
        return self.in_pass and now_ms - progress.began_ms > self._limits.interval_s * 1000

    def next_deadline_s(self) -> float | None:
        """When there is something to do; None while something is under way."""
        if self.step is not Step.IDLE:
            return None
        return self._pass_s if self._urgent_s is None else min(self._pass_s, self._urgent_s)

    # --- events -----------------------------------------------------------------------------

    def hurry(self, now_s: float) -> None:
        """Begin a pass over everything at once; one that is under way begins anew."""
        self._restart = True
        self._pass_s = min(self._pass_s, now_s)

    def suspect(self, number: int, now_s: float) -> None:
        """Somebody met damage in a segment: read it soon."""
        if number == self._current or len(self._urgent) >= URGENT_MAX:
            return
        self._urgent[number] = None
        if self._urgent_s is None:
            self._urgent_s = now_s

    def wake(self, now_s: float) -> list[ScrubAction]:
        """Go on if it is time."""
        deadline_s = self.next_deadline_s()
        if deadline_s is None or now_s < deadline_s:
            return []
        self.step = Step.LIST
        return [ListSegments()]

    def listed(
        self, numbers: Iterable[int], *, free_bytes: int, now_s: float, now_ms: int
    ) -> list[ScrubAction]:
        """Segments that are not written to, as of now."""
        self._expect(Step.LIST)
        if free_bytes < self._limits.reserve_bytes:
            return self._pause(now_s)
        found = sorted(numbers)
        there = frozenset(found)
        self._urgent = {number: None for number in self._urgent if number in there}
        self._queue = []
        if now_s >= self._pass_s:
            self._begin_or_go_on(found, now_s, now_ms)
        return self._next(now_s, now_ms)

    def checked(
        self, *, damaged: bool, free_bytes: int, now_s: float, now_ms: int
    ) -> list[ScrubAction]:
        """The segment was read; `damaged`: there is something to keep."""
        self._expect(Step.CHECK)
        self._low = free_bytes < self._limits.reserve_bytes
        self.checked_segments += 1
        if damaged:
            self.step = Step.KEEP
            return [KeepFindings(self._current)]
        return self._done(now_s, now_ms)

    def kept(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        """What was found is durable."""
        self._expect(Step.KEEP)
        return self._done(now_s, now_ms)

    def saved(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        """The progress is noted."""
        self._expect(Step.SAVE)
        if self._low:
            return self._pause(now_s)
        return self._next(now_s, now_ms)

    def failed(self, now_s: float) -> list[ScrubAction]:
        """Segments cannot be listed, or the index cannot be read: later."""
        invariant(self.step in (Step.LIST, Step.CHECK), "nothing was asked for")
        if self.is_urgent and self.step is Step.CHECK:
            self._urgent[self._current] = None
        self._current = -1
        return self._pause(now_s)

    # --- steps ------------------------------------------------------------------------------

    def _begin_or_go_on(self, found: list[int], now_s: float, now_ms: int) -> None:
        if self._restart or not self._in_pass:
            self._restart = False
            self._in_pass = True
            self._began_s = now_s
            self._pass_segments = 0
            self.progress = Progress(-1, now_ms, self.progress.ended_ms)
        self._queue = [number for number in reversed(found) if number > self.progress.after]

    def _next(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        if self._restart and self._queue:
            self.step = Step.LIST
            return [ListSegments()]
        self.is_urgent = bool(self._urgent)
        if self._urgent:
            self._current = next(iter(self._urgent))
            del self._urgent[self._current]
        elif self._queue:
            self._current = self._queue.pop()
        else:
            return self._rest(now_s, now_ms)
        self.step = Step.CHECK
        return [CheckSegment(self._current)]

    def _done(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        if self.is_urgent:
            self._current = -1
            return self._pause(now_s) if self._low else self._next(now_s, now_ms)
        self._pass_segments += 1
        self.progress = self.progress._replace(after=self._current)
        self._current = -1
        self.step = Step.SAVE
        return [SaveProgress(self.progress)]

    def _rest(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        """Nothing is left to read now."""
        self._urgent_s = None
        ended_pass = self._in_pass and now_s >= self._pass_s and not self._restart
        if not ended_pass:
            self.step = Step.IDLE
            return []
        self._in_pass = False
        self.passes += 1
        self._pass_s = max(now_s, self._began_s + self._limits.interval_s)
        self.progress = Progress(-1, self.progress.began_ms, now_ms)
        self.step = Step.SAVE
        return [
            PassEnded(self._pass_segments, now_s - self._began_s),
            SaveProgress(self.progress),
        ]

    def _pause(self, now_s: float) -> list[ScrubAction]:
        self._low = False
        self._pass_s = max(self._pass_s, now_s + self._limits.pause_s)
        self._urgent_s = self._pass_s if self._urgent else None
        self.step = Step.IDLE
        return []

    def _expect(self, step: Step) -> None:
        invariant(self.step is step, f"scrub: {step.value} came, {self.step.value} was due")

    def validate(self) -> None:
        """Check the core's own promises."""
        invariant(len(self._urgent) <= URGENT_MAX, "too many urgent segments")
        invariant(
            not self._queue or self._queue[-1] > self.progress.after,
            "a segment that was read is to be read again in the same pass",
        )
