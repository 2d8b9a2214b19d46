"""Partitions that nobody asks for lose their old records too (R1, R3, ML-9).

An open partition looks after itself. The others of this broker's bundles are found by their lists,
once in `retention_check_interval_ms`, and those that have something to delete are opened: also the
ledgers that a broker left in the trash when it died are found again so.
"""

from __future__ import annotations

from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog, is_internal
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.ownership import Ownership
from octavo.serving.registry import PartitionRegistry
from octavo.serving.retention import RetentionRule, wants_an_owner
from octavo.serving.topic_config import settings_of

PAGE = 500
"""Topics read at a time."""

_log = get_logger("octavo.serving.retention")


class RetentionRounds:
    """Walks the topics of the cluster for one broker, one partition after the other."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: PartitionCatalog,
        registry: PartitionRegistry,
        ownership: Ownership,
        *,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._registry = registry
        self._ownership = ownership
        self._config = config
        self._clock = clock
        self._entropy = entropy

    async def run(self) -> None:
        """For ever; a round that meets an error is given up and begun anew later."""
        interval_s = self._config.retention_check_interval_ms / 1000
        await self._clock.sleep(interval_s * self._entropy.uniform(0.5, 1))
        while True:
            try:
                await self.round()
            except OctavoError as error:
                _log.info("retention-round-ended", cause=error.cause)
            await self._clock.sleep(interval_s)

    async def round(self) -> int:
        """Look once at each; returns how many partitions were opened."""
        after, more, opened = "", True, 0
        bundles = self._bundles()
        while more:
            found, more = await self._topics.page(after, PAGE, lambda topic: not topic.deleting)
            for topic, _ in found:
                opened += await self._look_at(topic, bundles)
                after = topic.name
            more = more and bool(found)
        return opened

    def _bundles(self) -> set[int]:
        """Held here, or by nobody as far as is known and to be held here."""
        ownership, me = self._ownership, self._config.broker_id
        return {
            bundle
            for bundle in range(self._config.bundles)
            if ownership.owns(bundle)
            or (ownership.hint(bundle) is None and ownership.preferred(bundle).broker_id == me)
        }

    async def _look_at(self, topic: Topic, bundles: set[int]) -> int:
        settings = settings_of(topic.config, self._config, internal=is_internal(topic.name))
        rule = settings.retention
        opened = 0
        for partition in range(topic.partitions):
            bundle = self._registry.bundle(topic.topic_id, partition)
            if bundle in bundles and not self._registry.is_open(topic.name, partition):
                opened += await self._look_at_partition(topic, partition, rule)
        return opened

    async def _look_at_partition(self, topic: Topic, partition: int, rule: RetentionRule) -> int:
        found = await self._partitions.read_hint(topic.topic_id, partition)
        if found is None or not wants_an_owner(
            found.state,
            rule,
            now_ms=self._clock.wall_ms(),
            trash_delay_ms=self._config.trash_delay_ms,
        ):
            return 0
        try:
            await self._ownership.locate(self._registry.bundle(topic.topic_id, partition))
            await self._registry.resolve(topic.name, partition, self._config.load_wait_s)
        except OctavoError as error:  # the others are looked at all the same
            _log.info("retention-not-applied", topic=topic.name, cause=error.cause)
            return 0
        _log.info("partition-opened-for-retention", topic=topic.name, partition=partition)
        return 1
