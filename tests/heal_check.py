"""What tests of autorecovery ask a running cluster: whether every ledger has every copy."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.metadata.bookies import CookieCatalog
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy


class Seen(NamedTuple):
    """One look at every ledger."""

    ledgers: int
    short: list[str]
    """Why some are not whole, in words."""
    marks: int
    named: set[str]
    """Bookies that records name."""
    fleet: Fleet
    records: list[LedgerMetadata]


async def look(metadata_url: str) -> Seen:
    """Ask every member of every ledger."""
    clock, entropy = SystemClock(), SystemEntropy()
    store = await connect_store(
        metadata_url, client_name="test", session_timeout_s=10, clock=clock, entropy=entropy
    )
    paths = Paths(root_of(metadata_url))
    client = LedgerClient(store, paths, clock=clock, entropy=entropy)
    await client.start()
    try:
        repairs = RepairCatalog(store, paths, clock=clock)
        cookies = CookieCatalog(store, paths, clock=clock, entropy=entropy)
        fleet = await FleetReader(store, cookies, client.directory, repairs).read()
        check = ReplicaCheck(BookieCalls(client.pool), timeout_s=5.0, clock=clock)
        short: list[str] = []
        named: set[str] = set()
        records: list[LedgerMetadata] = []
        async for found in client.catalog.walk_records():
            record = found.metadata
            records.append(record)
            named |= {m.bookie_id for _, ensemble in record.fragments for m in ensemble}
            seen = await check.check(record, fleet.fate_of)
            if seen.short or seen.unknown or seen.lost or seen.plan.recover or record.degraded:
                gaps = [(str(g.slot.member), g.missing, g.unknown) for g in seen.gaps]
                away = [str(slot.member) for slot in seen.plan.away]
                short.append(f"{record.ledger_id} {record.state.name}: {gaps} {away} {seen.lost}")
        marks = len(await repairs.marked(1000))
        return Seen(len(records), short, marks, named, fleet, records)
    finally:
        await client.close()
        await store.close()


def look_now(metadata_url: str) -> Seen:
    """`look` for a test without a loop."""
    return asyncio.run(look(metadata_url))
