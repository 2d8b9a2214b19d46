"""The shell of scrub and quarantine: reads segments on a thread of its own, keeps what is found in
the index, and has it repaired by the marks of autorecovery (6.15, A-3)."""

from __future__ import annotations

import asyncio
import pathlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.segment import segment_name, segment_number, sorted_number
from octavo.bookie.reclaim.compaction_actions import Hold
from octavo.bookie.reclaim.pace import Pace, Stopped
from octavo.bookie.reclaim.turns import wait_turn
from octavo.bookie.scrub.quarantine_core import Outcome, QuarantineCore, QuarantineLimits
from octavo.bookie.scrub.scrub_actions import (
    CheckSegment,
    Evacuate,
    Forget,
    KeepFindings,
    ListSegments,
    MarkShort,
    PassEnded,
    Progress,
    QuarantineAction,
    Remember,
    SaveProgress,
    ScrubAction,
    Settle,
)
from octavo.bookie.scrub.scrub_core import ScrubCore, ScrubLimits
from octavo.bookie.scrub.segment_check import Findings, SegmentChecker
from octavo.bookie.scrub.wanted import WantedEntries
from octavo.bookie.space import RECOVERY_RESERVE_SEGMENTS
from octavo.bookie.storage.index import Index, Suspect
from octavo.bookie.storage.index_jobs import Flush, ForgetSegment, IndexJob, Notes, Suspicions
from octavo.bookie.storage.reads import is_intact
from octavo.bookie.storage.suspects import SUSPECTS_MAX
from octavo.bookie.store import BookieStore
from octavo.metadata.repairs import RepairCatalog, RepairMark
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import InvariantViolation, OctavoError, StorageFailed
from octavo.runtime.ids import LedgerId
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool

PROGRESS_NOTE = b"scrub"
SEGMENTS_NOTE = b"quarantine"
PAUSE_S = 60.0
"""How long a scrub waits for space, or for an index that cannot be read."""
HINTS_MAX = 1024
"""Entries that readers could not get and that are looked at next."""
MARK_AGAIN_RATIO = 3
"""Looks at suspects from one mark of their ledger to the next."""

_PROGRESS = struct.Struct(">qqq")
_log = get_logger("octavo.bookie.scrub")


@dataclass
class ScrubStats:
    """Counters since the start."""

    scrubbed_bytes: int = 0
    scrubbed_entries: int = 0
    segments_damaged: int = 0
    """Looks that found a segment damaged."""
    restored: int = 0
    """Entries that the index had lost, and that were added again from their own bytes."""


class Scrubber:
    """Scrub and quarantine of one opened store. Loop only, but for `hold_of`.

    Args:
        do: has the index thread do a job.
        evacuate: has compaction empty a damaged segment.
    """

    def __init__(
        self,
        config: BookieConfig,
        *,
        folder: pathlib.Path,
        disk: Disk,
        index: Index,
        store: BookieStore,
        wanted: WantedEntries,
        repairs: RepairCatalog,
        do: Callable[[IndexJob], Awaitable[None]],
        evacuate: Callable[[int], None],
        stream: int,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._index = index
        self._store = store
        self._wanted = wanted
        self._repairs = repairs
        self._do = do
        self._evacuate = evacuate
        self._stream = stream
        self._clock = clock
        self.enabled = config.scrub_bytes_per_s > 0
        """Segments are read; what was found before is repaired in any case."""
        rate = config.scrub_bytes_per_s or float(1 << 20)
        served = store.stats.entries_served
        self._pace, self._settle_pace = Pace(rate, clock, served), Pace(rate, clock, served)
        forget_pages = config.page_cache_bytes is not None
        self._checker = SegmentChecker(folder, disk, index, self._pace, forget_pages=forget_pages)
        self._settler = SegmentChecker(
            folder, disk, index, self._settle_pace, forget_pages=forget_pages
        )
        now_s = clock.monotonic()
        self.core = ScrubCore(
            ScrubLimits(
                config.scrub_interval_s,
                int(RECOVERY_RESERVE_SEGMENTS * config.segment_bytes),
                PAUSE_S,
            ),
            _progress_of(index.note(PROGRESS_NOTE)),
            first_s=now_s + entropy.uniform(0, config.scrub_start_s),
            now_s=now_s,
            now_ms=clock.wall_ms(),
        )
        recheck_s = config.scrub_recheck_s
        self.quarantine = QuarantineCore(QuarantineLimits(recheck_s, MARK_AGAIN_RATIO * recheck_s))
        self._first = self.quarantine.restored(
            _numbers_of(index.note(SEGMENTS_NOTE)), index.suspects(SUSPECTS_MAX), now_s
        )
        store.suspects = self.quarantine.suspects
        store.on_unreadable = self.met_unreadable
        self.stats = ScrubStats()
        self._found: Findings | None = None
        self._kept: tuple[Suspect, ...] = ()
        self._hints: set[tuple[int, int]] = set()
        self._unsaved = False
        """The list of quarantined segments became shorter."""
        self._writing = asyncio.Lock()
        """One change of the suspicions at a time, so that the later one counts."""
        self._asked = asyncio.Event()
        self._repair_asked = asyncio.Event()
        self._thread = WorkerPool("scrub", 1, 1)
        self._settle_thread = WorkerPool("scrub-settle", 1, 1)
        self._tasks: TaskOwner | None = None

    # --- what others say --------------------------------------------------------------------

    def hold_of(self, number: int) -> Hold:
        """What compaction may do with a segment; on any thread."""
        return self.quarantine.hold_of(number)

    def removed(self, number: int) -> None:
        """Compaction removed a segment for good."""
        if self.quarantine.removed(number):
            _log.info("quarantine-ended", segment=number)
            self._unsaved = True
            self._repair_asked.set()

    def met_damage(self, number: int) -> None:
        """Compaction met entries that it could not copy (B-21)."""
        self.core.suspect(number, self._clock.monotonic())
        self._asked.set()

    def met_unreadable(self, ledger_id: int, entry_id: int) -> None:
        """A reader was answered EIO (E-2); nothing to do if that entry is suspected already."""
        known = self.quarantine.suspects.find(ledger_id, entry_id)
        if self.enabled and known is None and len(self._hints) < HINTS_MAX:
            self._hints.add((ledger_id, entry_id))
            self._asked.set()

    def hurry(self) -> None:
        """Read everything at once, at the usual rate."""
        self.core.hurry(self._clock.monotonic())
        self._asked.set()

    # --- life -------------------------------------------------------------------------------

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin; `on_failure` is told when a promise of our own failed."""

        def told(name: str, error: BaseException) -> None:
            del name  # the task's, which was logged
            on_failure(error)

        self._tasks = TaskOwner("bookie-scrub", told)
        self._tasks.spawn(self._repair(), name="repair")
        if self.enabled:
            self._tasks.spawn(self._walk(), name="scrub")

    async def close(self) -> None:
        """End it; the next start goes on from what was noted."""
        self._pace.stop()
        self._settle_pace.stop()
        if self._tasks is not None:
            await self._tasks.close()
        await self._thread.close()
        await self._settle_thread.close()

    def tell(self, reply: bookie_pb2.InfoReply) -> None:
        """Set the gauges of the scrub."""
        core, quarantine = self.core, self.quarantine
        reply.scrub_bytes = self.stats.scrubbed_bytes
        reply.scrub_entries_damaged = quarantine.damaged
        reply.scrub_entries_repaired = quarantine.repaired
        reply.scrub_entries_waiting = quarantine.suspects.count
        reply.scrub_segments_quarantined = len(quarantine.quarantined())
        reply.scrub_passes = core.passes
        reply.scrub_ended_ms = core.progress.ended_ms
        reply.scrub_running = core.in_pass

    # --- the walk ---------------------------------------------------------------------------

    async def _walk(self) -> None:
        while True:
            await wait_turn(self._asked, self.core.next_deadline_s(), self._clock)
            await self._follow_hints()
            actions = self.core.wake(self._clock.monotonic())
            while actions:
                following: list[ScrubAction] = []
                for action in actions:
                    following += await self._act(action)
                actions = following

    async def _follow_hints(self) -> None:
        hints, self._hints = self._hints, set()
        for ledger_id, entry_id in hints:
            try:
                place = await self._thread.run(self._index.locate, ledger_id, entry_id)
            except StorageFailed as error:
                _log.warning("scrub-waits", cause=str(error))
                return
            if place is not None:
                self.core.suspect(place.segment, self._clock.monotonic())

    async def _act(self, action: ScrubAction) -> list[ScrubAction]:
        core, clock = self.core, self._clock
        match action:
            case ListSegments() | CheckSegment():
                try:
                    return await self._look(action)
                except Stopped:
                    raise asyncio.CancelledError from None
                except InvariantViolation:
                    raise
                except (OSError, OctavoError) as error:
                    _log.warning("scrub-waits", cause=str(error))
                    return core.failed(clock.monotonic())
            case KeepFindings():
                found, self._found = self._found, None
                assert found is not None
                before = self.quarantine.not_kept
                actions = self.quarantine.found(action.number, self._kept, damaged=found.is_damaged)
                await self._do_all(actions)
                if not_kept := self.quarantine.not_kept - before:
                    _log.warning("findings-left-for-later", count=not_kept)
                return core.kept(clock.monotonic(), clock.wall_ms())
            case SaveProgress():
                await self._do(Notes({PROGRESS_NOTE: _PROGRESS.pack(*action.progress)}))
                return core.saved(clock.monotonic(), clock.wall_ms())
            case PassEnded():
                _log.info(
                    "scrub-pass",
                    segments=action.segments,
                    took_s=round(action.took_s, 1),
                    waiting=self.quarantine.suspects.count,
                )
                return []

    async def _look(self, action: ListSegments | CheckSegment) -> list[ScrubAction]:
        core, clock = self.core, self._clock
        if isinstance(action, ListSegments):
            flush = Flush(self._stream)
            await self._do(flush)
            numbers, free = await self._thread.run(self._list, flush.mark.segment)
            now_s, now_ms = clock.monotonic(), clock.wall_ms()
            return core.listed(numbers, free_bytes=free, now_s=now_s, now_ms=now_ms)
        self._pace.is_urgent = core.is_late(clock.wall_ms())
        found = await self._thread.run(self._checker.check, action.number)
        self.stats.scrubbed_bytes += found.nbytes
        self.stats.scrubbed_entries += found.entries
        self._kept = found.damaged
        if found.lacking:
            self._kept += await self._wanted.of(found.lacking)
        if found.is_damaged:
            self.stats.segments_damaged += 1
            _log.error(
                "segment-damaged",
                segment=segment_name(action.number),
                spots=list(found.spots[:5]),
                entries=len(found.damaged),
            )
        self._found = found
        free, _ = await self._thread.run(self._disk.free_bytes, self._folder)
        return core.checked(
            # One in quarantine, too: it may be emptied now, though an earlier attempt failed.
            damaged=found.is_damaged
            or bool(self._kept)
            or self.hold_of(action.number) is not Hold.NONE,
            free_bytes=free,
            now_s=clock.monotonic(),
            now_ms=clock.wall_ms(),
        )

    def _list(self, below: int) -> tuple[list[int], int]:
        """On the thread: segments that are not written to, those that are missing included."""
        names = self._disk.list(self._folder)
        files = {n for name in names if (n := segment_number(name)) is not None and n < below}
        made = {n for n in map(sorted_number, names) if n is not None}
        counted = {n for n in self._index.segments() if self._index.live_bytes(n)}
        # A sorted one that the index does not name yet is being written.
        old = {n for n in counted if n < below or sorted_number(segment_name(n)) is not None}
        return sorted(files | (made & counted) | old), self._disk.free_bytes(self._folder)[0]

    # --- quarantine -------------------------------------------------------------------------

    async def _repair(self) -> None:
        await self._do_all(self._first)
        while True:
            due_s = self.quarantine.next_deadline_s()
            if due_s is None:
                await self._repair_asked.wait()
                self._repair_asked.clear()
            else:
                await wait_turn(self._repair_asked, due_s, self._clock)
            if self._unsaved:
                await self._save()
            await self._do_all(self.quarantine.wake(self._clock.monotonic()))

    async def _do_all(self, actions: list[QuarantineAction]) -> None:
        while actions:
            following: list[QuarantineAction] = []
            for action in actions:
                following += await self._quarantine(action)
            actions = following

    async def _quarantine(self, action: QuarantineAction) -> list[QuarantineAction]:
        core, clock = self.quarantine, self._clock
        match action:
            case Remember():
                await self._save(action.suspects)
                await self._do(Flush(self._stream))
                self._repair_asked.set()
                return core.remembered(action.number, clock.monotonic())
            case Forget():
                await self._save(removed=action.suspects)
                return core.forgotten(action.suspects)
            case Settle():
                try:
                    outcomes = await self._settle(action.suspects)
                except Stopped:
                    raise asyncio.CancelledError from None
                except StorageFailed as error:
                    _log.warning("scrub-waits", cause=str(error))
                    return []
                return core.settled(outcomes, clock.monotonic())
            case MarkShort():
                core.marked(
                    action.ledger_id, clock.monotonic(), done=await self._mark(action.ledger_id)
                )
                return []
            case Evacuate():
                await self._leave(action.number)
                return []

    async def _save(
        self, added: tuple[Suspect, ...] = (), removed: tuple[Suspect, ...] = ()
    ) -> None:
        """Note what is suspected and which segments are in quarantine, as of now."""
        find = self.quarantine.suspects.find
        async with self._writing:
            self._unsaved = False
            await self._do(
                Suspicions(
                    added=added,
                    removed=[s for s in removed if find(s.ledger_id, s.entry_id) is None],
                    notes={SEGMENTS_NOTE: _packed(self.quarantine.quarantined())},
                )
            )

    async def _settle(self, suspects: tuple[Suspect, ...]) -> list[tuple[Suspect, Outcome]]:
        outcomes, elsewhere = await self._settle_thread.run(self._outcomes, suspects)
        for number in elsewhere:
            self.met_damage(number)
        for suspect, outcome in outcomes:
            if outcome is Outcome.STILL and not suspect.has_row:
                await self._restore(suspect)
        return outcomes

    def _outcomes(
        self, suspects: tuple[Suspect, ...]
    ) -> tuple[list[tuple[Suspect, Outcome]], set[int]]:
        """On the thread; and segments in which a copy that was made again is damaged, too."""
        elsewhere: set[int] = set()
        return [(suspect, self._outcome(suspect, elsewhere)) for suspect in suspects], elsewhere

    def _outcome(self, suspect: Suspect, elsewhere: set[int]) -> Outcome:
        """What is to be said of one suspect now."""
        ledger_id, entry_id = suspect.ledger_id, suspect.entry_id
        place = self._index.locate(ledger_id, entry_id)
        if place is None:
            is_known = not suspect.has_row and self._index.ledger(ledger_id) is not None
            return Outcome.STILL if is_known else Outcome.GONE
        if not is_intact(self._settler.read(place), ledger_id, entry_id, place.length):
            if place.segment != suspect.location.segment:
                elsewhere.add(place.segment)
            return Outcome.STILL
        moved = place != suspect.location or not suspect.has_row
        return Outcome.REPAIRED if moved else Outcome.SOUND

    async def _restore(self, suspect: Suspect) -> None:
        """Add an entry that the index lost again, from its own bytes, as a recovery would."""
        ledger_id, entry_id, place = suspect[:3]
        entry = await self._settle_thread.run(self._settler.read, place)
        if not is_intact(entry, ledger_id, entry_id, place.length):
            return  # then other bookies' copies are asked for
        answered: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def reply(statuses: list[Status] | None) -> None:
            if not answered.done():
                answered.set_result(Status.OK if statuses is None else statuses[0])

        self._store.add([entry], len(entry), recovery=True, reply=reply)
        status = await answered
        self.stats.restored += status is Status.OK
        _log.warning("entry-restored", ledger_id=ledger_id, entry_id=entry_id, status=status.name)

    async def _mark(self, ledger_id: int) -> bool:
        try:
            await self._repairs.mark(RepairMark(LedgerId(ledger_id), short=True))
        except InvariantViolation:
            raise
        except OctavoError as error:
            _log.info("repair-not-asked-for", ledger_id=ledger_id, cause=error.cause)
            return False
        return True

    async def _leave(self, number: int) -> None:
        """Nothing in a damaged segment waits any more; one whose file is missing is over."""
        there = await self._settle_thread.run(self._is_there, number)
        if there:
            self._evacuate(number)
            return
        await self._do(ForgetSegment(number))
        self.removed(number)

    def _is_there(self, number: int) -> bool:
        return segment_name(number) in self._disk.list(self._folder)


def _progress_of(note: bytes | None) -> Progress:
    if note is None or len(note) != _PROGRESS.size:
        return Progress()
    return Progress(*_PROGRESS.unpack(note))


def _packed(numbers: list[int]) -> bytes:
    return struct.pack(f">{len(numbers)}Q", *numbers)


def _numbers_of(note: bytes | None) -> list[int]:
    if not note or len(note) % 8:
        return []
    return list(struct.unpack(f">{len(note) // 8}Q", note))
