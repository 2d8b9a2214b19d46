"""Adds that need more than memory to be decided: admission, or a look into the index (B-2, B-3).

They are decided in the order of their requests for each ledger. A decision and its `submit()`
happen without an await between them (B-F1).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.bookie.adds import AddRequest, Duplicates, Settling
from octavo.bookie.admission import Admission, AdmissionDesk
from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.item import EntryHead, JournalItem
from octavo.bookie.journal.segment import CONTROL, RecordType
from octavo.bookie.journal.writer import JournalWriter
from octavo.bookie.ledgers import Ledger, LedgerTable, Verdict, ids_of, is_sane, judge_add
from octavo.bookie.storage.reads import ReadResult
from octavo.proto.bookie_wire import Status
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvariantViolation, OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.bookie.store")

Find = Callable[[int, int, int, int, dict[int, Buffer]], Awaitable[ReadResult]]
"""`EntryReader.read_run` on a reader thread."""
OpenLedger = Callable[[int], Awaitable[Ledger]]
"""The one object of a ledger, pinned."""


@dataclass
class StoreStats:
    """Counters since start."""

    entries_added: int = 0
    entries_read: int = 0
    conflicts: int = 0
    unreadable: int = 0
    refused: Counter[Status] = field(default_factory=Counter[Status])
    """Entries of adds that were answered with something else than OK."""

    def entries_served(self) -> int:
        """Taken and given."""
        return self.entries_added + self.entries_read

    def note_refused(self, statuses: list[Status]) -> None:
        """An add request was answered with these; rare."""
        self.refused.update(status for status in statuses if status is not Status.OK)


class _Turn(NamedTuple):
    """The place of a request among those with undecided adds to the same ledgers."""

    ledger_ids: set[int]
    before: set[asyncio.Future[None]]
    settled: asyncio.Future[None]


class Controls:
    """Admissions, fences and explicit LACs on their way into the journal."""

    def __init__(self, journal: JournalWriter, on_disk_full: Callable[[], None]) -> None:
        self._journal = journal
        self._on_disk_full = on_disk_full

    def submit(
        self,
        ledger: Ledger,
        kind: RecordType,
        value: int,
        on_refused: Callable[[], None],
        on_durable: Callable[[], None] = lambda: None,
        *,
        reserve: bool = False,
        lazy: bool = False,
    ) -> None:
        """Queue one; the caller has seen that the journal has room and changed the ledger."""
        ledger.pins += 1  # until the index shows it

        def done(status: Status) -> None:
            if status is Status.OK:
                on_durable()
                return
            ledger.pins -= 1
            on_refused()
            self._on_disk_full()

        control = (kind, ledger.ledger_id, value)
        self._journal.submit(
            JournalItem([], [], done, controls=(control,), reserve=reserve, lazy=lazy)
        )


class UndecidedAdds:
    """Requests whose entries are being decided. Loop only."""

    def __init__(
        self,
        config: BookieConfig,
        *,
        tag: int,
        table: LedgerTable,
        journal: JournalWriter,
        controls: Controls,
        desk: AdmissionDesk,
        clock: Clock,
        open_ledger: OpenLedger,
        find: Find,
        refused: Callable[[list[EntryHead]], None],
        stats: StoreStats,
        tasks: TaskOwner,
    ) -> None:
        self._config = config
        self._tag = tag
        self._table = table
        self._journal = journal
        self._controls = controls
        self._desk = desk
        self._clock = clock
        self._open = open_ledger
        self._find = find
        self._refused = refused
        self._stats = stats
        self._tasks = tasks
        self._looking: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._undecided = 0
        self.duplicates = Duplicates()
        """Who waits for an entry that another request brought."""
        self.unsettled: dict[int, asyncio.Future[None]] = {}
        """Ledger id → when the last request with undecided adds to it is settled."""

    def settle(
        self, request: AddRequest, entries: Sequence[Buffer], indexes: list[int], recovery: bool
    ) -> None:
        """Decide these entries of a request; bounded, and in turn with others of their ledgers."""
        if self._undecided + len(indexes) > self._config.queue_max_records:
            for index in indexes:
                request.refuse(index, Status.OVERLOADED)
            return
        self._undecided += len(indexes)
        ledger_ids = {ids_of(entries[index]).ledger_id for index in indexes}
        before = {self.unsettled[i] for i in ledger_ids if i in self.unsettled}
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.unsettled.update(dict.fromkeys(ledger_ids, settled))
        turn = _Turn(ledger_ids, before, settled)
        request.open_part()
        settling = Settling(
            request, self._journal, self.duplicates, self._refused, recovery=recovery
        )
        self._tasks.spawn(self._settle_in_turn(settling, entries, indexes, turn), name="settle")

    async def _settle_in_turn(
        self,
        settling: Settling,
        entries: Sequence[Buffer],
        indexes: list[int],
        turn: _Turn,
    ) -> None:
        """Settle after the earlier requests for the same ledgers, so that ids keep their order."""
        try:
            if turn.before:
                await asyncio.wait(turn.before)
            await self._settle(settling, entries, indexes)
        finally:
            self._undecided -= len(indexes)
            turn.settled.set_result(None)
            for ledger_id in turn.ledger_ids:
                if self.unsettled[ledger_id] is turn.settled:
                    del self.unsettled[ledger_id]
        settling.request.close_part()

    async def _settle(
        self, settling: Settling, entries: Sequence[Buffer], indexes: list[int]
    ) -> None:
        """Decide adds that need admission or a look into the index, in request order (B-2, B-3)."""
        for index in indexes:
            try:
                await self._settle_one(settling, index, entries[index])
            except InvariantViolation:
                raise
            except OctavoError as error:
                _log.error("add-undecided", cause=str(error))
                settling.request.refuse(index, Status.EIO)
        settling.flush()

    async def _settle_one(self, settling: Settling, index: int, entry: Buffer) -> None:
        ids = ids_of(entry)
        if not is_sane(ids):
            settling.request.refuse(index, Status.BAD_REQUEST)
            return
        if ids.ledger_id not in self._table.by_id:
            settling.flush()
        ledger = await self._open(ids.ledger_id)
        try:
            status = await self._decide(settling, ledger, index, entry, ids.entry_id)
            settling.request.refuse(index, status)
        finally:
            ledger.pins -= 1

    async def _decide(
        self, settling: Settling, ledger: Ledger, index: int, entry: Buffer, entry_id: int
    ) -> Status:
        """OK once the entry is accepted, a known duplicate, or stored; else why not."""
        recovery = settling.recovery
        absent = False
        while True:
            verdict = judge_add(ledger, entry_id, entry, recovery=recovery, absent_in_index=absent)
            if verdict is Verdict.ACCEPT:
                return settling.accept(ledger, index, entry)
            if verdict is Verdict.DUPLICATE:
                settling.duplicate(ledger.ledger_id, entry_id, index)
                return Status.OK
            if verdict is Verdict.FENCED:
                return Status.FENCED
            if verdict is Verdict.CONFLICT:
                return self._conflict(ledger, entry_id)
            if verdict is Verdict.DOOMED:
                return Status.OVERLOADED
            settling.flush()
            if verdict is Verdict.ADMISSION:
                status = await self._admit(ledger, recovery)
                if status is not Status.OK:
                    return status
                continue
            status = await self._look_up(ledger, entry_id, entry)
            if status is Status.OK:
                return Status.OK
            if status is Status.CONFLICT:
                return self._conflict(ledger, entry_id)
            if status is Status.EIO and not recovery:
                return Status.EIO
            # Absent; or damaged, and recovery brings verbatim bytes to a new location (6.15).
            absent = status is not Status.UNKNOWN

    def _conflict(self, ledger: Ledger, entry_id: int) -> Status:
        self._stats.conflicts += 1
        _log.error("conflict", ledger_id=ledger.ledger_id, entry_id=entry_id, rule="INV-5")
        return Status.CONFLICT

    async def _look_up(self, ledger: Ledger, entry_id: int, entry: Buffer) -> Status:
        """Compare with the index: OK, CONFLICT, EIO, NO_SUCH_ENTRY, or UNKNOWN to judge again.

        One look per entry at a time: whoever comes second judges again, so that two adds of one id
        cannot both find it absent.
        """
        key = (ledger.ledger_id, entry_id)
        busy = self._looking.get(key)
        if busy is not None:
            await asyncio.shield(busy)
            return Status.UNKNOWN
        nothing_pending: dict[int, Buffer] = {}
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking[key] = mine
        try:
            found = await self._find(*key, 1, len(entry), nothing_pending)
        finally:
            # Waiters wake in a later turn of the loop, after our caller has acted on the answer.
            del self._looking[key]
            mine.set_result(None)
        if found.status is not Status.OK:
            return found.status
        return Status.OK if found.entries[0] == entry else Status.CONFLICT

    async def _admit(self, ledger: Ledger, recovery: bool) -> Status:
        """6.12: ask the metadata store, then queue the admit record in front of the entry."""
        if not recovery and self._clock.monotonic() < ledger.refused_until_s:
            return Status.FENCED
        answer = await self._desk.ask(ledger.ledger_id, recovery=recovery)
        if answer is Admission.UNKNOWN:
            return Status.NOT_ADMITTED_RETRY
        if answer is not Admission.ADMITTED:
            if answer is Admission.OVER and not recovery:
                ledger.refused_until_s = self._clock.monotonic() + self._config.refusal_cache_s
            return Status.FENCED if not recovery else Status.NO_SUCH_LEDGER
        if ledger.doomed:
            return Status.OVERLOADED  # its deletion was decided while we asked
        if recovery:
            ledger.exists = True
            return Status.OK
        if ledger.admitted or ledger.fenced:
            return Status.OK  # decided while we asked; the caller judges again
        if not self._journal.has_room(1, CONTROL.size):
            return Status.OVERLOADED
        ledger.admit()
        self._controls.submit(ledger, RecordType.ADMIT, self._tag, ledger.revoke_admission)
        return Status.OK
