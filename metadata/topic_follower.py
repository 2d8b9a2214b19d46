"""Every topic of a cluster, as one server sees it, followed by watches.

A watch only marks a key; `refresh` reads what is marked. One change of one topic costs one read of
its directory and one of its record. What is seen may be old, never wrong about the past: a key that
is missing here proves nothing (M-4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from octavo.metadata.paths import Paths
from octavo.metadata.scanning import scan_all
from octavo.metadata.store import MetadataStore, Unsubscribe, Versioned
from octavo.metadata.topic_record import Topic
from octavo.runtime.errors import MetadataCorrupt, OctavoError, UnsupportedVersion
from octavo.runtime.telemetry import get_logger

CONCURRENT_READS = 32
SCAN_FROM = 3
"""So many marked records of one directory are read with it, in a scan."""
FOLLOWED_TOPICS_MAX = 100_000
"""Topics beyond are not followed, which is logged."""

_log = get_logger("octavo.metadata.topic_follower")


class TopicFollower:
    """The topics that exist, by name; those that are being deleted do not.

    Args:
        on_mark: called when `refresh` has something to do.
    """

    def __init__(self, store: MetadataStore, paths: Paths, on_mark: Callable[[], None]) -> None:
        self._store = store
        self._root = paths.topics
        self._on_mark = on_mark
        self._watches: dict[str, Unsubscribe] = {}
        self._marked: set[str] = set()
        self._keys: dict[str, set[str]] = {}
        """Keys of records by directory."""
        self._records: dict[str, Topic] = {}
        """By key of the record."""
        self.topics: dict[str, Topic] = {}
        """By name."""

    def start(self) -> None:
        """Follow from now on; the first `refresh` reads everything."""
        self._follow(self._root)
        self._mark(self._root)

    def close(self) -> None:
        """Follow no more."""
        while self._watches:
            self._watches.popitem()[1]()

    def _mark(self, key: str) -> None:
        self._marked.add(key)
        self._on_mark()

    def _follow(self, key: str) -> bool:
        """Whether it was not followed before. The watch comes before the read that counts."""
        if key in self._watches:
            return False
        self._watches[key] = self._store.watch(key, self._mark)
        self._marked.add(key)
        return True

    async def refresh(self) -> Mapping[str, str]:
        """Read what is marked; the names, by id in hex, of topics that are not seen any more.

        Raises what the store raises; what was not read stays marked.
        """
        before = {topic.topic_id.hex: name for name, topic in self.topics.items()}
        while self._marked:
            for depth in range(3):  # the directory of directories, directories, records
                await self._read_all([key for key in self._marked if self._depth(key) == depth])
        self.topics = {topic.name: topic for topic in self._records.values()}
        now = {topic.topic_id.hex for topic in self.topics.values()}
        return {topic_id: name for topic_id, name in before.items() if topic_id not in now}

    def learn(self, topic: Topic, key: str) -> None:
        """A record that somebody read behind a barrier: it is not waited for."""
        self._follow(key)
        self._keys.setdefault(key.rpartition("/")[0], set()).add(key)
        self._records[key] = topic
        self.topics = {**self.topics, topic.name: topic}

    def _depth(self, key: str) -> int:
        return key.count("/") - self._root.count("/")

    async def _read_all(self, keys: Sequence[str]) -> None:
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def read(key: str) -> OctavoError | None:
            self._marked.discard(key)
            try:
                async with gate:
                    await self._read(key)
            except OctavoError as error:
                self._marked.add(key)
                return error
            return None

        for error in await asyncio.gather(*(read(key) for key in keys)):
            if error is not None:
                raise error

    async def _read(self, key: str) -> None:
        if key == self._root:
            for name in await self._store.children(key):
                self._follow(f"{key}/{name}")
        elif self._depth(key) == 1:
            await self._read_directory(key)
        else:
            await self._read_record(key)

    async def _read_directory(self, key: str) -> None:
        found = {f"{key}/{name}" for name in await self._store.children(key)}
        for gone in self._keys.get(key, set()) - found:
            self._forget(gone)
        followed = {one for one in found if one in self._watches}
        for new in sorted(found - followed):
            if len(self._watches) >= FOLLOWED_TOPICS_MAX:
                _log.error("topics-not-followed", directory=key, most=FOLLOWED_TOPICS_MAX)
                break
            self._follow(new)
            followed.add(new)
        self._keys[key] = followed
        marked = followed & self._marked
        if len(marked) >= SCAN_FROM:
            self._marked -= marked
            try:
                await self._scan(key)
            except BaseException:
                self._marked |= marked
                raise

    async def _scan(self, key: str) -> None:
        """Read every record of a directory in as few round trips as there can be."""
        async for child in scan_all(self._store, key):
            self._adopt(f"{key}/{child.name}", child.found)

    async def _read_record(self, key: str) -> None:
        found: Versioned | MetadataCorrupt | None
        try:
            found = await self._store.get(key)
        except MetadataCorrupt as error:
            found = error
        self._adopt(key, found)

    def _adopt(self, key: str, found: Versioned | MetadataCorrupt | None) -> None:
        if key not in self._watches:  # its directory says that it is gone
            return
        topic = None
        try:
            if isinstance(found, MetadataCorrupt):
                raise found
            if found is not None:
                topic = Topic.from_bytes(found.value)
        except (MetadataCorrupt, UnsupportedVersion) as error:
            _log.error("topic-record-unreadable", key=key, cause=error.cause)
        if topic is None or topic.deleting:
            self._records.pop(key, None)
        else:
            self._records[key] = topic

    def _forget(self, key: str) -> None:
        self._records.pop(key, None)
        self._marked.discard(key)
        unsubscribe = self._watches.pop(key, None)
        if unsubscribe is not None:
            unsubscribe()
