"""The shell of garbage collection: asks metadata store and index what the core wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo.bookie.deletions import LedgerDeletions
from octavo.bookie.reclaim.collection_actions import (
    Action,
    Alarm,
    DeleteLedgers,
    ListLocal,
    Memory,
    PassEnded,
    RaiseAlarm,
    ReadFacts,
    ReadLedgers,
    Remember,
    WalkLedgers,
)
from octavo.bookie.reclaim.collection_core import CollectionCore, CollectionLimits
from octavo.bookie.reclaim.store_facts import StoreWitness
from octavo.bookie.reclaim.turns import wait_turn
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.index_jobs import Flush, IndexJob, Notes
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    InvariantViolation,
    MetadataCorrupt,
    NoSuchLedger,
    OctavoError,
    StorageFailed,
    UnsupportedVersion,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool

LISTED_PER_EVENT = 1000
"""Ledgers of the listing that the core hears of together; so often the reads are paced."""
READS_PER_PASS_MAX = 100_000
"""Records of missing ledgers that one pass reads."""
MEMORY_NOTE = b"collection"

_log = get_logger("octavo.bookie.collection")


def encode_memory(memory: Memory) -> bytes:
    """What is remembered, as a note of the index."""
    known = f"/{memory.restored}" if memory.restored else ""
    return f"{memory.explained}{known} {memory.doubt}".encode()


def decode_memory(value: bytes | None) -> Memory:
    """The same, read; nothing is known without one."""
    if value is None:
        return Memory(-1, "")
    numbers, _, doubt = value.decode().partition(" ")
    explained, _, restored = numbers.partition("/")
    return Memory(int(explained), doubt, restored)


@dataclass
class CollectionStats:
    """Counters since the start, for gauges."""

    passes: int = 0
    ledgers_deleted: int = 0
    last_pass_s: float | None = None
    """When the last pass ended without an alarm."""


class Collector:
    """Garbage collection of one opened store. Loop only.

    Args:
        do: has the index thread do a job.
        first_s: when the first pass begins.
        on_deleted: called after ledgers were deleted.
    """

    def __init__(
        self,
        limits: CollectionLimits,
        *,
        witness: StoreWitness,
        index: Index,
        deletions: LedgerDeletions,
        do: Callable[[IndexJob], Awaitable[None]],
        stream: int,
        reads_per_s: float,
        clock: Clock,
        first_s: float,
        on_deleted: Callable[[], None],
    ) -> None:
        self._witness = witness
        self._index = index
        self._deletions = deletions
        self._do = do
        self._stream = stream
        self._pause_s = 1 / reads_per_s
        self._clock = clock
        self._on_deleted = on_deleted
        self.core = CollectionCore(
            limits,
            instance_id=witness.instance_id,
            memory=decode_memory(index.note(MEMORY_NOTE)),
            first_s=first_s,
        )
        self.stats = CollectionStats()
        self._thread = WorkerPool("collection", 1, 1)
        self._asked = asyncio.Event()
        self.looked = asyncio.Event()
        """Set once the first pass is over, however it ended."""

    def accept(self) -> None:
        """An operator says: what the metadata does not know any more may be deleted."""
        _log.warning("missing-ledgers-accepted", alarm=self.core.alarm.value)
        self.core.accept(self._clock.monotonic())
        self._asked.set()

    def hurry(self) -> None:
        """Begin a pass at once."""
        self.core.hurry(self._clock.monotonic())
        self._asked.set()

    async def held(self) -> list[int]:
        """Ledgers of which the index has entries, in order; for tools."""
        ledgers = await self._thread.run(self._index.ledgers)
        return sorted(ledger_id for ledger_id, has_entries in ledgers if has_entries)

    async def trusts(self) -> tuple[int, bool]:
        """The session, and whether a pass found nothing against the metadata, nor does it now.

        Raises MetadataUnavailable, MetadataCorrupt, UnsupportedVersion.
        """
        facts = await self._witness.facts()
        passed = self.stats.last_pass_s is not None
        return facts.session_id, passed and self.core.trusts(facts)

    async def run(self) -> None:
        """Pass after pass until cancelled; StorageFailed when the index fails."""
        while True:
            await wait_turn(self._asked, self.core.next_deadline_s(), self._clock)
            actions = self.core.wake(self._clock.monotonic())
            while actions:
                following: list[Action] = []
                for action in actions:
                    following += await self._act(action)
                actions = following
            if self.stats.passes:
                self.looked.set()

    async def close(self) -> None:
        """Wait for a look into the index that is under way."""
        await self._thread.close()

    async def _act(self, action: Action) -> list[Action]:
        if isinstance(action, RaiseAlarm):
            self._tell(action)
            return []
        if isinstance(action, PassEnded):
            self.stats.last_pass_s = self._clock.monotonic()
            if action.deleted or action.waiting:
                _log.info("pass-ended", deleted=action.deleted, waiting=action.waiting)
            return []
        if isinstance(action, Remember):
            await self._do(Notes({MEMORY_NOTE: encode_memory(action.memory)}))
            await self._do(Flush(self._stream))  # no crash takes it back
            return []
        try:
            return await self._ask(action)
        except (InvariantViolation, StorageFailed):
            raise
        except OctavoError as error:
            _log.warning("pass-given-up", cause=error.cause)
            return self.core.failed(self._clock.monotonic())

    async def _ask(self, action: Action) -> list[Action]:
        core, clock = self.core, self._clock
        if isinstance(action, ListLocal):
            self.stats.passes += 1
            return core.locals_listed(await self._thread.run(self._index.ledgers))
        if isinstance(action, ReadFacts):
            facts = await self._witness.facts()
            return core.facts_read(facts, clock.monotonic())
        if isinstance(action, WalkLedgers):
            await self._walk()
            return core.walk_ended(clock.monotonic())
        if isinstance(action, ReadLedgers):
            for ledger_id in action.ledger_ids:
                core.ledger_read(ledger_id, exists=await self._exists(ledger_id))
                await clock.sleep(self._pause_s)
            return core.reads_ended(clock.monotonic())
        assert isinstance(action, DeleteLedgers)
        gone = await self._deletions.delete(action.ledger_ids)
        self.stats.ledgers_deleted += len(gone)
        if gone:
            _log.info("ledgers-deleted", count=len(gone), first=gone[0], last=gone[-1])
            self._on_deleted()
        return core.deleted(gone, clock.monotonic())

    async def _walk(self) -> None:
        """The listing, from a state that is not older than now (M-4)."""
        await self._witness.barrier()
        listed: list[int] = []
        async for ledger_id in self._witness.catalog.walk():
            listed.append(ledger_id)
            if len(listed) == LISTED_PER_EVENT:
                self.core.listed(listed)
                listed = []
                await self._clock.sleep(self._pause_s)
        self.core.listed(listed)

    async def _exists(self, ledger_id: int) -> bool:
        """Whether the ledger has a record, readable or not (M-7)."""
        try:
            await self._witness.catalog.read(LedgerId(ledger_id), barrier=True)
        except NoSuchLedger:
            return False
        except (MetadataCorrupt, UnsupportedVersion):
            return True
        return True

    def _tell(self, alarm: RaiseAlarm) -> None:
        _log.error("nothing-is-deleted", alarm=alarm.alarm.value, cause=alarm.cause)

    @property
    def alarm(self) -> str:
        """Why nothing is deleted, for people; empty while all is well."""
        core = self.core
        return "" if core.alarm is Alarm.NONE else f"{core.alarm.value}: {core.cause}"
