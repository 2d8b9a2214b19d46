"""The admission check of the first add to a ledger (spec/ledger.md §6.12, B-31..B-34).

Owns the question to the metadata store and what its answer means; the answer is made durable by the
store shell. It is the second line of defence behind fences: a bookie that forgot a fence finds a
state that is not OPEN.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from octavo.metadata.ledgers import LedgerCatalog, LedgerMetadata, LedgerState
from octavo.runtime.errors import (
    MetadataCorrupt,
    NoSuchLedger,
    OctavoError,
    UnsupportedVersion,
)
from octavo.runtime.ids import LedgerId, Member
from octavo.runtime.tasks import TaskOwner

ADMISSION_TIMEOUT_S = 4.0
"""Below the writer's add timeout of 5 s, so that it learns NOT_ADMITTED_RETRY instead of
guessing."""
CONCURRENT_READS_MAX = 64


class Admission(Enum):
    """What the metadata store's answer means for an add."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    """Not a member of the last ensemble of an open ledger; may change, never remembered."""
    OVER = "over"
    """IN_RECOVERY, CLOSED or absent: states never go back, so it may be remembered (B-32)."""
    UNKNOWN = "unknown"
    """The store could not be asked: NOT_ADMITTED_RETRY."""


def judge_admission(metadata: LedgerMetadata | None, me: Member, *, recovery: bool) -> Admission:
    """B-31 for ordinary adds, B-32 for recovery adds; None means absent after a barrier."""
    if metadata is None:
        return Admission.OVER
    if recovery:
        return Admission.ADMITTED
    if metadata.state is not LedgerState.OPEN:
        return Admission.OVER
    if me not in metadata.last_fragment[1]:
        return Admission.REFUSED
    return Admission.ADMITTED


class AdmissionDesk:
    """Asks the metadata store, one question per ledger at a time."""

    def __init__(self, catalog: LedgerCatalog, me: Member) -> None:
        self._catalog = catalog
        self._me = me
        self._tasks = TaskOwner("admission")
        self._asking: dict[tuple[int, bool], asyncio.Task[Admission]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_READS_MAX)
        self.reads = 0

    async def ask(self, ledger_id: int, *, recovery: bool) -> Admission:
        """Whether adds to this ledger may be accepted."""
        key = (ledger_id, recovery)
        task = self._asking.get(key)
        if task is None:
            task = self._tasks.spawn(self._ask(ledger_id, recovery), name=f"ledger {ledger_id}")
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop asking."""
        await self._tasks.close()

    async def _ask(self, ledger_id: int, recovery: bool) -> Admission:
        try:
            async with asyncio.timeout(ADMISSION_TIMEOUT_S), self._slots:
                first = await self._look(ledger_id, recovery, barrier=False)
                if first is Admission.ADMITTED:
                    return first
                # What looks like a refusal may be a stale follower: barrier, read once more (B-31).
                return await self._look(ledger_id, recovery, barrier=True)
        except (MetadataCorrupt, UnsupportedVersion):
            # M-7: it exists. Recovery may store its copies, an ordinary writer cannot be checked.
            return Admission.ADMITTED if recovery else Admission.UNKNOWN
        except (OctavoError, TimeoutError):
            return Admission.UNKNOWN

    async def _look(self, ledger_id: int, recovery: bool, *, barrier: bool) -> Admission:
        self.reads += 1
        try:
            found = await self._catalog.read(LedgerId(ledger_id), barrier=barrier)
        except NoSuchLedger:
            return judge_admission(None, self._me, recovery=recovery)
        return judge_admission(found.metadata, self._me, recovery=recovery)
