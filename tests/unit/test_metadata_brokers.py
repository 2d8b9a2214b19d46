"""Registrations that are taken away by others, and marks of brokers that may own nothing."""

from __future__ import annotations

from dataclasses import replace

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo, BrokerRegistrar, unregister
from octavo.metadata.drains import Drains
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.paths import Paths
from octavo.runtime.clock import SystemClock
from tests.serving_rig import until

PATHS = Paths("/octavo")
CLOCK = SystemClock()
ME = BrokerInfo("b", "b:1", b"first life", 7)


async def test_a_registration_that_was_taken_away_is_made_again_as_another_life() -> None:
    cluster = MemoryCluster()
    store, other = cluster.connect(), cluster.connect()
    lives = [ME]
    present: list[bytes] = []

    def renewed() -> BrokerInfo:
        lives.append(replace(ME, process_nonce=b"life %d" % len(lives)))
        return lives[-1]

    registrar = BrokerRegistrar(
        store,
        PATHS,
        ME,
        clock=CLOCK,
        renewed=renewed,
        on_present=lambda: present.append(lives[-1].process_nonce),
    )
    await registrar.register()
    assert await registrar.stands()
    assert await unregister(other, PATHS, ME, clock=CLOCK)
    await until(lambda: present == [b"life 1"])
    assert registrar.present
    assert await registrar.stands()
    directory = BrokerDirectory(other, PATHS, clock=CLOCK)
    await directory.start()
    assert directory.live() == [lives[-1]]
    # Who still means the earlier life does not meet this one.
    assert not await unregister(other, PATHS, ME, clock=CLOCK)
    assert await registrar.stands()
    await registrar.close()
    assert not await registrar.stands()
    assert await unregister(other, PATHS, lives[-1], clock=CLOCK)  # gone already
    await directory.close()
    for one in (store, other):
        await one.close()


async def test_a_registration_is_kept_as_it_is_where_nobody_renews_it() -> None:
    cluster = MemoryCluster()
    store, other = cluster.connect(), cluster.connect()
    registrar = BrokerRegistrar(store, PATHS, ME, clock=CLOCK)
    await registrar.register()
    assert await unregister(other, PATHS, ME, clock=CLOCK)
    found = None
    while found is None:
        found = await other.get(PATHS.broker("b"))
    assert found.value == ME.to_bytes()
    await registrar.close()
    for one in (store, other):
        await one.close()


async def test_marks_of_drained_and_of_leaving_brokers_are_not_mixed_up() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    drains = Drains(store, PATHS, clock=CLOCK)
    await drains.start()
    await drains.undrain("b")  # nothing to take back
    await drains.drain("b")
    await drains.drain("b")
    await drains.begin_leaving("b")
    await drains.begin_leaving("c")
    assert (drains.drained(), drains.leaving()) == (frozenset("b"), frozenset("bc"))
    await drains.came_back("b")
    assert (drains.drained(), drains.leaving()) == (frozenset("b"), frozenset("c"))
    await drains.undrain("b")
    assert drains.drained() == frozenset()
    cluster.expire(store)
    await until(lambda: not drains.leaving())  # it goes with the session
    await drains.close()
    await store.close()
