"""Many topics: pages, and what a topic costs the store, however many there are (F028, F143)."""

from __future__ import annotations

import collections
import contextvars
from collections.abc import Sequence

import pytest

from octavo.metadata.keys import SCAN_KEYS_MAX
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.store import Scanned, Versioned
from octavo.metadata.topic_follower import TopicFollower
from octavo.metadata.topics import Topic, TopicCatalog
from octavo.runtime.entropy import SystemEntropy
from tests.serving_rig import settle
from tests.unit.metadata_stores import CLOCK, PATHS

_in_scan = contextvars.ContextVar("in scan", default=False)


class CountingStore(MemoryStore):
    """Counts what is asked of it, by operation."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.asked: collections.Counter[str] = collections.Counter()

    async def get(self, key: str) -> Versioned | None:
        self.asked["get"] += not _in_scan.get()
        return await super().get(key)

    async def children(self, key: str) -> list[str]:
        self.asked["children"] += not _in_scan.get()
        return await super().children(key)

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """One round trip of a real store, which the model makes out of others."""
        inside = _in_scan.set(True)
        try:
            parts = await super().scan(keys, after, limit)
        finally:
            _in_scan.reset(inside)
        records = sum(len(part.children) for part in parts)
        self.asked += collections.Counter(scan=1, records=records)
        return parts


class World:
    def __init__(self) -> None:
        self.store = CountingStore(MemoryCluster())
        self.catalog = TopicCatalog(self.store, PATHS, clock=CLOCK, entropy=SystemEntropy())

    async def fill(self, first: int, behind: int) -> None:
        for number in range(first, behind):
            await self.catalog.create(f"topic.{number}", 10)

    def take(self) -> collections.Counter[str]:
        asked, self.store.asked = self.store.asked, collections.Counter()
        return asked


def every(topic: Topic) -> bool:
    return True


async def pages(catalog: TopicCatalog, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    after, more = "", True
    while more:
        items, more = await catalog.page(after, limit, every)
        found.append([item.topic.name for item in items])
        after = found[-1][-1] if found[-1] else after
        assert items or not more
    return found


@pytest.mark.parametrize("limit", [1, 7, 50, 299, 300, 301])
async def test_f028_pages_hold_every_topic_once(limit: int) -> None:
    world = World()
    await world.fill(0, 300)
    found = await pages(world.catalog, limit)
    assert sorted(name for page in found for name in page) == sorted(
        f"topic.{number}" for number in range(300)
    )
    assert all(len(page) == limit for page in found[:-1])


async def test_f028_a_page_goes_on_behind_a_topic_that_was_deleted_meanwhile() -> None:
    world = World()
    await world.fill(0, 100)
    first, _ = await world.catalog.page("", 40, every)
    gone = await world.catalog.mark_deleting(first[-1])
    await world.catalog.delete(gone)
    rest, more = await world.catalog.page(first[-1].topic.name, 100, every)
    names = {item.topic.name for item in (*first, *rest)}
    assert (len(names), len(first) + len(rest), more) == (100, 100, False)


async def test_f028_a_page_skips_what_is_not_wanted_and_is_full_all_the_same() -> None:
    world = World()
    await world.fill(0, 200)
    items, more = await world.catalog.page("", 50, lambda topic: topic.name.endswith("7"))
    assert (len(items), more) == (20, False)
    items, more = await world.catalog.page("", 15, lambda topic: topic.name.endswith("7"))
    assert (len(items), more) == (15, True)


async def test_f028_a_page_costs_no_more_where_there_are_more_topics() -> None:
    """Planted: the first page of 2,000 topics read 256 directories."""
    world = World()
    await world.fill(0, 2_000)
    world.take()
    await world.catalog.page("", 10, every)
    asked = world.take()
    assert (asked["scan"], asked["get"]) == (1, 0)
    assert asked["records"] <= SCAN_KEYS_MAX * 11


async def test_f028_pages_read_little_more_than_they_give() -> None:
    """Planted: each page ended with a whole group of directories, of which most were not needed."""
    world = World()
    await world.fill(0, 3_000)
    world.take()
    found = await pages(world.catalog, 300)
    assert sum(map(len, found)) == 3_000
    asked = world.take()
    assert asked["records"] <= 3_000 + len(found) * 40
    assert asked["scan"] <= 256 / SCAN_KEYS_MAX + len(found) * 2


async def test_f028_all_topics_are_read_in_one_round_trip_for_many_directories() -> None:
    world = World()
    await world.fill(0, 600)
    world.take()
    assert len(await world.catalog.list()) == 600
    asked = world.take()
    assert asked["scan"] <= 256 / SCAN_KEYS_MAX
    assert asked["get"] == 0


async def test_f028_a_follower_begins_with_one_scan_for_each_directory() -> None:
    world = World()
    await world.fill(0, 2_000)
    world.take()
    follower = TopicFollower(world.store, PATHS, lambda: None)
    follower.start()
    await follower.refresh()
    assert len(follower.topics) == 2_000
    asked = world.take()
    assert asked["children"] <= 257
    assert asked["scan"] <= 256
    assert asked["get"] <= 20, "directories with a record or two"
    follower.close()


async def test_f143_what_a_new_topic_costs_does_not_depend_on_how_many_there_are() -> None:
    """The reads of its creation, and of everybody who follows topics."""
    costs: list[collections.Counter[str]] = []
    world = World()
    follower = TopicFollower(world.store, PATHS, lambda: None)
    follower.start()
    for first, behind in ((0, 300), (300, 3_000)):
        await world.fill(first, behind)
        await settle()
        await follower.refresh()
        world.take()
        await world.catalog.create(f"new.{first}", 10)
        await settle()
        await follower.refresh()
        costs.append(world.take())
    follower.close()
    assert costs[0] == costs[1]
    assert costs[0].total() <= 4
