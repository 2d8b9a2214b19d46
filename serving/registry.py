"""The open partitions of this broker: load on demand, find, unload by bundle or topic.

`find` is the hot path: one dictionary look-up and one set membership. Everything that is not served
here leaves as the error that tells a client where to go.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from octavo.metadata.topics import Topic
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvalidPartition,
    MetadataRefused,
    NotLeader,
    OctavoError,
    RetriableError,
    UnknownTopic,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.ownership import Ownership
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.placement import bundle_of
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_config import settings_of
from octavo.serving.topic_directory import TopicDirectory

CONCURRENT_CLOSES = 64
FAILED_LOAD_S = 0.5
"""A load that just failed is not tried again sooner; its error is the answer meanwhile."""

_log = get_logger("octavo.serving.registry")

_Key = tuple[str, int]


class _Served:
    def __init__(self, shell: PartitionShell, bundle: int) -> None:
        self.shell = shell
        self.bundle = bundle


class PartitionRegistry:
    """All partitions served by one broker."""

    def __init__(
        self,
        deps: PartitionDeps,
        topics: TopicDirectory,
        ownership: Callable[[], Ownership],
        store_answers: StoreAnswers,
    ) -> None:
        self._deps = deps
        self._config = deps.config
        self._topics = topics
        self._ownership = ownership
        self._store_answers = store_answers
        self._served: dict[_Key, _Served] = {}
        self._loading: dict[_Key, asyncio.Task[OctavoError | None]] = {}
        self._failed: dict[_Key, tuple[OctavoError, float]] = {}  # error, until when it holds
        self._slow: set[_Key] = set()  # loads that outlasted somebody's patience already
        self._tasks = TaskOwner("partitions")
        self._stopping = False

    def __len__(self) -> int:
        return len(self._served)

    def certain(self) -> bool:
        """Whether answers about the end of a log need no proof (design.md §12)."""
        return self._deps.certain()

    def shells(self) -> list[PartitionShell]:
        """Every open partition."""
        return [served.shell for served in self._served.values()]

    def bundle(self, topic_id: uuid.UUID, partition: int) -> int:
        """The bundle of a partition."""
        return bundle_of(topic_id, partition, self._config.bundles)

    def find(self, topic: str, partition: int) -> PartitionShell | None:
        """The shell, if the partition is loaded and its bundle is ours (G3)."""
        served = self._served.get((topic, partition))
        if served is None or not self._ownership().owns(served.bundle):
            return None
        return served.shell

    async def resolve_life(
        self, topic: str, partition: int, topic_id: bytes, wait_s: float, *, brief: bool = False
    ) -> PartitionShell:
        """`resolve`, for one life of the topic's name; empty `topic_id`: whichever has it now.

        Raises InconsistentTopicId besides, when another topic has the name by now, and
        MetadataUnavailable when the metadata store falls silent meanwhile; a load goes on then.
        """
        found = self.find(topic, partition)
        if found is not None and (not topic_id or found.name.topic_id.bytes == topic_id):
            return found
        return await self._store_answers.during(
            self._resolve_life(topic, partition, topic_id, wait_s, brief)
        )

    async def _resolve_life(
        self, topic: str, partition: int, topic_id: bytes, wait_s: float, brief: bool
    ) -> PartitionShell:
        for is_last in (False, True):
            try:
                shell = await self.resolve(topic, partition, wait_s, brief=brief)
            except (NotLeader, InvalidPartition):
                # Perhaps judged by what is remembered of an earlier life.
                if is_last or not topic_id or not await self._topics.confirm(topic, topic_id):
                    raise
                continue
            if not topic_id or shell.name.topic_id.bytes == topic_id:
                return shell
            await self._topics.confirm(topic, topic_id)
            await self._drop(shell, UnknownTopic(f"topic {topic!r} was deleted"))
        raise NotLeader(f"{topic}-{partition} is being replaced by its topic's next life")

    async def resolve(
        self, topic: str, partition: int, wait_s: float, *, brief: bool = False
    ) -> PartitionShell:
        """The shell, loading it if the bundle is ours, for at most `wait_s`.

        `brief`: a load that outlasted one wait is not waited for again, so that a partition that
        cannot be loaded does not hold up the others of its stream (BP-4).

        Raises UnknownTopic, InvalidPartition, NotLeader (with the owner when known), or why the
        partition cannot be loaded.
        """
        shell = self.find(topic, partition)
        if shell is not None:
            return shell
        found = await self._topics.get_partition(topic, partition)
        bundle = self.bundle(found.topic_id, partition)
        if not self._ownership().owns(bundle):
            raise self._elsewhere(topic, partition, bundle)
        key = (topic, partition)
        failed = self._failed.get(key)
        if failed is not None and self._deps.clock.monotonic() < failed[1]:
            raise failed[0]
        task = self._load(found, partition, bundle)
        done, _ = await asyncio.wait({task}, timeout=0 if key in self._slow and brief else wait_s)
        if not done:
            self._slow.add(key)
            raise NotLeader(f"{topic}-{partition} is being recovered, ask again")  # I9
        error = None if task.cancelled() else task.result()
        if error is not None:
            raise error
        shell = self.find(topic, partition)
        if shell is None:
            raise NotLeader(f"{topic}-{partition} moved while it was loaded")
        return shell

    def start_loading(self, topic: Topic, partition: int) -> None:
        """Begin to load a partition that clients will soon ask for, if its bundle is ours."""
        bundle = self.bundle(topic.topic_id, partition)
        if self._stopping:
            return
        if (topic.name, partition) not in self._served and self._ownership().owns(bundle):
            self._load(topic, partition, bundle)

    def _elsewhere(self, topic: str, partition: int, bundle: int) -> NotLeader:
        located = self._ownership().hint(bundle)
        if located is None:
            return NotLeader(f"{topic}-{partition} is not served here")
        return NotLeader(
            f"{topic}-{partition} is served by {located.broker_id}",
            owner_id=located.broker_id,
            owner_address=located.address,
        )

    def _load(self, topic: Topic, partition: int, bundle: int) -> asyncio.Task[OctavoError | None]:
        key = (topic.name, partition)
        task = self._loading.get(key)
        if task is None:
            if self._stopping:
                raise NotLeader(f"{topic.name}-{partition} moves: this broker stops")
            task = self._tasks.spawn(self._open(topic, partition, bundle), name=f"load {key}")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return task

    def _loaded(self, key: _Key, task: asyncio.Task[OctavoError | None]) -> None:
        self._loading.pop(key, None)
        self._slow.discard(key)
        self._failed.pop(key, None)
        error = None if task.cancelled() or task.exception() is not None else task.result()
        if error is not None and not self._stopping:
            now_s = self._deps.clock.monotonic()
            self._failed = {k: v for k, v in self._failed.items() if v[1] > now_s}
            self._failed[key] = (error, now_s + FAILED_LOAD_S)

    async def _open(self, topic: Topic, partition: int, bundle: int) -> OctavoError | None:
        name = PartitionName(topic.name, topic.topic_id, partition)
        settings = settings_of(topic.config, self._config)
        shell = PartitionShell(name, settings, self._deps, on_gone=self._on_gone)
        try:
            async with asyncio.timeout(self._config.recovery_timeout_s):
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
        if self._stopping or not self._ownership().owns(bundle):
            await shell.close(self._config.unload_deadline_s)
            return NotLeader(f"{name} moved while it was loaded")
        before = self._served.get((topic.name, partition))
        self._served[(topic.name, partition)] = _Served(shell, bundle)
        if before is not None:  # the partition of the name's earlier life
            await before.shell.abandon(UnknownTopic(f"topic {topic.name!r} was deleted"))
        return None

    async def _remove_stray(self, name: PartitionName) -> None:
        """A list that was made behind the topic's deletion; nothing was ever written under it."""
        try:
            found = await self._deps.catalog.read(name.topic_id, name.partition)
            if found is not None and not found.state.segments and not found.state.trash:
                await self._deps.catalog.delete(found)
        except (RetriableError, MetadataRefused) as error:
            _log.info("stray-list-left", partition=str(name), cause=error.cause)

    def _on_gone(self, shell: PartitionShell, reason: OctavoError) -> None:
        """The shell gave up by itself; forget it and free its handles."""
        key = (shell.name.topic, shell.name.partition)
        served = self._served.get(key)
        if served is not None and served.shell is shell:
            del self._served[key]
        if isinstance(reason, UnknownTopic):
            self._topics.forget(shell.name.topic)
        if not self._stopping:
            self._tasks.spawn(shell.abandon(reason), name=f"abandon {shell.name}")

    # --- leaving ------------------------------------------------------------------------------

    async def unload_bundle(self, bundle: int) -> None:
        """Close the bundle's partitions in good order (O-3)."""
        await self._close_all([s.shell for s in self._of_bundle(bundle)])

    async def abandon_bundle(self, bundle: int) -> None:
        """Another broker owns the bundle: drop its partitions at once."""
        shells = [served.shell for served in self._of_bundle(bundle)]
        await asyncio.gather(
            *(self._drop(shell, NotLeader(f"{shell.name} has another owner")) for shell in shells)
        )

    async def revalidate_bundle(self, bundle: int) -> None:
        """Drop partitions whose list carries another owner's epoch by now (O-5)."""
        for served in self._of_bundle(bundle):
            if not await served.shell.still_ours():
                await self._drop(served.shell, NotLeader(f"{served.shell.name} had another owner"))

    async def drop_topic(self, topic_id: uuid.UUID) -> None:
        """The topic is deleted: its partitions answer UNKNOWN_TOPIC."""
        for shell in self.shells():
            if shell.name.topic_id == topic_id:
                await self._drop(shell, UnknownTopic(f"topic {shell.name.topic!r} was deleted"))

    async def check_topics(self, names: set[str]) -> set[str]:
        """Drop partitions of those topics that were deleted, or deleted and created again.

        Returns the names that could not be looked at.
        """
        failed: set[str] = set()
        for name, topic_id in {shell.name[:2] for shell in self.shells()}:
            if name not in names:
                continue
            try:
                await self._topics.confirm(name, topic_id.bytes)
            except (UnknownTopic, InconsistentTopicId):
                await self.drop_topic(topic_id)
            except OctavoError as error:
                _log.info("topic-not-checked", topic=name, cause=error.cause)
                failed.add(name)
        return failed

    def suspended(self) -> None:
        """The session is lost: waiting fetches must look again (G3)."""
        for shell in self.shells():
            shell.watchers.wake()

    def tick(self) -> None:
        """Once a second for every partition."""
        for shell in self.shells():
            shell.tick()

    async def close(self) -> None:
        """Unload everything."""
        self._stopping = True
        await self._close_all(self.shells())
        await self._tasks.close()

    def _of_bundle(self, bundle: int) -> list[_Served]:
        return [served for served in self._served.values() if served.bundle == bundle]

    async def _close_all(self, shells: list[PartitionShell]) -> None:
        gate = asyncio.Semaphore(CONCURRENT_CLOSES)

        async def close(shell: PartitionShell) -> None:
            async with gate:
                await shell.close(self._config.unload_deadline_s)
            self._forget(shell)

        await asyncio.gather(*(close(shell) for shell in shells))

    async def _drop(self, shell: PartitionShell, reason: OctavoError) -> None:
        self._forget(shell)
        if shell.state is not PartitionStateName.CLOSED:
            await shell.abandon(reason)

    def _forget(self, shell: PartitionShell) -> None:
        key = (shell.name.topic, shell.name.partition)
        served = self._served.get(key)
        if served is not None and served.shell is shell:
            del self._served[key]
