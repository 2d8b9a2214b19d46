"""The ledger client: create, recover, read and delete ledgers (§3, §4, §5).

Owns the pool, the bookie directory and every open writing handle. Used by brokers, autorecovery
and tools; applications never see it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.counters import LedgerCounters
from octavo.client.ledger.ensemble_change import EnsembleChanger, candidates_of, domain_of
from octavo.client.ledger.placement import Sized, choose_ensemble, size_for
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.reader import LedgerReader
from octavo.client.ledger.record_view import FollowedRecord, KnownRecord
from octavo.client.ledger.recover import LedgerRecovery
from octavo.client.ledger.writer import LedgerWriter
from octavo.metadata.bookies import BookieDirectory, CookieCatalog
from octavo.metadata.ledgers import (
    CREATED_VERSION,
    LedgerCatalog,
    LedgerMetadata,
    Quorum,
    VersionedLedger,
)
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto.transport import Network
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import NotEnoughBookies, NotEnoughReplicas, VersionConflict
from octavo.runtime.ids import LedgerId, Member
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.client")

DELETE_ATTEMPTS_MAX = 5
"""Conflicts tolerated by one `delete_ledger`."""


class _DirectoryAddresses:
    """The pool's address book over the live registrations."""

    def __init__(self, directory: BookieDirectory) -> None:
        self._directory = directory

    def address_of(self, bookie_id: str) -> str | None:
        found = self._directory.find(bookie_id)
        return None if found is None else found.wire_address


class LedgerClient:
    """Everything a process does with ledgers. `start()` first, `close()` last, on one loop."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        *,
        config: LedgerClientConfig | None = None,
        network: Network | None = None,
        counters: LedgerCounters | None = None,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.config = config or LedgerClientConfig()
        self.counters = counters or LedgerCounters()
        """What this client did since it started."""
        self.catalog = LedgerCatalog(store, paths, clock=clock, entropy=entropy)
        self.directory = BookieDirectory(store, paths, clock=clock)
        self._store = store
        self._paths = paths
        self._clock = clock
        self._entropy = entropy
        self._cookies = CookieCatalog(store, paths, clock=clock, entropy=entropy)
        self.pool = BookiePool(
            _DirectoryAddresses(self.directory),
            config=self.config,
            network=network,
            clock=clock,
            entropy=entropy,
        )
        self._changer = EnsembleChanger(
            store,
            self.catalog,
            self.directory,
            self.pool,
            config=self.config,
            counters=self.counters,
            clock=clock,
            entropy=entropy,
        )
        self._recovery = LedgerRecovery(
            self.catalog,
            self.directory,
            self.pool,
            config=self.config,
            counters=self.counters,
            clock=clock,
            entropy=entropy,
        )
        self._writers: dict[LedgerId, LedgerWriter] = {}
        self._tasks = TaskOwner("ledger-client")

    async def start(self) -> None:
        """Follow the bookie directory and start the timeout wheel; raises MetadataUnavailable."""
        self.pool.cluster_id = await self._cookies.cluster_id()
        await self.directory.start()
        self.pool.start()
        self._tasks.spawn(self._follow_directory(), name="follow directory")

    async def close(self) -> None:
        """Abandon open handles (their ledgers need recovery) and close every connection."""
        for writer in list(self._writers.values()):
            writer.abandon("the ledger client was closed")
        await self._tasks.close()
        await self.pool.close()
        await self.directory.close()

    async def _follow_directory(self) -> None:
        known = {b.bookie_id: b for b in self.directory.live()}
        while True:
            await self.directory.wait_changed()
            live = {b.bookie_id: b for b in self.directory.live()}
            # Registered anew: a new process, no reason to avoid it for what the old one did.
            self.pool.lift_quarantine(b for b in live if live[b] != known.get(b))
            known = live
            for writer in list(self._writers.values()):
                writer.bookies_changed()

    # --- ledgers ---

    async def create_ledger(
        self, quorum: Quorum, custom: Mapping[str, str], *, allow_degraded: bool = True
    ) -> LedgerWriter:
        """A new OPEN ledger that no list names, not yet written to; for tools and tests.

        Raises as `draft_ledger`, and UnknownOutcome: then a ledger nobody uses may exist.
        """
        sized, members = self._place(quorum, allow_degraded)
        created = await self.catalog.create(
            sized.quorum,
            members,
            custom=custom,
            degraded=sized.degraded,
            wanted_copies=quorum.write,
        )
        return self._writer_of(created, quorum)

    async def draft_ledger(
        self,
        quorum: Quorum,
        custom: Mapping[str, str],
        *,
        allow_degraded: bool = True,
        above: int = -1,
    ) -> LedgerMetadata:
        """The record of a ledger to be created, with an id greater than `above` (ML-3).

        With fewer than E writable bookies E shrinks to Qw; with fewer than Qw the ledger is to be
        degraded (design.md §4) unless `allow_degraded` is off. Raises NotEnoughReplicas below Qa,
        MetadataUnavailable, UnknownOutcome; nothing was created then.
        """
        sized, members = self._place(quorum, allow_degraded)
        return await self.catalog.draft(
            sized.quorum,
            members,
            custom=custom,
            degraded=sized.degraded,
            wanted_copies=quorum.write,
            above=above,
        )

    def writer_of(self, created: LedgerMetadata, wanted: Quorum) -> LedgerWriter:
        """The writer of a ledger that the caller created with this record, and nobody else."""
        return self._writer_of(VersionedLedger(created, CREATED_VERSION), wanted)

    def _place(self, quorum: Quorum, allow_degraded: bool) -> tuple[Sized, list[Member]]:
        live = self.directory.live()
        candidates = candidates_of(live)
        try:
            sized = size_for(quorum.check(), len(candidates), allow_degraded=allow_degraded)
            ensemble = choose_ensemble(
                candidates,
                sized.quorum,
                entropy=self._entropy,
                quarantined=self.pool.quarantined(),
                rule=self._changer.rule(),
            )
        except NotEnoughBookies as error:
            raise NotEnoughReplicas(error.cause, live=len(candidates)) from error
        if sized.degraded:
            _log.warning(
                "new ledger gets %d copies instead of %d: %d bookies are writable",
                sized.quorum.write,
                quorum.write,
                len(candidates),
            )
        return sized, [candidate.member for candidate in ensemble]

    def _writer_of(self, created: VersionedLedger, wanted: Quorum) -> LedgerWriter:
        record = created.metadata
        members = record.last_fragment[1]
        self.counters.degraded_ledgers += record.degraded
        core = QuorumCore(
            record.quorum,
            list(members),
            now=self.pool.now,
            limits=self.config.limits,
            domains=[domain_of(self.directory.find(member)) for member in members],
        )
        writer = LedgerWriter(
            core,
            created,
            wanted=wanted,
            pool=self.pool,
            catalog=self.catalog,
            changer=self._changer,
            tasks=self._tasks,
            on_closed=lambda ended: self._writers.pop(ended.ledger_id, None),
        )
        self._writers[writer.ledger_id] = writer
        return writer

    async def recover_ledger(
        self, ledger_id: LedgerId, timeout_s: float | None = None
    ) -> LedgerMetadata:
        """Fence and close the ledger, evicting its writer; returns the CLOSED record (§4).

        Raises ReadUnknown when it cannot be decided within `timeout_s`; NoSuchLedger;
        LedgerConflict.
        """
        limit_s = self.config.recovery_timeout_s if timeout_s is None else timeout_s
        return await self._recovery.recover(ledger_id, limit_s)

    def reader_of(self, closed: LedgerMetadata) -> LedgerReader:
        """A reader of a ledger whose CLOSED record was just read or written: nothing is asked.

        It reads the record anew when no replica can answer; for a short life.
        """
        return LedgerReader(KnownRecord(self.catalog, closed), self.pool, clock=self._clock)

    async def open_reader(self, ledger_id: LedgerId) -> LedgerReader:
        """A reader that follows the ledger's record and changes nothing (RD-8, RD-10).

        When this client writes the ledger, its reader knows the writer's LAC.
        """
        view = await FollowedRecord.open(self._store, self._paths, self.catalog, ledger_id)
        writer = self._writers.get(ledger_id)
        own_lac = None if writer is None else lambda: writer.last_add_confirmed
        return LedgerReader(view, self.pool, clock=self._clock, own_lac=own_lac)

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete the record; bookies free the entries later.

        Deleting twice is not an error path: the second call raises NoSuchLedger.
        """
        for _ in range(DELETE_ATTEMPTS_MAX):
            versioned = await self.catalog.read(ledger_id, barrier=True)
            try:
                await self.catalog.delete(versioned)
            except VersionConflict:
                continue
            return
        raise VersionConflict(f"ledger {ledger_id} kept changing", ledger_id=ledger_id)
