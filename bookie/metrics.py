"""The page of a bookie: journal, index, space, and the autorecovery beside it (F171)."""

from __future__ import annotations

from collections.abc import Callable

import octavo
from octavo.bookie.config import BookieConfig
from octavo.bookie.information import STATES, InformationDesk
from octavo.bookie.opened import OpenedStore
from octavo.client.autorecovery.service import Autorecovery
from octavo.client.ledger.counters import LedgerCounters
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.store import SessionState
from octavo.metrics import catalogue as m
from octavo.metrics.page import MetricsPage
from octavo.metrics.readings import Readings
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock


class BookieMetrics:
    """Owns the page from `start` to `close`.

    Args:
        desk: knows the bookie, in every state of it.
        connections: how many the framed port has.
        healing: the autorecovery of this process, if it has one.
    """

    def __init__(
        self,
        config: BookieConfig,
        desk: InformationDesk,
        connections: Callable[[], int],
        *,
        store: MeasuredStore,
        healing: Autorecovery | None,
        clock: Clock,
    ) -> None:
        self._config = config
        self._desk = desk
        self._connections = connections
        self._store = store
        self._healing = healing
        self.page = MetricsPage("bookie", version=octavo.__version__, clock=clock)
        self.page.add(self._bookie, self._journal, self._space, self._scrub)
        self.page.add(self._metadata, self._autorecovery)

    async def start(self) -> None:
        """Listen if the settings say so; raises ConfigError."""
        config = self._config
        await self.page.start(config.metrics_host or config.host, config.metrics_port)

    async def close(self) -> None:
        """Show nothing any more."""
        await self.page.close()

    # --- what the parts know ------------------------------------------------------------------

    async def _bookie(self, readings: Readings) -> None:
        readings.add_state(m.BOOKIE_STATE, STATES, self._desk.state())
        readings.add(m.CONNECTIONS, self._connections())
        readings.add(m.INDEX_REBUILDS, self._desk.index_rebuilds)
        opened = self._desk.opened()
        if opened is None:
            return
        stats = opened.store.stats
        readings.add(m.BOOKIE_ENTRIES, stats.entries_added, "in")
        readings.add(m.BOOKIE_ENTRIES, stats.entries_read, "out")
        readings.add(m.FENCED_ADDS, stats.refused[Status.FENCED])
        for status, count in stats.refused.items():
            readings.add(m.REFUSED_ADDS, count, status.name)
        damaged = opened.reclaimer.compactor.damaged_entries
        readings.add(m.CORRUPT_ENTRIES, stats.unreadable + damaged)
        readings.add(m.CONFLICTS, stats.conflicts)
        readings.add(m.LEDGERS, opened.store.ledgers_in_memory)

    async def _journal(self, readings: Readings) -> None:
        opened = self._desk.opened()
        if opened is None:
            return
        journal = opened.booted.journal
        readings.add_histogram(m.JOURNAL_ADD_SECONDS, journal.add_seconds)
        readings.add_histogram(m.JOURNAL_FSYNC_SECONDS, journal.sync_seconds)
        readings.add_histogram(m.JOURNAL_GROUP_SIZE, journal.group_sizes)
        readings.add(m.JOURNAL_BYTES, journal.bytes_written)
        readings.add(m.JOURNAL_QUEUE_ENTRIES, journal.queued_records)
        readings.add(m.JOURNAL_QUEUE_BYTES, journal.queued_bytes)

    async def _space(self, readings: Readings) -> None:
        gauge = self._desk.gauge
        for name, disk in (("data", gauge.data), ("index", gauge.index)):
            if disk is not None and disk.total_bytes:  # measured
                readings.add(m.DISK_FREE, disk.free_bytes, name)
                readings.add(m.DISK_TOTAL, disk.total_bytes, name)
        opened = self._desk.opened()
        if opened is not None:
            self._reclaimed(readings, opened)

    @staticmethod
    def _reclaimed(readings: Readings, opened: OpenedStore) -> None:
        space, collector = opened.reclaimer.compactor.core, opened.reclaimer.collector
        readings.add(m.STORED_BYTES, space.stored_bytes)
        readings.add(m.LIVE_BYTES, space.live_bytes)
        readings.add(m.RECLAIMED_BYTES, space.reclaimed_bytes)
        readings.add(m.COPIED_BYTES, space.copied_bytes)
        surplus = opened.reclaimer.surplus.ledgers_deleted
        readings.add(m.LEDGERS_DELETED, collector.stats.ledgers_deleted + surplus)
        readings.add(m.LEDGERS_MISSING, collector.core.waiting)
        readings.add(m.COLLECTION_ALARM, int(bool(collector.alarm)))

    async def _scrub(self, readings: Readings) -> None:
        opened = self._desk.opened()
        if opened is None:
            return
        scrubber = opened.scrubber
        quarantine, ended_ms = scrubber.quarantine, scrubber.core.progress.ended_ms
        readings.add(m.SCRUB_BYTES, scrubber.stats.scrubbed_bytes)
        readings.add(m.SCRUB_PASSES, scrubber.core.passes)
        if scrubber.enabled and ended_ms:
            readings.add(m.SCRUB_ENDED, ended_ms / 1000)
        readings.add(m.SCRUB_DAMAGED, quarantine.damaged)
        readings.add(m.SCRUB_REPAIRED, quarantine.repaired)
        readings.add(m.SCRUB_WAITING, quarantine.suspects.count)
        readings.add(m.SCRUB_QUARANTINED, len(quarantine.quarantined()))

    async def _metadata(self, readings: Readings) -> None:
        store = self._store
        for operation, seconds in store.seconds.items():
            readings.add_histogram(m.METADATA_OP_SECONDS, seconds, operation)
            readings.add(m.METADATA_OP_FAILURES, store.failures[operation], operation)
        states = [state.value for state in SessionState]
        readings.add_state(m.METADATA_SESSION_STATE, states, store.session_state.value)
        readings.add(m.METADATA_SESSION_LOSSES, store.session_losses)

    async def _autorecovery(self, readings: Readings) -> None:
        healing = self._healing
        if healing is None:
            return
        stats = healing.stats
        readings.add(m.LEDGERS_REPAIRED, stats.ledgers_repaired)
        readings.add(m.REPAIRS_FAILED, stats.attempts_failed)
        readings.add(m.REPAIRED_ENTRIES, stats.entries_copied)
        readings.add(m.REPAIRED_BYTES, stats.bytes_copied)
        readings.add(m.UNREADABLE_ENTRIES, stats.entries_unreadable)
        readings.add(m.AUDITOR, int(healing.is_auditor))
        report = healing.audit
        if report is not None:
            readings.add(m.UNDERREPLICATED, report.short)
            readings.add(m.LEDGERS_UNCHECKED, report.unchecked + report.unreadable)
            readings.add(m.AUDIT_ENDED, report.ended_ms / 1000)
        self._ledgers(readings, healing.ledger_counters)

    @staticmethod
    def _ledgers(readings: Readings, ledgers: LedgerCounters) -> None:
        readings.add(m.ENSEMBLE_CHANGES, ledgers.ensemble_changes)
        readings.add(m.DEGRADED_LEDGERS, ledgers.degraded_ledgers)
        for outcome, count in ledgers.recoveries.items():
            readings.add(m.LEDGER_RECOVERIES, count, outcome)
        readings.add_histogram(m.RECOVERY_SECONDS, ledgers.recovery_seconds)
