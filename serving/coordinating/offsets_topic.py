"""The internal topic whose partitions are the coordinators of groups (O1)."""

from __future__ import annotations

from octavo.metadata.topics import Topic, TopicCatalog
from octavo.proto.murmur2 import partition_of
from octavo.runtime.errors import TopicAlreadyExists, UnknownTopic
from octavo.runtime.telemetry import get_logger
from octavo.serving.topic_directory import TopicDirectory

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Nothing goes by age or size: the state of groups is not in any other place. Copies are those of
the brokers' quorum settings."""

_log = get_logger("octavo.serving.offsets_topic")


class OffsetsTopic:
    """Found, or created by whichever broker is asked for a coordinator first."""

    def __init__(self, topics: TopicDirectory, catalog: TopicCatalog) -> None:
        self._topics = topics
        self._catalog = catalog

    def cached(self) -> Topic | None:
        """The topic, if it is known without a read."""
        return self._topics.cached(OFFSETS_TOPIC)

    async def get(self) -> Topic:
        """Raises UnknownTopic: nobody asked for a coordinator yet."""
        return await self._topics.get(OFFSETS_TOPIC)

    async def get_or_create(self) -> Topic:
        """Brokers that do it at one time find the one that was first.

        Raises MetadataUnavailable, UnknownOutcome: ask again.
        """
        try:
            return await self.get()
        except UnknownTopic:
            pass
        try:
            await self._catalog.create(OFFSETS_TOPIC, OFFSETS_PARTITIONS, _CONFIG, internal=True)
            _log.info("offsets-topic-created", partitions=OFFSETS_PARTITIONS)
        except TopicAlreadyExists:
            pass
        return await self.get()


def coordinating_partition(group_id: str, topic: Topic) -> int:
    """Where the group lives (G1)."""
    return partition_of(group_id.encode(errors="surrogatepass"), topic.partitions)
