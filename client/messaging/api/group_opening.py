"""How a consumer with a group begins to read: its membership, made by the first call (RB10, O3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.finishing import commit_interceptors
from octavo.client.messaging.api.opening import Opening
from octavo.client.messaging.config import GroupConfig
from octavo.client.messaging.membership.session import Session
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.reading.limits import check_topic
from octavo.client.messaging.records import TopicPartition
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import ConfigError, IllegalStateError, InvalidPartition

Topics = str | re.Pattern[str] | Iterable[str]
"""A topic, several, or a pattern that whole names match."""


class GroupOpening(Opening):
    """Of one consumer: what the group assigns, or what `assign()` names."""

    def __init__(
        self, binding: Binding, topics: list[str], config: GroupConfig, group_id: str
    ) -> None:
        super().__init__(binding, topics, config)
        self.group_config = config
        self.group_id = group_id
        self.pattern: str | None = None
        self.handout = Handout()
        self.ending = False
        """It is being closed: its last callback may still ask for offsets, nobody for records."""
        self.session: Session | None = None

    def member(self) -> Session:
        """The membership; IllegalStateError after `close`."""
        fetcher = self.started()
        if self.session is None:
            cluster = self.binding.cluster()
            made = Session(cluster, self.group_config, self.group_id, fetcher, self.handout)
            made.commits.interceptors = commit_interceptors(self.config)
            self.session = made
            if self.topics or self.pattern is not None:
                made.subscribe(self.topics, self.pattern)
        self.session.look_at_clock()
        return self.session

    def subscribe(self, topics: list[str], pattern: str | None) -> None:
        """Read these from now on."""
        session = self.member()
        if session.simple:
            raise IllegalStateError(
                "partitions are assigned by hand", hint="assign([]) first, or make another consumer"
            )
        self.topics, self.pattern = topics, pattern
        session.subscribe(topics, pattern)

    async def begun(self, deadline: Deadline) -> Fetcher | None:
        """The fetcher; what is assigned may change with every reading call."""
        session = self.member()
        if not session.simple and session.core.subscription is None:
            raise IllegalStateError(
                "nothing is subscribed", hint="call subscribe() or assign() first"
            )
        return self.started()

    async def ready(self, deadline: Deadline | None = None) -> Fetcher:
        """The fetcher with what is assigned at this moment, perhaps nothing."""
        self.member()
        return self.started()

    async def slots(self, places: Iterable[TopicPartition], deadline: Deadline) -> list[Slot]:
        """Partitions with the life of their topic; InvalidPartition for one that does not exist."""
        assigned = self.member().readings.slots
        found: list[Slot] = []
        for where in places:
            slot = assigned.get(where)
            if slot is None:
                view = await self.binding.cluster().topics.get(where.topic, deadline.left_s())
                if where.partition >= view.partitions:
                    raise InvalidPartition(f"partition {where} does not exist")
                slot = Slot(where.topic, where.partition, view.topic_id)
            found.append(slot)
        return found

    async def assign(self, wanted: list[TopicPartition], deadline: Deadline) -> None:
        """Exactly these, without being a member (O3); kept ones keep their position."""
        session = self.member()
        if session.core.subscription:
            raise IllegalStateError(
                "the consumer subscribes to topics", hint="unsubscribe() before assign()"
            )
        slots = await self.slots(wanted, deadline)
        fresh = [slot for slot in slots if slot.where not in session.readings.slots]
        committed = await session.commits.committed(fresh, deadline.left_s()) if fresh else {}
        gone = [slot for slot in session.readings.slots.values() if slot not in slots]
        session.readings.drop(gone)
        session.commits.settle(session.commits.core.discard(gone))
        session.beginnings.at(fresh, {slot: value.offset for slot, value in committed.items()})
        session.readings.start(fresh)
        session.simple = self.assigned = bool(wanted)

    async def close(self) -> None:
        """End what runs in the background; harmless when repeated."""
        self.closed = True
        try:
            if self.session is not None:
                await self.session.close()
        finally:  # also when it is cancelled
            await super().close()


def topics_and_pattern(
    topics: Topics, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], str | None]:
    """What is subscribed; raises ConfigError for what is no name, no pattern, or both."""
    if isinstance(topics, re.Pattern):
        if pattern is not None:
            raise ConfigError("two patterns are given", hint="join them with |")
        return topics_and_pattern((), topics)
    if not isinstance(cast("object", topics), Iterable):
        raise ConfigError(f"topics={topics!r} are no topics", hint='for example "orders"')
    given = [topics] if isinstance(topics, str) else list(topics)
    names = list(dict.fromkeys(check_topic(topic) for topic in given))
    if pattern is None:
        return names, None
    if names:
        raise ConfigError("topics and a pattern are given", hint="subscribe to one of both")
    text = cast("object", pattern.pattern if isinstance(pattern, re.Pattern) else pattern)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"pattern={pattern!r} is no text", hint=r'for example "orders-.*"')
    if isinstance(pattern, re.Pattern) and pattern.flags & ~re.UNICODE:
        raise ConfigError(
            f"{pattern!r} has flags", hint="brokers resolve patterns: write (?i) into it"
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"pattern={text!r} is no regular expression: {error}") from error
    return [], text
