"""Partitions that are loaded before anybody asks: their bundle was given, or its owner died.

What fails here is tried again by whoever asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from octavo.metadata.topics import TopicCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.partition.name import PartitionName
from octavo.serving.registry import PartitionRegistry
from octavo.serving.topic_directory import TopicDirectory

LOAD_WAIT_S = 3.0
"""How long whoever hands partitions over waits for them to be loaded."""
GATHER_S = 0.02
"""Bundles that were taken within this time are looked through together."""

_log = get_logger("octavo.serving.load_ahead")


class LoadAhead:
    """Loads partitions of bundles that came here."""

    def __init__(
        self,
        registry: PartitionRegistry,
        topics: TopicDirectory,
        catalog: TopicCatalog,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._catalog = catalog
        self._clock = clock
        self._taken: set[int] = set()
        self._tasks = TaskOwner("load ahead")

    async def close(self) -> None:
        """Load nothing more."""
        await self._tasks.close()

    def partitions_of(self, bundle: int) -> list[PartitionName]:
        """What is served here of a bundle: what its successor is to load."""
        names = [shell.name for shell in self._registry.shells()]
        return [n for n in names if self._registry.bundle(n.topic_id, n.partition) == bundle]

    async def read_up(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Know the topics of partitions that will come soon."""
        names = {topic for topic, _ in partitions}
        await asyncio.gather(*map(self._topics.get, names), return_exceptions=True)

    async def load(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Load these, of bundles that are ours, for at most LOAD_WAIT_S; what fails is logged."""
        await asyncio.gather(*(self._load(topic, partition) for topic, partition in partitions))

    async def _load(self, topic: str, partition: int) -> None:
        try:
            await self._registry.resolve(topic, partition, LOAD_WAIT_S)
        except OctavoError as error:
            _log.info("not-loaded-ahead", partition=f"{topic}-{partition}", cause=error.cause)

    def taken(self, bundle: int) -> None:
        """A bundle was taken whose owner is gone; nobody said what lies in it."""
        if not self._taken:
            self._tasks.spawn(self._look_through(), name="look through")
        self._taken.add(bundle)

    async def _look_through(self) -> None:
        """Find the partitions of the bundles that were taken, and begin to load them."""
        await self._clock.sleep(GATHER_S)
        bundles, self._taken = self._taken, set()
        try:
            topics = [topic for topic, _ in await self._catalog.list() if not topic.deleting]
        except OctavoError as error:
            _log.info("bundles-not-looked-through", cause=error.cause)
            return
        for topic in topics:
            for partition in range(topic.partitions):
                if self._registry.bundle(topic.topic_id, partition) in bundles:
                    self._registry.start_loading(topic, partition)
