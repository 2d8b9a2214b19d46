"""The stream of a bookie that found no space for a segment: it takes nothing (ledger §6.13)."""

from __future__ import annotations

import asyncio

from octavo.bookie.journal.item import JournalItem
from octavo.bookie.journal.writer import JournalWriter
from octavo.proto.bookie_wire import Status


class RefusingJournal(JournalWriter):
    """Answers every item with DISK_FULL, in order; has no segment, no thread, no file."""

    def start(self) -> None:
        """From now on items are answered."""
        self._loop = asyncio.get_running_loop()

    def submit(self, item: JournalItem) -> None:
        """Refuse an item, in a later turn of the loop as the real stream does."""
        self.queued_records += item.records
        self.queued_bytes += item.nbytes
        assert self._loop is not None
        self._loop.call_soon(self._acknowledge, [item], Status.DISK_FULL)

    def stop(self) -> None:
        """Nothing to write."""
