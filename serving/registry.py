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
    NotLeader,
    OctavoError,
    UnknownTopic,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.loads import PartitionLoads
from octavo.serving.ownership import Located, Ownership
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.placement import bundle_of
from octavo.serving.served import PartitionListener, ServedPartitions
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_directory import TopicDirectory

CONCURRENT_CLOSES = 64

_log = get_logger("octavo.serving.registry")


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
        self._served = ServedPartitions()
        self._tasks = TaskOwner("partitions")
        self.loads = PartitionLoads(deps, topics, ownership, self._served, self._on_gone)

    def __len__(self) -> int:
        return len(self._served)

    def certain(self) -> bool:
        """Whether answers about the end of a log need no proof (design.md §12)."""
        return self._deps.certain()

    def listen(self, listener: PartitionListener) -> None:
        """Tell `listener` which partitions come and go here, in order."""
        self._served.listen(listener)

    def shells(self) -> list[PartitionShell]:
        """Every open partition."""
        return list(self._served)

    def bundle(self, topic_id: uuid.UUID, partition: int) -> int:
        """The bundle of a partition."""
        return bundle_of(topic_id, partition, self._config.bundles)

    def find(self, topic: str, partition: int) -> PartitionShell | None:
        """The shell, if the partition is loaded and its bundle is ours (G3)."""
        served = self._served.by_key.get((topic, partition))
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
            raise _elsewhere(topic, partition, self._ownership().hint(bundle))
        await self.loads.wait(found, partition, bundle, wait_s, brief=brief)
        shell = self.find(topic, partition)
        if shell is None:
            raise NotLeader(f"{topic}-{partition} moved while it was loaded")
        return shell

    def is_open(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the table of those that are served."""
        return (topic, partition) in self._served.by_key

    def when_moved(self, topic: str, partition: int, then: Callable[[NotLeader], None]) -> bool:
        """Whether the partition is being handed over: `then` is called with where it went, when its
        successor can be asked (O-3)."""
        known = self._topics.cached(topic)
        bundle = -1 if known is None else self.bundle(known.topic_id, partition)
        moving = self._ownership().moving(bundle)
        if moving is None:
            return False
        moving.add_done_callback(
            lambda _: then(_elsewhere(topic, partition, self._ownership().hint(bundle)))
        )
        return True

    def start_loading(self, topic: Topic, partition: int) -> None:
        """Begin to load a partition that clients will soon ask for, if its bundle is ours."""
        bundle = self.bundle(topic.topic_id, partition)
        if self.loads.is_stopping:
            return
        if (topic.name, partition) not in self._served.by_key and self._ownership().owns(bundle):
            self.loads.start(topic, partition, bundle)

    def _on_gone(self, shell: PartitionShell, reason: OctavoError) -> None:
        """The shell gave up by itself; forget it and free its handles."""
        self._served.forget(shell)
        if isinstance(reason, UnknownTopic):
            self._topics.forget(shell.name.topic)
        if not self.loads.is_stopping:
            self._tasks.spawn(shell.abandon(reason), name=f"abandon {shell.name}")

    # --- leaving ------------------------------------------------------------------------------

    async def unload_bundle(self, bundle: int) -> None:
        """Close the bundle's partitions in good order (O-3)."""
        await self._close_all(self._served.of_bundle(bundle))

    async def abandon_bundle(self, bundle: int) -> None:
        """Another broker owns the bundle: drop its partitions at once."""
        shells = self._served.of_bundle(bundle)
        await asyncio.gather(
            *(self._drop(shell, NotLeader(f"{shell.name} has another owner")) for shell in shells)
        )

    async def revalidate_bundle(self, bundle: int) -> None:
        """Drop partitions whose list carries another owner's epoch by now (O-5)."""
        for shell in self._served.of_bundle(bundle):
            if not await shell.still_ours():
                await self._drop(shell, NotLeader(f"{shell.name} had another owner"))

    async def drop_topic(self, topic_id: uuid.UUID) -> None:
        """The topic is deleted: its partitions answer UNKNOWN_TOPIC."""
        for shell in self._served.of_topic(topic_id):
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
            else:
                self._adopt_settings(name, topic_id)
        return failed

    def _adopt_settings(self, name: str, topic_id: uuid.UUID) -> None:
        """Partitions go by the topic's settings as they are now."""
        topic = self._topics.cached(name)
        if topic is not None and topic.topic_id == topic_id:
            settings = self.loads.settings(topic)
            for shell in self._served.of_topic(topic_id):
                shell.adopt(settings)

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
        self.loads.is_stopping = True
        await self._close_all(self.shells())
        await self.loads.close()
        await self._tasks.close()

    async def _close_all(self, shells: list[PartitionShell]) -> None:
        gate = asyncio.Semaphore(CONCURRENT_CLOSES)

        async def close(shell: PartitionShell) -> None:
            async with gate:
                self._served.leave(shell)
                await shell.close(self._config.unload_deadline_s)
            self._served.forget(shell)

        await asyncio.gather(*(close(shell) for shell in shells))

    async def _drop(self, shell: PartitionShell, reason: OctavoError) -> None:
        self._served.forget(shell)
        if shell.state is not PartitionStateName.CLOSED:
            await shell.abandon(reason)


def _elsewhere(topic: str, partition: int, located: Located | None) -> NotLeader:
    """That the partition is not served here, and where it is if that is known."""
    if located is None:
        return NotLeader(f"{topic}-{partition} is not served here")
    return NotLeader(
        f"{topic}-{partition} is served by {located.broker_id}",
        owner_id=located.broker_id,
        owner_address=located.address,
    )
