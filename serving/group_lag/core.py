"""Decides what to ask of owners, and what their answers say of each group (M1 to M4). Pure.

One pass: `begin`, `told` by each partition of groups, `ask`, `answered` for each log that an owner
knew, `end`. What is not answered leaves what was found before, which grows old. Methods that
return an iterator work in steps, between which others may have their turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.proto.group_records import Slot
from octavo.proto.lag import RATE_WINDOW_S, RateWindow, measure
from octavo.serving.group_lag.rows import AGE_MAX_S, Found, GroupRow, PartitionRow, TopicRow
from octavo.serving.groups.values import GroupPositions, LeftOut, PositionsReply, TopicPositions

FOLLOWED_MAX = 10_000
"""Partitions of groups that one broker follows; of topics beyond it nothing is known."""
RATE_SPACING_S = 5.0
"""Distance of the samples that rates are made of."""
STEP = 500
"""Partitions that one step goes through."""


class Question(NamedTuple):
    """What is to be asked of the owner of one partition."""

    topic: str
    positions: set[int]
    """Those whose append time is wanted."""


class Log(NamedTuple):
    """What an owner says of one partition."""

    log_start: int
    end: int
    times_ms: Mapping[int, int] = {}
    """Append times by position, as far as they are known."""


@dataclass(slots=True)
class _Followed:
    """A group at one partition."""

    partition: int
    committed: int | None
    window: RateWindow = field(default_factory=lambda: RateWindow(RATE_WINDOW_S, RATE_SPACING_S))
    log_start: int = 0
    position: int = -1
    """At which `row` was."""
    row: PartitionRow | None = None

    @property
    def next_position(self) -> int:
        """Where it goes on, as far as is known."""
        return max(self.committed or 0, self.log_start)

    @property
    def since_ms(self) -> int | None:
        """When what is at `next_position` was appended, if an earlier pass found it."""
        return self.row.since_ms if self.row and self.position == self.next_position else None

    def answered(self, log: Log, asked_s: float) -> None:
        # Who committed nothing is taken for one that wants all: what is not known is not 0.
        now = measure(self.committed, log.log_start, log.end, "earliest")
        since_ms = self.since_ms if self.position == now.position else None
        if since_ms is None:
            since_ms = log.times_ms.get(self.next_position)  # as it was asked
        self.log_start, self.position = log.log_start, now.position
        self.window.add(asked_s, now.position, log.end)
        self.row = PartitionRow(
            partition=self.partition,
            lag=now.lag,
            since_ms=since_ms if now.lag else None,
            rates=self.window.rates(),
            asked_s=asked_s,
        )


@dataclass(slots=True)
class _Home:
    """A partition of groups."""

    asked_s: float
    groups: list[GroupPositions] = field(default_factory=list[GroupPositions])
    followed: dict[tuple[str, Slot], _Followed] = field(
        default_factory=dict[tuple[str, Slot], _Followed]
    )
    left_out: LeftOut = field(default_factory=LeftOut)
    group_rows: list[GroupRow] = field(default_factory=list[GroupRow])
    topic_rows: list[TopicRow] = field(default_factory=list[TopicRow])


class GroupLagCore:
    """Of one broker."""

    def __init__(self, followed_max: int = FOLLOWED_MAX) -> None:
        self.followed_max = followed_max
        self.questions: dict[Slot, Question] = {}
        """Of this pass; the first ones are others in each."""
        self.found = Found()
        """What the last pass that ended found."""
        self._homes: dict[int, _Home] = {}
        self._asked_s = 0.0
        self._readers: dict[Slot, list[_Followed]] = {}
        self._passes = 0

    def begin(self, homes: Collection[int], now_s: float) -> None:
        """A pass over the groups of these partitions; others are not coordinated here."""
        self._asked_s = now_s
        self._passes += 1
        self._readers, self.questions = {}, {}
        self._homes = {
            number: home
            for number, home in self._homes.items()
            if number in homes and now_s - home.asked_s <= AGE_MAX_S
        }

    def told(self, number: int, reply: PositionsReply) -> None:
        """Where the groups of a partition go on."""
        before = self._homes.get(number) or _Home(self._asked_s)
        home = _Home(self._asked_s)
        others = sum(len(one.followed) for n, one in self._homes.items() if n != number)
        room = self.followed_max - others
        topics_left, partitions_left = reply.left_out
        for group in reply.groups:
            kept: list[TopicPositions] = []
            for topic in group.topics:
                count = len(topic.committed)
                if count > room:
                    topics_left, partitions_left = topics_left + 1, partitions_left + count
                    continue
                room -= count
                kept.append(topic)
                for partition, committed in topic.committed.items():
                    key = (group.group_id, Slot(topic.topic_id, partition))
                    followed = before.followed.get(key) or _Followed(partition, committed)
                    followed.committed = committed
                    home.followed[key] = followed
            home.groups.append(group._replace(topics=tuple(kept)))
        home.left_out = LeftOut(topics_left, partitions_left)
        self._homes[number] = home

    def ask(self) -> Iterator[None]:
        """Fill `questions`, about the groups that were told of in this pass."""
        asked: dict[Slot, Question] = {}
        count = 0
        for _, home, group, topic in self._topics():
            for partition in topic.committed:
                slot = Slot(topic.topic_id, partition)
                followed = home.followed[group.group_id, slot]
                self._readers.setdefault(slot, []).append(followed)
                question = asked.setdefault(slot, Question(topic.topic, set()))
                if followed.since_ms is None:
                    question.positions.add(followed.next_position)
                count += 1
                if count % STEP == 0:
                    yield
        order = list(asked.items())  # who answers may look at the first ones only
        turn = self._passes * STEP % max(len(order), 1)
        self.questions = dict(order[turn:] + order[:turn])

    def answered(self, slot: Slot, log: Log) -> int:
        """What its owner says of a partition that was asked for in this pass; returns how many
        groups go by it."""
        readers = self._readers.get(slot, [])
        if 0 <= log.log_start <= log.end:  # no log is otherwise: it is not known
            for followed in readers:
                followed.answered(log, self._asked_s)
        return len(readers)

    def end(self) -> Iterator[None]:
        """Make `found` of it."""
        count = 0
        for number, home in self._told():
            home.group_rows = [
                GroupRow(number, group.group_id, group.members, home.asked_s)
                for group in home.groups
            ]
        for number, home, group, topic in self._topics():
            keys = ((group.group_id, Slot(topic.topic_id, one)) for one in topic.committed)
            rows = tuple(row for key in keys if (row := home.followed[key].row) is not None)
            home.topic_rows.append(
                TopicRow(number, group.group_id, topic.topic, len(topic.committed), rows)
            )
            count += len(topic.committed)
            if count >= STEP:
                count = 0
                yield
        homes = self._homes.values()
        self.found = Found(
            sorted((row for home in homes for row in home.group_rows), key=lambda row: row.group),
            sorted(
                (row for home in homes for row in home.topic_rows),
                key=lambda row: (row.group, row.topic),
            ),
            LeftOut(
                sum(home.left_out.topics for home in homes),
                sum(home.left_out.partitions for home in homes),
            ),
        )

    def _told(self) -> Iterator[tuple[int, _Home]]:
        """Those that answered in this pass."""
        for number, home in self._homes.items():
            if home.asked_s == self._asked_s:
                yield number, home

    def _topics(self) -> Iterator[tuple[int, _Home, GroupPositions, TopicPositions]]:
        for number, home in self._told():
            for group in home.groups:
                for topic in group.topics:
                    yield number, home, group, topic
