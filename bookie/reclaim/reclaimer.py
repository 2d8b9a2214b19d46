"""Garbage collection, surplus copies and compaction of one opened store, as one part of it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import NamedTuple

from octavo.bookie.boot import STREAM, Booted
from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.segment import START, SegmentHeader
from octavo.bookie.reclaim.collection_core import CollectionLimits
from octavo.bookie.reclaim.collector import READS_PER_PASS_MAX, Collector
from octavo.bookie.reclaim.compaction_core import CompactionLimits
from octavo.bookie.reclaim.compactor import Compactor, Quarantine
from octavo.bookie.reclaim.store_facts import StoreWitness
from octavo.bookie.reclaim.surplus import SurplusCollector
from octavo.bookie.reclaim.surplus_core import SurplusLimits
from octavo.bookie.space import RECOVERY_RESERVE_SEGMENTS
from octavo.bookie.storage.index_writer import IndexWriter
from octavo.bookie.storage.reads import SegmentFiles
from octavo.bookie.store import BookieStore
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.proto import bookie_pb2
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Disk
from octavo.runtime.entropy import Entropy
from octavo.runtime.tasks import TaskOwner

FIRST_LOOK_S = 2.0
"""How long the start of a bookie that stores nothing waits for its first look at the metadata."""
COMPACTION_RETRY_S = 86_400.0
"""How long a segment is left alone that could not be removed or copied."""


class BookieMetadata(NamedTuple):
    """What of the metadata store a bookie works with."""

    store: MetadataStore
    catalog: LedgerCatalog
    cookies: CookieCatalog
    ids: LedgerIdAllocator
    repairs: RepairCatalog


def collection_limits(config: BookieConfig) -> CollectionLimits:
    """Settings of garbage collection."""
    return CollectionLimits(
        interval_s=config.gc_interval_s,
        confirm_s=config.gc_confirm_s,
        unexplained_ratio=config.gc_unexplained_ratio,
        reads_max=READS_PER_PASS_MAX,
    )


def surplus_limits(config: BookieConfig) -> SurplusLimits:
    """Settings of surplus copies."""
    return SurplusLimits(
        interval_s=config.gc_surplus_interval_s,
        quiet_s=config.gc_surplus_quiet_s,
        reads_max=READS_PER_PASS_MAX,
    )


def compaction_limits(config: BookieConfig) -> CompactionLimits:
    """Settings of compaction."""
    reserve = int(config.disk_reserve_segments * config.segment_bytes)
    return CompactionLimits(
        check_s=config.compaction_check_s,
        minor_ratio=config.compaction_minor_ratio,
        minor_interval_s=config.compaction_minor_interval_s,
        major_ratio=config.compaction_major_ratio,
        major_interval_s=config.compaction_major_interval_s,
        output_bytes=config.segment_bytes,
        reserve_bytes=reserve,
        last_reserve_bytes=min(reserve, int(RECOVERY_RESERVE_SEGMENTS * config.segment_bytes)),
        full_ratio=config.disk_warn_ratio,
        retry_s=COMPACTION_RETRY_S,
    )


def _template(cookie: Cookie) -> SegmentHeader:
    """What the headers of this bookie's sorted segments have in common."""
    cluster, none = uuid.UUID(cookie.instance_id), uuid.UUID(int=0)
    return SegmentHeader(STREAM, cluster, cookie.incarnation, none, 0, 0, START)


class Reclaimer:
    """Owns the three and their tasks; `start()` once the registration is won (B-28)."""

    def __init__(
        self,
        config: BookieConfig,
        booted: Booted,
        store: BookieStore,
        index_writer: IndexWriter,
        files: SegmentFiles,
        *,
        metadata: BookieMetadata,
        quarantine: Quarantine,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.compactor = Compactor(
            compaction_limits(config),
            folder=booted.journal_dir,
            disk=disk,
            files=files,
            index=booted.index,
            template=_template(booted.identity.cookie),
            do=index_writer.do,
            stream=STREAM,
            bytes_per_s=config.compaction_bytes_per_s,
            served=store.stats.entries_served,
            quarantine=quarantine,
            clock=clock,
            entropy=entropy,
        )
        # An empty bookie looks at once, so that deletions are counted from its first ledger on.
        self._is_new = not booted.index.segments()
        wait_s = 0.0 if self._is_new else entropy.uniform(0, config.gc_interval_s)
        witness = StoreWitness(
            metadata.store, metadata.catalog, metadata.cookies, metadata.ids, booted.identity
        )
        self.collector = Collector(
            collection_limits(config),
            witness=witness,
            index=booted.index,
            deletions=store.deletions,
            do=index_writer.do,
            stream=STREAM,
            reads_per_s=config.gc_reads_per_s,
            clock=clock,
            first_s=clock.monotonic() + wait_s,
            on_deleted=self.compactor.hurry,
        )
        self.surplus = SurplusCollector(
            surplus_limits(config),
            bookie_id=config.bookie_id,
            nonce=b"collection " + entropy.token(),
            witness=witness,
            trusts=self.collector.trusts,
            repairs=metadata.repairs,
            index=booted.index,
            deletions=store.deletions,
            reads_per_s=config.gc_reads_per_s,
            clock=clock,
            first_s=clock.monotonic()
            + entropy.uniform(0, min(config.gc_surplus_interval_s, config.gc_surplus_quiet_s)),
            on_deleted=self.compactor.hurry,
        )
        booted.identity.on_went_back = self.collector.hurry  # evidence that must not get lost
        self._tasks: TaskOwner | None = None

    async def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begin; `on_failure` is told when the disk or a promise of our own failed.

        A bookie that stores nothing yet takes its first look before it is used, so that it knows
        what was counted before its first ledger; but it does not wait long for that.
        """

        def told(name: str, error: BaseException) -> None:
            del name  # the task's, which was logged
            on_failure(error)

        self._tasks = TaskOwner("bookie-reclaim", told)
        self._tasks.spawn(self.collector.run(), name="collect")
        self._tasks.spawn(self.surplus.run(), name="give up surplus")
        self._tasks.spawn(self.compactor.run(), name="compact")
        if self._is_new:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_S):
                    await self.collector.looked.wait()

    def tell(self, reply: bookie_pb2.InfoReply) -> None:
        """Set the gauges of space."""
        space, collector = self.compactor.core, self.collector
        reply.stored_bytes = space.stored_bytes
        reply.live_bytes = space.live_bytes
        reply.reclaimed_bytes = space.reclaimed_bytes
        reply.segments_removed = space.removed
        reply.compactions = space.compactions
        reply.copied_bytes = space.copied_bytes
        reply.damaged_entries = self.compactor.damaged_entries
        reply.ledgers_deleted = collector.stats.ledgers_deleted
        reply.surplus_deleted = self.surplus.ledgers_deleted
        reply.ledgers_missing = collector.core.waiting
        reply.collection_passes = collector.stats.passes
        reply.collection_alarm = collector.alarm

    async def close(self) -> None:
        """End them; what was half done is done again, or found unused, after the next start."""
        if self._tasks is not None:
            await self._tasks.close()
        await self.collector.close()
        await self.surplus.close()
        await self.compactor.close()
