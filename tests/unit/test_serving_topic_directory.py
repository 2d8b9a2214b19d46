"""Reads of one topic that many wait for are shared, and none that began too early counts."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from octavo.metadata.memory import MemoryCluster
from octavo.metadata.paths import Paths
from octavo.metadata.topics import Topic, TopicCatalog, VersionedTopic
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import InconsistentTopicId, MetadataUnavailable, UnknownTopic
from octavo.serving.topic_directory import TopicDirectory
from tests.serving_rig import until


class Slow(TopicCatalog):
    """Holds reads behind a barrier until it is told to go on."""

    def __init__(self) -> None:
        store = MemoryCluster().connect()
        super().__init__(store, Paths("/octavo"), clock=SystemClock(), entropy=SeededEntropy(1))
        self.barriers = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.fails = False

    async def get(self, name: str, *, barrier: bool = False) -> VersionedTopic:
        self.barriers += barrier
        found = await super().get(name, barrier=barrier)
        await self.hold.wait()
        if self.fails:
            raise MetadataUnavailable("away")
        return found


async def made() -> tuple[Slow, TopicDirectory, Topic]:
    catalog = Slow()
    topic = (await catalog.create("t", 3)).topic
    return catalog, TopicDirectory(catalog, lambda _: None), topic


async def test_many_confirmations_cost_two_reads_of_which_the_second_begins_after_all() -> None:
    catalog, directory, topic = await made()
    catalog.hold.clear()
    ident = topic.topic_id.bytes
    first = asyncio.ensure_future(directory.confirm("t", ident, fresh=True))
    await until(lambda: catalog.barriers == 1)
    many = [asyncio.ensure_future(directory.confirm("t", ident, fresh=True)) for _ in range(500)]
    await asyncio.sleep(0)
    catalog.hold.set()
    assert await first
    assert all(await asyncio.gather(*many))
    assert catalog.barriers == 2
    assert not directory._turns  # pyright: ignore[reportPrivateUsage]


async def test_a_read_that_began_before_a_deletion_does_not_confirm_what_came_after() -> None:
    catalog, directory, topic = await made()
    catalog.hold.clear()
    ident = topic.topic_id.bytes
    early = asyncio.ensure_future(directory.confirm("t", ident, fresh=True))
    await until(lambda: catalog.barriers == 1)
    versioned = await TopicCatalog.get(catalog, "t")
    await catalog.mark_deleting(versioned)
    late = asyncio.ensure_future(directory.confirm("t", ident, fresh=True))
    await asyncio.sleep(0)
    catalog.hold.set()
    await asyncio.gather(early, return_exceptions=True)
    with pytest.raises(UnknownTopic):
        await late
    assert catalog.barriers == 2


async def test_who_waits_reads_for_himself_when_the_one_before_failed() -> None:
    catalog, directory, topic = await made()
    ident = topic.topic_id.bytes
    catalog.hold.clear()
    catalog.fails = True
    first = asyncio.ensure_future(directory.confirm("t", ident, fresh=True))
    await until(lambda: catalog.barriers == 1)
    second = asyncio.ensure_future(directory.confirm("t", ident, fresh=True))
    third = asyncio.ensure_future(directory.confirm("t", uuid.uuid4().bytes, fresh=True))
    await asyncio.sleep(0)
    first.cancel()
    catalog.fails = False
    catalog.hold.set()
    assert await second
    with pytest.raises(InconsistentTopicId):
        await third
    assert not directory._turns  # pyright: ignore[reportPrivateUsage]


async def test_a_topic_that_was_made_again_is_not_said_to_be_gone_by_a_store_that_trails() -> None:
    """M-4: who waits for UnknownTopic to mean no must not hear it of an earlier life."""
    cluster = MemoryCluster()
    writer, trailing = cluster.connect(), cluster.connect()
    catalogs = [
        TopicCatalog(store, Paths("/octavo"), clock=SystemClock(), entropy=SeededEntropy(seed))
        for seed, store in enumerate((writer, trailing))
    ]
    directory = TopicDirectory(catalogs[1], lambda _: None)
    await catalogs[0].create("t", 1)
    dying = await catalogs[0].mark_deleting(await catalogs[0].get("t"))
    with pytest.raises(UnknownTopic):
        await directory.get("t")
    trailing.lag()
    await catalogs[0].delete(dying)
    again = (await catalogs[0].create("t", 1)).topic
    assert (await directory.get("t")).topic_id == again.topic_id
