"""Autorecovery as a part of a process: the auditor, the workers, and their ledger client (§7).

Runs beside a bookie, or alone (`octavo autorecovery`). It shares nothing with the bookie but the
metadata session, and its failures are no reason for a bookie to stop.
"""

from __future__ import annotations

from octavo.client.autorecovery.auditor import Auditor
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.settings import RepairSettings
from octavo.client.autorecovery.worker import Attempt, LedgerRepairer, RepairStats
from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.counters import LedgerCounters
from octavo.metadata.bookies import CookieCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import AuditReport, RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.proto import bookie_pb2
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import InvariantViolation, OctavoError
from octavo.runtime.ids import LedgerId
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

MARKS_LOOKED_AT = 256
"""Marks, at random, from which a worker picks one (A-4): those that cannot be repaired now must not
hide the others."""
RETRY_FIRST_S = 2.0
RETRY_MAX_S = 60.0
"""Pauses of a ledger whose repair failed, doubling."""
UNREADABLE_RETRY_S = 300.0
"""The first pause when entries have no readable copy (A-7); it doubles to an hour."""
UNREADABLE_RETRY_MAX_S = 3600.0
PAUSED_MAX = 100_000
"""Ledgers whose pauses are remembered."""

_log = get_logger("octavo.autorecovery")


class Autorecovery:
    """Start, then close; on one loop."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        *,
        settings: RepairSettings,
        name: str,
        clock: Clock,
        entropy: Entropy,
        client_config: LedgerClientConfig | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._nonce = name.encode() + b" " + entropy.token()
        self._client = LedgerClient(
            store,
            paths,
            config=client_config or LedgerClientConfig(client_name=f"{name}-autorecovery"),
            clock=clock,
            entropy=entropy,
        )
        self._repairs = RepairCatalog(store, paths, clock=clock)
        cookies = CookieCatalog(store, paths, clock=clock, entropy=entropy)
        fleets = FleetReader(store, cookies, self._client.directory, self._repairs)
        self._auditor = Auditor(
            self._client.catalog,
            self._repairs,
            fleets,
            ReplicaCheck(
                BookieCalls(self._client.pool),
                timeout_s=self._client.config.request_timeout_s,
                clock=clock,
            ),
            settings=settings,
            rule=self._client.config.domain_rule,
            name=name,
            nonce=self._nonce,
            clock=clock,
        )
        self._repairer = LedgerRepairer(
            self._client,
            self._repairs,
            fleets,
            settings=settings,
            clock=clock,
            entropy=entropy,
        )
        self._paused: dict[LedgerId, tuple[float, float]] = {}
        """Until when, and the pause after the next failure."""
        self._mine: set[LedgerId] = set()
        self._tasks = TaskOwner("autorecovery")

    @property
    def stats(self) -> RepairStats:
        """What the workers did."""
        return self._repairer.stats

    @property
    def ledger_counters(self) -> LedgerCounters:
        """What its ledger client did."""
        return self._client.counters

    @property
    def is_auditor(self) -> bool:
        """Whether this process is elected now."""
        return self._auditor.is_elected

    @property
    def audit(self) -> AuditReport | None:
        """What the last whole walk saw; None unless this process is the auditor and made one."""
        return self._auditor.report if self._auditor.is_elected else None

    def tell(self, reply: bookie_pb2.InfoReply) -> None:
        """Set the gauges of what the workers of this process did (7.3)."""
        stats = self._repairer.stats
        reply.ledgers_repaired = stats.ledgers_repaired
        reply.slots_replaced = stats.slots_replaced
        reply.entries_copied = stats.entries_copied
        reply.entries_unreadable = stats.entries_unreadable

    async def start(self) -> None:
        """Begin; raises MetadataUnavailable."""
        await self._client.start()
        self._tasks.spawn(self._auditor.run(), name="auditor")
        for number in range(self._settings.repair_workers):
            self._tasks.spawn(self._work(), name=f"worker {number + 1}")

    async def close(self) -> None:
        """Stop; what was under way is taken up by others."""
        await self._tasks.close()
        await self._auditor.resign()
        await self._client.close()

    async def _work(self) -> None:
        while True:
            try:
                busy = await self._work_once()
            except InvariantViolation:
                raise
            except OctavoError as error:
                _log.info("repair-waits", cause=error.cause)
                busy = False
            if not busy:
                pause_s = self._settings.fleet_poll_s * self._entropy.uniform(0.8, 1.2)
                await self._clock.sleep(pause_s)

    async def _work_once(self) -> bool:
        """Repair one marked ledger; False when there is none to do now."""
        if await self._repairs.disabled():
            return False
        marked = await self._repairs.marked(MARKS_LOOKED_AT, order=self._entropy.shuffled)
        now_s = self._clock.monotonic()
        due = [
            ledger_id
            for ledger_id in marked
            if ledger_id not in self._mine and self._paused.get(ledger_id, (0.0, 0.0))[0] <= now_s
        ]
        if not due:
            return False
        ledger_id = self._entropy.shuffled(due)[0]
        self._mine.add(ledger_id)
        try:
            lock = await self._repairs.lock(ledger_id, self._nonce)
            if lock is None:  # somebody else's
                self._paused[ledger_id] = (now_s + self._settings.fleet_poll_s, RETRY_FIRST_S)
                return True
            try:
                attempt = await self._repairer.repair(ledger_id, lock)
            except OctavoError as error:
                if isinstance(error, InvariantViolation):
                    raise
                attempt = Attempt(False, error.cause)
            finally:
                await lock.release()
            self._pause(ledger_id, attempt)
        finally:
            self._mine.discard(ledger_id)
        return True

    def _pause(self, ledger_id: LedgerId, attempt: Attempt) -> None:
        if attempt.whole:
            self._paused.pop(ledger_id, None)
            return
        first_s = UNREADABLE_RETRY_S if attempt.unreadable else RETRY_FIRST_S
        most_s = UNREADABLE_RETRY_MAX_S if attempt.unreadable else RETRY_MAX_S
        if attempt.pause_s:
            self._paused[ledger_id] = (self._clock.monotonic() + attempt.pause_s, first_s)
            return
        pause_s = max(first_s, self._paused.get(ledger_id, (0.0, first_s))[1])
        if len(self._paused) >= PAUSED_MAX:
            self._paused.clear()
        until_s = self._clock.monotonic() + pause_s * self._entropy.uniform(0.8, 1.2)
        self._paused[ledger_id] = (until_s, min(2 * pause_s, most_s))
        _log.info(
            "repair-put-off", ledger_id=ledger_id, pause_s=round(pause_s, 1), cause=attempt.cause
        )
