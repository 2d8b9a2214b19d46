"""Following every topic: what comes, changes and goes is seen, and what is missing is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from octavo.metadata import topic_follower as follower_module
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.store import Versioned
from octavo.metadata.topic_follower import TopicFollower
from octavo.metadata.topics import TopicCatalog
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import MetadataUnavailable
from tests.serving_rig import settle
from tests.unit.metadata_stores import CLOCK, PATHS


class World:
    def __init__(self) -> None:
        self.store: MemoryStore = MemoryCluster().connect()
        self.catalog = TopicCatalog(self.store, PATHS, clock=CLOCK, entropy=SystemEntropy())
        self.marks = 0
        self.follower = TopicFollower(self.store, PATHS, self._mark)

    def _mark(self) -> None:
        self.marks += 1

    async def seen(self) -> dict[str, int]:
        """Partitions of the topics that are seen."""
        await settle()
        await self.follower.refresh()
        return {name: topic.partitions for name, topic in sorted(self.follower.topics.items())}


async def test_topics_that_are_there_come_and_grow_are_seen() -> None:
    found = World()
    await found.catalog.create("a", 1)
    assert found.follower.topics == {}
    found.follower.start()
    assert await found.seen() == {"a": 1}
    await found.catalog.create("b", 2)
    assert await found.seen() == {"a": 1, "b": 2}
    old = await found.catalog.get("a")
    await found.catalog.update(old, replace(old.topic, partitions=4))
    assert await found.seen() == {"a": 4, "b": 2}
    await found.store.close()


async def test_what_is_deleted_is_told_once_and_what_is_made_again_is_another() -> None:
    found = World()
    found.follower.start()
    made = await found.catalog.create("a", 1)
    assert await found.seen() == {"a": 1}
    marked = await found.catalog.mark_deleting(made)
    await settle()
    assert await found.follower.refresh() == {made.topic.topic_id.hex: "a"}
    assert await found.seen() == {}
    await found.catalog.delete(marked)
    await settle()
    assert await found.follower.refresh() == {}
    again = await found.catalog.create("a", 3)
    assert await found.seen() == {"a": 3}
    await found.catalog.delete(again)
    other = await found.catalog.create("a", 5)
    await settle()
    assert await found.follower.refresh() == {again.topic.topic_id.hex: "a"}
    assert found.follower.topics["a"] == other.topic
    await found.store.close()


async def test_each_change_marks_and_nothing_is_marked_after_the_end() -> None:
    found = World()
    found.follower.start()
    await found.seen()
    before = found.marks
    await found.catalog.create("a", 1)
    await settle()
    assert found.marks > before
    await found.seen()
    found.follower.close()
    before = found.marks
    await found.catalog.create("b", 1)
    await settle()
    assert found.marks == before
    await found.store.close()


async def test_what_could_not_be_read_stays_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = World()
    for name in ("a", "b", "c"):
        await found.catalog.create(name, 1)
    found.follower.start()
    real: Callable[[str], Awaitable[Versioned | None]] = found.store.get
    fails = {PATHS.topic("b")}

    async def get(key: str) -> Versioned | None:
        if key in fails:
            raise MetadataUnavailable("not now")
        return await real(key)

    monkeypatch.setattr(found.store, "get", get)
    with pytest.raises(MetadataUnavailable):
        await found.seen()
    fails.clear()
    assert await found.seen() == {"a": 1, "b": 1, "c": 1}
    await found.store.close()


async def test_a_damaged_record_is_passed_over() -> None:
    found = World()
    await found.catalog.create("a", 1)
    await found.catalog.create("b", 1)
    await found.store.put(PATHS.topic("b"), b"\xff\xff", expected=None)
    found.follower.start()
    assert await found.seen() == {"a": 1}
    await found.store.close()


async def test_what_somebody_read_is_known_at_once_and_followed() -> None:
    found = World()
    found.follower.start()
    await found.seen()
    made = await found.catalog.create("a", 1)
    found.follower.learn(made.topic, PATHS.topic("a"))
    assert found.follower.topics == {"a": made.topic}
    assert await found.seen() == {"a": 1}
    await found.catalog.delete(made)
    assert await found.seen() == {}
    await found.store.close()


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "FOLLOWED_TOPICS_MAX", 25)
    found = World()
    for number in range(20):
        await found.catalog.create(f"t{number}", 1)
    found.follower.start()
    seen = await found.seen()
    assert 0 < len(seen) < 20
    await found.store.close()
