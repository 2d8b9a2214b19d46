"""Partitions that nobody asks for lose their old records too (R1, R3, ML-9, F027).

An open partition looks after itself. The others of this broker's bundles are found by their lists,
once in `retention_check_interval_ms`, and those that have something to delete are opened: also the
ledgers that a broker left in the trash when it died are found again so, and closed segments that
are to be copied (F088). Decommissioned partitions are seen through to their end here, and staging
topics of sinks are swept.
"""

from __future__ import annotations

from octavo.metadata.sinks import SinkCatalog
from octavo.metadata.topics import (
    PartitionCatalog,
    PartitionState,
    Topic,
    TopicCatalog,
    is_internal,
)
from octavo.proto.sink_staging import STAGING_PREFIX
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.consumption import Consumption
from octavo.serving.ownership import Ownership, is_for
from octavo.serving.registry import PartitionRegistry
from octavo.serving.retention import holds_records, wants_an_owner
from octavo.serving.sink_sweeping import SinkSweeper
from octavo.serving.tiering import plan as tiering
from octavo.serving.topic_admin import TopicAdmin
from octavo.serving.topic_changes import TopicChanges
from octavo.serving.topic_config import TopicSettings, settings_of

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
        changes: TopicChanges,
        sinks: SinkCatalog,
        topic_admin: TopicAdmin,
        consumption: Consumption,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._registry = registry
        self._ownership = ownership
        self._changes = changes
        self._sweeper = SinkSweeper(sinks, registry, topic_admin, config=config, clock=clock)
        self._consumption = consumption
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
                await self._look_at_decommissioned(topic, bundles)
                await self._look_at_consumed(topic)
                await self._look_at_staging(topic, bundles)
                after = topic.name
            more = more and bool(found)
        return opened

    def _bundles(self) -> set[int]:
        """Held here, or by nobody as far as is known and to be held here."""
        me, bundles = self._config.broker_id, range(self._config.bundles)
        return {bundle for bundle in bundles if is_for(me, bundle, self._ownership)}

    async def _look_at(self, topic: Topic, bundles: set[int]) -> int:
        settings = self._settings(topic)
        closed = [
            (topic.topic_id, partition)
            for partition in range(topic.partitions)
            if self._registry.bundle(topic.topic_id, partition) in bundles
            and not self._registry.is_open(topic.name, partition)
        ]
        opened = 0
        hints = await self._partitions.read_hints(closed)
        for (_, partition), hint in zip(closed, hints, strict=True):
            if isinstance(hint, Exception):  # M-7: the others are looked at all the same
                _log.error("partition-record-unreadable", topic=topic.name, partition=partition)
            elif hint is not None and not self._registry.is_open(topic.name, partition):
                opened += await self._look_at_partition(topic, hint.state, settings)
        return opened

    async def _look_at_consumed(self, topic: Topic) -> None:
        """R5: what is not known is not consumed."""
        if not self._settings(topic).goes_when_consumed:
            return
        shells = [one for one in self._registry.shells() if one.name.topic_id == topic.topic_id]
        found = await self._consumption.of(topic.name, topic.topic_id) if shells else None
        if found is not None:
            for shell in shells:
                shell.emptying.consumed(found.up_to(shell.name.partition))

    async def _look_at_staging(self, topic: Topic, bundles: set[int]) -> None:
        """Spec spark §8.3: what sinks staged and nobody decided on."""
        bundle = self._registry.bundle(topic.topic_id, 0)
        if not topic.name.startswith(STAGING_PREFIX) or bundle not in bundles:
            return
        try:
            await self._ownership.locate(bundle)
            await self._sweeper.look_at(topic)
        except OctavoError as error:  # looked at again in the next round
            _log.info("staging-not-swept", topic=topic.name, cause=error.cause)

    def _settings(self, topic: Topic) -> TopicSettings:
        return settings_of(topic.config, self._config, internal=is_internal(topic.name))

    async def _look_at_decommissioned(self, topic: Topic, bundles: set[int]) -> None:
        """F027: after the grace nothing new is taken, and what is empty then is removed."""
        for one in topic.decommissioned:
            bundle = self._registry.bundle(topic.topic_id, one.partition)
            if one.removed or bundle not in bundles:
                continue
            try:
                await self._ownership.locate(bundle)
                shell = await self._registry.resolve_life(
                    topic.name, one.partition, topic.topic_id.bytes, self._config.load_wait_s
                )
                grace_is_over = (
                    self._clock.wall_ms() - one.since_ms >= self._config.decommission_grace_ms
                )
                if grace_is_over and not shell.emptying.is_decommissioned:
                    await shell.emptying.decommission()
                if shell.emptying.is_drained:
                    await self._changes.remove_drained(topic, one.partition)
            except OctavoError as error:  # looked at again in the next round
                _log.info("decommission-waits", topic=topic.name, cause=error.cause)

    async def _look_at_partition(
        self, topic: Topic, state: PartitionState, settings: TopicSettings
    ) -> int:
        partition = state.partition
        may_be_consumed = settings.goes_when_consumed and holds_records(state)
        if not (may_be_consumed or self._has_something_due(state, settings)):
            return 0
        try:
            await self._ownership.locate(self._registry.bundle(topic.topic_id, partition))
            await self._registry.resolve(topic.name, partition, self._config.load_wait_s)
        except OctavoError as error:  # the others are looked at all the same
            _log.info("retention-not-applied", topic=topic.name, cause=error.cause)
            return 0
        _log.info("partition-opened-for-retention", topic=topic.name, partition=partition)
        return 1

    def _has_something_due(self, state: PartitionState, settings: TopicSettings) -> bool:
        now_ms, delay_ms = self._clock.wall_ms(), self._config.trash_delay_ms
        if wants_an_owner(state, settings.retention, now_ms=now_ms, trash_delay_ms=delay_ms):
            return True
        return bool(self._config.tier_root) and tiering.wants_an_owner(
            state,
            settings.local_retention if settings.is_tiered else None,
            now_ms=now_ms,
            trash_delay_ms=delay_ms,
        )
