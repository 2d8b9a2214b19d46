"""Recovering a ledger: the shell around `RecoveryCore` (§4), which evicts the writer.

Owns the loop R-1 … R-8: read with barrier, IN_RECOVERY, one attempt, the closing CAS, back-off. Any
number of clients may do this at once; losers accept the winner's result (R-20).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.counters import LedgerCounters
from octavo.client.ledger.ensemble_change import spares_for
from octavo.client.ledger.placement import DomainRule
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.recovery import (
    Aborted,
    ChooseSpares,
    CloseLedger,
    RecoveryAction,
    RecoveryCore,
    SendFence,
    SendRead,
    SendWrite,
)
from octavo.metadata.bookies import BookieDirectory
from octavo.metadata.ledgers import (
    Fragment,
    LedgerCatalog,
    LedgerMetadata,
    LedgerState,
    VersionedLedger,
)
from octavo.proto.bookie_wire import ReadRequest, Status
from octavo.proto.entry import MAX_ENTRY_BYTES
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    LedgerConflict,
    MetadataUnavailable,
    NoSuchLedger,
    ReadUnknown,
    UnknownOutcome,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId, Member
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.recover")


class LedgerRecovery:
    """Recovers ledgers for one client."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        directory: BookieDirectory,
        pool: BookiePool,
        *,
        config: LedgerClientConfig,
        counters: LedgerCounters,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._catalog = catalog
        self._directory = directory
        self._pool = pool
        self._calls = BookieCalls(pool)
        self._config = config
        self._counters = counters
        self._clock = clock
        self._entropy = entropy

    async def recover(self, ledger_id: LedgerId, timeout_s: float) -> LedgerMetadata:
        """Fence and close the ledger; returns its CLOSED record.

        Keeps trying with back-off (R-8) until `timeout_s`, then raises ReadUnknown with the last
        cause: the ledger stays IN_RECOVERY and nothing is decided. Raises NoSuchLedger and
        LedgerConflict at once.
        """
        _log.info("%s recovers ledger %d", self._config.client_name, ledger_id)  # RD-9
        began_s, count = self._clock.monotonic(), self._counters.recoveries
        try:
            closed = await self._recover(ledger_id, began_s + timeout_s)
        except ReadUnknown:
            count["undecided"] += 1
            raise
        except LedgerConflict:
            count["conflict"] += 1
            raise
        except NoSuchLedger:
            count["gone"] += 1
            raise
        count["closed"] += 1
        self._counters.recovery_seconds.observe(self._clock.monotonic() - began_s)
        return closed

    async def _recover(self, ledger_id: LedgerId, deadline: float) -> LedgerMetadata:
        config = self._config
        backoff = Backoff(self._entropy, initial_s=config.retry_initial_s, max_s=config.retry_max_s)
        while True:
            try:
                return await self._try_once(ledger_id)
            except (ReadUnknown, MetadataUnavailable, UnknownOutcome, VersionConflict) as error:
                pause_s = backoff.next_s()
                if self._clock.monotonic() + pause_s > deadline:
                    raise ReadUnknown(
                        f"ledger {ledger_id} is not recovered yet: {error.cause}",
                        hint="it stays IN_RECOVERY; start the missing bookies and try again",
                        ledger_id=ledger_id,
                    ) from error
                _log.warning("recovery of ledger %d waits %.1f s: %s", ledger_id, pause_s, error)
                await self._clock.sleep(pause_s)

    async def _try_once(self, ledger_id: LedgerId) -> LedgerMetadata:
        base = await self._catalog.read(ledger_id, barrier=True)
        if base.metadata.state is LedgerState.OPEN:
            try:
                base = await self._catalog.cas(base, base.metadata.in_recovery())
            except (VersionConflict, UnknownOutcome):  # ours, another's: the record tells
                base = await self._catalog.read(ledger_id, barrier=True)
        if base.metadata.state is LedgerState.OPEN:
            raise VersionConflict(f"ledger {ledger_id} changed while its recovery began")
        if base.metadata.state is LedgerState.CLOSED:
            return base.metadata
        attempt = _Attempt(base.metadata, self._calls, self._spares, self._config)
        outcome = await attempt.run()
        if isinstance(outcome, Aborted):
            if outcome.conflict:
                raise LedgerConflict(f"ledger {ledger_id}: {outcome.cause}", ledger_id=ledger_id)
            raise ReadUnknown(f"recovery of ledger {ledger_id}: {outcome.cause}")
        return await self._close(base, outcome)

    async def _close(self, base: VersionedLedger, outcome: CloseLedger) -> LedgerMetadata:
        """R-7: re-apply when only an earlier fragment changed; else accept or start over."""
        base_key = base.metadata.last_fragment[0]
        recovered = tuple(f for f in outcome.fragments if f[0] >= base_key)

        def close(found: LedgerMetadata) -> LedgerMetadata:
            if found.state is LedgerState.CLOSED:
                return found
            unchanged = found.last_fragment == base.metadata.last_fragment
            if found.state is not LedgerState.IN_RECOVERY or not unchanged:
                raise VersionConflict(f"ledger {found.ledger_id} changed during recovery")
            fragments: tuple[Fragment, ...] = (*found.fragments[:-1], *recovered)
            return found.closed(outcome.last_entry, outcome.length, fragments)

        closed = await self._catalog.update(base.metadata.ledger_id, close, known=base)
        _log.info(
            "ledger %d closed by recovery at entry %s, %s bytes",
            base.metadata.ledger_id,
            closed.metadata.last_entry,
            closed.metadata.length,
        )
        return closed.metadata

    def _spares(self, metadata: LedgerMetadata, action: ChooseSpares) -> dict[int, Member]:
        """R-18: spare bookies for a local ensemble change."""
        self._pool.quarantine(member.bookie_id for _, member in action.failed)
        for _, member in action.failed:
            self._pool.suspects.failed(member, self._pool.now)
        found = spares_for(
            dict(action.failed),
            action.ensemble,
            self._directory.live(),
            metadata.quorum,
            pool=self._pool,
            entropy=self._entropy,
            rule=DomainRule(self._config.min_domains_per_write_set),
            proven=lambda _member: False,  # a next attempt may find it connected
        )
        return {slot: candidate.member for slot, candidate in found.items()}


class _Attempt:
    """One run of `RecoveryCore` over the network."""

    def __init__(
        self,
        base: LedgerMetadata,
        calls: BookieCalls,
        spares: Callable[[LedgerMetadata, ChooseSpares], dict[int, Member]],
        config: LedgerClientConfig,
    ) -> None:
        self._base = base
        self._ledger_id = base.ledger_id
        self._calls = calls
        self._spares = spares
        self._timeout_s = config.request_timeout_s
        self._core = RecoveryCore(base.quorum, base.fragments, window=config.recovery_window)
        self._outcome: asyncio.Future[CloseLedger | Aborted] = (
            asyncio.get_running_loop().create_future()
        )
        self._tasks = TaskOwner(f"recovery of ledger {base.ledger_id}", self._on_failure)

    async def run(self) -> CloseLedger | Aborted:
        """Fence, read and write back until the core says how it ends."""
        try:
            self._perform(self._core.start())
            return await self._outcome
        finally:
            await self._tasks.close()

    def _on_failure(self, _name: str, error: BaseException) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def _perform(self, actions: Iterable[RecoveryAction]) -> None:
        for action in actions:
            match action:
                case SendFence():
                    self._tasks.spawn(self._fence(action), name="fence")
                case SendRead():
                    self._tasks.spawn(self._read(action), name="read")
                case SendWrite():
                    self._tasks.spawn(self._write(action), name="write back")
                case ChooseSpares():
                    self._perform(self._core.replacements(self._spares(self._base, action)))
                case CloseLedger() | Aborted():
                    if not self._outcome.done():
                        self._outcome.set_result(action)

    async def _fence(self, action: SendFence) -> None:
        status, lac = await self._calls.fence(
            self._ledger_id, action.member, timeout_s=self._timeout_s
        )
        self._perform(self._core.fence_reply(action.slot, status, lac))

    async def _read(self, action: SendRead) -> None:
        request = ReadRequest(
            action.member.incarnation.bytes,
            self._ledger_id,
            action.entry,
            1,
            MAX_ENTRY_BYTES,
        )
        reply = await self._calls.read(
            request, action.member, recovery=action.fence, timeout_s=self._timeout_s
        )
        data = bytes(reply.entries[0]) if reply.entries else None
        status = Status(reply.status)
        self._perform(self._core.read_reply(action.entry, action.slot, status, data))

    async def _write(self, action: SendWrite) -> None:
        status = await self._calls.add_recovered(
            action.member, action.data, timeout_s=self._timeout_s
        )
        self._perform(self._core.write_reply(action.entry, action.slot, action.generation, status))
