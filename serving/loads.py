"""Partitions on their way to being served: one load at a time for each, its failure remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.metadata.topics import Topic, is_internal
from octavo.runtime.errors import (
    InconsistentTopicId,
    MetadataRefused,
    NotLeader,
    OctavoError,
    RetriableError,
    UnknownTopic,
)
from octavo.runtime.histogram import WORK_SECONDS, Histogram
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.ownership import Ownership
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.served import PartitionKey, ServedPartitions
from octavo.serving.topic_config import TopicSettings, settings_of
from octavo.serving.topic_directory import TopicDirectory

LOADS_AT_ONCE = 64
"""Partitions that are opened at a time; the others wait in the order in which they were asked for,
so that the first ones are not kept by the last."""
FAILED_LOAD_S = 0.5
"""A load that just failed is not tried again sooner; its error is the answer meanwhile."""

_log = get_logger("octavo.serving.loads")


class PartitionLoads:
    """Opens partitions and puts them into the table of those that are served.

    Args:
        on_gone: given to each shell.
    """

    def __init__(
        self,
        deps: PartitionDeps,
        topics: TopicDirectory,
        ownership: Callable[[], Ownership],
        served: ServedPartitions,
        on_gone: Callable[[PartitionShell, OctavoError], None],
    ) -> None:
        self._deps = deps
        self._config = deps.config
        self._topics = topics
        self._ownership = ownership
        self._served = served
        self._on_gone = on_gone
        self._loading: dict[PartitionKey, asyncio.Task[OctavoError | None]] = {}
        self._failed: dict[PartitionKey, tuple[OctavoError, float]] = {}  # until when it holds
        self._slow: set[PartitionKey] = set()  # loads that outlasted somebody's patience already
        self._tasks = TaskOwner("loads of partitions")
        self._gate = asyncio.Semaphore(LOADS_AT_ONCE)
        self.seconds = Histogram(WORK_SECONDS)
        """From the first step of a load to its partition served."""
        self.is_stopping = False
        """No load is begun or finished any more."""

    async def wait(
        self, topic: Topic, partition: int, bundle: int, wait_s: float, *, brief: bool
    ) -> None:
        """Return when the load ended well; raises why not, or NotLeader after `wait_s`.

        `brief`: a load that outlasted one wait is not waited for again.
        """
        key = (topic.name, partition)
        failed = self._failed.get(key)
        if failed is not None and self._deps.clock.monotonic() < failed[1]:
            raise failed[0]
        task = self.start(topic, partition, bundle)
        done, _ = await asyncio.wait({task}, timeout=0 if key in self._slow and brief else wait_s)
        if not done:
            self._slow.add(key)
            raise NotLeader(f"{topic.name}-{partition} is being recovered, ask again")  # I9
        error = None if task.cancelled() else task.result()
        if error is not None:
            raise error

    def start(self, topic: Topic, partition: int, bundle: int) -> asyncio.Task[OctavoError | None]:
        """The load of a partition, begun if none is under way; raises NotLeader when it stops."""
        key = (topic.name, partition)
        task = self._loading.get(key)
        if task is None:
            if self.is_stopping:
                raise NotLeader(f"{topic.name}-{partition} moves: this broker stops")
            task = self._tasks.spawn(self.open(topic, partition, bundle), name=f"load {key}")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return task

    def _loaded(self, key: PartitionKey, task: asyncio.Task[OctavoError | None]) -> None:
        self._loading.pop(key, None)
        self._slow.discard(key)
        self._failed.pop(key, None)
        error = None if task.cancelled() or task.exception() is not None else task.result()
        if error is not None and not self.is_stopping:
            now_s = self._deps.clock.monotonic()
            self._failed = {k: v for k, v in self._failed.items() if v[1] > now_s}
            self._failed[key] = (error, now_s + FAILED_LOAD_S)

    def settings(self, topic: Topic) -> TopicSettings:
        """What a topic's partitions go by."""
        return settings_of(topic.config, self._config, internal=is_internal(topic.name))

    async def open(self, topic: Topic, partition: int, bundle: int) -> OctavoError | None:
        """Open the partition and serve it; returns why it is not served."""
        began_s = self._deps.clock.monotonic()
        name = PartitionName(topic.name, topic.topic_id, partition)
        shell = PartitionShell(name, self.settings(topic), self._deps, on_gone=self._on_gone)
        try:
            async with self._gate, asyncio.timeout(self._config.recovery_timeout_s):
                await shell.open()
        except TimeoutError:
            return NotLeader(f"{name} could not be recovered in time")
        except OctavoError as error:
            _log.warning("partition-not-loaded", partition=str(name), cause=str(error))
            return error
        try:
            await self._topics.confirm(topic.name, topic.topic_id.bytes, fresh=True)
        except (UnknownTopic, InconsistentTopicId) as error:
            await shell.abandon(UnknownTopic(f"topic {topic.name!r} was deleted"))
            await self._remove_stray(name)
            return error
        except OctavoError as error:
            await shell.abandon(NotLeader(f"{name} is not loaded: {error.cause}"))
            return error
        if self.is_stopping or not self._ownership().owns(bundle):
            await shell.close(self._config.unload_deadline_s)
            return NotLeader(f"{name} moved while it was loaded")
        if shell.gone is not None:  # it gave up meanwhile, and told its reason before it was here
            return shell.gone
        newest = self._topics.cached(topic.name)
        if newest is not None and newest.topic_id == topic.topic_id:
            shell.adopt(self.settings(newest))  # altered while it was loaded
        before = self._served.add(shell, bundle)
        self.seconds.observe(self._deps.clock.monotonic() - began_s)
        if before is not None:  # the partition of the name's earlier life
            await before.abandon(UnknownTopic(f"topic {topic.name!r} was deleted"))
        return None

    async def _remove_stray(self, name: PartitionName) -> None:
        """A list that was made behind the topic's deletion; nothing was ever written under it."""
        try:
            found = await self._deps.catalog.read(name.topic_id, name.partition)
            if found is not None and not found.state.segments and not found.state.trash:
                await self._deps.catalog.delete(found)
        except (RetriableError, MetadataRefused) as error:
            _log.info("stray-list-left", partition=str(name), cause=error.cause)

    async def close(self) -> None:
        """Give up what is being loaded."""
        self.is_stopping = True
        await self._tasks.close()
