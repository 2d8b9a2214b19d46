"""The shell of compaction: does on a thread of its own what the core asks for (B-18..B-22)."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from octavo.bookie.faults import is_full
from octavo.bookie.journal.segment import (
    SORTED_BASE,
    SegmentHeader,
    segment_name,
    segment_number,
    sorted_number,
)
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
from octavo.bookie.reclaim.compaction_core import CompactionCore, CompactionLimits
from octavo.bookie.reclaim.pace import Pace, Stopped
from octavo.bookie.reclaim.sorted_copy import Copy, SortedCopier
from octavo.bookie.reclaim.turns import wait_turn
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.index_jobs import Flush, ForgetSegment, IndexJob, Notes, Repoint
from octavo.bookie.storage.reads import SegmentFiles
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool

NUMBER_NOTE = b"sorted"
"""The largest number that was given to a sorted segment."""

_log = get_logger("octavo.bookie.compaction")


class Quarantine(Protocol):
    """What compaction has to do with a scrub; `hold_of` on any thread, the others on the loop."""

    def hold_of(self, number: int) -> Hold:
        """What is said of a segment."""
        ...

    def removed(self, number: int) -> None:
        """Its file is gone for good."""
        ...

    def met_damage(self, number: int) -> None:
        """Entries of it could not be copied (B-21)."""
        ...


class Compactor:
    """Compaction of one opened store. Its methods are called on the loop.

    Args:
        template: identity written into the headers of sorted segments.
        do: has the index thread do a job.
        stream: whose mark says what is not replayed any more.
        quarantine: what a scrub says of segments, and who hears of damage (6.15).
    """

    def __init__(
        self,
        limits: CompactionLimits,
        *,
        folder: pathlib.Path,
        disk: Disk,
        files: SegmentFiles,
        index: Index,
        template: SegmentHeader,
        do: Callable[[IndexJob], Awaitable[None]],
        stream: int,
        bytes_per_s: float,
        served: Callable[[], int],
        quarantine: Quarantine,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._folder = folder
        self._quarantine = quarantine
        self._disk = disk
        self._index = index
        self._template = template
        self._do = do
        self._stream = stream
        self._clock = clock
        self._entropy = entropy
        self._pace = Pace(bytes_per_s, clock, served)
        self._copier = SortedCopier(
            folder,
            disk,
            files,
            index,
            self._pace,
            is_left=lambda number: quarantine.hold_of(number) is Hold.LEFT,
        )
        self._thread = WorkerPool("compaction", 1, 1)
        self.core = CompactionCore(limits, now_s=clock.monotonic())
        self.damaged_entries = 0
        """Entries that compaction could not copy, so far."""
        self._last_number = max(SORTED_BASE - 1, int(index.note(NUMBER_NOTE) or 0))
        self._copy: Copy | None = None
        self._asked = asyncio.Event()

    def hurry(self) -> None:
        """Ledgers were deleted: look for what they leave at once."""
        self.core.hurry(self._clock.monotonic())
        self._asked.set()

    def evacuate(self, number: int) -> None:
        """A damaged segment waits for nothing any more: empty it at once (6.15)."""
        self.core.evacuate(number, self._clock.monotonic())
        self._asked.set()

    def compact_all(self) -> None:
        """Begin a major round at once."""
        self.core.compact_all(self._clock.monotonic())
        self._asked.set()

    async def run(self) -> None:
        """Round after round until cancelled; OSError or StorageFailed when the disk fails (B-8)."""
        while True:
            await wait_turn(self._asked, self.core.next_deadline_s(), self._clock)
            actions = self.core.wake(self._clock.monotonic())
            while actions:
                following: list[Action] = []
                for action in actions:
                    following += await self._act(action)
                actions = following

    async def close(self) -> None:
        """End a copy under way, whose file goes with it."""
        self._pace.stop()
        await self._thread.close()

    async def _act(self, action: Action) -> list[Action]:
        core, clock = self.core, self._clock
        if isinstance(action, FlushIndex):
            flush = Flush(self._stream)
            await self._do(flush)
            return core.flushed(flush.mark.segment, clock.monotonic())
        if isinstance(action, TakeSurvey):
            survey = await self._thread.run(self._survey, action.below)
            self._pace.is_urgent = core.is_full(survey)
            return core.surveyed(survey, clock.monotonic())
        if isinstance(action, CheckSegment):
            live = await self._thread.run(self._copier.live_rows, action.number)
            nbytes = sum(location.length for _, _, location in live.rows)
            if nbytes or not live.known:
                _log.info("segment-stays", segment=action.number, live_bytes=nbytes)
            return core.checked(live_bytes=nbytes, complete=live.known, now_s=clock.monotonic())
        if isinstance(action, RemoveSegment):
            await self._thread.run(self._copier.remove, action.number)
            await self._do(ForgetSegment(action.number))
            self._quarantine.removed(action.number)
            return core.removed_segment(clock.monotonic())
        if isinstance(action, CopyLive):
            return await self._copy_live(action.sources)
        if isinstance(action, RepointCopied):
            copy, self._copy = self._copy, None
            assert copy is not None
            await self._do(Repoint(copy.moves))
            return core.repointed(clock.monotonic())
        self._report(action)
        return []

    async def _copy_live(self, sources: tuple[int, ...]) -> list[Action]:
        header = self._new_header()
        try:
            copy = await self._thread.run(self._copier.copy, sources, header)
        except Stopped:
            raise asyncio.CancelledError from None
        except OSError as error:
            if not is_full(error):
                raise
            _log.warning("no-space-for-a-copy", sources=len(sources), cause=str(error))
            return self.core.no_space(self._clock.monotonic())
        self._copy = copy
        self.damaged_entries += sum(copy.damaged.values())
        for number in copy.damaged:
            self._quarantine.met_damage(number)
        if copy.size_bytes:
            # With the repoints, so that no number is given twice while the index knows of it.
            await self._do(Notes({NUMBER_NOTE: b"%d" % header.number}))
        live_bytes = sum(move.target.length for move in copy.moves)
        made = SegmentUse(header.number, copy.size_bytes, live_bytes)
        return self.core.copied(made, copy.damaged, self._clock.monotonic())

    def _new_header(self) -> SegmentHeader:
        self._last_number += 1
        return self._template._replace(
            number=self._last_number,
            segment_uuid=self._entropy.uuid(),
            created_ms=self._clock.wall_ms(),
        )

    def _survey(self, below: int) -> Survey:
        """On the thread: files of segments that are not written to, and what of them is in use."""
        names = self._disk.list(self._folder)
        sorted_ones = [n for n in map(sorted_number, names) if n is not None]
        self._last_number = max([self._last_number, *sorted_ones])
        journal = [n for n in map(segment_number, names) if n is not None and n < below]
        uses: list[SegmentUse] = []
        for number in journal + sorted_ones:
            file = self._disk.open(self._folder / segment_name(number))
            size = file.size()
            file.close()
            hold = self._quarantine.hold_of(number)
            uses.append(SegmentUse(number, size, self._index.live_bytes(number), hold))
        return Survey(uses, *self._disk.free_bytes(self._folder))

    def _report(self, report: Report) -> None:
        if report.removed:
            _log.info(
                "space-returned",
                segments=report.removed,
                reclaimed_bytes=report.reclaimed_bytes,
                live_bytes=self.core.live_bytes,
                stored_bytes=self.core.stored_bytes,
            )
