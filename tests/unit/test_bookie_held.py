"""A bookie that an operator holds takes no new records, and only that incarnation of it (7.4)."""

from __future__ import annotations

import asyncio
import uuid

from octavo.bookie.held import HoldWatch
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.repairs import BookieHold, HoldKind, RepairCatalog
from octavo.runtime.ids import Member
from tests.unit.metadata_stores import CLOCK, PATHS

ME = Member("bookie-1", uuid.UUID(int=1))
EARLIER = Member("bookie-1", uuid.UUID(int=2))


class Watched:
    """A watch, and how often it told of a change."""

    def __init__(self, store: MemoryStore) -> None:
        self.changes = 0
        self.repairs = RepairCatalog(store, PATHS, clock=CLOCK)
        self.watch = HoldWatch(store, PATHS, ME, CLOCK, self._changed)

    def _changed(self) -> None:
        self.changes += 1


async def test_every_kind_of_hold_holds_this_incarnation() -> None:
    watched = Watched(MemoryCluster().connect())
    await watched.watch.look()
    assert not watched.watch.held
    for kind in HoldKind:
        await watched.repairs.hold(BookieHold(ME, kind))
        await watched.watch.look()
        assert watched.watch.held, kind
    await watched.repairs.release("bookie-1")
    await watched.watch.look()
    assert not watched.watch.held
    assert watched.changes == 2, "only what changes is told"


async def test_a_decision_about_an_earlier_incarnation_is_none() -> None:
    """Who takes the id of a retired bookie begins anew."""
    watched = Watched(MemoryCluster().connect())
    await watched.repairs.hold(BookieHold(EARLIER, HoldKind.RETIRED))
    await watched.watch.look()
    assert not watched.watch.held


async def test_a_decision_that_cannot_be_read_holds() -> None:
    store = MemoryCluster().connect()
    await store.create(PATHS.bookie_hold("bookie-1"), b"\xff")
    watched = Watched(store)
    await watched.watch.look()
    assert watched.watch.held


async def test_changes_are_followed() -> None:
    watched = Watched(MemoryCluster().connect())
    following = asyncio.create_task(watched.watch.follow())
    try:
        for wanted in (True, False, True):
            if wanted:
                await watched.repairs.hold(BookieHold(ME, HoldKind.READONLY))
            else:
                await watched.repairs.release("bookie-1")
            async with asyncio.timeout(30):
                while watched.watch.held is not wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
    finally:
        following.cancel()
