"""Deleting ledgers whose metadata is proven gone: the bookie's side of garbage collection (6.14).

A deletion is a record of the stream (`RecordType.DELETE`), decided on the loop under the ledger's
object like a fence: what was accepted before it goes, nothing is accepted behind it, and a replay
repeats both in the same order (G-5). The index thread then removes the entries piece by piece.

Whether a ledger may be deleted at all is decided in `octavo.bookie.reclaim`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from octavo.bookie.journal.item import JournalItem
from octavo.bookie.journal.segment import CONTROL, RecordType
from octavo.bookie.journal.writer import JournalWriter
from octavo.bookie.ledgers import Ledger, LedgerTable
from octavo.bookie.storage.index_jobs import Erase, IndexJob
from octavo.proto.bookie_wire import Status

DELETIONS_PER_RECORD_BATCH = 64
"""Ledgers that are deleted with one write of the stream; the next ones follow when their entries
are gone, so that a start finds few deletions to finish."""

_DELETE = RecordType.DELETE


class LedgerDeletions:
    """Deletes ledgers of one store. Loop only.

    Args:
        open_ledger: the one object of a ledger, pinned.
        do: has the index thread do a job.
        unsettled: ledgers with adds that are being decided.
        on_disk_full: the stream had no space for a record.
    """

    def __init__(
        self,
        table: LedgerTable,
        journal: JournalWriter,
        *,
        open_ledger: Callable[[int], Awaitable[Ledger]],
        do: Callable[[IndexJob], Awaitable[None]],
        unsettled: Collection[int],
        on_disk_full: Callable[[], None],
    ) -> None:
        self._table = table
        self._journal = journal
        self._open = open_ledger
        self._do = do
        self._unsettled = unsettled
        self._on_disk_full = on_disk_full
        self.nbytes = 0
        """Bytes of entries that were deleted."""

    async def delete(self, ledger_ids: Sequence[int]) -> list[int]:
        """Delete these ledgers; returns those that are gone.

        One that is being written to, or whose record finds no place in the stream, is left for
        another time. Cancelled in between, a deletion whose record is in the stream is finished by
        the next start.
        """
        gone: list[int] = []
        for first in range(0, len(ledger_ids), DELETIONS_PER_RECORD_BATCH):
            gone += await self._delete(ledger_ids[first : first + DELETIONS_PER_RECORD_BATCH])
        return gone

    async def _delete(self, ledger_ids: Sequence[int]) -> list[int]:
        ledgers: list[Ledger] = []
        try:
            for ledger_id in ledger_ids:
                ledgers.append(await self._open(ledger_id))
            # From here to the submit nothing is awaited: stream order is decision order (B-F1).
            free = [ledger for ledger in ledgers if not self._is_busy(ledger)]
            size = CONTROL.size * len(free)
            if not free or not self._journal.has_room(len(free), size, reserve=True):
                return []
            if await self._write(free) is not Status.OK:
                return []
        finally:
            for ledger in ledgers:
                ledger.pins -= 1
        for ledger in free:
            job = Erase(ledger.ledger_id)
            await self._do(job)
            self.nbytes += job.nbytes
            del self._table.by_id[ledger.ledger_id]
        return [ledger.ledger_id for ledger in free]

    # --- copies that no record asks for (G-4) -----------------------------------------------

    async def condemn(self, ledger_id: int) -> bool:
        """Tell nobody which entries of this ledger are here, until `spare` or `delete_condemned`.

        False: somebody writes to it, and nothing was done.
        """
        ledger = await self._open(ledger_id)
        if self._is_busy(ledger) or ledger.condemned:
            ledger.pins -= 1
            return False
        ledger.condemned = True  # and pinned: this object stays the one of its ledger
        return True

    def spare(self, ledger_id: int) -> None:
        """Undo `condemn`; nothing to do if it is undone already."""
        ledger = self._table.by_id.get(ledger_id)
        if ledger is not None and ledger.condemned:
            ledger.condemned = False
            ledger.pins -= 1

    async def delete_condemned(self, ledger_id: int) -> bool:
        """Delete it; False: it is in use, or its record finds no place, and it is spared.

        Whoever opens it again begins anew: it is not admitted and not fenced (B-34, B-F4).
        """
        try:
            return bool(await self._delete([ledger_id]))
        finally:
            self.spare(ledger_id)

    def _is_busy(self, ledger: Ledger) -> bool:
        """Somebody writes to it, so somebody believes that it exists (G-5)."""
        return bool(
            ledger.doomed
            or ledger.pending
            or ledger.fence_waiters
            or ledger.ledger_id in self._unsettled
        )

    async def _write(self, ledgers: list[Ledger]) -> Status:
        """Put the deletions into the stream; returns once they are durable, or refused."""
        written: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def done(status: Status) -> None:
            if status is not Status.OK:
                for ledger in ledgers:
                    ledger.pins -= 1
                    ledger.spare()
                self._on_disk_full()
            if not written.done():
                written.set_result(status)

        for ledger in ledgers:
            ledger.doom()
            ledger.pins += 1  # until the index shows the record
            ledger.wake(always=True)
        controls = tuple((_DELETE, ledger.ledger_id, 0) for ledger in ledgers)
        self._journal.submit(JournalItem([], [], done, controls=controls, reserve=True))
        return await written
