"""Topics as they are changed while they are used: settings and partitions (F016, F026, F027, P7).

A change is one compare-and-set of the topic's record, made again on what another change left. Each
says how things are to be, so that asking again after a lost reply is harmless. The owners of
partitions follow the record and go by it without a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from octavo.metadata.topics import (
    Decommissioned,
    PartitionCatalog,
    Topic,
    TopicCatalog,
    is_internal,
)
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvalidConfig,
    InvalidPartition,
    InvalidPartitions,
    InvalidRequest,
    OctavoError,
    UnknownOutcome,
    UnknownTopic,
    VersionConflict,
)
from octavo.runtime.suggestion import did_you_mean
from octavo.serving.config import BrokerConfig
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_config import (
    CONFIG_ENTRIES_MAX,
    NO,
    TIERING,
    TOPIC_CONFIG_KEYS,
    check_replication,
    check_tier_root,
    parse_topic_config,
    settings_of,
)

ATTEMPTS_MAX = 8
"""Compare-and-sets of one change; each but the first follows a read."""
KEYS_MOVE = (
    "records with a key go to other partitions from now on: what was sent before stays where it "
    "is, and the order of one key holds within what was sent before, and within what is sent after"
)
"""P7."""


class Alteration(NamedTuple):
    """How a topic is to be."""

    config: Mapping[str, str]
    unset: Sequence[str] = ()
    """Settings that are to have their default again."""
    partitions: int = 0
    """How many there are to be; 0: as many as there are."""
    decommission: Sequence[int] = ()
    """Partitions that are to take no new records (F027)."""


def altered(topic: Topic, wanted: Alteration, now_ms: int) -> Topic:
    """`topic` as it is to be.

    Raises InvalidPartitions for fewer partitions, which never shrink (P7), and when none would
    take records; InvalidPartition.
    """
    partitions = wanted.partitions
    if partitions and partitions < topic.partitions:
        raise InvalidPartitions(
            f"topic {topic.name!r} has {topic.partitions} partitions and cannot have {partitions}",
            hint="partitions are added, never removed; `octavo topic decommission` has one of them "
            "take no new records",
        )
    kept = {name: text for name, text in topic.config.items() if name not in wanted.unset}
    if TIERING in topic.config:  # "false" for ever: files may be there, and go with the topic
        kept.setdefault(TIERING, NO)
    grown = replace(
        topic, config=kept | dict(wanted.config), partitions=partitions or topic.partitions
    )
    return _decommissioned(grown, wanted.decommission, now_ms) if wanted.decommission else grown


def _decommissioned(topic: Topic, numbers: Iterable[int], now_ms: int) -> Topic:
    """Those that are so already stay as they are."""
    found = {one.partition: one for one in topic.decommissioned}
    for number in numbers:
        if not 0 <= number < topic.partitions:
            raise InvalidPartition(
                f"topic {topic.name!r} has partitions 0..{topic.partitions - 1}, not {number}"
            )
        found.setdefault(number, Decommissioned(number, now_ms))
    if len(found) == topic.partitions:
        raise InvalidPartitions(
            f"topic {topic.name!r} would have no partition that takes records",
            hint="add partitions first with `octavo topic grow`, or delete the topic",
        )
    return replace(topic, decommissioned=tuple(found[number] for number in sorted(found)))


def with_removed(topic: Topic, partition: int) -> Topic:
    """Nobody is assigned to the decommissioned `partition` any more."""
    return replace(
        topic,
        decommissioned=tuple(
            one._replace(removed=True) if one.partition == partition else one
            for one in topic.decommissioned
        ),
    )


class TopicChanges:
    """Changes topics; any broker may do it."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: PartitionCatalog,
        *,
        config: BrokerConfig,
        clock: Clock,
        live_bookies: Callable[[], int],
        changed: Callable[[str], None],
        store_answers: StoreAnswers,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._config = config
        self._clock = clock
        self._live_bookies = live_bookies
        self._changed = changed
        self._store_answers = store_answers

    async def alter(self, name: str, topic_id: bytes, wanted: Alteration) -> tuple[Topic, str]:
        """The topic as it is then, and what that means for records: empty, or a warning (P7).

        Raises UnknownTopic, InconsistentTopicId, InvalidConfig, InvalidReplicationFactor,
        InvalidPartitions, InvalidPartition; UnknownOutcome when the record kept changing or no
        answer is certain.
        """
        self._check(name, wanted)
        now_ms = self._clock.wall_ms()

        def alter(before: Topic) -> Topic:
            after = altered(before, wanted, now_ms)
            self._check_settings(before, after)
            return after

        before, after = await self._change(name, topic_id, alter)
        warning = KEYS_MOVE if after.writable != before.writable else ""
        return after, warning

    async def remove_drained(self, topic: Topic, partition: int) -> None:
        """Nobody is assigned to a decommissioned partition any more: nothing is in it (F027).

        For its owner, which alone can tell. Raises as `alter`.
        """
        await self._change(
            topic.name, topic.topic_id.bytes, lambda before: with_removed(before, partition)
        )

    async def _change(
        self, name: str, topic_id: bytes, wanted: Callable[[Topic], Topic]
    ) -> tuple[Topic, Topic]:
        """The topic before the first attempt, and after."""
        first: Topic | None = None
        for _ in range(ATTEMPTS_MAX):
            found = await self._store_answers.during(self._topics.get(name, barrier=True))
            before = found.topic
            _check_life(before, topic_id)
            after = wanted(before)
            first = first or before
            if after == before:
                return first, before
            await self._store_answers.during(self._check_files(before, after))
            try:
                made = await self._topics.update(found, after)
            except (VersionConflict, UnknownOutcome):
                continue  # what a read finds is changed, or shows that this was done
            self._changed(name)
            return first, made.topic
        raise UnknownOutcome(
            f"topic {name!r} kept changing while it was altered", hint="look at it, and ask again"
        )

    def _check(self, name: str, wanted: Alteration) -> None:
        """What needs no look at the topic."""
        config, unset = wanted.config, wanted.unset
        if is_internal(name):
            raise InvalidRequest(f"topic {name!r} is internal and is not altered by hand")
        if len(config) + len(unset) > CONFIG_ENTRIES_MAX:
            raise InvalidConfig(f"{len(config) + len(unset)} settings are too many")
        if not any((config, unset, wanted.partitions, wanted.decommission)):
            raise InvalidRequest(f"nothing is to be changed of topic {name!r}")
        for one in unset:
            if one not in TOPIC_CONFIG_KEYS:
                raise InvalidConfig(
                    f"unknown topic setting {one[:100]!r}",
                    hint=did_you_mean(one[:100], TOPIC_CONFIG_KEYS),
                )
            if one in config:
                raise InvalidConfig(f"{one} is set and unset by one request")
        limit = self._config.max_partitions_per_topic
        if not 0 <= wanted.partitions <= limit:
            raise InvalidPartitions(f"{wanted.partitions} is not between 1 and {limit}")
        if len(wanted.decommission) > limit:
            raise InvalidPartitions(f"{len(wanted.decommission)} partitions are more than {limit}")

    async def _check_files(self, before: Topic, wanted: Topic) -> None:
        """A log of which files hold a part is never cleaned (ADR 70): so refuse to ask for it.

        What a list says that cannot be read is not known, and refused too.
        """
        if settings_of(before.config, self._config).compacts or not (
            settings_of(wanted.config, self._config).compacts
        ):
            return
        wanted_lists = [(before.topic_id, number) for number in range(before.partitions)]
        for hint in await self._partitions.read_hints(wanted_lists):
            if isinstance(hint, OctavoError):
                raise hint
            if hint is not None and hint.state.has_files:
                raise InvalidConfig(
                    f"records of {before.name}-{hint.state.partition} are in exported files, which "
                    "compaction cannot change",
                    hint=f"first let go of them (octavo topic trim {before.name} --before OFFSET; "
                    "files go after trash_delay_ms), or write to a new topic",
                )

    def _check_settings(self, before: Topic, wanted: Topic) -> None:
        if wanted.config == before.config:
            return
        settings = parse_topic_config(wanted.config, self._config)
        check_tier_root(settings, self._config)
        old = settings_of(before.config, self._config)
        if settings.replication_factor > old.replication_factor:
            check_replication(settings, self._live_bookies())


def _check_life(found: Topic, topic_id: bytes) -> None:
    if topic_id and found.topic_id.bytes != topic_id:
        raise InconsistentTopicId(
            f"topic {found.name!r} was created again meanwhile: its id is {found.topic_id.hex}",
            hint="the topic that was meant is gone; the new one was left alone",
            topic=found.name,
        )
    if found.deleting:
        raise UnknownTopic(f"topic {found.name!r} is being deleted", topic=found.name)
