"""Where a stream is: the offsets that Spark writes into its checkpoint (spec/spark.md §8). Pure.

The JSON of Spark's Kafka source, next offset by topic and partition, and beside the topics which
topics they are:

    {"orders": {"0": 250000, "1": 249990}, "@topicIds": {"orders": "5f0c..."}}

A topic that was deleted and created again has other records at the same offsets; its id tells. In a
checkpoint without ids the topics are taken for those that have the names now. Spark compares
offsets as text, so the same position always gives the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from octavo.runtime.errors import MetadataCorrupt
from octavo.spark.options import TOPIC_IDS


@dataclass(frozen=True)
class Positions:
    """The next offset of each partition that a stream has begun to read."""

    next_offsets: Mapping[str, Mapping[int, int]] = field(
        default_factory=dict[str, Mapping[int, int]]
    )
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the topics whose id is known."""

    @classmethod
    def parse(cls, body: object) -> Positions:
        """What a checkpoint holds; raises MetadataCorrupt."""
        if not isinstance(body, dict):
            raise _damaged(body)
        topics = dict(cast("dict[str, object]", body))
        ids = topics.pop(TOPIC_IDS, {})
        if not isinstance(ids, dict):
            raise _damaged(ids)
        told = cast("dict[str, object]", ids)
        if not all(isinstance(one, str) for one in told.values()):
            raise _damaged(told)
        found = {topic: _partitions(inner) for topic, inner in topics.items()}
        return cls(found, cast("dict[str, str]", told))

    def to_json(self) -> dict[str, dict[str, int] | dict[str, str]]:
        """The same position gives the same text, whatever order it was put together in."""
        made: dict[str, dict[str, int] | dict[str, str]] = {
            topic: {str(partition): offset for partition, offset in sorted(inner.items())}
            for topic, inner in sorted(self.next_offsets.items())
        }
        if self.topic_ids:
            made[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        return made

    def of(self, topic: str, partition: int) -> int | None:
        """The next offset of a partition; None: nothing is written of it."""
        return self.next_offsets.get(topic, {}).get(partition)

    def moved(self, to: Mapping[tuple[str, int], int], topic_ids: Mapping[str, str]) -> Positions:
        """These positions with some of them changed or added; the others stay as they are."""
        changed = {topic: dict(inner) for topic, inner in self.next_offsets.items()}
        for (topic, partition), offset in to.items():
            changed.setdefault(topic, {})[partition] = offset
        known = {topic: topic_ids[topic] for topic in changed if topic in topic_ids}
        return Positions(changed, {**self.topic_ids, **known})


def _partitions(inner: object) -> dict[int, int]:
    if not isinstance(inner, dict):
        raise _damaged(inner)
    found: dict[int, int] = {}
    for partition, offset in cast("dict[str, object]", inner).items():
        good = partition.isascii() and partition.isdigit() and type(offset) is int
        if not good or cast("int", offset) < 0:
            raise _damaged({partition: offset})
        found[int(partition)] = cast("int", offset)
    return found


def _damaged(what: object) -> MetadataCorrupt:
    return MetadataCorrupt(
        f"the checkpoint of the stream holds {what!r:.200} where offsets belong",
        hint='offsets look like {"topic":{"0":23}}: was the checkpoint changed by hand?',
    )
