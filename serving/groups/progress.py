"""How far the groups of one partition of `__consumer_offsets` have read a topic (R5, F162). Pure.

What owners of the topic's partitions ask, and have moved, of all groups together.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.serving.groups.append_queue import Respond
from octavo.serving.groups.group_table import GroupTable, PartitionAction
from octavo.serving.groups.topics import subscribes
from octavo.serving.groups.values import ConsumedReply, EvictReply, Token


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
