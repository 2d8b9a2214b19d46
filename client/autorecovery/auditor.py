"""The auditor's shell: watches the bookies, walks the ledgers, marks what lacks copies (7.1).

One process of a cluster is elected; every action is idempotent, so that two for a moment harm
nobody. A ledger that cannot be read, or asked about, is counted and skipped (M-7).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from octavo.client.autorecovery.audit_core import (
    Alarm,
    AuditCore,
    AuditLimits,
    BeginPass,
    Fleet,
    FoundAgain,
    Miss,
)
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.settings import RepairSettings
from octavo.client.autorecovery.slots import Fate
from octavo.client.ledger.placement import DomainRule
from octavo.metadata.ledgers import LedgerCatalog, ReadLedger, VersionedLedger
from octavo.metadata.repairs import AuditReport, BookieAway, RepairCatalog, RepairMark
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    InvariantViolation,
    NoSuchLedger,
    OctavoError,
)
from octavo.runtime.ids import LedgerId, Member
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

AT_ONCE = 16
"""Ledgers looked at together."""
KNOWN_WHOLE_MAX = 1_000_000
"""Closed ledgers that are remembered to have all their copies; beyond it all are asked again."""
ASK_ALL_AGAIN_S = 86_400.0
"""How long that is remembered."""

_log = get_logger("octavo.autorecovery.auditor")


@dataclass
class _Pass:
    """What one walk over the ledgers has seen so far."""

    fleet: Fleet
    ledgers: int = 0
    short: int = 0
    unreadable: int = 0
    unchecked: int = 0
    growing: int = 0
    named: set[str] = field(default_factory=set[str])


class Auditor:
    """Looks after one cluster while this process is elected.

    Args:
        rule: how far apart copies shall lie (A-10).
        nonce: what this process is known by in the election.
        name: who it is, for the report.
    """

    def __init__(
        self,
        catalog: LedgerCatalog,
        repairs: RepairCatalog,
        fleets: FleetReader,
        check: ReplicaCheck,
        *,
        settings: RepairSettings,
        rule: DomainRule,
        name: str,
        nonce: bytes,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._repairs = repairs
        self._fleets = fleets
        self._check = check
        self._settings = settings
        self._rule = rule
        self._name = name
        self._nonce = nonce
        self._clock = clock
        self._tasks = TaskOwner("auditor")
        self._known_whole: set[LedgerId] = set()
        self._known_of: frozenset[Member] = frozenset()
        self._known_since_s = 0.0
        self._core: AuditCore | None = None
        self.report: AuditReport | None = None
        """Of the last whole pass since this process was elected."""

    async def run(self) -> None:
        """Until cancelled; a store that is away is waited for."""
        try:
            while True:
                try:
                    await self._turn()
                except InvariantViolation:
                    raise
                except OctavoError as error:
                    _log.info("audit-waits", cause=error.cause)
                await self._clock.sleep(self._settings.fleet_poll_s)
        finally:
            await self._tasks.close()

    @property
    def is_elected(self) -> bool:
        """Whether this process is the auditor, as of its last look."""
        return self._core is not None

    async def resign(self) -> None:
        """Let another process be elected at once."""
        try:
            await self._repairs.resign(self._nonce)
        except OctavoError as error:
            _log.info("auditor-left-to-session", cause=error.cause)

    async def _turn(self) -> None:
        if await self._repairs.disabled() or not await self._repairs.elect(self._nonce):
            self._core = None  # what it knew may be old when it is elected again
            return
        if self._core is None:
            settings = self._settings
            self._core = AuditCore(
                AuditLimits(
                    settings.lost_delay_s, settings.audit_interval_s, settings.audit_recheck_s
                )
            )
            self.report = None  # what it saw when it was elected before may be old
            _log.info("auditor-elected", name=self._name)
        core = self._core
        fleet = await self._fleets.read()
        now_ms = self._clock.wall_ms()
        for action in core.fleet_seen(fleet, now_ms / 1000):
            match action:
                case Miss():
                    _log.warning("bookie-away", bookie=action.bookie_id)
                    await self._repairs.miss(
                        BookieAway(action.bookie_id, action.fault_domain, now_ms)
                    )
                case FoundAgain():
                    _log.info("bookie-found-again", bookie=action.bookie_id)
                    await self._repairs.found_again(action.bookie_id)
                case Alarm():
                    _log.error("autorecovery-waits", cause=action.text)
                case BeginPass():
                    self._tasks.spawn(self._pass(core, action.fleet), name="pass")

    # --- one pass ---------------------------------------------------------------------------

    async def _pass(self, core: AuditCore, fleet: Fleet) -> None:
        seen = _Pass(fleet)
        whole = False
        try:
            self._forget_if_changed(fleet)
            await self._walk(seen)
            whole = True
        except OctavoError as error:
            if isinstance(error, InvariantViolation):
                raise
            _log.warning("audit-pass-cut-short", cause=error.cause)
        finally:
            now_ms = self._clock.wall_ms()
            healthy = not (seen.short or seen.unchecked or seen.unreadable or seen.growing)
            core.pass_ended(
                now_ms / 1000,
                whole=whole and not seen.unreadable,
                named=frozenset(seen.named),
                healthy=healthy,
            )
        if whole:
            await self._tell(
                AuditReport(
                    ended_ms=now_ms,
                    ledgers=seen.ledgers,
                    short=seen.short,
                    unreadable=seen.unreadable,
                    unchecked=seen.unchecked,
                    auditor=self._name,
                    processes=frozenset(fleet.processes.values()),
                )
            )

    async def _tell(self, report: AuditReport) -> None:
        self.report = report
        log = _log.info if report.short or report.unchecked or report.unreadable else _log.debug
        log(
            "audit-pass",
            ledgers=report.ledgers,
            short=report.short,
            unreadable=report.unreadable,
            unchecked=report.unchecked,
        )
        try:
            await self._repairs.set_report(report)
        except OctavoError as error:
            _log.info("audit-report-lost", cause=error.cause)

    def _forget_if_changed(self, fleet: Fleet) -> None:
        """Who came back may have lost what it was known to have."""
        members, now_s = frozenset(fleet.registered), self._clock.monotonic()
        if (
            members != self._known_of
            or len(self._known_whole) > KNOWN_WHOLE_MAX
            or now_s - self._known_since_s > ASK_ALL_AGAIN_S
        ):
            self._known_whole.clear()
            self._known_of, self._known_since_s = members, now_s

    async def _walk(self, seen: _Pass) -> None:
        began_s = self._clock.monotonic()
        async for some in self._catalog.walk_found(AT_ONCE):
            await asyncio.gather(*(self._look(*one, seen) for one in some))
            due_s = began_s + len(some) / self._settings.audit_ledgers_per_s
            if (left_s := due_s - self._clock.monotonic()) > 0:
                await self._clock.sleep(left_s)
            began_s = self._clock.monotonic()

    async def _look(self, ledger_id: LedgerId, found: ReadLedger, seen: _Pass) -> None:
        if isinstance(found, NoSuchLedger):
            return
        seen.ledgers += 1
        if not isinstance(found, VersionedLedger):  # M-7: logged by the catalog
            seen.unreadable += 1
            return
        record = found.metadata
        members = {member for _, ensemble in record.fragments for member in ensemble}
        seen.named |= {member.bookie_id for member in members}
        fates = {member: seen.fleet.fate_of(member) for member in members}
        if (
            ledger_id in self._known_whole
            and not record.may_grow
            and set(fates.values()) == {Fate.THERE}
        ):
            return
        copies = await self._check.check(record, fates.__getitem__)
        grows = seen.fleet.can_grow(record)
        if copies.lost or copies.plan.recover or copies.short or grows:
            seen.short += 1
            lost = frozenset(member for member, fate in fates.items() if fate is Fate.LOST)
            await self._repairs.mark(RepairMark(ledger_id, lost, copies.short or grows))
        elif copies.unknown:
            seen.unchecked += 1
        elif seen.fleet.crowded(record, self._rule):
            if seen.fleet.is_whole:  # what is missing comes first
                await self._repairs.mark(RepairMark(ledger_id, short=True))
        elif record.degraded and not record.closed_for_good:
            seen.growing += 1  # its writer goes on in another one soon; then it can grow
        elif record.closed_for_good:
            self._known_whole.add(ledger_id)
