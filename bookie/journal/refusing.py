"""The stream of a bookie that found no space for a segment: it takes nothing (ledger §6.13)."""

from __future__ import annotations

import asyncio

from octavo.bookie.journal.item import JournalItem
from octavo.bookie.journal.writer import JournalWriter
from octavo.proto.bookie_wire import Status


class RefusingJournal(JournalWriter):
    """Answers every item with DISK_FULL, in order; has no segment, no thread, no file."""

    def start(self) -> None:
        """Nothing to start: items are answered by the loop that submits them."""

    def submit(self, item: JournalItem) -> None:
        """Refuse an item, in a later turn of the loop as the real stream does."""
        self._queue.submit(item)
        items, _, _ = self._queue.take(item.nbytes)
        asyncio.get_running_loop().call_soon(self._acknowledge, items, Status.DISK_FULL)

    def stop(self) -> None:
        """Nothing to write."""
