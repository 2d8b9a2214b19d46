"""The shell of surplus copies: asks metadata store and index what the core wants to know (G-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.bookie.deletions import LedgerDeletions
from octavo.bookie.reclaim.store_facts import StoreWitness
from octavo.bookie.reclaim.surplus_actions import (
    Action,
    Condemn,
    DeleteCopies,
    Held,
    ListLocal,
    PassEnded,
    ReadFacts,
    ReadRecord,
    ReadRecords,
    RecordFacts,
    Spare,
    TakeLock,
    TouchRecord,
    Unlock,
)
from octavo.bookie.reclaim.surplus_core import SurplusCore, SurplusLimits
from octavo.bookie.reclaim.turns import wait_turn
from octavo.bookie.storage.index import Index
from octavo.metadata.ledgers import LedgerMetadata, VersionedLedger
from octavo.metadata.repairs import RepairCatalog, RepairLock
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    InvariantViolation,
    MetadataCorrupt,
    NoSuchLedger,
    OctavoError,
    StorageFailed,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool

_log = get_logger("octavo.bookie.surplus")


def facts_of(record: LedgerMetadata, bookie_id: str) -> RecordFacts:
    """What a record says of this bookie, whatever its incarnation: copies of an older one are read
    still (B-25)."""
    named = {member.bookie_id for _, ensemble in record.fragments for member in ensemble}
    return RecordFacts(record.closed_for_good, bookie_id in named)


class SurplusCollector:
    """Gives up surplus copies of one opened store. Loop only.

    Args:
        nonce: what this process's locks carry.
        trusts: whether garbage collection would believe these facts of the metadata now (G-3).
        on_deleted: called after copies were deleted.
    """

    def __init__(
        self,
        limits: SurplusLimits,
        *,
        bookie_id: str,
        nonce: bytes,
        witness: StoreWitness,
        trusts: Callable[[], Awaitable[tuple[int, bool]]],
        repairs: RepairCatalog,
        index: Index,
        deletions: LedgerDeletions,
        reads_per_s: float,
        clock: Clock,
        first_s: float,
        on_deleted: Callable[[], None],
    ) -> None:
        self._bookie_id = bookie_id
        self._nonce = nonce
        self._catalog = witness.catalog
        self._trusts = trusts
        self._repairs = repairs
        self._index = index
        self._deletions = deletions
        self._pause_s = 1 / reads_per_s
        self._clock = clock
        self._on_deleted = on_deleted
        self.core = SurplusCore(limits, first_s=first_s)
        self.ledgers_deleted = 0
        self._thread = WorkerPool("surplus", 1, 1)
        self._asked = asyncio.Event()
        self._lock: RepairLock | None = None
        self._found: VersionedLedger | None = None
        """The record that was read last, to be written again."""

    def hurry(self) -> None:
        """Look at all ledgers at once."""
        self.core.hurry(self._clock.monotonic())
        self._asked.set()

    async def run(self) -> None:
        """Pass after pass until cancelled; StorageFailed when the index or the stream fails."""
        while True:
            await wait_turn(self._asked, self.core.next_deadline_s(), self._clock)
            actions = self.core.wake(self._clock.monotonic())
            while actions:
                following: list[Action] = []
                for action in actions:
                    following += await self._act(action)
                actions = following

    async def close(self) -> None:
        """Once `run` is cancelled: give back what it held, for the session may go on (6.13)."""
        await self._thread.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.release()

    async def _act(self, action: Action) -> list[Action]:
        match action:
            case Spare():
                self._deletions.spare(action.ledger_id)
                return []
            case Unlock():
                lock, self._lock = self._lock, None
                if lock is not None:
                    await lock.release()
                return []
            case PassEnded():
                if action.deleted or action.waiting:
                    _log.info("surplus-pass", deleted=action.deleted, waiting=action.waiting)
                return []
            case Condemn():
                done = await self._deletions.condemn(action.ledger_id)
                return self.core.condemned(self._clock.monotonic(), done=done)
            case DeleteCopies():
                return await self._delete(action.ledger_id)
            case _:
                pass
        try:
            return await self._ask(action)
        except (InvariantViolation, StorageFailed):
            raise
        except OctavoError as error:
            _log.info("surplus-pass-given-up", cause=error.cause)
            return self.core.failed(self._clock.monotonic())

    async def _ask(self, action: Action) -> list[Action]:
        core, clock = self.core, self._clock
        match action:
            case ListLocal():
                return core.locals_listed(await self._thread.run(self._index.ledgers))
            case ReadFacts():
                session_id, trusted = await self._trusts()
                return core.facts_read(session_id, clock.monotonic(), trusted=trusted)
            case ReadRecords():
                for ledger_id in action.ledger_ids:
                    core.record_read(ledger_id, *await self._look(ledger_id), clock.monotonic())
                    await clock.sleep(self._pause_s)
                return core.reads_ended(clock.monotonic())
            case ReadRecord():
                seen = await self._look(action.ledger_id, barrier=True)
                return core.record_read(action.ledger_id, *seen, clock.monotonic())
            case TakeLock():
                self._lock = await self._repairs.lock(LedgerId(action.ledger_id), self._nonce)
                return core.locked(clock.monotonic(), ours=self._lock is not None)
            case TouchRecord():
                return core.touched(clock.monotonic(), done=await self._touch())
            case _:
                raise InvariantViolation(f"surplus: nobody asks {type(action).__name__}")

    async def _look(
        self, ledger_id: int, *, barrier: bool = False
    ) -> tuple[RecordFacts | None, Held | None]:
        """The record, and what the index holds of the ledger."""
        self._found = None
        try:
            self._found = await self._catalog.read(LedgerId(ledger_id), barrier=barrier)
        except (NoSuchLedger, MetadataCorrupt, UnsupportedVersion):  # M-7: it stays
            return None, None
        state = await self._thread.run(self._index.ledger, ledger_id)
        held = None if state is None else Held(state.entries, state.nbytes, state.last_entry)
        return facts_of(self._found.metadata, self._bookie_id), held

    async def _touch(self) -> bool:
        """The same record under a new version: who read the old one can change it no more."""
        found, lock = self._found, self._lock
        if found is None or lock is None or not lock.held:
            return False
        try:
            await self._catalog.cas(found, found.metadata)
        except (VersionConflict, NoSuchLedger):
            return False
        return lock.held

    async def _delete(self, ledger_id: int) -> list[Action]:
        done = await self._deletions.delete_condemned(ledger_id)
        if done:
            self.ledgers_deleted += 1
            _log.info("surplus-ledger-deleted", ledger_id=ledger_id)
            self._on_deleted()
        return self.core.deleted(self._clock.monotonic(), done=done)
