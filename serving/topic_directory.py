"""Topics as this broker last saw them: a cache of records, each ended by a watch of its own (F143).

A change of one topic costs the brokers that know it one read, and the others nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from octavo.metadata.store import Unsubscribe
from octavo.metadata.topics import Topic, TopicCatalog
from octavo.runtime.errors import InconsistentTopicId, InvalidPartition, UnknownTopic

CACHED_TOPICS_MAX = 20_000
DEAD_IDS_MAX = 1_000
"""Ids of earlier lives that are remembered, so that clients which still use them cost no read."""
READ_ATTEMPTS_MAX = 4
"""A record that changes while it is read is read again this often, then it is not cached."""


@dataclass
class _Known:
    """One record and the watch that ends its use."""

    topic: Topic | None = None
    is_stale: bool = False
    unsubscribe: Unsubscribe = lambda: None


@dataclass
class _Turns:
    """The reads of one name, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    done: int = 0
    """The last read that ended well, and what it found."""
    topic: Topic | None = None
    users: int = 0


class TopicDirectory:
    """Cached topic records; a miss is read behind a barrier, so a new topic is visible at once.

    Args:
        on_change: called with a name whose record changed, or is not followed any more.
    """

    def __init__(self, catalog: TopicCatalog, on_change: Callable[[str], None]) -> None:
        self._catalog = catalog
        self._on_change = on_change
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._turns: dict[str, _Turns] = {}
        self._dead: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def close(self) -> None:
        """Stop following."""
        while self._known:
            self._known.popitem()[1].unsubscribe()

    def forget(self, name: str) -> None:
        """The topic changed: read it anew when it is asked for."""
        self._drop(name)
        self._on_change(name)

    def _drop(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            known.unsubscribe()

    def _changed(self, name: str, known: _Known) -> None:
        if known.is_stale:
            return
        known.is_stale = True
        if self._known.get(name) is known:
            self._drop(name)
        self._on_change(name)

    def cached(self, name: str) -> Topic | None:
        """The record, if it is known without a read."""
        known = self._known.get(name)
        return None if known is None else known.topic

    async def _read(self, name: str, *, barrier: bool = False) -> Topic:
        """Read, and cache what is alive.

        The watch is set before the read that counts, so that no change is missed, and only on names
        that exist: names that somebody makes up must not leave watches behind.
        """
        topic = (await self._catalog.get(name, barrier=barrier)).topic
        for _ in range(READ_ATTEMPTS_MAX if not topic.deleting else 0):
            known = _Known()
            known.unsubscribe = self._catalog.watch_topic(name, partial(self._changed, name, known))
            try:
                known.topic = topic = (await self._catalog.get(name)).topic
            except BaseException:
                known.unsubscribe()
                raise
            if topic.deleting or known.is_stale:
                known.unsubscribe()
            else:
                self._drop(name)
                self._known[name] = known
                if len(self._known) > CACHED_TOPICS_MAX:
                    self.forget(next(iter(self._known)))
            if not known.is_stale:
                break
        return topic

    async def _read_together(self, name: str) -> Topic:
        """A read behind a barrier that begins after this call; who waits meanwhile shares it.

        Thousands of partitions of one topic are confirmed when a broker's bundles come at once.
        """
        turns = self._turns.setdefault(name, _Turns())
        begun = turns.begun
        turns.users += 1
        try:
            async with turns.lock:
                if turns.topic is not None and turns.done > begun:
                    return turns.topic
                turns.begun += 1
                turns.topic = await self._read(name, barrier=True)
                turns.done = turns.begun
                return turns.topic
        finally:
            turns.users -= 1
            if not turns.users:
                self._turns.pop(name, None)

    async def get(self, name: str) -> Topic:
        """The topic; raises UnknownTopic (also while it is being deleted) or InvalidTopic.

        Neither is said of a topic that has the name now: what a store that trails still shows of an
        earlier life is looked at again behind a barrier (M-4).
        """
        found = self.cached(name)
        if found is None:
            found = await self._read(name)
            if found.deleting:
                found = await self._read(name, barrier=True)
            if found.deleting:
                raise UnknownTopic(f"topic {name!r} is being deleted", topic=name)
        return found

    async def confirm(self, name: str, topic_id: bytes, *, fresh: bool = False) -> bool:
        """Check that the topic which has the name now is `topic_id`; an id never comes back.

        `fresh`: do not trust the cache. Returns True when the store was asked, so that what was
        decided by the cache before should be decided again.

        Raises InconsistentTopicId when another topic has the name, UnknownTopic when none has.
        """
        known = self.cached(name)
        if not fresh and known is not None and known.topic_id.bytes == topic_id:
            return False
        if (name, topic_id) not in self._dead:
            found = await self._read_together(name)
            if found.topic_id.bytes == topic_id:
                if found.deleting:
                    raise UnknownTopic(f"topic {name!r} is being deleted", topic=name)
                return True
            self._dead[name, topic_id] = None
            if len(self._dead) > DEAD_IDS_MAX:
                self._dead.popitem(last=False)
        raise InconsistentTopicId(
            f"topic {name!r} was created again: id {topic_id.hex()} is gone", topic=name
        )

    async def get_partition(self, name: str, partition: int) -> Topic:
        """The topic, after checking that it has the partition; raises InvalidPartition."""
        topic = await self.get(name)
        if partition >= topic.partitions:  # it may have grown, and the watch be on its way (P7)
            topic = await self._read(name, barrier=True)
            if topic.deleting:
                raise UnknownTopic(f"topic {name!r} is being deleted", topic=name)
        if not 0 <= partition < topic.partitions:
            raise InvalidPartition(
                f"topic {name!r} has partitions 0..{topic.partitions - 1}, not {partition}"
            )
        return topic
