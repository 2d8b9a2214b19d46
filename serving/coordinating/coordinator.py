"""The coordinator of groups of one broker: finds the partition of a group.

A group is coordinated by the owner of its partition of `__consumer_offsets`, which a broker becomes
as of any other: when it is asked and nobody else is (O-2).
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import Topic, TopicCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidPartition, NotLeader, OctavoError, UnknownTopic
from octavo.runtime.errors_of_groups import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.workers import WorkerPool
from octavo.serving.config import BrokerConfig
from octavo.serving.coordinating.group_partition import (
    LOAD_PATIENCE_S,
    GroupPartition,
    GroupPartitionDeps,
)
from octavo.serving.coordinating.known_topics import KnownTopics, TopicListener
from octavo.serving.coordinating.offsets_topic import (
    OFFSETS_TOPIC,
    OffsetsTopic,
    coordinating_partition,
)
from octavo.serving.coordinating.refusals import error_of
from octavo.serving.groups.core import GroupLimits
from octavo.serving.groups.request_checks import PartitionLimits, is_name
from octavo.serving.groups.topics import TopicDirectory as SubscribableTopics
from octavo.serving.groups.values import Refusal
from octavo.serving.ownership import Located, Ownership, is_for
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry
from octavo.serving.served import PartitionListener
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_directory import TopicDirectory

TARGETS_WAITING_MAX = 1_000
"""Targets that wait for the thread that computes them; each group asks for one at a time."""


def limits_of(config: BrokerConfig) -> PartitionLimits:
    """The bounds of groups that a broker's settings give."""
    return PartitionLimits(
        group=GroupLimits(
            session_timeout_s=config.group_session_timeout_ms / 1000,
            heartbeat_interval_s=config.group_heartbeat_interval_ms / 1000,
            members_max=config.group_max_size,
        ),
        metadata_bytes_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


class GroupCoordinator:
    """Of one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        store: MetadataStore,
        paths: Paths,
        catalog: TopicCatalog,
        topics: TopicDirectory,
        registry: PartitionRegistry,
        ownership: Callable[[], Ownership],
        store_answers: StoreAnswers,
    ) -> None:
        self._me = config.broker_id
        self._registry = registry
        self._ownership = ownership
        self._during = store_answers.during
        self._offsets_topic = OffsetsTopic(topics, catalog)
        self._partitions: dict[int, GroupPartition] = {}
        self._tasks = TaskOwner("groups")
        self._targets = WorkerPool("group-targets", 1, TARGETS_WAITING_MAX)
        self.topics = KnownTopics(
            store, paths, catalog, clock, TopicListener(self._topics_changed, self._topic_deleted)
        )
        self._deps = GroupPartitionDeps(
            clock=clock,
            limits=limits_of(config),
            topics=self.topics,
            targets=self._targets,
            tasks=self._tasks,
            is_owner=self._is_owner,
            is_certain=registry.certain,
            log_records_max=config.group_log_records_max,
        )
        registry.listen(PartitionListener(self._served, self._left))

    async def close(self) -> None:
        """End; the partitions were unloaded before, unless that took too long."""
        for partition in list(self._partitions.values()):
            partition.left()
        self._partitions.clear()
        await self._tasks.close()
        self.topics.close()
        await self._targets.close()

    # -- finding

    async def find(self, group_id: str) -> tuple[int, Located]:
        """The partition of a group and the broker to ask; makes the internal topic if need be."""
        self._check_name(group_id)
        topic = await self._topic_or_new()
        partition = coordinating_partition(group_id, topic)
        return partition, await self._locate(topic, partition)

    async def find_partition(self, partition: int) -> Located:
        """The broker to ask about a partition, which takes it if it is for this broker (O-2).

        Raises InvalidPartition, CoordinatorNotAvailable.
        """
        topic = await self._topic_or_new()
        _check(topic, partition)
        return await self._locate(topic, partition)

    async def partitions(self) -> int:
        """How many partitions groups are spread over."""
        return (await self._topic_or_new()).partitions

    async def known_partitions(self) -> int:
        """The same, 0 while nobody asked for a coordinator yet: then there is no group."""
        try:
            return (await self._during(self._offsets_topic.get())).partitions
        except UnknownTopic:
            return 0

    def homes(self) -> dict[int, GroupPartition]:
        """The partitions of groups that are coordinated here right now, by number."""
        return {n: one for n, one in self._partitions.items() if self._is_owner(one.shell)}

    async def take_homes(self) -> None:
        """Coordinate also those partitions that are for this broker and nobody asked for (O-2).

        Raises CoordinatorNotAvailable, MetadataUnavailable.
        """
        try:
            topic = await self._during(self._offsets_topic.get())
        except UnknownTopic:
            return
        ownership = self._ownership()
        for number in range(topic.partitions):
            bundle = self._registry.bundle(topic.topic_id, number)
            if number not in self._partitions and is_for(self._me, bundle, ownership):
                await self._locate(topic, number)

    async def of_group(self, group_id: str) -> GroupPartition:
        """The partition of a group, if it is coordinated here.

        Raises InvalidGroupId, NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress.
        """
        self._check_name(group_id)
        topic = await self._topic()
        return await self.of_partition(coordinating_partition(group_id, topic))

    async def of_partition(self, partition: int) -> GroupPartition:
        """The same by partition; raises InvalidPartition besides."""
        found = self._partitions.get(partition)
        if found is not None and self._is_owner(found.shell):
            return found
        topic = await self._topic()
        _check(topic, partition)
        located = await self._locate(topic, partition)
        if not self._is_here(topic, partition):
            raise NotCoordinator(
                f"{OFFSETS_TOPIC}-{partition} is coordinated by {located.broker_id}"
            )
        await self._resolve(partition)
        found = self._partitions.get(partition)
        if found is None:
            raise CoordinatorLoadInProgress(f"{OFFSETS_TOPIC}-{partition} is being taken over")
        return found

    async def _topic_or_new(self) -> Topic:
        topic = self._offsets_topic.cached()
        if topic is not None:
            return topic
        return await self._during(self._offsets_topic.get_or_create())

    async def _topic(self) -> Topic:
        topic = self._offsets_topic.cached()
        if topic is not None:
            return topic
        try:
            return await self._during(self._offsets_topic.get())
        except UnknownTopic:
            raise NotCoordinator("nobody coordinates groups yet") from None

    def _check_name(self, group_id: str) -> None:
        if not is_name(group_id, self._deps.limits):
            raise error_of(Refusal.INVALID_GROUP_ID, group_id)

    async def _locate(self, topic: Topic, partition: int) -> Located:
        try:
            located = await self._during(
                self._ownership().locate(self._registry.bundle(topic.topic_id, partition))
            )
            self._registry.start_loading(topic, partition)
        except OctavoError as error:
            raise CoordinatorNotAvailable(error.cause, hint=error.hint) from error
        return located

    async def _resolve(self, partition: int) -> None:
        try:
            await self._registry.resolve_life(OFFSETS_TOPIC, partition, b"", LOAD_PATIENCE_S)
        except NotLeader as error:
            raise CoordinatorLoadInProgress(error.cause) from error
        except OctavoError as error:
            raise CoordinatorNotAvailable(error.cause, hint=error.hint) from error

    def _is_here(self, topic: Topic, partition: int) -> bool:
        return self._ownership().owns(self._registry.bundle(topic.topic_id, partition))

    def _is_owner(self, shell: PartitionShell) -> bool:
        return self._registry.find(shell.name.topic, shell.name.partition) is shell

    # -- events

    def _served(self, shell: PartitionShell) -> None:
        if shell.name.topic == OFFSETS_TOPIC:
            self._partitions[shell.name.partition] = GroupPartition(shell, self._deps)

    def _left(self, shell: PartitionShell) -> None:
        found = self._partitions.get(shell.name.partition)
        if found is not None and found.shell is shell:
            del self._partitions[shell.name.partition]
            found.left()

    def _topics_changed(self, directory: SubscribableTopics) -> None:
        for partition in list(self._partitions.values()):
            partition.topics_changed(directory)

    def _topic_deleted(self, topic_id: str) -> None:
        for partition in list(self._partitions.values()):
            partition.topic_deleted(topic_id)


def _check(topic: Topic, partition: int) -> None:
    if not 0 <= partition < topic.partitions:
        raise InvalidPartition(
            f"{topic.name!r} has partitions 0..{topic.partitions - 1}, not {partition}"
        )
