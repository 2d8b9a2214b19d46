"""The bookie without its sockets: adds, fences, LACs and reads over journal, index and admission.

Owns the ledger objects and the order in which their decisions reach the stream. A decision and its
`submit()` happen without an await between them, so the stream order is the decision order (B-F1).
Adds that memory cannot decide go to `octavo.bookie.undecided`. Called by
`octavo.bookie.connection`; boot hands it an opened journal and index.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from octavo.bookie.adds import AddPart, AddRequest, Reply
from octavo.bookie.admission import AdmissionDesk
from octavo.bookie.config import BookieConfig
from octavo.bookie.deletions import LedgerDeletions
from octavo.bookie.journal.item import EntryHead, JournalItem
from octavo.bookie.journal.segment import CONTROL, RecordType
from octavo.bookie.journal.writer import JournalWriter
from octavo.bookie.ledgers import Fence, Ledger, LedgerTable, ids_of, plan_adds
from octavo.bookie.storage.index import Index, Suspect
from octavo.bookie.storage.index_jobs import IndexJob
from octavo.bookie.storage.reads import EntryReader, ReadResult
from octavo.bookie.storage.suspects import Suspects, without_suspects
from octavo.bookie.undecided import Controls, StoreStats, UndecidedAdds
from octavo.proto.bookie_wire import MAX_ENTRIES_PER_FRAME, Status
from octavo.proto.entry import HEADER_BYTES
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvariantViolation, OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool

_log = get_logger("octavo.bookie.store")


LISTED_ENTRIES_MAX = 65_536
"""Entries that one listing looks at."""


def incarnation_tag(incarnation: uuid.UUID) -> int:
    """What an admit record says about who was admitted; never 0."""
    return (incarnation.int >> 64) | 1


class ReadAnswer(NamedTuple):
    """Answer to a read: status, LAC as known, entries from the first one asked for."""

    status: Status
    lac: int
    entries: list[Buffer]


class LacAnswer(NamedTuple):
    """Answer to a LAC request."""

    status: Status
    lac: int
    fenced: bool
    last_entry: int


class ListAnswer(NamedTuple):
    """Which entries the index has, as runs of (first, last); above `through` is not known."""

    status: Status
    through: int
    runs: list[tuple[int, int]]


class BookieStore:
    """One append stream with its index, as seen by requests. Loop only, except where noted."""

    def __init__(
        self,
        config: BookieConfig,
        *,
        incarnation: uuid.UUID,
        journal: JournalWriter,
        index: Index,
        reader: EntryReader,
        desk: AdmissionDesk,
        do: Callable[[IndexJob], Awaitable[None]],
        clock: Clock,
        on_disk_full: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._tag = incarnation_tag(incarnation)
        self._journal = journal
        self._index = index
        self._reader = reader
        self._desk = desk
        self._clock = clock
        self._on_disk_full = on_disk_full
        self._on_broken = on_broken
        self._table = LedgerTable(config.ledgers_in_memory_max, self._tag)
        self._loading: dict[int, asyncio.Future[Ledger]] = {}
        self._reads = 0
        self._polls = 0
        self._tasks = TaskOwner("bookie-store", self._on_task_failure)
        self._readers = WorkerPool("reader", config.reader_threads, config.reads_in_flight_max)
        self.stats = StoreStats()
        self._controls = Controls(journal, self._disk_full)
        self._undecided = UndecidedAdds(
            config,
            tag=self._tag,
            table=self._table,
            journal=journal,
            controls=self._controls,
            desk=desk,
            clock=clock,
            open_ledger=self._ledger,
            find=self._find,
            refused=self._refused,
            stats=self.stats,
            tasks=self._tasks,
        )
        self.deletions = LedgerDeletions(
            self._table,
            journal,
            open_ledger=self._ledger,
            do=do,
            unsettled=self._undecided.unsettled.keys(),
            on_disk_full=self._disk_full,
        )
        self.writable = True
        """Ordinary adds are taken (6.13)."""
        self.recovery_writable = True
        """Recovery adds are taken (R-17)."""
        self.suspects = Suspects()
        """Entries that a scrub found damaged (6.15)."""
        self.on_unreadable: Callable[[int, int], None] = lambda ledger_id, entry_id: None
        """Told of an entry that a reader could not get (E-2)."""

    @property
    def ledgers_in_memory(self) -> int:
        """Ledger objects alive."""
        return len(self._table.by_id)

    async def close(self) -> None:
        """End requests in flight; journal and index belong to the caller."""
        await self._tasks.close()
        await self._desk.close()
        await self._readers.close()

    def on_visible(self, items: list[JournalItem]) -> None:
        """The index answers for these items now (B-5)."""
        for item in items:
            if item.heads:
                self.stats.entries_added += len(item.heads)
                self._table.forget_pending(item.heads)
            for _, ledger_id, _ in item.controls:
                self._table.by_id[ledger_id].pins -= 1

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        """A load that failed was answered as EIO; anything unforeseen left a decision half done."""
        if not isinstance(error, OctavoError) or isinstance(error, InvariantViolation):
            self._on_broken(error)

    # --- ledger objects ---------------------------------------------------------------------

    async def _ledger(self, ledger_id: int) -> Ledger:
        """The one object of a ledger, pinned; loads its state when it is not in memory."""
        ledger = self._table.by_id.get(ledger_id)
        while ledger is None:
            loading = self._loading.get(ledger_id)
            if loading is None:
                loading = self._tasks.spawn(self._load(ledger_id), name=f"load {ledger_id}")
                self._loading[ledger_id] = loading
                loading.add_done_callback(lambda _: self._loading.pop(ledger_id, None))
            await asyncio.shield(loading)
            ledger = self._table.by_id.get(ledger_id)
        ledger.pins += 1
        return ledger

    async def _load(self, ledger_id: int) -> Ledger:
        state = await self._readers.run(self._index.ledger, ledger_id)
        return self._table.install(ledger_id, state)

    # --- adds -------------------------------------------------------------------------------

    def add(
        self,
        entries: Sequence[Buffer],
        nbytes: int,
        *,
        recovery: bool,
        reply: Reply,
        run: Buffer | None = None,
    ) -> None:
        """Store entries; `reply` is called once all of them are durable or refused.

        `run`: the same entries back to back, if they lie so in memory; written as one piece. An
        error in here leaves entries pending that nobody writes: fail-stop.
        """
        try:
            self._add(entries, nbytes, recovery, reply, run)
        except Exception as error:
            self._on_broken(error)
            raise

    def _add(
        self,
        entries: Sequence[Buffer],
        nbytes: int,
        recovery: bool,
        reply: Reply,
        run: Buffer | None,
    ) -> None:
        count = len(entries)
        if not self._journal.has_room(count, nbytes, reserve=recovery):
            reply([Status.OVERLOADED] * count)
            return
        if not (self.recovery_writable if recovery else self.writable):
            reply([self._unwritable(entry, recovery) for entry in entries])
            return
        plan = plan_adds(
            self._table.by_id, entries, recovery=recovery, unsettled=self._undecided.unsettled
        )
        request = AddRequest(count, reply)
        for index, status in plan.refused:
            request.refuse(index, status)
        if plan.accepted:
            self._journal.submit(
                JournalItem(
                    plan.heads,
                    plan.accepted,
                    AddPart(
                        request,
                        lambda: plan.accepted_indexes(count),
                        lambda: self._refused(plan.heads),
                    ),
                    reserve=recovery,
                    run=run if len(plan.accepted) == count else None,
                ),
            )
        for ledger in plan.advanced:
            ledger.wake()
        if plan.undecided:
            self._undecided.settle(request, entries, plan.undecided, recovery)
        request.seal()

    def _unwritable(self, entry: Buffer, recovery: bool) -> Status:
        """B-2: a fenced ledger says so even while the bookie is read-only."""
        ledger = (
            self._table.by_id.get(ids_of(entry).ledger_id) if len(entry) >= HEADER_BYTES else None
        )
        if ledger is not None and ledger.fenced and not recovery:
            return Status.FENCED
        return Status.READONLY

    def _refused(self, heads: list[EntryHead]) -> None:
        """The journal had no space for these entries: they were never accepted (6.13)."""
        self._table.forget_pending(heads)
        self._undecided.duplicates.refused(heads, Status.DISK_FULL)
        self._disk_full()

    def _disk_full(self) -> None:
        self.writable = False
        self._on_disk_full()

    # --- fences -----------------------------------------------------------------------------

    async def fence(self, ledger_id: int) -> LacAnswer:
        """Refuse ordinary adds for ever and answer once that is durable (B-F1, B-F2)."""
        ledger = await self._ledger(ledger_id)
        try:
            status = await self._fence(ledger)
            return LacAnswer(status, ledger.lac, ledger.fenced, ledger.last_entry)
        finally:
            ledger.pins -= 1

    async def _fence(self, ledger: Ledger) -> Status:
        if ledger.doomed:
            return Status.OVERLOADED
        if ledger.fence is Fence.DURABLE:
            return Status.OK
        if ledger.fence is not Fence.ACCEPTED:
            if not self._journal.has_room(1, CONTROL.size, reserve=True):
                return Status.OVERLOADED
            ledger.accept_fence()
            self._controls.submit(
                ledger,
                RecordType.FENCE,
                0,
                lambda: ledger.settle_fence(Status.DISK_FULL),
                lambda: ledger.settle_fence(Status.OK),
                reserve=True,
            )
        waiter: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        ledger.fence_waiters.append(waiter)
        return await waiter

    # --- LAC --------------------------------------------------------------------------------

    async def read_lac(self, ledger_id: int, previous: int, timeout_s: float) -> LacAnswer:
        """RD-7: answer when the LAC exceeds `previous`, the ledger is fenced, or time is over."""
        ledger = await self._ledger(ledger_id)
        try:
            if ledger.lac <= previous and not ledger.fenced and timeout_s > 0 and previous >= 0:
                await self._wait_lac(ledger, previous, timeout_s)
            status = Status.OK if ledger.known else Status.NO_SUCH_LEDGER
            return LacAnswer(status, ledger.lac, ledger.fenced, ledger.last_entry)
        finally:
            ledger.pins -= 1

    async def _wait_lac(self, ledger: Ledger, previous: int, timeout_s: float) -> None:
        if self._polls >= self._config.long_polls_max:
            return  # RD-7 allows a spurious answer; the caller asks again
        self._polls += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (previous, future)
        ledger.pollers.append(waiting)
        try:
            await asyncio.wait([future], timeout=min(timeout_s, self._config.long_poll_max_s))
        finally:
            self._polls -= 1
            future.cancel()
            if waiting in ledger.pollers:
                ledger.pollers.remove(waiting)

    async def write_lac(self, ledger_id: int, lac: int) -> Status:
        """RD-6: remember an explicit LAC; journaled without a sync of its own."""
        ledger = await self._ledger(ledger_id)
        try:
            if not ledger.known:
                return Status.NO_SUCH_LEDGER
            if lac <= ledger.lac:
                return Status.OK
            if ledger.doomed or not self._journal.has_room(1, CONTROL.size, lazy=True):
                return Status.OVERLOADED
            ledger.raise_lac(lac)
            self._controls.submit(ledger, RecordType.EXPLICIT_LAC, lac, lambda: None, lazy=True)
            return Status.OK
        finally:
            ledger.pins -= 1

    # --- reads ------------------------------------------------------------------------------

    async def read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        *,
        fence: bool,
        salvage: bool,
    ) -> ReadAnswer:
        """Entries from `first` on, with the reply taxonomy of §6.5.

        `fence`: make the ledger's fence durable first (R-13). `salvage`: the request is addressed
        to an older incarnation, so absence is UNKNOWN (B-25).
        """
        if self._reads >= self._config.reads_in_flight_max:
            return ReadAnswer(Status.OVERLOADED, -1, [])
        self._reads += 1
        try:
            ledger = await self._ledger(ledger_id)
            try:
                if fence and not salvage:
                    status = await self._fence(ledger)
                    if status is not Status.OK:
                        return ReadAnswer(status, ledger.lac, [])
                result = await self._read(ledger, first, max_count, max_bytes)
                return self._answer(ledger, first, result, salvage)
            finally:
                ledger.pins -= 1
        finally:
            self._reads -= 1

    async def list_entries(self, ledger_id: int, first: int, last: int) -> ListAnswer:
        """Entries of first..last that are durable and in the index (A-2).

        What is still on its way there is not told: who asks may copy an entry in vain, and the
        second copy is answered as the duplicate it is (B-3). Nor is what a scrub found damaged
        (6.15). OVERLOADED: its entries may be about to go (G-4, G-5), so that nobody may count on
        them.
        """
        refused = ListAnswer(Status.OVERLOADED, -1, [])
        if self._reads >= self._config.reads_in_flight_max:
            return refused
        self._reads += 1
        try:
            ledger = await self._ledger(ledger_id)
            try:
                if ledger.condemned or ledger.doomed:
                    return refused
                runs, through = await self._readers.run(
                    self._list_runs,
                    ledger_id,
                    first,
                    min(last, first + LISTED_ENTRIES_MAX - 1),
                    self.suspects.of(ledger_id),
                )
            finally:
                ledger.pins -= 1
        finally:
            self._reads -= 1
        return ListAnswer(Status.OK, through, runs)

    def _list_runs(
        self, ledger_id: int, first: int, last: int, suspected: dict[int, Suspect]
    ) -> tuple[list[tuple[int, int]], int]:
        """On a reader thread."""
        runs, through = self._index.entry_runs(ledger_id, first, last)
        if suspected:
            runs = without_suspects(self._index, ledger_id, runs, suspected)
        return runs, through

    async def _read(self, ledger: Ledger, first: int, max_count: int, max_bytes: int) -> ReadResult:
        count = min(max_count, MAX_ENTRIES_PER_FRAME)
        room = min(max_bytes, self._config.read_reply_max_bytes)
        pending = ledger.pending
        waiting: dict[int, Buffer] = {}
        if pending:
            nbytes = 0
            for entry_id in range(first, first + count):
                entry = pending.get(entry_id)
                if entry is None:
                    continue
                waiting[entry_id] = entry
                nbytes += len(entry)
                if nbytes >= room:
                    break
            if len(waiting) == count:  # the tail: no thread needed
                return self._reader.read_run(ledger.ledger_id, first, count, room, waiting)
        return await self._find(ledger.ledger_id, first, count, room, waiting)

    def _find(
        self, ledger_id: int, first: int, count: int, room: int, waiting: dict[int, Buffer]
    ) -> Awaitable[ReadResult]:
        """On a reader thread: entries of the index, and those that it does not show yet."""
        return self._readers.run(self._reader.read_run, ledger_id, first, count, room, waiting)

    def _answer(self, ledger: Ledger, first: int, result: ReadResult, salvage: bool) -> ReadAnswer:
        status = result.status
        if status is Status.NO_SUCH_ENTRY and self.suspects.find(ledger.ledger_id, first):
            status = Status.EIO  # the index lost it: damage is never absence (INV-9)
        if status is Status.OK:
            self.stats.entries_read += len(result.entries)
        elif status is Status.NO_SUCH_ENTRY:
            if salvage:
                status = Status.UNKNOWN
            elif not ledger.known and ledger.last_entry < 0:
                status = Status.NO_SUCH_LEDGER
        else:
            self.stats.unreadable += 1
            self.on_unreadable(ledger.ledger_id, first)
            _log.error("unreadable", ledger_id=ledger.ledger_id, entry_id=first)
        return ReadAnswer(status, ledger.lac, result.entries)
