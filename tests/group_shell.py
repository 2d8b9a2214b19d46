"""The shell of a partition of groups, as far as its core can tell: a log, a clock, a taker-over.

Judges that no answer tells what is not in the log (RB8), that every request is answered once, and
that whoever reads the log knows what the core knew (GP-7).
"""

from __future__ import annotations

from octavo.proto.group_records import (
    AssignmentRecord,
    Kind,
    OffsetKey,
    OffsetRecord,
    Record,
    Slot,
    StoredRecord,
    decode,
)
from octavo.serving.groups.append_queue import AppendRecords, Respond
from octavo.serving.groups.assignors import SubscribedTopic, assign
from octavo.serving.groups.core import GroupLimits
from octavo.serving.groups.group_table import ComputeTarget, PartitionAction
from octavo.serving.groups.partition_core import GroupPartitionCore
from octavo.serving.groups.request_checks import PartitionLimits
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import (
    NO_MEMBER_EPOCH,
    CommitReply,
    Committer,
    CompactReply,
    ConsumedReply,
    DeleteReply,
    DescribeReply,
    EvictReply,
    FetchReply,
    GroupPositions,
    Heartbeat,
    HeartbeatReply,
    ListReply,
    MemberName,
    OffsetToCommit,
    PositionsReply,
    RemoveReply,
    Reply,
)

LIMITS = PartitionLimits(group=GroupLimits(members_max=10))
NOBODY = Committer(None, NO_MEMBER_EPOCH)


def topics(**partitions: int) -> TopicDirectory:
    return TopicDirectory(
        {name: (f"id-{name}", SubscribedTopic(name, count)) for name, count in partitions.items()}
    )


def key(partition: int, topic: str = "t") -> OffsetKey:
    return OffsetKey(f"id-{topic}", topic, partition)


Known = dict[tuple[str, Kind, object], Record]


def known(records: list[StoredRecord] | tuple[StoredRecord, ...]) -> Known:
    """What a log says at its end, by key."""
    found: Known = {}
    for stored in records:
        group_id, record = decode(stored)
        if record.value is None:
            found.pop((group_id, record.kind, record.subject), None)
            continue
        if isinstance(record.value, AssignmentRecord):  # a heartbeat alone leaves no record
            record = record._replace(value=record.value._replace(sequence=0))
        found[group_id, record.kind, record.subject] = record
    return found


class Shell:
    core_type: type[GroupPartitionCore] = GroupPartitionCore

    def __init__(
        self, directory: TopicDirectory | None = None, limits: PartitionLimits = LIMITS
    ) -> None:
        self.limits = limits
        self.now_ms = 1_700_000_000_000
        self.now_s = 50.0
        self.directory = directory or topics(t=3)
        self.log: list[StoredRecord] = []
        self.under_way: AppendRecords | None = None
        self.orders: list[ComputeTarget] = []
        self.tokens = 0
        self.asked: dict[int, str] = {}
        """Group of each request that waits."""
        self.answers: dict[int, Reply] = {}
        self.proved: dict[int, bool] = {}
        self.offsets: dict[int, tuple[str, tuple[OffsetToCommit, ...]]] = {}
        """What commits said."""
        self.deleting: dict[int, set[tuple[str, Kind, object]]] = {}
        """Keys that deletions are about."""
        self.read: list[tuple[str, Record]] = []
        """The log again, as somebody reads it."""
        self.judged = 0
        self.batch_start = 0
        """Where the newest batch begins in what was read."""
        self.places: dict[int, int] = {}
        """Where each batch of this core begins in the log."""
        self.cut_at: int | None = None
        """Batch in which the compaction that is under way began."""
        self.compacting: int | None = None
        """The token of its piece."""
        self.cuts = 0
        self.core = self.core_type(self.limits, self.directory)
        self.core_is_lost = False
        self.do(self.core.loaded(self.now_ms, self.now_s))

    # -- requests

    def token(self, group_id: str) -> int:
        self.tokens += 1
        self.asked[self.tokens] = group_id
        return self.tokens

    def heartbeat(self, group_id: str, beat: Heartbeat) -> int:
        token = self.token(group_id)
        now = {"now_ms": self.now_ms}
        self.do(self.core.heartbeat(token, group_id, beat, now_s=self.now_s, **now))
        return token

    def commit(self, group_id: str, who: Committer, *offsets: OffsetToCommit) -> int:
        token = self.token(group_id)
        self.offsets[token] = (group_id, offsets)
        self.do(
            self.core.commit(token, group_id, who, offsets, now_ms=self.now_ms, now_s=self.now_s)
        )
        return token

    def fetch(self, group_id: str, who: Committer = NOBODY, *slots: Slot) -> int:
        token = self.token(group_id)
        self.do(self.core.fetch(token, group_id, who, slots or None))
        return token

    def delete_group(self, group_id: str) -> int:
        token = self.token(group_id)
        self.deleting[token] = {name for name in known(self.core.snapshot()) if name[0] == group_id}
        self.do(self.core.delete_group(token, group_id))
        return token

    def delete_offsets(self, group_id: str, *slots: Slot) -> int:
        token = self.token(group_id)
        self.deleting[token] = {
            name
            for name in known(self.core.snapshot())
            if name[0] == group_id and isinstance(name[2], OffsetKey) and name[2].slot in slots
        }
        self.do(self.core.delete_offsets(token, group_id, slots))
        return token

    def describe(self, group_id: str) -> int:
        token = self.token(group_id)
        self.do(self.core.describe(token, group_id))
        return token

    def list_groups(self) -> int:
        token = self.token("")
        self.do(self.core.list_groups(token))
        return token

    def remove_members(self, group_id: str, *names: MemberName) -> int:
        token = self.token(group_id)
        now = {"now_ms": self.now_ms}
        self.do(self.core.remove_members(token, group_id, names, now_s=self.now_s, **now))
        return token

    def evict(self, lowest: dict[int, int], topic_id: str = "id-t") -> int:
        token = self.token("")
        now = {"now_ms": self.now_ms}
        self.do(self.core.progress.evict(token, topic_id, lowest, now_s=self.now_s, **now))
        return token

    def withdraw(self, group_id: str, member_id: str, token: int) -> None:
        self.core.withdraw(token, group_id, member_id)
        self.core.validate()

    def compact(self) -> None:
        """The next piece, or the cut after the last one."""
        if self.compacting is None:
            if self.cut_at is None:
                self.cut_at = self.core.next_batch
            self.compacting = self.token("")
            self.do(self.core.compact(self.compacting))
        reply = self.answers.get(self.compacting)
        if reply is None:
            return
        assert isinstance(reply, CompactReply)
        assert reply.refusal is None
        self.compacting = None
        if reply.is_last and self.under_way is None:  # else it is as if the cut failed
            place = self.places[self.cut_at or 0]
            self.log = self.log[place:]
            self.places = {number: at - place for number, at in self.places.items() if at >= place}
            self.cuts += 1
            self.judge_log()
        if reply.is_last:
            self.cut_at = None

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_ms += int(seconds * 1000)
        self.do(self.core.tick(self.now_ms, self.now_s))

    def change_topics(self, directory: TopicDirectory) -> None:
        self.directory = directory
        self.do(self.core.topics_changed(directory, self.now_ms, self.now_s))

    # -- what the core asks for

    def do(self, actions: list[PartitionAction]) -> None:
        for action in actions:
            match action:
                case AppendRecords():
                    assert self.under_way is None, "one batch at a time"
                    assert action.unstored
                    self.under_way = action
                case Respond(token, reply, proved):
                    assert isinstance(token, int)
                    self.judge(token, self.asked.pop(token), reply)
                    self.answers[token] = reply
                    self.proved[token] = proved
                case ComputeTarget():
                    self.orders.append(action)
        self.core.validate()
        if self.under_way is None and not self.core_is_lost and self.judged != len(self.read):
            self.judged = len(self.read)
            self.judge_log()

    def store(self) -> None:
        """The batch that is under way is durable."""
        if self.under_way is not None:
            batch, self.under_way = self.under_way, None
            self.extend(batch)
            self.do(self.core.stored(batch.number))

    def extend(self, batch: AppendRecords) -> None:
        self.batch_start = len(self.read)
        self.places[batch.number] = len(self.log)
        records = batch.records()
        self.log.extend(records)
        self.read.extend(map(decode, records))

    def compute(self) -> None:
        if self.orders:
            number, order = self.orders.pop(0)
            target = assign(order.assignor, order.members, order.topics, order.previous)
            self.do(self.core.computed(number, target, self.now_ms, self.now_s))

    def settle(self) -> None:
        while self.under_way is not None or self.orders:
            self.store()
            self.compute()

    def reader(self, records: list[StoredRecord] | tuple[StoredRecord, ...]) -> GroupPartitionCore:
        core = self.core_type(self.limits, self.directory)
        for record in records:
            core.replay(record)
        return core

    def crash(self, *, stored: bool, clean: bool = False) -> None:
        """Another broker takes over; the fate of what was under way is its own."""
        batch, self.under_way = self.under_way, None
        if batch is not None and stored:
            self.extend(batch)
        self.core_is_lost = True
        self.do(self.core.lost())
        self.cut_at = self.compacting = None
        self.places.clear()
        self.orders.clear()
        assert not self.asked, f"nobody answers {self.asked}"
        self.core_is_lost = False
        self.core = self.reader(self.compacted() if clean else self.log)
        self.do(self.core.loaded(self.now_ms, self.now_s))

    def compacted(self) -> list[StoredRecord]:
        """The newest record of each key, in the order of the log (K4)."""
        newest = {record.key: number for number, record in enumerate(self.log)}
        return [self.log[number] for number in sorted(newest.values())]

    # -- what must hold

    def judge(self, token: int, group_id: str, reply: Reply) -> None:
        """RB8: whatever is told is in the log."""
        if reply.refusal is not None:
            return
        match reply:
            case CommitReply(_, errors):
                for one in self.offsets[token][1]:
                    if one.key.slot not in errors:
                        self.judge_stored(group_id, one)
            case FetchReply(_, offsets):
                for slot, value in offsets.items():
                    assert value in self.recent(group_id, slot), f"RB8: {value} of {slot} is told"
            case HeartbeatReply(_, epoch, number, assigned):
                if epoch > 0 and assigned is not None:
                    told = f"RB8: epoch {epoch} and {assigned} are told and not stored"
                    assert self.was_stored(group_id, epoch, number, set(assigned)), told
            case DeleteReply():
                gone = {(g, r.kind, r.subject) for g, r in self.read if r.value is None}
                left = self.deleting[token] - gone
                assert not left, f"RB8: nothing says that it is deleted: {left}"
            case (
                RemoveReply()
                | DescribeReply()
                | ListReply()
                | CompactReply()
                | ConsumedReply()
                | EvictReply()
            ):
                pass  # judged by those who ask
            case PositionsReply(_, groups):
                self.judge_positions(groups)

    def judge_positions(self, groups: tuple[GroupPositions, ...]) -> None:
        for told in groups:
            for topic in told.topics:
                for number, offset in topic.committed.items():
                    recent = self.recent(told.group_id, Slot(topic.topic_id, number))
                    values = [one and one.offset for one in recent]
                    assert offset in values, f"RB8: {offset} is told and not stored"

    def judge_stored(self, group_id: str, one: OffsetToCommit) -> None:
        values = [record.value for group, record in self.read if group == group_id]
        offsets = [value.offset for value in values if isinstance(value, OffsetRecord)]
        assert one.offset in offsets, f"RB8: {one} is acknowledged and not stored"

    def recent(self, group_id: str, slot: Slot) -> list[OffsetRecord | None]:
        """Values of a slot before the newest batch, and those of that batch."""
        found: list[OffsetRecord | None] = [None]
        for place, (group, record) in enumerate(self.read):
            subject = record.subject
            if group == group_id and isinstance(subject, OffsetKey) and subject.slot == slot:
                assert record.value is None or isinstance(record.value, OffsetRecord)
                found = [*(found if place >= self.batch_start else []), record.value]
        return found

    def was_stored(self, group_id: str, epoch: int, number: int, assigned: set[Slot]) -> bool:
        """Whether a member has, or had, what it is told; a later record may be there already."""
        return any(
            value.number >= number
            and value.epoch >= epoch
            and (value.number > number or {slot for slot, _ in value.owned} == assigned)
            for group, record in self.read
            if group == group_id and isinstance(value := record.value, AssignmentRecord)
        )

    def judge_log(self) -> None:
        """GP-7, for who reads the log, the compacted log, or a snapshot of all groups."""
        snapshot = self.core.snapshot()
        live = known(snapshot)
        assert live == known(self.log), "the log says something else"
        reader = self.reader(self.compacted() if self.tokens % 2 else snapshot)
        assert known(reader.snapshot()) == live, "GP-7"
        assert known(self.reader(self.log).snapshot()) == live, "GP-7"
