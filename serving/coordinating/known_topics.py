"""The topics that coordinators know: followed, told at most once a second, resolved by pattern.

A request may name a topic that was created a moment ago, so that the watch has not told it yet:
`learn` reads it. That a topic was deleted is told only when it is certain (O7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.metadata.topic_follower import TopicFollower
from octavo.metadata.topics import TopicCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidTopic, OctavoError, UnknownTopic
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.coordinating.patterns import PatternMatches
from octavo.serving.groups.assignors import SubscribedTopic
from octavo.serving.groups.topics import TopicDirectory

TELL_INTERVAL_S = 1.0
"""Changes within this time are told together (RB1)."""
LEARNED_AT_ONCE_MAX = 100
"""Names of one request that are looked up; the others are known when the watch tells them."""

_log = get_logger("octavo.serving.known_topics")


class TopicListener(NamedTuple):
    """Who is told of topics; called on the event loop."""

    changed: Callable[[TopicDirectory], None]
    deleted: Callable[[str], None]
    """With the id of a topic that is certainly gone."""


class KnownTopics:
    """The directory of all topics of the cluster."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        catalog: TopicCatalog,
        clock: Clock,
        listener: TopicListener,
    ) -> None:
        self._paths = paths
        self._catalog = catalog
        self._clock = clock
        self._listener = listener
        self._marked = asyncio.Event()
        self._read = asyncio.Event()
        self._follower = TopicFollower(store, paths, self._marked.set)
        self._task: asyncio.Task[object] | None = None
        self._told: Mapping[str, object] = {}
        self._names: dict[str, str] = {}
        """By id."""
        self._unproved: dict[str, str] = {}
        """Names by id of topics that are not seen any more, which proves nothing yet."""
        self.patterns = PatternMatches()
        self.directory = TopicDirectory()

    async def ready(self, tasks: TaskOwner) -> None:
        """Follow the topics, if they are not followed yet; returns when all were read once."""
        if self._task is None:
            self._follower.start()
            self._task = tasks.spawn(self._follow(), name="topics")
        await self._read.wait()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()

    def name_of(self, topic_id: str) -> str:
        """Name of a topic that exists; else empty."""
        return self._names.get(topic_id, "")

    async def learn(self, asked: Iterable[tuple[str, str | None]]) -> None:
        """Look up topics, by name and perhaps id, that are not known yet.

        Raises MetadataUnavailable.
        """
        topics = self._follower.topics
        unknown = [
            name
            for name, topic_id in asked
            if name not in topics or topic_id not in (None, topics[name].topic_id.hex)
        ]
        if not unknown:
            return
        for name in unknown[:LEARNED_AT_ONCE_MAX]:
            try:
                topic = (await self._catalog.get(name, barrier=True)).topic
            except (UnknownTopic, InvalidTopic):
                continue
            if not topic.deleting:
                self._follower.learn(topic, self._paths.topic(name))
        self._tell()

    def prove_deleted(self, names: Mapping[str, str]) -> None:
        """Look whether these topics, by id, are gone; if so `deleted` is told."""
        now = {topic.topic_id.hex for topic in self._follower.topics.values()}
        self._unproved |= {
            topic_id: name for topic_id, name in names.items() if topic_id not in now
        }
        if self._unproved:
            self._marked.set()

    async def _follow(self) -> None:
        while True:
            await self._marked.wait()
            self._marked.clear()
            try:
                self._unproved |= await self._follower.refresh()
                self._tell()
                self._read.set()
                await self._prove()
            except OctavoError as error:
                _log.info("topics-not-read", cause=error.cause)
                self._marked.set()
            await self._clock.sleep(TELL_INTERVAL_S)

    def _tell(self) -> None:
        """The present topics, if they are others than those that were told."""
        topics = self._follower.topics  # another one after each change
        if topics == self._told:
            return
        self._told = topics
        self._names = {topic.topic_id.hex: name for name, topic in topics.items()}
        self.patterns.know(topics)
        self.directory = TopicDirectory(
            {
                name: (
                    topic.topic_id.hex,
                    SubscribedTopic(name, topic.partitions, removed=topic.removed),
                )
                for name, topic in topics.items()
            },
            self.patterns.matching,
        )
        self._listener.changed(self.directory)

    async def _prove(self) -> None:
        for topic_id, name in list(self._unproved.items()):
            try:
                topic = (await self._catalog.get(name, barrier=True)).topic
                gone = topic.deleting or topic.topic_id.hex != topic_id
            except UnknownTopic:
                gone = True
            del self._unproved[topic_id]
            if gone:
                self._listener.deleted(topic_id)
