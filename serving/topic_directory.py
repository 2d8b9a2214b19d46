"""Topics as this broker last saw them: a cache that a watch empties (F143)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from octavo.metadata.topics import Topic, TopicCatalog
from octavo.runtime.errors import InconsistentTopicId, InvalidPartition, UnknownTopic

CACHED_TOPICS_MAX = 20_000
DEAD_IDS_MAX = 1_000
"""Ids of earlier lives that are remembered, so that clients which still use them cost no read."""


class TopicDirectory:
    """Cached topic records; a miss is read behind a barrier, so a new topic is visible at once."""

    def __init__(self, catalog: TopicCatalog, on_change: Callable[[], None]) -> None:
        self._catalog = catalog
        self._on_change = on_change
        self._cached: OrderedDict[str, Topic] = OrderedDict()
        self._unsubscribe: Callable[[], None] | None = None
        self._generation = 0
        self._dead: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def start(self) -> None:
        """Follow changes."""
        self._unsubscribe = self._catalog.watch(self.forget)

    def close(self) -> None:
        """Stop following."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    def forget(self) -> None:
        """Something changed: read everything anew when it is asked for."""
        self._generation += 1
        self._cached.clear()
        self._on_change()

    def cached(self, name: str) -> Topic | None:
        """The record, if it is known without a read."""
        return self._cached.get(name)

    async def get(self, name: str) -> Topic:
        """The topic; raises UnknownTopic (also while it is being deleted) or InvalidTopic."""
        found = self._cached.get(name)
        if found is None:
            generation = self._generation
            found = (await self._catalog.get(name)).topic
            if found.deleting:
                raise UnknownTopic(f"topic {name!r} is being deleted", topic=name)
            if generation == self._generation:
                self._cached[name] = found
                if len(self._cached) > CACHED_TOPICS_MAX:
                    self._cached.popitem(last=False)
        return found

    async def confirm(self, name: str, topic_id: bytes, *, fresh: bool = False) -> bool:
        """Check that the topic which has the name now is `topic_id`; an id never comes back.

        `fresh`: do not trust the cache. Returns True when the store was asked, so that what was
        decided by the cache before should be decided again.

        Raises InconsistentTopicId when another topic has the name, UnknownTopic when none has.
        """
        known = self._cached.get(name)
        if not fresh and known is not None and known.topic_id.bytes == topic_id:
            return False
        if (name, topic_id) not in self._dead:
            generation = self._generation
            found = (await self._catalog.get(name, barrier=True)).topic
            if found.topic_id.bytes == topic_id:
                if found.deleting:
                    raise UnknownTopic(f"topic {name!r} is being deleted", topic=name)
                if generation == self._generation:
                    self._cached[name] = found
                return True
            self._cached.pop(name, None)
            self._dead[name, topic_id] = None
            if len(self._dead) > DEAD_IDS_MAX:
                self._dead.popitem(last=False)
        raise InconsistentTopicId(
            f"topic {name!r} was created again: id {topic_id.hex()} is gone", topic=name
        )

    async def get_partition(self, name: str, partition: int) -> Topic:
        """The topic, after checking that it has the partition; raises InvalidPartition."""
        topic = await self.get(name)
        if not 0 <= partition < topic.partitions:
            raise InvalidPartition(
                f"topic {name!r} has partitions 0..{topic.partitions - 1}, not {partition}"
            )
        return topic
