"""Topics as they are changed while they are used: settings, and more partitions (F016, F026, P7).

A change is one compare-and-set of the topic's record, made again on what another change left. Each
says how things are to be, so that asking again after a lost reply is harmless. The owners of
partitions follow the record and go by it without a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from octavo.metadata.topics import Topic, TopicCatalog, is_internal
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    UnknownOutcome,
    UnknownTopic,
    VersionConflict,
)
from octavo.runtime.suggestion import did_you_mean
from octavo.serving.config import BrokerConfig
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_config import (
    CONFIG_ENTRIES_MAX,
    TOPIC_CONFIG_KEYS,
    check_replication,
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


def altered(
    topic: Topic, config: Mapping[str, str], unset: Iterable[str], partitions: int
) -> Topic:
    """`topic` as it is to be; `partitions` 0: as many as there are.

    Raises InvalidPartitions for fewer: partitions never shrink (P7).
    """
    if partitions and partitions < topic.partitions:
        raise InvalidPartitions(
            f"topic {topic.name!r} has {topic.partitions} partitions and cannot have {partitions}",
            hint="partitions are added, never removed; copy the records to a new topic instead",
        )
    gone = set(unset)
    kept = {name: text for name, text in topic.config.items() if name not in gone}
    return replace(topic, config=kept | dict(config), partitions=partitions or topic.partitions)


class TopicChanges:
    """Changes topics; any broker may do it."""

    def __init__(
        self,
        topics: TopicCatalog,
        *,
        config: BrokerConfig,
        live_bookies: Callable[[], int],
        changed: Callable[[str], None],
        store_answers: StoreAnswers,
    ) -> None:
        self._topics = topics
        self._config = config
        self._live_bookies = live_bookies
        self._changed = changed
        self._store_answers = store_answers

    async def alter(
        self,
        name: str,
        topic_id: bytes,
        config: Mapping[str, str],
        unset: Iterable[str],
        partitions: int,
    ) -> tuple[Topic, str]:
        """The topic as it is then, and what that means for records: empty, or a warning (P7).

        Raises UnknownTopic, InconsistentTopicId, InvalidConfig, InvalidReplicationFactor,
        InvalidPartitions; UnknownOutcome when the record kept changing or no answer is certain.
        """
        wanted_names = list(unset)
        self._check(name, config, wanted_names, partitions)
        warning = ""
        for _ in range(ATTEMPTS_MAX):
            found = await self._store_answers.during(self._topics.get(name, barrier=True))
            before = found.topic
            _check_life(before, topic_id)
            wanted = altered(before, config, wanted_names, partitions)
            self._check_settings(before, wanted)
            if wanted.partitions > before.partitions:
                warning = KEYS_MOVE
            if wanted == before:
                return before, warning
            try:
                made = await self._topics.update(found, wanted)
            except (VersionConflict, UnknownOutcome):
                continue  # what a read finds is changed, or shows that this was done
            self._changed(name)
            return made.topic, warning
        raise UnknownOutcome(
            f"topic {name!r} kept changing while it was altered", hint="look at it, and ask again"
        )

    def _check(
        self, name: str, config: Mapping[str, str], unset: list[str], partitions: int
    ) -> None:
        """What needs no look at the topic."""
        if is_internal(name):
            raise InvalidRequest(f"topic {name!r} is internal and is not altered by hand")
        if len(config) + len(unset) > CONFIG_ENTRIES_MAX:
            raise InvalidConfig(f"{len(config) + len(unset)} settings are too many")
        if not config and not unset and not partitions:
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
        if not 0 <= partitions <= limit:
            raise InvalidPartitions(f"{partitions} is not between 1 and {limit}")

    def _check_settings(self, before: Topic, wanted: Topic) -> None:
        if wanted.config == before.config:
            return
        settings = parse_topic_config(wanted.config, self._config)
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
