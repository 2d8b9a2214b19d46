"""Bookies, brokers and bundles: registrations, directories, cookies, ownership (6.11, 8.4)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.metadata.bookies import (
    BookieDirectory,
    BookieRegistrar,
    BookieRegistration,
    Cookie,
    CookieCatalog,
)
from octavo.metadata.brokers import BrokerDirectory, BrokerInfo, BrokerRegistrar
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.producer_ids import BLOCK_IDS, ProducerIdAllocator
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    MetadataCorrupt,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.ids import Member
from tests.unit.metadata_stores import CLOCK, PATHS

WAIT_S = 30.0
ONE = BookieRegistration("bookie-1", uuid.UUID(int=1), "h:1", "h:2", "rack-1")


def registrar(store: MemoryStore, registration: BookieRegistration = ONE) -> BookieRegistrar:
    return BookieRegistrar(store, PATHS, registration, clock=CLOCK, entropy=SystemEntropy())


async def started_directory(store: MemoryStore) -> BookieDirectory:
    directory = BookieDirectory(store, PATHS)
    await directory.start()
    return directory


async def until(directory: BookieDirectory | BrokerDirectory, check: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not check():
            await directory.wait_changed()


# --- bookies -----------------------------------------------------------------------------------


async def test_directory_follows_registrations() -> None:
    cluster = MemoryCluster()
    directory = await started_directory(cluster.connect())
    assert directory.live() == []
    mine = registrar(cluster.connect())
    await mine.register()
    await until(directory, lambda: directory.live() == [ONE])
    assert directory.find("bookie-1") == ONE
    assert directory.find(ONE.member) == ONE
    assert directory.find(Member("bookie-1", uuid.UUID(int=2))) is None
    await mine.close()
    await until(directory, lambda: directory.live() == [])
    await directory.close()


async def test_a_registration_says_which_ledgers_are_older_than_its_process() -> None:
    """7.3: of those only can it have missed something."""
    cluster = MemoryCluster()
    store = cluster.connect()
    directory = await started_directory(cluster.connect())
    ids = LedgerIdAllocator(store, PATHS, CLOCK)
    given = [await ids.allocate() for _ in range(3)]
    mine = registrar(store)
    await mine.register()
    await until(directory, lambda: directory.live() == [ONE])
    assert directory.live()[0].ledgers_before == given[-1]
    await mine.switch("ro")
    await until(directory, lambda: directory.live()[0].state == "ro")
    assert directory.live()[0].ledgers_before == given[-1], "the same process"
    await mine.close()
    cluster.corrupt(PATHS.idgen, b"x")
    again = registrar(store)
    await again.register()
    await until(directory, lambda: directory.live() != [] and directory.live()[0].state == "rw")
    assert directory.live()[0].ledgers_before is None, "not known: of any it may"
    await again.close()
    await directory.close()


async def test_6_13_switch_creates_ro_before_it_deletes_rw() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    mine = registrar(store)
    await mine.register()
    watcher = cluster.connect()
    changes: list[tuple[bool, bool]] = []

    def look(_key: str) -> None:
        keys = cluster.snapshot()
        changes.append((PATHS.bookie_rw("bookie-1") in keys, PATHS.bookie_ro("bookie-1") in keys))

    watcher.watch(PATHS.bookies_rw, look)
    watcher.watch(PATHS.bookies_ro, look)
    await mine.switch("ro")
    await watcher.get(PATHS.bookies_ro)
    assert (False, False) not in changes
    assert changes[-1] == (False, True)
    assert mine.state == "ro"
    await mine.switch("rw")
    assert PATHS.bookie_ro("bookie-1") not in cluster.snapshot()
    await mine.close()


async def test_bookie_in_both_folders_counts_as_read_only() -> None:
    cluster = MemoryCluster()
    first, second = (
        registrar(cluster.connect()),
        registrar(cluster.connect(), replace(ONE, state="ro")),
    )
    await first.register()
    await second.register()
    directory = await started_directory(cluster.connect())
    assert [(b.bookie_id, b.state) for b in directory.live()] == [("bookie-1", "ro")]
    for closing in (directory, first, second):
        await closing.close()


async def test_b30_lost_session_registers_again() -> None:
    cluster = MemoryCluster()
    directory = await started_directory(cluster.connect())
    store = cluster.connect()
    mine = registrar(store)
    await mine.register()
    await until(directory, lambda: directory.live() == [ONE])
    cluster.expire(store)
    assert PATHS.bookie_rw("bookie-1") not in cluster.snapshot()
    await until(directory, lambda: directory.live() == [])
    await until(directory, lambda: directory.live() == [ONE])
    assert mine.present
    await mine.close()
    await directory.close()


async def test_b30_registration_deleted_by_somebody_comes_back() -> None:
    cluster = MemoryCluster()
    directory = await started_directory(cluster.connect())
    mine = registrar(cluster.connect())
    await mine.register()
    await until(directory, lambda: directory.live() == [ONE])
    await cluster.connect().delete(PATHS.bookie_rw("bookie-1"), expected=None)
    await until(directory, lambda: directory.live() == [])
    await until(directory, lambda: directory.live() == [ONE])
    await mine.close()
    await directory.close()


async def test_b28_second_process_with_the_same_id_gives_up() -> None:
    cluster = MemoryCluster()
    first, second = registrar(cluster.connect()), registrar(cluster.connect())
    await first.register()
    before = cluster.snapshot()[PATHS.bookie_rw("bookie-1")]
    with pytest.raises(IllegalStateError):
        await second.register(taken_wait_s=0.0)
    await second.close()
    assert cluster.snapshot()[PATHS.bookie_rw("bookie-1")] == before
    await first.close()


async def test_b30_restarted_process_waits_for_its_predecessors_session_to_die() -> None:
    cluster = MemoryCluster()
    dead = cluster.connect()
    await registrar(dead).register()
    dead.suspend()
    heir = registrar(cluster.connect(), replace(ONE, wire_address="h:9"))
    registering = asyncio.ensure_future(heir.register())
    directory = await started_directory(cluster.connect())
    assert [b.wire_address for b in directory.live()] == ["h:1"]
    cluster.end_lease(dead)
    async with asyncio.timeout(WAIT_S):
        await registering
    await until(directory, lambda: [b.wire_address for b in directory.live()] == ["h:9"])
    await heir.close()
    await directory.close()


async def test_m3_registration_with_lost_reply_is_ours() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    store.faults.lose_reply("create")
    mine = registrar(store)
    async with asyncio.timeout(WAIT_S):
        await mine.register(taken_wait_s=0.0)
    assert mine.present
    await mine.close()
    assert PATHS.bookie_rw("bookie-1") not in cluster.snapshot()


async def test_directory_keeps_its_contents_while_the_store_is_away() -> None:
    cluster = MemoryCluster()
    mine = registrar(cluster.connect())
    await mine.register()
    store = cluster.connect()
    directory = await started_directory(store)
    store.suspend()
    await mine.close()
    assert directory.live() == [ONE]
    store.resume()
    await until(directory, lambda: directory.live() == [])
    await directory.close()


async def test_m7_unreadable_registration_is_skipped() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    for name, value in (("a", b"\xff"), ("b", b""), ("c", b"\x0a\x01x")):
        await store.create(PATHS.bookie_rw(name), value)
    mine = registrar(store)
    await mine.register()
    directory = await started_directory(cluster.connect())
    assert directory.live() == [ONE]
    await mine.close()
    await directory.close()


# --- cookies and cluster id --------------------------------------------------------------------


COOKIE = Cookie(
    bookie_id="bookie-1",
    instance_id="cluster",
    incarnation=uuid.UUID(int=1),
    directories={"journal": "d1"},
    salvage=(uuid.UUID(int=7),),
    boot_counter=3,
    durable_up_to=(3, 4096),
)


def cookies(store: MemoryStore) -> CookieCatalog:
    return CookieCatalog(store, PATHS, clock=CLOCK, entropy=SystemEntropy())


def test_cookie_round_trips() -> None:
    assert Cookie.from_bytes(COOKIE.to_bytes()) == COOKIE


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\x08\x01", b"\x08\x01\x12\x01b\x22\x01x"])
def test_unreadable_cookie_is_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt):
        Cookie.from_bytes(data)


def test_newer_cookie_is_refused_with_its_own_error() -> None:
    with pytest.raises(UnsupportedVersion):
        Cookie.from_bytes(b"\x08\x02" + COOKIE.to_bytes()[2:])


async def test_b27_cookie_is_created_once_and_changed_by_compare_and_set() -> None:
    catalog = cookies(MemoryCluster().connect())
    assert await catalog.read_cookie("bookie-1") is None
    assert await catalog.bookie_ids() == []
    created = await catalog.create_cookie(COOKIE)
    with pytest.raises(KeyExists):
        await catalog.create_cookie(replace(COOKIE, boot_counter=9))
    booted = await catalog.update_cookie(created, replace(COOKIE, boot_counter=4))
    with pytest.raises(VersionConflict):
        await catalog.update_cookie(created, replace(COOKIE, boot_counter=5))
    assert await catalog.read_cookie("bookie-1") == booted
    assert await catalog.bookie_ids() == ["bookie-1"]
    await catalog.delete_cookie(booted)
    assert await catalog.read_cookie("bookie-1") is None


async def test_m4_cookie_is_never_taken_for_absent_on_a_followers_word() -> None:
    cluster = MemoryCluster()
    lagging = cluster.connect()
    lagging.lag()
    created = await cookies(cluster.connect()).create_cookie(COOKIE)
    assert await cookies(lagging).read_cookie("bookie-1") == created


async def test_cluster_id_is_written_once() -> None:
    cluster = MemoryCluster()
    ids = await asyncio.gather(*(cookies(cluster.connect()).cluster_id() for _ in range(4)))
    assert len(set(ids)) == 1
    uuid.UUID(ids[0])
    store = cluster.connect()
    cluster.corrupt(PATHS.instance_id, b"nonsense")
    with pytest.raises(MetadataCorrupt):
        await cookies(store).cluster_id()


# --- brokers -----------------------------------------------------------------------------------


async def test_brokers_register_and_are_found() -> None:
    cluster = MemoryCluster()
    directory = BrokerDirectory(cluster.connect(), PATHS)
    await directory.start()
    info = BrokerInfo("broker-1", "h:7650", b"nonce", 5)
    mine = BrokerRegistrar(cluster.connect(), PATHS, info, clock=CLOCK)
    await mine.register()
    await until(directory, lambda: directory.live() == [info])
    assert mine.present
    assert directory.find("broker-1") == info
    assert directory.find("broker-2") is None
    await mine.close()
    await until(directory, lambda: directory.live() == [])
    await directory.close()


async def test_b28_broker_without_nonce_is_refused() -> None:
    store = MemoryCluster().connect()
    with pytest.raises(IllegalStateError):
        BrokerRegistrar(store, PATHS, BrokerInfo("broker-1", "h:1"), clock=CLOCK)


# --- bundles -----------------------------------------------------------------------------------

ME = BundleOwner("broker-1", "h:1", b"one")
RIVAL = BundleOwner("broker-2", "h:2", b"two")


async def test_o1_one_broker_acquires_a_bundle() -> None:
    cluster = MemoryCluster()
    mine, rival = BundleRegistry(cluster.connect(), PATHS), BundleRegistry(cluster.connect(), PATHS)
    assert await mine.owner(3) is None
    assert await mine.acquire(3, ME)
    assert await mine.acquire(3, ME)
    assert not await rival.acquire(3, RIVAL)
    assert await rival.owner(3) == ME
    assert await rival.owners() == {3: ME}
    await rival.release(3, RIVAL)
    assert await rival.owner(3) == ME
    await mine.release(3, ME)
    assert await rival.acquire(3, RIVAL)


async def test_m3_acquisition_with_lost_reply_is_ours() -> None:
    store = MemoryCluster().connect()
    store.faults.lose_reply("create")
    assert await BundleRegistry(store, PATHS).acquire(3, ME)


async def test_o5_bundle_is_free_after_its_owners_session() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    mine, rival = BundleRegistry(store, PATHS), BundleRegistry(cluster.connect(), PATHS)
    assert await mine.acquire(3, ME)
    cluster.expire(store)
    assert await rival.acquire(3, RIVAL)


async def test_eager_take_over_evicts_only_the_process_it_means() -> None:
    cluster = MemoryCluster()
    mine, rival = BundleRegistry(cluster.connect(), PATHS), BundleRegistry(cluster.connect(), PATHS)
    await mine.acquire(3, ME)
    assert not await rival.evict(3, replace(ME, process_nonce=b"older"))
    assert await rival.evict(3, ME)
    assert await rival.evict(3, ME)
    assert await rival.acquire(3, RIVAL)


async def test_bundle_changes_are_told() -> None:
    cluster = MemoryCluster()
    registry = BundleRegistry(cluster.connect(), PATHS)
    changed = asyncio.Event()
    unsubscribe = registry.watch(changed.set)
    await BundleRegistry(cluster.connect(), PATHS).acquire(1, ME)
    async with asyncio.timeout(WAIT_S):
        await changed.wait()
    unsubscribe()


# --- producer ids ------------------------------------------------------------------------------


async def test_i1_producer_ids_are_never_shared() -> None:
    cluster = MemoryCluster()
    allocators = [ProducerIdAllocator(cluster.connect(), PATHS, CLOCK) for _ in range(2)]
    drawn = await asyncio.gather(*(a.allocate() for a in allocators * (BLOCK_IDS + 10)))
    assert len(set(drawn)) == 2 * (BLOCK_IDS + 10)


async def test_i1_lost_reply_burns_a_block() -> None:
    store = MemoryCluster().connect()
    store.faults.lose_reply("fetch_add")
    assert await ProducerIdAllocator(store, PATHS, CLOCK).allocate() == BLOCK_IDS


async def test_i1_restarted_broker_never_repeats_an_id() -> None:
    cluster = MemoryCluster()
    first = await ProducerIdAllocator(cluster.connect(), PATHS, CLOCK).allocate()
    second = await ProducerIdAllocator(cluster.connect(), PATHS, CLOCK).allocate()
    assert second == first + BLOCK_IDS
