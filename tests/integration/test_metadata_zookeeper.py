"""The catalogs on a real ZooKeeper: the same code that the unit tests run on the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo.metadata.bookies import BookieDirectory, BookieRegistrar, BookieRegistration
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.kazoo_reads import ReadMany
from octavo.metadata.ledger_ids import ROTATE_AT
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import BLOCK_IDS, ProducerIdAllocator
from octavo.metadata.store import Child, MetadataStore, Scanned, SessionState, Versioned
from octavo.metadata.topics import PartitionCatalog, PartitionState, TopicCatalog
from octavo.metadata.zookeeper import ZookeeperStore
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    ConfigError,
    MetadataUnavailable,
    NoSuchLedger,
    TopicAlreadyExists,
    VersionConflict,
)
from octavo.runtime.ids import EntryId
from tests.fix_zookeeper import ZookeeperServer, free_port
from tests.unit.metadata_stores import QUORUM, members

pytestmark = pytest.mark.zookeeper

CLOCK, ENTROPY = SystemClock(), SystemEntropy()
WAIT_S = 30.0


@pytest.fixture
async def url(zookeeper_server: ZookeeperServer) -> str:
    return f"zk://{zookeeper_server.hosts}/octavo-{ENTROPY.uuid()}"


async def connect(url: str) -> MetadataStore:
    return await connect_store(
        url, client_name="test", session_timeout_s=30.0, clock=CLOCK, entropy=ENTROPY
    )


@pytest.fixture
async def store(url: str) -> AsyncIterator[MetadataStore]:
    made = await connect(url)
    yield made
    await made.close()


@pytest.fixture
def paths(url: str) -> Paths:
    return Paths(root_of(url))


async def test_ledger_lives_from_creation_to_deletion(store: MetadataStore, paths: Paths) -> None:
    catalog = LedgerCatalog(store, paths, clock=CLOCK, entropy=ENTROPY)
    created = [await catalog.create(QUORUM, members()) for _ in range(3)]
    ids = [ledger.metadata.ledger_id for ledger in created]
    assert ids == sorted(set(ids))
    recovering = await catalog.cas(created[0], created[0].metadata.in_recovery())
    with pytest.raises(VersionConflict):
        await catalog.cas(created[0], created[0].metadata.closed(EntryId(0), 1))
    closed = await catalog.cas(recovering, recovering.metadata.closed(EntryId(4), 40))
    assert await catalog.read(ids[0], barrier=True) == closed
    assert [ledger_id async for ledger_id in catalog.walk()] == ids
    await catalog.delete(closed)
    with pytest.raises(NoSuchLedger):
        await catalog.read(ids[0])
    assert [found.metadata.ledger_id async for found in catalog.walk_records()] == ids[1:]


async def test_f028_a_server_without_many_reads_in_one_request_is_read_key_by_key(
    url: str, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers before 3.6 do with it, this one does with an opcode that nobody knows."""
    root = root_of(url)
    for number in range(3):
        await store.create(f"{root}/d/{number}", b"%d" % number)
    monkeypatch.setattr(ReadMany, "type", 99)
    before = await connect(url)  # learns it, and keeps its session
    try:
        assert before.session_state is SessionState.CONNECTED
        children = [Child(f"{number}", Versioned(b"%d" % number, 0)) for number in range(3)]
        found = [Scanned(children, ""), Scanned([], "")]
        assert await before.scan([f"{root}/d", f"{root}/absent"], "", 9) == found
        # Learned later than at the start: a server that went back.
        assert await store.scan([f"{root}/d"], "", 9) == found[:1]
    finally:
        await before.close()


async def test_l3_creation_and_pruning_at_the_same_time(url: str, paths: Paths) -> None:
    stores = [await connect(url) for _ in range(2)]
    catalogs = [LedgerCatalog(s, paths, clock=CLOCK, entropy=ENTROPY) for s in stores]

    async def churn(catalog: LedgerCatalog) -> None:
        for _ in range(10):
            await catalog.delete(await catalog.create(QUORUM, members()))

    await asyncio.gather(*(churn(catalog) for catalog in catalogs))
    assert [ledger_id async for ledger_id in catalogs[0].walk()] == []
    for store in stores:
        await store.close()


async def test_id2_pointer_decides_the_epoch(store: MetadataStore, paths: Paths) -> None:
    await store.create(paths.idgen, b"3")
    catalog = LedgerCatalog(store, paths, clock=CLOCK, entropy=ENTROPY)
    assert await catalog.allocate_id() == (3 << 31) | 1
    assert ROTATE_AT < 1 << 31


async def test_registration_and_directory(url: str, paths: Paths, store: MetadataStore) -> None:
    directory = BookieDirectory(store, paths)
    await directory.start()
    other = await connect(url)
    mine = BookieRegistration("bookie-1", ENTROPY.uuid(), "h:1")
    registrar = BookieRegistrar(other, paths, mine, clock=CLOCK, entropy=ENTROPY)
    await registrar.register()
    async with asyncio.timeout(WAIT_S):
        while directory.live() != [mine]:
            await directory.wait_changed()
        await registrar.switch("ro")
        while [b.state for b in directory.live()] != ["ro"]:
            await directory.wait_changed()
        await other.close()
        while directory.live():
            await directory.wait_changed()
    await registrar.close()
    await directory.close()


async def test_topics_partitions_bundles_and_producer_ids(
    store: MetadataStore, paths: Paths
) -> None:
    topics = TopicCatalog(store, paths, clock=CLOCK, entropy=ENTROPY)
    created = await topics.create("a.b", 2)
    with pytest.raises(TopicAlreadyExists):
        await topics.create("a_b", 2)
    assert await topics.list() == [created]
    partitions = PartitionCatalog(store, paths, clock=CLOCK, entropy=ENTROPY)
    state = await partitions.create(PartitionState(created.topic.topic_id, 0))
    assert await partitions.read(created.topic.topic_id, 0) == state
    me = BundleOwner("broker-1", "h:1", ENTROPY.token())
    assert await BundleRegistry(store, paths).acquire(5, me)
    assert await BundleRegistry(store, paths).owners() == {5: me}
    assert await ProducerIdAllocator(store, paths, CLOCK).allocate() == 0
    assert await ProducerIdAllocator(store, paths, CLOCK).allocate() == BLOCK_IDS


async def test_wrong_addresses_are_typed_errors() -> None:
    with pytest.raises(ConfigError):
        await connect("zk://nowhere")
    with pytest.raises(ConfigError):
        await connect("zk://host:notaport/octavo")


async def test_absent_zookeeper_is_unavailable() -> None:
    store = ZookeeperStore(
        f"127.0.0.1:{free_port()}", session_timeout_s=2.0, operation_timeout_s=0.3
    )
    with pytest.raises(MetadataUnavailable):
        await store.start()
