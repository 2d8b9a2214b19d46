"""Fixtures: a ledger client over fake bookies and the in-memory metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest_asyncio

from octavo.client.ledger import LedgerClient, LedgerClientConfig, QuorumLimits
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from tests.fake_bookie import FakeBookie


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Let the loop run until `condition()` is true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.002)


FAST = LedgerClientConfig(
    client_name="test",
    limits=QuorumLimits(
        add_timeout_s=0.4,
        add_quorum_timeout_s=2.0,
        change_retry_s=0.2,
        stop_grace_s=0.2,
        explicit_lac_idle_s=0.1,
    ),
    connect_timeout_s=0.5,
    request_timeout_s=0.5,
    speculative_read_s=0.1,
    recovery_timeout_s=2.0,
    retry_initial_s=0.05,
    retry_max_s=0.2,
)

PATIENT = replace(
    FAST,
    limits=FAST.limits._replace(add_timeout_s=30.0, add_quorum_timeout_s=60.0, stop_grace_s=30.0),
    request_timeout_s=20.0,
)
"""For what is not about silence: on a busy machine nobody is taken for silent."""


@dataclass
class FakeCluster:
    """Bookies, metadata, and clients over them."""

    meta: MemoryCluster
    store: MetadataStore
    paths: Paths
    bookies: list[FakeBookie]
    clients: list[LedgerClient]
    stores: list[MemoryStore]
    """The store of each client."""

    @classmethod
    async def made(cls, bookies: int = 3) -> FakeCluster:
        """With so many bookies and no client yet."""
        meta = MemoryCluster()
        cluster = cls(meta, meta.connect(), Paths("/octavo"), [], [], [])
        for _ in range(bookies):
            await cluster.add_bookie()
        return cluster

    async def add_bookie(self, *, domain: str = "") -> FakeBookie:
        bookie = FakeBookie(f"b{len(self.bookies)}", domain=domain)
        self.bookies.append(bookie)
        await bookie.start()
        await bookie.register(self.store, self.paths)
        return bookie

    async def client(self, config: LedgerClientConfig = FAST) -> LedgerClient:
        store = self.meta.connect()
        self.stores.append(store)
        client = LedgerClient(
            store,
            self.paths,
            config=config,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
        await client.start()
        self.clients.append(client)
        return client

    def bookie(self, bookie_id: str) -> FakeBookie:
        return next(b for b in self.bookies if b.bookie_id == bookie_id)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        for bookie in self.bookies:
            await bookie.stop()


@pytest_asyncio.fixture
async def ledgers() -> AsyncIterator[FakeCluster]:
    """Three fake bookies and no client yet."""
    cluster = await FakeCluster.made()
    yield cluster
    await cluster.close()
