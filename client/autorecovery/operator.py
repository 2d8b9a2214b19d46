"""What tools of operators need of a cluster: its metadata, ledgers, bookies, copies.

They speak to the metadata store and to bookies, not to brokers: they work while no broker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.found import Verified
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.verify import LedgerVerifier
from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.client.ledger.config import LedgerClientConfig
from octavo.metadata.bookies import CookieCatalog
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.ledgers import VersionedLedger
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import BookieHold, HoldKind, RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    MetadataCorrupt,
    NoSuchLedger,
    NotEnoughBookies,
    RequestTimedOut,
)
from octavo.runtime.ids import LedgerId, Member

SESSION_TIMEOUT_S = 10.0
DRAIN_POLL_S = 1.0
EMPTY_LOOKS = 3
"""Looks at all ledgers, one after the other, that find a bookie named nowhere, before it goes:
whoever made a ledger meanwhile may have seen it writable (B-29)."""


@dataclass(frozen=True)
class Census:
    """Every ledger, as their records name bookies."""

    ledgers: int
    unreadable: int
    by_bookie: dict[str, int]
    """Ledgers that name a bookie, in any incarnation."""
    largest_ensemble: int


@dataclass(frozen=True)
class DrainProgress:
    """How far a decommissioning is."""

    ledgers: int
    """Ledgers that name the bookie still."""
    marks: int


class Operator:
    """One cluster in the hand of one tool; made by `operating`."""

    def __init__(self, store: MetadataStore, paths: Paths, clock: Clock) -> None:
        entropy = SystemEntropy()
        self.clock = clock
        self.store = store
        self.client = LedgerClient(
            store,
            paths,
            config=LedgerClientConfig(client_name="operator"),
            clock=clock,
            entropy=entropy,
        )
        self.repairs = RepairCatalog(store, paths, clock=clock)
        self.cookies = CookieCatalog(store, paths, clock=clock, entropy=entropy)
        self._fleets = FleetReader(store, self.cookies, self.client.directory, self.repairs)
        self.calls = BookieCalls(self.client.pool)
        self.check = ReplicaCheck(
            self.calls, timeout_s=self.client.config.request_timeout_s, clock=clock
        )

    async def fleet(self) -> Fleet:
        """The bookies as of now."""
        return await self._fleets.read()

    async def census(self, on_record: Callable[[LedgerMetadata], None] | None = None) -> Census:
        """Read every record, as of now."""
        ledgers = unreadable = largest = 0
        by_bookie: dict[str, int] = {}
        await self.store.barrier()
        async for some in self.client.catalog.walk_found():
            for _, found in some:
                if isinstance(found, NoSuchLedger):
                    continue
                ledgers += 1
                if not isinstance(found, VersionedLedger):
                    unreadable += 1
                    continue
                record = found.metadata
                largest = max(largest, record.quorum.ensemble)
                for name in {m.bookie_id for _, ensemble in record.fragments for m in ensemble}:
                    by_bookie[name] = by_bookie.get(name, 0) + 1
                if on_record is not None:
                    on_record(record)
        return Census(ledgers, unreadable, by_bookie, largest)

    # --- holds ------------------------------------------------------------------------------

    async def member_of(self, bookie_id: str) -> Member:
        """The present incarnation; raises InvalidRequest for a bookie the cluster does not know."""
        found = await self.cookies.read_cookie(bookie_id)
        if found is None:
            known = ", ".join(await self.cookies.bookie_ids()) or "none"
            raise InvalidRequest(
                f"the cluster has no bookie called {bookie_id!r}", hint=f"known: {known}"
            )
        return Member(bookie_id, found.cookie.incarnation)

    async def hold_readonly(self, bookie_id: str) -> None:
        """It takes no new records from now on."""
        member = await self.member_of(bookie_id)
        present = await self.repairs.hold_of(bookie_id)
        if present is not None and present.member == member and present.kind != HoldKind.READONLY:
            raise IllegalStateError(
                f"{bookie_id} is being decommissioned",
                hint=f"`octavo bookies writable {bookie_id}` ends that first",
            )
        await self.repairs.hold(BookieHold(member, HoldKind.READONLY))

    async def release(self, bookie_id: str) -> None:
        """It takes records again, unless its disk forbids it; a drain ends, and undoes nothing."""
        await self.member_of(bookie_id)
        present = await self.repairs.hold_of(bookie_id)
        if present is not None and present.kind is HoldKind.RETIRED:
            raise IllegalStateError(f"{bookie_id} is decommissioned for good")
        await self.repairs.release(bookie_id)

    # --- ledgers ----------------------------------------------------------------------------

    async def verified(
        self, ledger_ids: Iterable[int] = (), *, read: bool, bytes_per_s: int
    ) -> AsyncGenerator[Verified]:
        """Whether these ledgers, or all, have their copies; `read`: and whether those are alike.

        Raises NoSuchLedger for one that was named, MetadataUnavailable.
        """
        verifier = self.verifier(bytes_per_s)
        fleet = await self.fleet()
        async for found in verifier.each(fleet, map(LedgerId, ledger_ids), read=read):
            yield found

    def verifier(self, bytes_per_s: int) -> LedgerVerifier:
        """Checks single ledgers; what it reads of all of them together is not faster than this."""
        return LedgerVerifier(
            self.client.catalog,
            self.calls,
            self.check,
            pace=Pace(bytes_per_s, self.clock),
            timeout_s=self.client.config.request_timeout_s,
            clock=self.clock,
        )

    async def recover(self, ledger_id: int, *, timeout_s: float) -> tuple[bool, LedgerMetadata]:
        """Close a ledger and evict its writer: whether it was open still, and how it ended.

        Raises NoSuchLedger, ReadUnknown when too few bookies answer, MetadataUnavailable.
        """
        found = (await self.client.catalog.read(LedgerId(ledger_id), barrier=True)).metadata
        if found.closed_for_good:
            return False, found
        return True, await self.client.recover_ledger(LedgerId(ledger_id), timeout_s)

    # --- decommission (7.4) -----------------------------------------------------------------

    async def require_spares(self, bookie_id: str) -> None:
        """Raise NotEnoughBookies unless the others can hold every copy without this one."""
        fleet, census = await self.fleet(), await self.census()
        if census.unreadable:
            raise MetadataCorrupt(
                f"{census.unreadable} ledger records cannot be read: nobody knows who they name",
                hint="restore the metadata first",
            )
        held = {b for b, hold in fleet.holds.items() if hold.kind is not HoldKind.READONLY}
        others = [
            b.bookie_id
            for b in self.client.directory.live()
            if b.state == "rw" and b.bookie_id != bookie_id and b.bookie_id not in held
        ]
        if len(others) < census.largest_ensemble:
            raise NotEnoughBookies(
                f"{bookie_id} was left alone: without it {len(others)} bookies take records, and "
                f"ledgers lie on {census.largest_ensemble}",
                hint="start another bookie first",
            )

    async def decommission(
        self, bookie_id: str, *, timeout_s: float, on_progress: Callable[[DrainProgress], None]
    ) -> None:
        """Move every copy elsewhere, then take the bookie out of the cluster; safe to interrupt.

        Raises NotEnoughBookies, InvalidRequest, IllegalStateError (nobody would move copies), and
        RequestTimedOut: the drain goes on, a second call waits for it.
        """
        member = await self.member_of(bookie_id)
        if await self.repairs.disabled():
            raise IllegalStateError(
                "autorecovery is switched off", hint="`octavo autorecovery --enable` first"
            )
        if not await self.repairs.auditor():
            raise IllegalStateError(
                "nobody would move the copies: no process runs autorecovery",
                hint="`octavo autorecovery` is one; bookies run it, too, unless told otherwise",
            )
        await self.require_spares(bookie_id)
        await self.repairs.hold(BookieHold(member, HoldKind.DRAINING))
        deadline_s = self.clock.monotonic() + timeout_s
        empty = 0
        while empty < EMPTY_LOOKS:
            census = await self.census()
            marks = len(await self.repairs.marked(1000))
            left = census.by_bookie.get(bookie_id, 0)
            empty = 0 if left or census.unreadable else empty + 1
            on_progress(DrainProgress(left, marks))
            if self.clock.monotonic() > deadline_s:
                raise RequestTimedOut(
                    f"{left} ledgers name {bookie_id} still; the drain goes on",
                    hint="the same command waits for its end",
                )
            await self.clock.sleep(DRAIN_POLL_S)
        await self._retire(bookie_id, member)

    async def _retire(self, bookie_id: str, member: Member) -> None:
        """B-29: named nowhere. Held first, so that its process can never take records again."""
        await self.repairs.hold(BookieHold(member, HoldKind.RETIRED))
        found = await self.cookies.read_cookie(bookie_id)
        if found is None or found.cookie.incarnation != member.incarnation:
            raise IllegalStateError(f"the cookie of {bookie_id} changed meanwhile")
        await self.cookies.delete_cookie(found)


def switch(metadata_url: str, *, enable: bool) -> None:
    """Switch autorecovery of a cluster on or off (A-3); for a program without a loop."""

    async def run() -> None:
        async with operating(metadata_url) as operator:
            await operator.repairs.set_disabled(not enable)

    asyncio.run(run())


@asynccontextmanager
async def operating(metadata_url: str) -> AsyncGenerator[Operator]:
    """Connect to a cluster's metadata store; raises MetadataUnavailable."""
    clock, entropy = SystemClock(), SystemEntropy()
    store = await connect_store(
        metadata_url,
        client_name="operator",
        session_timeout_s=SESSION_TIMEOUT_S,
        clock=clock,
        entropy=entropy,
    )
    operator = Operator(store, Paths(root_of(metadata_url)), clock)
    try:
        await operator.client.start()
        try:
            yield operator
        finally:
            await operator.client.close()
    finally:
        await store.close()
