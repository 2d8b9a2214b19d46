"""How far the groups of one partition of `__consumer_offsets` have read (R5, F162, M4). Pure.

What owners of a topic's partitions ask, and have moved, of all groups together, and what the page
of their coordinator shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from octavo.serving.groups.append_queue import Respond
from octavo.serving.groups.group_table import Group, GroupTable, PartitionAction
from octavo.serving.groups.topics import TopicDirectory, subscribes
from octavo.serving.groups.values import (
    ConsumedReply,
    EvictReply,
    GroupPositions,
    LeftOut,
    PositionsReply,
    Token,
    TopicPositions,
)


class GroupProgress:
    """Of the groups of a table."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table

    def consumed(self, token: Token, topic: str, topic_id: str) -> list[PartitionAction]:
        """How far the groups of a topic have come (R5), once all that this tells is durable."""
        if self._table.refuses is not None:
            return [Respond(token, ConsumedReply(self._table.refuses))]
        groups = 0
        lowest: dict[int, tuple[int, int]] = {}
        for group in self._table.groups.values():
            committed = group.offsets.of_topic(topic_id)
            members = group.core.state.members.values()
            if not committed and not subscribes(members, self._table.directory, topic):
                continue
            groups += 1
            for partition, offset in committed.items():
                least, count = lowest.get(partition, (offset, 0))
                lowest[partition] = (min(least, offset), count + 1)
        reply = ConsumedReply(None, groups, lowest)
        self._table.respond(token, reply, self._table.queue.newest)
        return self._table.done()

    def evict(
        self, token: Token, topic_id: str, lowest: Mapping[int, int], *, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        """No group stays below `lowest`, by partition of the topic (F162).

        Members that hold such a partition are removed, as by an operator (C6): they are told that
        it is lost, and begin where their group is now (RB14). What they commit late is refused.
        """
        if self._table.refuses is not None:
            return [Respond(token, EvictReply(self._table.refuses))]
        groups = offsets = 0
        for group_id, group in self._table.groups.items():
            moved = group.offsets.evict(topic_id, lowest)
            if not moved:
                continue
            groups += 1
            offsets += sum(by for by, _ in moved.values())
            self._table.append(group_id, group, [record for _, record in moved.values()])
            state = group.core.state
            held = {holder for key in moved if (holder := state.holders[key.slot]) is not None}
            members = [state.members[name] for name in sorted({one.member_id for one in held})]
            self._table.perform(group_id, group, group.core.remove(members, now_s), now_ms)
        self._table.respond(token, EvictReply(None, groups, offsets), self._table.queue.newest)
        return self._table.done()

    def positions(self, token: Token, partitions_max: int) -> list[PartitionAction]:
        """Where each group goes on in each partition of topics that exist (M4), once it is durable.

        What would be beyond `partitions_max` is left out, a topic of a group as a whole.
        """
        table = self._table
        if table.refuses is not None:
            return [Respond(token, PositionsReply(table.refuses))]
        told: list[GroupPositions] = []
        room, topics_left, partitions_left = partitions_max, 0, 0
        for group_id, group in sorted(table.groups.items()):
            topics: list[TopicPositions] = []
            for topic in _positions(group, table.directory):
                count = len(topic.committed)
                if count <= room:
                    room -= count
                    topics.append(topic)
                else:
                    topics_left += 1
                    partitions_left += count
            members = len(group.core.state.members)
            told.append(GroupPositions(group_id, members, tuple(topics)))
        left_out = LeftOut(topics_left, partitions_left)
        table.respond(token, PositionsReply(None, tuple(told), left_out), table.queue.newest)
        return table.done()


def _positions(group: Group, directory: TopicDirectory) -> Iterator[TopicPositions]:
    """By topic, in the order of their names; what was committed in an earlier life is no place."""
    by_topic: dict[str, dict[int, int | None]] = {}
    state = group.core.state
    subscriptions = {one.subscription[:2]: one.subscription for one in state.members.values()}
    subscribed = {name for one in subscriptions.values() for name in directory.names(one)}
    names = {directory.topics[name][0]: name for name in subscribed}
    read = [slot for target in state.target.values() for slot in target]
    read += [slot for slot, _ in state.holders.items()]
    for slot in read:
        name = names.get(slot.topic_id, "")
        if directory.has(name, slot):
            by_topic.setdefault(name, {})[slot.partition] = None
    for name, slots in group.offsets.topics().items():
        for slot in slots:
            found = group.offsets.get(slot)
            if found is not None and directory.has(name, slot):
                by_topic.setdefault(name, {})[slot.partition] = found.offset
    for name, committed in sorted(by_topic.items()):
        topic_id, known = directory.topics[name]
        kept = {n: committed[n] for n in sorted(committed) if n not in known.removed}
        if kept:
            yield TopicPositions(name, topic_id, kept)
