"""Brokers over real bookies in this process: journals, index, quorum client, recovery."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from octavo.bookie.config import BookieConfig
from octavo.bookie.server import BookieServer
from octavo.metadata.memory import MemoryStore
from octavo.metadata.paths import Paths
from octavo.metadata.topics import PartitionCatalog
from octavo.proto import batch as batches
from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy, SystemEntropy
from octavo.runtime.errors import NotLeader, OctavoError
from octavo.serving.cache import TailCache
from octavo.serving.cold import ColdReader
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_storage import LedgerStorage
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.log import Appended
from octavo.serving.partition.read_path import read_at
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.storage import Storage
from octavo.serving.tiering.reads import TierReads
from octavo.serving.topic_config import default_settings
from tests.serving_rig import NAME, Answers, make_batch, make_config, produce, until
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_topic,
    fetch_of,
)

URL = "memory://loopback/octavo"
PATHS = Paths("/octavo")


async def _confirmed() -> bool:
    return True


class RealStorage(Loopback):
    """Brokers and bookies with real storage."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__()
        self._root = root
        self.running: dict[str, BookieServer] = {}
        self.stores_of: dict[str, MemoryStore] = {}
        self.extra_stores: list[MemoryStore] = []
        self._closers: list[LedgerStorage] = []
        self._cold: list[ColdReader] = []

    async def bookie(self, bookie_id: str) -> None:
        """Start a bookie, or start it again on its data."""
        config = BookieConfig.load(
            bookie_id=bookie_id,
            data_dir=self._root / bookie_id,
            metadata_url=URL,
            segment_bytes=16 << 20,
        )
        store = self.metadata.connect()
        self.stores_of[bookie_id] = store
        server = BookieServer(config, store=store, clock=SystemClock(), entropy=SystemEntropy())
        await server.start()
        self.running[bookie_id] = server

    async def stop_bookie(self, bookie_id: str) -> None:
        await self.running.pop(bookie_id).stop()
        await self.stores_of.pop(bookie_id).close()

    def storage(self, config: BrokerConfig, store: MemoryStore) -> Storage:
        return LedgerStorage(store, PATHS, config, clock=SystemClock(), entropy=SystemEntropy())

    async def shell(self, **changes: object) -> tuple[PartitionShell, PartitionDeps]:
        """A partition shell of its own broker, not open yet, without a gRPC server."""
        config = make_config(**changes)
        store = self.metadata.connect()
        self.extra_stores.append(store)
        clock, entropy = SystemClock(), SeededEntropy(len(self.extra_stores))
        storage = LedgerStorage(store, PATHS, config, clock=clock, entropy=SystemEntropy())
        await storage.start()
        self._closers.append(storage)
        cold = ColdReader(storage.backend, config, SystemClock())
        self._cold.append(cold)
        deps = PartitionDeps(
            backend=storage.backend,
            catalog=PartitionCatalog(store, PATHS, clock=clock, entropy=SystemEntropy()),
            config=config,
            clock=clock,
            entropy=entropy,
            tail_cache=TailCache(config.tail_cache_bytes),
            cold=cold,
            tiered=TierReads(config),
            live_bookies=lambda: len(storage.bookies()),
            metadata_connected=lambda: True,
            certain=lambda: True,
            confirm=_confirmed,
        )
        return PartitionShell(NAME, default_settings(config), deps), deps

    async def close(self) -> None:
        await super().close()
        for cold in self._cold:
            await cold.close()
        for storage in self._closers:
            await storage.close()
        for bookie_id in list(self.running):
            await self.stop_bookie(bookie_id)
        for store in self.extra_stores:
            await store.close()


@pytest_asyncio.fixture
async def cluster(tmp_path: pathlib.Path) -> AsyncIterator[RealStorage]:
    made = RealStorage(tmp_path)
    await asyncio.gather(*(made.bookie(f"bookie-{i}") for i in (1, 2, 3)))
    try:
        yield made
    finally:
        await made.close()


async def lookup(client: Client, partition: int = 0) -> None:
    async with asyncio.timeout(30):
        while True:
            reply = await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=partition))
            if not reply.HasField("error"):
                return
            await asyncio.sleep(0.05)


async def values_of(client: Client, partition: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    while True:
        found = (await client.fetch(fetch_of(offset, partitions=(partition,)))).partitions[0]
        assert not found.HasField("error"), found.error
        for payload in found.batches:
            values.extend(batches.decode_rows(payload).values)
        offset = found.next_offset
        if offset >= found.high_watermark:
            return values


async def test_produce_roll_fetch_cold_and_describe(cluster: RealStorage) -> None:
    client = await cluster.broker(tail_cache_bytes=0)
    await create_topic(client)
    await lookup(client)
    for i in range(20):
        acks = await client.produce(
            *(batch_of(make_batch([b"%d-%d" % (i, j)]), correlation=j) for j in range(10))
        )
        assert [ack.base_offset for ack in acks] == [i * 10 + j for j in range(10)]
        if i % 5 == 4:
            await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    assert await values_of(client) == [b"%d-%d" % (i, j) for i in range(20) for j in range(10)]
    log = await client.stub.DescribeLog(pb.DescribeLogRequest(topic="orders", partition=0))
    assert [(s.base_offset, s.end_offset) for s in log.segments] == [
        (0, 50),
        (50, 100),
        (100, 150),
        (150, 200),
    ]
    shown = await client.stub.ShowLedger(pb.ShowLedgerRequest(ledger_id=log.segments[0].ledger_id))
    assert {held.bookie_id for held in shown.holders} == {"bookie-1", "bookie-2", "bookie-3"}
    assert all(held.reachable for held in shown.holders)


async def test_broker_restart_keeps_data_and_duplicates_are_found(cluster: RealStorage) -> None:
    client = await cluster.broker("broker-1")
    await create_topic(client)
    await lookup(client)
    sent = [make_batch([b"%d" % i], pid=5, epoch=0, sequence=i) for i in range(8)]
    await client.produce(*(batch_of(one, correlation=i) for i, one in enumerate(sent)))
    await client.channel.close()
    await cluster.servers[0].stop()
    await cluster.stores[0].close()
    cluster.servers.clear()
    cluster.stores.clear()
    cluster.clients.clear()
    again = await cluster.broker("broker-1")
    await lookup(again)
    acks = await again.produce(*(batch_of(one, correlation=i) for i, one in enumerate(sent[-5:])))
    assert [(ack.base_offset, ack.duplicate) for ack in acks] == [(i, True) for i in range(3, 8)]
    assert await values_of(again) == [b"%d" % i for i in range(8)]


async def test_one_bookie_down_keeps_writes_up_and_a_new_ledger_is_degraded(
    cluster: RealStorage,
) -> None:
    """F057 and A6."""
    client = await cluster.broker(bookie_quarantine_s=0.5)
    await create_topic(client)
    await lookup(client)
    await client.produce(batch_of(make_batch([b"a"])))
    await cluster.stop_bookie("bookie-2")
    (ack,) = await client.produce(batch_of(make_batch([b"b"])))
    assert ack.base_offset == 1
    await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    (ack,) = await client.produce(batch_of(make_batch([b"c"])))
    assert ack.base_offset == 2
    health = await client.stub.ClusterHealth(pb.ClusterHealthRequest())
    assert health.degraded_ledgers == 1
    await cluster.bookie("bookie-2")
    (shell,) = cluster.servers[0].registry.shells()
    await until(lambda: not shell.degraded)
    (ack,) = await client.produce(batch_of(make_batch([b"d"])))
    assert await values_of(client) == [b"a", b"b", b"c", b"d"]


async def test_two_owners_for_ever_never_both_append(cluster: RealStorage) -> None:
    """Ledger §8.3 over real bookies: nobody tells either of them to stop."""
    sides = [await cluster.shell(), await cluster.shell()]
    shells: list[PartitionShell] = []
    for shell, _ in sides:
        await shell.open()
        shells.append(shell)
    acked: list[tuple[int, bytes]] = []
    opened = list(shells)

    async def writer(side: int) -> None:
        for turn in range(25):
            value = b"%d/%d" % (side, turn)
            try:
                answer = await produce(shells[side], make_batch([value]))
                acked.append((answer.base_offset, value))
            except NotLeader:
                again = PartitionShell(NAME, shells[side].settings, sides[side][1])
                try:
                    await again.open()
                except OctavoError:
                    continue
                shells[side] = again
                opened.append(again)

    await asyncio.gather(writer(0), writer(1))
    final, _ = await cluster.shell()
    await final.open()
    opened.append(final)
    log: dict[int, bytes] = {}
    offset = 0
    while offset < final.high_watermark:
        found = await read_at(final.view(), offset, 1 << 20, at_least_one=True)
        for payload in found.batches:
            rows = batches.decode_rows(payload)
            log.update(zip(rows.offsets, [v or b"" for v in rows.values], strict=True))
        offset = found.next_offset
    for shell in opened:
        await shell.close(5.0)
    assert len(acked) > 5
    assert len({o for o, _ in acked}) == len(acked)
    for acked_offset, value in acked:
        assert log[acked_offset] == value
    assert sorted(log) == list(range(final.high_watermark))


async def test_killed_owner_loses_nothing_that_was_acknowledged(cluster: RealStorage) -> None:
    dead, _ = await cluster.shell()
    await dead.open()
    answers = Answers()
    for i in range(200):
        dead.append(make_batch([b"%03d" % i], pid=1, epoch=0, sequence=i), -1, answers.reply)
        if i % 20 == 0:
            await asyncio.sleep(0)
    await answers.wait(50)
    acked = [a.base_offset for a in answers.all if isinstance(a, Appended)]
    owner, _ = await cluster.shell()
    await owner.open()  # the old owner still runs, and is fenced
    assert owner.high_watermark > max(acked)
    for i in range(195, 200):  # the client resends what may be missing, in order
        if i >= owner.high_watermark:
            await produce(owner, make_batch([b"%03d" % i], pid=1, epoch=0, sequence=i))
    await owner.close(5.0)
    await dead.close(5.0)


@pytest.mark.parametrize("size", [100, 60_000])
async def test_backlog_reader_is_served_from_bookies_and_not_from_the_tail(
    cluster: RealStorage, size: int
) -> None:
    client = await cluster.broker(tail_cache_bytes=100_000)
    await create_topic(client)
    await lookup(client)
    count = 100
    for i in range(count):
        await client.produce(batch_of(make_batch([b"%04d" % i + bytes(size)])))
    values = await values_of(client)
    assert [(v or b"")[:4] for v in values] == [b"%04d" % i for i in range(count)]
