"""A real broker server on a loopback port, over the in-memory storage layer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import grpc

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.ledgers import LedgerCatalog, ReadLedger
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.paths import Paths
from octavo.proto import broker_pb2 as pb
from octavo.proto import broker_pb2_grpc
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.ids import LedgerId
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.server import BrokerServer
from octavo.serving.storage import Holder, Storage
from tests.memory_ledgers import MemoryBackend, MemoryBookies
from tests.serving_rig import make_config, until

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)


class MemoryStorage:
    """`Storage` over one broker's in-memory backend."""

    def __init__(self, bookies: MemoryBookies, store: MemoryStore, paths: Paths) -> None:
        self._bookies = bookies
        self._catalog = LedgerCatalog(
            store, paths, clock=SystemClock(), entropy=SeededEntropy(store.session_id)
        )
        self._backend = MemoryBackend(bookies, self._catalog)

    @property
    def backend(self) -> LedgerBackend:
        return self._backend

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def bookies(self) -> list[BookieRegistration]:
        live = self._bookies.members[: self._bookies.live]
        return [
            BookieRegistration(
                m.bookie_id,
                m.incarnation,
                "127.0.0.1:1",
                process_nonce=self._bookies.processes.get(m.bookie_id, b"first"),
                ledgers_before=self._bookies.ledgers_before.get(m.bookie_id, 0),
            )
            for m in live
        ]

    async def read_record(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self._catalog.read(ledger_id)).metadata

    async def read_records(self, ledger_ids: Sequence[LedgerId]) -> list[ReadLedger]:
        return await self._catalog.read_many(ledger_ids)

    async def holders(self, record: LedgerMetadata) -> list[Holder]:
        stored = self._bookies.ledgers[record.ledger_id]
        return [
            Holder(m, True, stored.durable - 1, stored.fenced, "") for m in record.fragments[-1][1]
        ]


class Client:
    """Raw access to one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub = broker_pb2_grpc.BrokerStub(self.channel)

    async def produce(self, *sent: pb.ProduceBatch) -> list[pb.ProduceAck]:
        """All acknowledgements of one message on a stream of its own."""
        call = self.stub.Produce()
        await call.write(pb.ProduceRequest(batches=sent))
        await call.done_writing()
        return [ack async for reply in call for ack in reply.acks]

    async def fetch(self, request: pb.FetchRequest) -> pb.FetchReply:
        """One fetch on a stream of its own."""
        call = self.stub.Fetch()
        await call.write(request)
        await call.done_writing()
        replies = [reply async for reply in call]
        assert len(replies) == 1
        return replies[0]


def batch_of(
    payload: bytes,
    *,
    correlation: int = 1,
    topic: str = "orders",
    partition: int = 0,
    acks: int = -1,
) -> pb.ProduceBatch:
    return pb.ProduceBatch(
        correlation=correlation, topic=topic, partition=partition, acks=acks, batch=payload
    )


def fetch_of(
    offset: int,
    *,
    topic: str = "orders",
    partitions: Sequence[int] = (0,),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 0,
    partition_bytes: int = 0,
    correlation: int = 1,
) -> pb.FetchRequest:
    return pb.FetchRequest(
        correlation=correlation,
        partitions=[
            pb.FetchPartition(topic=topic, partition=p, offset=offset, max_bytes=partition_bytes)
            for p in partitions
        ],
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_wait_ms=max_wait_ms,
    )


class Loopback:
    """Brokers of one cluster inside the test process."""

    def __init__(self) -> None:
        self.metadata = MemoryCluster()
        self.bookies = MemoryBookies()
        self.servers: list[BrokerServer] = []
        self.stores: list[MemoryStore] = []
        self.clients: list[Client] = []

    async def broker(self, broker_id: str = "broker-1", **changes: object) -> Client:
        """Start one more broker; returns a client of it."""
        config: BrokerConfig = make_config(
            broker_id=broker_id, port=0, metadata_url="memory://loopback/octavo", **changes
        )
        store = self.metadata.connect()
        server = BrokerServer(
            config,
            store=store,
            clock=SystemClock(),
            entropy=SeededEntropy(uuid.uuid4().int),
            storage=self.storage(config, store),
        )
        await server.start()
        self.servers.append(server)
        self.stores.append(store)
        client = Client(server.address)
        self.clients.append(client)
        return client

    async def acquainted(self) -> None:
        """All brokers know each other: from now on no bundle moves because one was heard of."""
        for server in self.servers:
            known = server._brokers  # pyright: ignore[reportPrivateUsage]
            await until(lambda known=known: len(known.live()) >= len(self.servers))

    def storage(self, config: BrokerConfig, store: MemoryStore) -> Storage:
        """The storage layer of a new broker."""
        return MemoryStorage(self.bookies, store, Paths("/octavo"))

    async def close(self) -> None:
        for client in self.clients:
            await client.channel.close()
        for server, store in zip(self.servers, self.stores, strict=True):
            await server.stop()
            await store.close()


@asynccontextmanager
async def loopback() -> AsyncGenerator[Loopback]:
    made = Loopback()
    try:
        yield made
    finally:
        await made.close()


async def create_topic(
    client: Client, name: str = "orders", partitions: int = 1, **config: str
) -> None:
    """Create a topic and take its partitions, following redirects."""
    named = {key.replace("_", "."): value for key, value in config.items()}
    reply = await client.stub.CreateTopic(
        pb.CreateTopicRequest(name=name, partitions=partitions, config=named)
    )
    assert not reply.HasField("error"), reply.error


class SpreadIds(SeededEntropy):
    """Topic ids whose partitions hash into bundles of every broker, so no test has one without."""

    def __init__(self, servers: Sequence[BrokerServer], partitions: int) -> None:
        super().__init__(uuid.uuid4().int)
        self._servers, self._partitions = servers, partitions

    def _owners(self, topic_id: uuid.UUID) -> set[str]:
        first = self._servers[0]
        numbers = {first.registry.bundle(topic_id, number) for number in range(self._partitions)}
        return {first.ownership.preferred(bundle).broker_id for bundle in numbers}

    def uuid(self) -> uuid.UUID:
        wanted = {server.config.broker_id for server in self._servers}
        while self._owners(drawn := super().uuid()) != wanted:
            pass
        return drawn


async def create_spread_topic(cluster: Loopback, partitions: int) -> None:
    """`create_topic` for brokers that all know each other: each of them gets a partition."""
    catalog = cluster.servers[0]._topic_catalog  # pyright: ignore[reportPrivateUsage]
    drawn = catalog._entropy  # pyright: ignore[reportPrivateUsage]
    catalog._entropy = SpreadIds(cluster.servers, partitions)  # pyright: ignore[reportPrivateUsage]
    try:
        await create_topic(cluster.clients[0], partitions=partitions)
    finally:
        catalog._entropy = drawn  # pyright: ignore[reportPrivateUsage]


async def fetch_waits(server: BrokerServer) -> None:
    """A fetch has come, and waits for more to read."""
    shells = server.registry.shells
    await until(lambda: any(one.watchers._callbacks for one in shells()))  # pyright: ignore[reportPrivateUsage]


async def find_owner(clients: dict[str, Client], topic: str, partition: int) -> str:
    """The owner's address, as a client finds it."""
    address = next(iter(clients))
    async with asyncio.timeout(30):
        while True:
            reply = await clients[address].stub.Lookup(
                pb.LookupRequest(topic=topic, partition=partition)
            )
            if reply.HasField("error"):
                await asyncio.sleep(0.02)
            elif reply.redirect:
                address = reply.owner_address
            else:
                return reply.owner_address
