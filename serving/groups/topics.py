"""Which topics members read, and what a target depends on of them (RB1)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from octavo.proto.group_records import Slot, Subscription
from octavo.serving.groups.assignors import DEFAULT_ASSIGNOR, SubscribedTopic, Subscriber
from octavo.serving.groups.member import Member


class TopicDirectory(NamedTuple):
    """The topics that exist, by name: id and what an assignor knows of each."""

    topics: Mapping[str, tuple[str, SubscribedTopic]] = {}
    matching: Callable[[str], Iterable[str]] = lambda pattern: ()
    """Names that a pattern matches."""

    def names(self, subscription: Subscription) -> frozenset[str]:
        """Of the topics that exist and are subscribed."""
        named = subscription.topics
        if subscription.pattern is not None:
            named = named.union(self.matching(subscription.pattern))
        return named & self.topics.keys()

    def has(self, topic: str, slot: Slot) -> bool:
        """Whether the partition exists in that life of the topic."""
        found_id, found = self.topics.get(topic, ("", None))
        if found is None or found_id != slot.topic_id:
            return False
        return 0 <= slot.partition < found.partitions


class Reading(NamedTuple):
    """What the members of a group read."""

    topics: dict[str, SubscribedTopic]
    """By id."""
    subscribers: tuple[Subscriber, ...]

    @property
    def partitions(self) -> dict[str, int]:
        """How many each topic has, by id."""
        return {topic_id: topic.partitions for topic_id, topic in self.topics.items()}

    def hash(self) -> int:
        """64 bits over all of the topics that a target depends on; the same in every process."""
        digest = hashlib.blake2b(digest_size=8)
        for topic_id, topic in sorted(self.topics.items()):
            racks = sorted((number, sorted(racks)) for number, racks in topic.racks.items())
            read = (topic_id, topic.name, topic.partitions, racks)
            digest.update(repr((*read, sorted(topic.removed)) if topic.removed else read).encode())
        return int.from_bytes(digest.digest(), "little")


def reading(members: Collection[Member], directory: TopicDirectory) -> Reading:
    """Resolve the subscriptions of a group."""
    resolved: dict[tuple[frozenset[str], str | None], frozenset[str]] = {}
    topics: dict[str, SubscribedTopic] = {}
    subscribers: list[Subscriber] = []
    for member in members:
        subscription = member.subscription
        ids = resolved.get(subscription[:2])
        if ids is None:
            found = [directory.topics[name] for name in directory.names(subscription)]
            topics.update(found)
            ids = resolved[subscription[:2]] = frozenset(topic_id for topic_id, _ in found)
        subscribers.append(Subscriber(member.member_id, ids, member.instance_id, subscription.rack))
    return Reading(topics, tuple(subscribers))


def subscribes(members: Iterable[Member], directory: TopicDirectory, topic: str) -> bool:
    """Whether one of them wants the topic of that name, if it exists or not (O6, O7)."""
    return any(
        topic in member.subscription.topics or topic in directory.names(member.subscription)
        for member in members
    )


def favourite_assignor(members: Collection[Member]) -> str:
    """What most members ask for; of equals the first by name."""
    votes: dict[str, int] = {}
    for member in members:
        if name := member.subscription.assignor:
            votes[name] = votes.get(name, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)
