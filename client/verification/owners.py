"""Who a ledger belongs to: the partition whose list names it (ML-9).

What was looked up is kept for a while, in bounded numbers. A list that is kept may prove that a
ledger is named; that none names it is decided by reads behind a barrier only.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from typing import NamedTuple, TypeVar

from octavo.client.verification.lists import owner_of
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState
from octavo.metadata.topics import PartitionCatalog, TopicCatalog
from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidTopic, MetadataCorrupt, UnknownTopic, UnsupportedVersion

K = TypeVar("K")
V = TypeVar("V")
LISTS_KEPT_MAX = 64
TOPICS_KEPT_MAX = 1024
YOUNG_MS = 60_000
"""Age of a ledger below which nobody need have listed it yet: first it is made, then listed."""


class Owner(NamedTuple):
    """What is known of a ledger's owner."""

    segment: Segment | None = None
    """As the list has it; None: not listed, or in the trash, or not known."""
    orphan: str = ""
    """Why nobody owns it."""
    unknown: str = ""
    """Why that is not known."""


class Owners:
    """Looks owners up."""

    def __init__(self, topics: TopicCatalog, partitions: PartitionCatalog, clock: Clock) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._lists: OrderedDict[tuple[uuid.UUID, int], PartitionState] = OrderedDict()
        self._alive: OrderedDict[tuple[str, uuid.UUID], None] = OrderedDict()

    async def find(self, record: LedgerMetadata) -> Owner:
        """The owner of a ledger as of now; raises MetadataUnavailable."""
        meant = owner_of(record)
        if meant is None:
            return self._nobody(record, "it was made for no topic")
        topic, topic_id, partition = meant
        key = (topic_id, partition)
        try:
            if not await self._is_alive(topic, topic_id):
                return self._nobody(record, f"topic {topic} is gone, and it was left")
            state = self._lists.get(key)
            if state is None or not state.knows(record.ledger_id):
                found = await self._partitions.read(topic_id, partition)
                if found is None:
                    return self._nobody(record, f"partition {partition} of {topic} has no list")
                state = found.state
            _keep(self._lists, key, state, LISTS_KEPT_MAX)
        except (MetadataCorrupt, UnsupportedVersion) as error:
            return Owner(unknown=f"whose it is: {error.cause}")
        if not state.knows(record.ledger_id):
            return self._nobody(record, f"partition {partition} of {topic} does not list it")
        listed = (one for one in state.segments if one.ledger_id == record.ledger_id)
        return Owner(next(listed, None))

    def _nobody(self, record: LedgerMetadata, why: str) -> Owner:
        is_young = self._clock.wall_ms() - record.ctime_ms < YOUNG_MS
        return Owner() if is_young else Owner(orphan=why)

    async def _is_alive(self, topic: str, topic_id: uuid.UUID) -> bool:
        if (topic, topic_id) in self._alive:
            return True
        try:
            found = await self._topics.get(topic, barrier=True)
        except (UnknownTopic, InvalidTopic):
            return False
        if found.topic.topic_id != topic_id:
            return False
        _keep(self._alive, (topic, topic_id), None, TOPICS_KEPT_MAX)
        return True


def _keep(kept: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > limit:
        kept.popitem(last=False)
