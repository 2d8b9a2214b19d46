"""What runs over an opened journal and index: requests, index thread, evidence (ledger §6).

Owns the order in which these parts start and end; a bookie may close one and open the next in place
(6.13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.bookie.admission import AdmissionDesk
from octavo.bookie.boot import STREAM, Booted
from octavo.bookie.config import BookieConfig
from octavo.bookie.evidence import EvidenceKeeper
from octavo.bookie.journal.item import JournalItem
from octavo.bookie.reclaim.reclaimer import BookieMetadata, Reclaimer
from octavo.bookie.scrub.scrubber import Scrubber
from octavo.bookie.scrub.wanted import WantedEntries
from octavo.bookie.storage.index_writer import IndexWriter
from octavo.bookie.storage.reads import EntryReader, SegmentFiles
from octavo.bookie.store import BookieStore
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.ids import Member
from octavo.runtime.tasks import OnFailure, TaskOwner
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.bookie.opened")


class StoreEvents(NamedTuple):
    """Where the parts report to; all on the loop."""

    on_visible: Callable[[list[JournalItem]], None]
    on_disk_full: Callable[[], None]
    on_failure: Callable[[BaseException], None]
    """The index thread has stopped for good."""
    on_broken: Callable[[BaseException], None]
    """A promise of our own is broken."""


class OpenedStore:
    """One opened directory."""

    def __init__(
        self,
        config: BookieConfig,
        booted: Booted,
        *,
        disk: Disk,
        metadata: BookieMetadata,
        clock: Clock,
        entropy: Entropy,
        events: StoreEvents,
    ) -> None:
        self.booted = booted
        self._events = events
        incarnation = booted.identity.cookie.incarnation
        self._files = SegmentFiles(booted.journal_dir, disk)
        self.index_writer = IndexWriter(
            booted.index,
            STREAM,
            flush_interval_s=config.memtable_flush_s,
            flush_bytes=config.memtable_flush_bytes,
            drop_retired=config.page_cache_bytes is not None,
            clock=clock,
            on_visible=events.on_visible,
            on_failure=events.on_failure,
        )
        self.store = BookieStore(
            config,
            incarnation=incarnation,
            journal=booted.journal,
            index=booted.index,
            reader=EntryReader(booted.index, self._files),
            desk=AdmissionDesk(metadata.catalog, Member(config.bookie_id, incarnation)),
            do=self.index_writer.do,
            clock=clock,
            on_disk_full=events.on_disk_full,
            on_broken=events.on_broken,
        )
        self.keeper = EvidenceKeeper(
            config, booted.journal, booted.durable_file, booted.identity, clock
        )
        self.scrubber = Scrubber(
            config,
            folder=booted.journal_dir,
            disk=disk,
            index=booted.index,
            store=self.store,
            wanted=WantedEntries(metadata.catalog, booted.index, config.bookie_id),
            repairs=metadata.repairs,
            do=self.index_writer.do,
            evacuate=lambda number: self.reclaimer.compactor.evacuate(number),
            stream=STREAM,
            clock=clock,
            entropy=entropy,
        )
        self.reclaimer = Reclaimer(
            config,
            booted,
            self.store,
            self.index_writer,
            self._files,
            metadata=metadata,
            quarantine=self.scrubber,
            disk=disk,
            clock=clock,
            entropy=entropy,
        )
        self._tasks: TaskOwner | None = None

    def start(self) -> None:
        """Start the threads."""
        self.index_writer.start()
        self.booted.journal.start()

    def keep_evidence(self, on_failure: OnFailure) -> None:
        """Carry the durable position to the metadata store from now on."""
        self._tasks = TaskOwner("bookie-evidence", on_failure)
        self._tasks.spawn(self.keeper.run(), name="keep evidence")

    async def reclaim(self) -> None:
        """Delete what is gone from the metadata, compact segments and scrub, from now on."""
        self.scrubber.start(self._events.on_failure)
        await self.reclaimer.start(self._events.on_failure)

    async def close(self, *, finish: bool = False) -> None:
        """Write what is queued, end the threads, close the files; the lock stays held.

        A step that fails is logged and does not keep the others from being done: nothing that was
        acknowledged depends on it. `finish`: a clean stop, whose last position is told.
        """
        booted = self.booted
        if self._tasks is not None:
            await end_part("evidence", self._tasks.close())
        await end_part("scrub", self.scrubber.close())
        await end_part("reclaim", self.reclaimer.close())
        await end_part("journal", asyncio.to_thread(booted.journal.stop))
        await end_part("index writer", asyncio.to_thread(self.index_writer.stop))
        if finish:
            await end_part("last evidence", self.keeper.finish())
        await end_part("durable file", asyncio.to_thread(booted.durable_file.close))
        await end_part("store", self.store.close())
        await end_part("files", asyncio.to_thread(self._files.close))
        await end_part("index", asyncio.to_thread(booted.index.close))


async def end_part(what: str, step: Awaitable[object]) -> None:
    """Do one step of a stop; an error is logged only."""
    try:
        await step
    except Exception as error:  # noqa: BLE001 - the other steps must be done
        _log.error("stop-incomplete", part=what, cause=repr(error))
