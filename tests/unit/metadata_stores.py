"""Fixtures of the catalog tests: one memory cluster, stores and catalogs on it."""

from __future__ import annotations

import asyncio
import uuid

from octavo.metadata.ledgers import LedgerCatalog, Quorum, VersionedLedger
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.ids import Member

PATHS = Paths("/octavo")
CLOCK = SystemClock()
QUORUM = Quorum(3, 3, 2)


class ImpatientClock(SystemClock):
    """Pauses between attempts take one turn of the loop."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def members(*numbers: int) -> tuple[Member, ...]:
    return tuple(Member(f"bookie-{n}", uuid.UUID(int=n)) for n in numbers or (1, 2, 3))


def ledger_catalog(store: MetadataStore) -> LedgerCatalog:
    return LedgerCatalog(store, PATHS, clock=ImpatientClock(), entropy=SystemEntropy())


async def new_ledger(catalog: LedgerCatalog) -> VersionedLedger:
    return await catalog.create(QUORUM, members())
