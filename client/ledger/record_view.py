"""A ledger's record as a reader sees it: fixed, known, or followed by a watch (RD-8, RD-10)."""

from __future__ import annotations

import asyncio
import logging

from octavo.metadata.ledgers import LedgerCatalog, LedgerMetadata
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore, Unsubscribe
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.record")


class RecordView:
    """A fixed record, for readers without a metadata store."""

    is_fixed = True
    """Nobody tells when the ledger is deleted or moves."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self._changed = asyncio.Event()  # replaced at every change

    async def wait_changed(self) -> None:
        """Return after the next change of the record."""
        await self._changed.wait()

    async def refresh(self) -> None:
        """Read the record anew; a fixed record stays as it is."""

    async def close(self) -> None:
        """Stop following the record."""


class KnownRecord(RecordView):
    """A record that was just read or written: read anew when somebody asks for it (RD-10)."""

    is_fixed = False

    def __init__(self, catalog: LedgerCatalog, metadata: LedgerMetadata) -> None:
        super().__init__(metadata)
        self._catalog = catalog

    async def refresh(self) -> None:
        """Read the record behind a barrier; raises NoSuchLedger, MetadataUnavailable."""
        found = await self._catalog.read(self.metadata.ledger_id, barrier=True)
        self._take(found.metadata)

    def _take(self, metadata: LedgerMetadata) -> None:
        if metadata == self.metadata:
            return
        self.metadata = metadata
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class FollowedRecord(KnownRecord):
    """A record kept fresh by a watch; keeps the last one known while the store is away."""

    def __init__(
        self, store: MetadataStore, paths: Paths, catalog: LedgerCatalog, metadata: LedgerMetadata
    ) -> None:
        super().__init__(catalog, metadata)
        self._dirty = asyncio.Event()
        self._tasks = TaskOwner(f"record of ledger {metadata.ledger_id}")
        key = paths.ledger(metadata.ledger_id)
        self._unsubscribe: Unsubscribe = store.watch(key, lambda _key: self._dirty.set())
        self._tasks.spawn(self._follow(), name="follow")

    @classmethod
    async def open(
        cls, store: MetadataStore, paths: Paths, catalog: LedgerCatalog, ledger_id: LedgerId
    ) -> FollowedRecord:
        """Read the record and follow it; raises NoSuchLedger, MetadataUnavailable."""
        view = cls(store, paths, catalog, (await catalog.read(ledger_id)).metadata)
        view._dirty.set()  # a change between the read and the watch
        return view

    async def close(self) -> None:
        """End the watch."""
        self._unsubscribe()
        await self._tasks.close()

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                self._take((await self._catalog.read(self.metadata.ledger_id)).metadata)
            except OctavoError as error:  # deleted, or the store is away: reads will tell
                _log.info("record of ledger %d: %s", self.metadata.ledger_id, error)
