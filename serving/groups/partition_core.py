"""The groups of one partition of `__consumer_offsets` at its coordinator (RB7 to RB9, O1 to O8).

Pure: the shell tells what it read from the log (`replay`, then `loaded`), what clients ask, that a
batch is durable (`stored`), that the partition is not its own any more (`lost`), and the time, in
milliseconds of the wall clock for what is stored and in monotonic seconds for deadlines (G5). It
carries out the actions in their order:

* `AppendRecords`: one batch at a time. Of unknown fate counts as lost: then nothing that was not
  durable was told to anybody, and whoever comes next reads what became of it (G2).
* `Respond`: answers leave the core only when what they tell is durable (RB8); the shell adds a
  proof of ownership to those that did not wait for an append of their own (G3).
* `ComputeTarget`: beside the loop (RB2), then `computed`.

Commits change the state at once and are answered when durable; a fetch of the same group waits for
them. After `lost` everything is answered with NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from octavo.proto.group_records import (
    GroupRecord,
    Kind,
    OffsetRecord,
    Slot,
    StoredRecord,
    decode,
    encode,
)
from octavo.serving.groups.append_queue import Respond
from octavo.serving.groups.assignors import Target
from octavo.serving.groups.compaction import Compaction
from octavo.serving.groups.deadlines import Due, DueKey
from octavo.serving.groups.descriptions import described, listed
from octavo.serving.groups.fencing import fetch_refusal
from octavo.serving.groups.group_table import Group, GroupTable, PartitionAction, stamped
from octavo.serving.groups.member import Member
from octavo.serving.groups.offsets import CommittedOffsets
from octavo.serving.groups.progress import GroupProgress
from octavo.serving.groups.request_checks import PartitionLimits, makes_sense, offset_error
from octavo.serving.groups.topics import TopicDirectory, subscribes
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    CommitReply,
    Committer,
    CompactReply,
    DeleteReply,
    DescribeReply,
    FetchReply,
    Heartbeat,
    HeartbeatReply,
    ListReply,
    MemberName,
    OffsetToCommit,
    Refusal,
    RemoveReply,
    Token,
)


def _commit_refusal(
    group: Group | None, who: Committer, offsets: Iterable[OffsetToCommit], now_s: float
) -> Refusal | None:
    if who.member_id is None:  # O3: only while nobody is a member
        return Refusal.UNKNOWN_MEMBER_ID if group and group.core.state.members else None
    if group is None:
        return Refusal.UNKNOWN_MEMBER_ID
    return group.core.commit(who, [one.key.slot for one in offsets], now_s)


class GroupPartitionCore:
    """State machine of one partition of groups. Not for several threads."""

    def __init__(self, limits: PartitionLimits, directory: TopicDirectory) -> None:
        self._limits = limits
        self._table = GroupTable(limits, directory)
        self.progress = GroupProgress(self._table)
        self._compaction: Compaction | None = None

    def next_deadline_s(self) -> float | None:
        """When `tick` is due."""
        return self._table.deadlines.next_s()

    # -- the log

    def replay(self, stored: StoredRecord) -> None:
        """A record of the partition, in order. Raises UnsupportedVersion, CorruptEntry."""
        group_id, record = decode(stored)
        group = self._table.groups.get(group_id) or self._table.add(group_id)
        if record.kind is Kind.OFFSET:
            group.offsets.replay(record)
            return
        group.core.state.replay(record)
        if record.kind is Kind.GROUP:
            value = record.value
            empty = value.empty_since_ms if isinstance(value, GroupRecord) else None
            group.empty_since_ms = empty

    def loaded(self, now_ms: int, now_s: float) -> list[PartitionAction]:
        """The partition was read to its end (O8): serve."""
        self._table.refuses = None
        for group_id, group in list(self._table.groups.items()):
            if not group.core.state.epoch and not group.offsets:
                del self._table.groups[group_id]
            else:
                self._table.perform(group_id, group, group.core.loaded(now_s), now_ms)
        key = DueKey(Due.OFFSETS, "")
        self._table.deadlines.set(key, now_s + self._limits.offsets_check_interval_ms / 1000)
        return self._table.done()

    def stored(self, number: int) -> list[PartitionAction]:
        """A batch is durable."""
        self._table.stored(number)
        return self._table.done()

    def lost(self) -> list[PartitionAction]:
        """An append failed or its fate is unknown, or somebody else owns the partition (G2)."""
        self._compaction = None
        self._table.lose()
        return self._table.done()

    def snapshot(self) -> tuple[StoredRecord, ...]:
        """What compaction leaves of all records up to now: appended after them, they are void."""
        records: list[StoredRecord] = []
        for group_id, group in self._table.groups.items():
            of_group = [*group.core.state.snapshot(), *group.offsets.snapshot()]
            records += [encode(group_id, stamped(group, record)) for record in of_group]
        return tuple(records)

    @property
    def next_batch(self) -> int:
        """Number of the batch that is appended next: a compaction that begins now begins there."""
        return self._table.queue.next_started

    def compact(self, token: Token) -> list[PartitionAction]:
        """Write the next piece of the state anew, of the compaction under way or of a new one.

        The answer comes when the piece is stored.
        """
        if self._table.refuses is not None:
            return [Respond(token, CompactReply(self._table.refuses))]
        compaction = self._compaction or Compaction(self._table)
        is_last = compaction.write()
        self._compaction = None if is_last else compaction
        newest = self._table.queue.newest
        self._table.respond(token, CompactReply(None, is_last), newest)
        return self._table.done()

    # -- members

    def heartbeat(
        self, token: Token, group_id: str, heartbeat: Heartbeat, *, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        """RB3, RB6."""
        group = self._table.groups.get(group_id)
        joins = heartbeat.epoch == JOIN_EPOCH
        names = (heartbeat.member_id, heartbeat.instance_id)
        refusal = self._table.refusal(group_id, *names)
        if refusal is None and not makes_sense(heartbeat.subscription):
            refusal = Refusal.INVALID_REQUEST
        if refusal is None and group is None:
            if not joins:
                refusal = Refusal.UNKNOWN_MEMBER_ID
            elif self._table.is_full:
                refusal = Refusal.GROUP_LIMIT_REACHED
        if refusal is not None:
            return [Respond(token, HeartbeatReply(refusal))]
        group = group or self._table.add(group_id)
        self._table.perform(group_id, group, group.core.heartbeat(token, heartbeat, now_s), now_ms)
        return self._table.done()

    def withdraw(self, token: Token, group_id: str, member_id: str) -> None:
        """The client of that heartbeat is gone: what is held for it is let go unanswered."""
        group = self._table.groups.get(group_id)
        if group is not None:
            group.core.held.withdraw(member_id, token)

    def remove_members(
        self,
        token: Token,
        group_id: str,
        names: Collection[MemberName],
        *,
        now_ms: int,
        now_s: float,
    ) -> list[PartitionAction]:
        """C6: an operator removes members; the others go although one is not known."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id)
        if refusal is None and group is None:
            refusal = Refusal.GROUP_ID_NOT_FOUND
        if refusal is not None or group is None:
            return [Respond(token, RemoveReply(refusal))]
        state = group.core.state
        found: dict[str, Member] = {}
        unknown: set[MemberName] = set()
        for name in names:
            member = state.members.get(name.member_id) or state.instance_of(name.instance_id)
            if member is None:
                unknown.add(name)
            else:
                found[member.member_id] = member
        self._table.perform(group_id, group, group.core.remove(found.values(), now_s), now_ms)
        self._table.respond(token, RemoveReply(None, frozenset(unknown)), group.unstored)
        return self._table.done()

    def describe(self, token: Token, group_id: str) -> list[PartitionAction]:
        """What the group is now."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id)
        if refusal is None and group is None:
            refusal = Refusal.GROUP_ID_NOT_FOUND
        if refusal is not None or group is None:
            return [Respond(token, DescribeReply(refusal))]
        found = described(group_id, group.core.state, group.empty_since_ms)
        self._table.respond(token, DescribeReply(None, found), group.unstored)
        return self._table.done()

    def list_groups(self, token: Token) -> list[PartitionAction]:
        """Every group of the partition."""
        if self._table.refuses is not None:
            return [Respond(token, ListReply(self._table.refuses))]
        groups = sorted(self._table.groups.items())
        found = tuple(listed(group_id, group.core.state) for group_id, group in groups)
        self._table.respond(token, ListReply(None, found), self._table.queue.newest)
        return self._table.done()

    def topics_changed(
        self, directory: TopicDirectory, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        """Topics, or partitions of topics, came or went (RB1). At most once a second."""
        self._table.directory = directory
        for group_id, group in self._table.groups.items():
            self._table.perform(
                group_id, group, group.core.topics_changed(directory, now_s), now_ms
            )
        return self._table.done()

    def computed(
        self, number: int, target: Target, now_ms: int, now_s: float
    ) -> list[PartitionAction]:
        """The target of that order; of a group that is not that one any more it is dropped."""
        group_id, core, epoch = self._table.computing.pop(number, ("", None, 0))
        group = self._table.groups.get(group_id)
        if group is not None and group.core is core:
            self._table.perform(group_id, group, group.core.computed(epoch, target, now_s), now_ms)
        return self._table.done()

    def tick(self, now_ms: int, now_s: float) -> list[PartitionAction]:
        """Deadlines that have come."""
        for key in self._table.deadlines.due(now_s):
            if key.due is Due.OFFSETS:
                self._table.expire(now_ms)
                self._table.deadlines.set(
                    key, now_s + self._limits.offsets_check_interval_ms / 1000
                )
            elif (group := self._table.groups.get(key.name)) is not None:
                self._table.perform(key.name, group, group.core.tick(now_s), now_ms)
        return self._table.done()

    # -- offsets

    def commit(
        self,
        token: Token,
        group_id: str,
        who: Committer,
        offsets: Sequence[OffsetToCommit],
        *,
        now_ms: int,
        now_s: float,
    ) -> list[PartitionAction]:
        """O2, O3, RB7. Refused as a whole, or stored but for what is wrong by itself."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id) or _commit_refusal(group, who, offsets, now_s)
        if refusal is None and group is None and self._table.is_full:
            refusal = Refusal.GROUP_LIMIT_REACHED
        if refusal is not None:
            return [Respond(token, CommitReply(refusal))]
        errors = {
            one.key.slot: error
            for one in offsets
            if (error := offset_error(one, self._limits, self._table.directory)) is not None
        }
        good = [one for one in offsets if one.key.slot not in errors]
        after = self._table.forgotten
        if good:
            group = group or self._table.add(group_id)
            self._table.append(
                group_id,
                group,
                [
                    group.offsets.put(
                        one.key, OffsetRecord(one.offset, one.owner_epoch, one.metadata, now_ms)
                    )
                    for one in good
                ],
            )
        if group is not None:
            after = group.unstored
        self._table.respond(token, CommitReply(None, errors), after)
        return self._table.done()

    def fetch(
        self, token: Token, group_id: str, who: Committer, slots: Iterable[Slot] | None
    ) -> list[PartitionAction]:
        """O5; None asks for all that were committed. A member is fenced by its epoch."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id)
        if refusal is None and who.member_id is not None:
            refusal = (
                Refusal.UNKNOWN_MEMBER_ID if group is None else fetch_refusal(group.core.state, who)
            )
        if refusal is not None:
            return [Respond(token, FetchReply(refusal))]
        committed = CommittedOffsets() if group is None else group.offsets
        wanted = committed if slots is None else slots
        found = {slot: committed.get(slot) for slot in wanted}
        names = committed.names() if slots is None else {}
        reply = FetchReply(None, found, names)
        after = self._table.forgotten if group is None else group.unstored
        self._table.respond(token, reply, after)
        return self._table.done()

    def delete_offsets(
        self, token: Token, group_id: str, slots: Collection[Slot]
    ) -> list[PartitionAction]:
        """O7: not of a topic that a member subscribes."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id)
        if refusal is None and group is None:
            refusal = Refusal.GROUP_ID_NOT_FOUND
        elif refusal is None and group is not None:
            members = group.core.state.members.values()
            for topic, committed in group.offsets.topics().items():
                touched = not set(slots).isdisjoint(committed)
                if touched and subscribes(members, self._table.directory, topic):
                    refusal = Refusal.GROUP_SUBSCRIBED_TO_TOPIC
        if refusal is not None or group is None:
            return [Respond(token, DeleteReply(refusal))]
        self._table.remove_offsets(group_id, group, slots)
        self._table.respond(token, DeleteReply(None), group.unstored)
        return self._table.done()

    def delete_group(self, token: Token, group_id: str) -> list[PartitionAction]:
        """O7: only one without members."""
        group = self._table.groups.get(group_id)
        refusal = self._table.refusal(group_id)
        if refusal is None and group is None:
            refusal = Refusal.GROUP_ID_NOT_FOUND
        elif refusal is None and group is not None and group.core.state.members:
            refusal = Refusal.NON_EMPTY_GROUP
        if refusal is not None or group is None:
            return [Respond(token, DeleteReply(refusal))]
        self._table.forget(group_id, group)
        self._table.respond(token, DeleteReply(None), self._table.forgotten)
        return self._table.done()

    def topic_deleted(self, topic_id: str) -> list[PartitionAction]:
        """O7: said only when it is certain; a topic that is not in the directory may come."""
        for group_id, group in list(self._table.groups.items()):
            gone = [slot for slot in group.offsets if slot.topic_id == topic_id]
            self._table.remove_offsets(group_id, group, gone)
        return self._table.done()

    def committed_topics(self) -> dict[str, str]:
        """Names of the topics of which offsets are kept, by id."""
        found: dict[str, str] = {}
        for group in self._table.groups.values():
            found |= group.offsets.names()
        return found

    def validate(self) -> None:
        """Every group's promises. Raises InvariantViolation."""
        self._table.validate()
