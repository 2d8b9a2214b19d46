"""The groups of one partition, their records on the way into the log, and their deadlines. Pure.

What the events of `partition_core` have in common: each change of a group leaves its records here,
stamped with the wall clock, and each answer waits for the records that it depends on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from octavo.proto.group_records import GroupRecord, Kind, Record, Slot
from octavo.runtime.invariant import invariant
from octavo.serving.groups.append_queue import AppendQueue, AppendRecords, Respond, Unstored
from octavo.serving.groups.core import Action, Append, Compute, GroupCore
from octavo.serving.groups.deadlines import Deadlines, Due, DueKey
from octavo.serving.groups.held import Answer
from octavo.serving.groups.offsets import CommittedOffsets
from octavo.serving.groups.request_checks import PartitionLimits, is_name
from octavo.serving.groups.topics import TopicDirectory, subscribes
from octavo.serving.groups.values import HeartbeatReply, Refusal, Reply, Token


class ComputeTarget(NamedTuple):
    """Compute a target, and tell `computed` with this number."""

    number: int
    order: Compute


PartitionAction = AppendRecords | Respond | ComputeTarget


@dataclass(slots=True)
class Group:
    """One group at its coordinator."""

    core: GroupCore
    unstored: int
    """Number of the batch with its newest record."""
    offsets: CommittedOffsets
    empty_since_ms: int | None = None


class GroupTable:
    """By group id."""

    def __init__(self, limits: PartitionLimits, directory: TopicDirectory) -> None:
        self.limits = limits
        self.directory = directory
        self.refuses: Refusal | None = Refusal.COORDINATOR_LOAD_IN_PROGRESS
        """Why nobody is served; None while the partition is coordinated here."""
        self.groups: dict[str, Group] = {}
        self.queue = AppendQueue(limits.batch_bytes_max)
        self.forgotten = 0
        """Number of the batch with the newest tombstone of a group."""
        self.deadlines = Deadlines()
        self.computing: dict[int, tuple[str, GroupCore, int]] = {}
        """By number of the order: whose, and of which epoch."""
        self._orders = 0
        self._actions: list[PartitionAction] = []

    # -- requests

    def refusal(self, group_id: str, *names: str | None) -> Refusal | None:
        """What is wrong with any request (C1)."""
        if self.refuses is not None:
            return self.refuses
        if not is_name(group_id, self.limits):
            return Refusal.INVALID_GROUP_ID
        if not all(name is None or is_name(name, self.limits) for name in names):
            return Refusal.INVALID_REQUEST
        return Refusal.THROTTLED if self.queue.size >= self.limits.unstored_max else None

    @property
    def is_full(self) -> bool:
        """Whether no further group can be kept."""
        return len(self.groups) >= self.limits.groups_max

    def respond(self, token: Token, reply: Reply, after: int) -> None:
        """Answer once that batch is durable."""
        self._actions += self.queue.respond(token, reply, after)

    def done(self) -> list[PartitionAction]:
        """The actions of an event."""
        actions, self._actions = self._actions, []
        return [*actions, *self.queue.start()]

    # -- changes

    def add(self, group_id: str) -> Group:
        """A new group, of which nothing is stored yet."""
        core = GroupCore(self.limits.group, self.directory)
        group = self.groups[group_id] = Group(core, self.forgotten, CommittedOffsets())
        return group

    def perform(self, group_id: str, group: Group, actions: Iterable[Action], now_ms: int) -> None:
        """Actions of a group, in their order."""
        if group.core.state.members or not group.core.state.epoch:
            group.empty_since_ms = None
        elif group.empty_since_ms is None:
            group.empty_since_ms = now_ms
        for action in actions:
            match action:
                case Append(records):
                    self.append(group_id, group, records)
                case Answer(token, reply):
                    self.respond(token, reply, group.unstored)
                case Compute(epoch):
                    self._orders += 1
                    self.computing[self._orders] = (group_id, group.core, epoch)
                    self._actions.append(ComputeTarget(self._orders, action))
        key = DueKey(Due.GROUP, group_id)
        if (at_s := group.core.next_deadline_s()) is None:
            self.deadlines.clear(key)
        else:
            self.deadlines.set(key, at_s)

    def append(self, group_id: str, group: Group, records: Iterable[Record]) -> None:
        """Records of one event of a group."""
        given = [Unstored(group_id, stamped(group, record)) for record in records]
        if given:
            group.unstored = self.queue.add(given)

    def remove_offsets(self, group_id: str, group: Group, slots: Collection[Slot]) -> None:
        """A group that had nothing else goes with them."""
        self.append(group_id, group, group.offsets.remove(slots))
        if not group.core.state.epoch and not group.offsets:
            self.forget(group_id, group)

    def forget(self, group_id: str, group: Group) -> None:
        """A group without members goes, and its offsets."""
        records = group.offsets.remove(list(group.offsets))
        if group.core.state.epoch:
            records.append(Record(Kind.GROUP, "", None))
        self.append(group_id, group, records)
        self.forgotten = max(self.forgotten, group.unstored)
        del self.groups[group_id]
        self.deadlines.clear(DueKey(Due.GROUP, group_id))

    def expire(self, now_ms: int) -> None:
        """O6: offsets that nobody came for, and groups that hold nothing any more."""
        limits = self.limits
        for group_id, group in list(self.groups.items()):
            state = group.core.state
            if not state.stable:
                continue
            spared = {
                topic
                for topic in group.offsets.topics()
                if subscribes(state.members.values(), self.directory, topic)
            }
            before_ms = now_ms - limits.offsets_retention_ms
            gone = group.offsets.expired(before_ms, group.empty_since_ms, spared)
            self.remove_offsets(group_id, group, gone)
            since_ms = group.empty_since_ms
            # Not at once: a group that begins anew counts its epochs from one again.
            old = since_ms is not None and now_ms - since_ms >= limits.offsets_check_interval_ms
            if old and not group.offsets:
                self.forget(group_id, group)

    def stored(self, number: int) -> None:
        """That batch is durable; of a partition that was lost nothing is."""
        if self.refuses is None:
            self._actions += self.queue.stored(number)

    def lose(self) -> None:
        """Somebody else coordinates the partition, or will: everybody who waits is told."""
        self.refuses = Refusal.NOT_COORDINATOR
        self._actions += self.queue.lose()
        for group in self.groups.values():
            self._actions += [
                Respond(token, HeartbeatReply(Refusal.NOT_COORDINATOR))
                for token in group.core.drop()
            ]
        self.groups.clear()
        self.computing.clear()
        self.deadlines = Deadlines()

    def validate(self) -> None:
        """Every group's promises. Raises InvariantViolation."""
        for group_id, group in self.groups.items():
            group.core.validate()
            state = group.core.state
            invariant(state.epoch or group.offsets, f"{group_id} is nothing")
            empty = bool(state.epoch) and not state.members
            invariant(empty == (group.empty_since_ms is not None), f"{group_id}: since when empty?")
        invariant(not self._actions, "actions were left behind")


def stamped(group: Group, record: Record) -> Record:
    """With the wall clock, of which a group's core knows nothing."""
    if not isinstance(record.value, GroupRecord):
        return record
    return record._replace(value=record.value._replace(empty_since_ms=group.empty_since_ms))
