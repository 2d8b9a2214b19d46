"""What the records of one group hold, as they are changed, replayed and written anew (RB8).

Every change goes through here and leaves its record: `drain` hands out the records of one event,
the newest of each key. Indexes that follow from the records are kept beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from octavo.proto.group_records import (
    AssignmentRecord,
    GroupRecord,
    Kind,
    MemberRecord,
    Record,
    Slot,
    Subscription,
    TargetRecord,
    Value,
)
from octavo.runtime.invariant import invariant
from octavo.serving.groups.assignors import Target
from octavo.serving.groups.member import Holder, Holders, Member, MemberState


class GroupState:
    """Epochs, members, targets, and who holds what."""

    def __init__(self) -> None:
        self.epoch = 0
        self.target_epoch = 0
        self.topics_hash = 0
        """Of what was read when `epoch` rose last."""
        self.later: dict[str, int] = {}
        """By topic id the first of the partitions that came to be while the group had members: what
        is in them was sent behind its subscription (F6)."""
        self.members: dict[str, Member] = {}
        self.target: dict[str, dict[Slot, None]] = {}
        """By member id. Only of members; a new one has none until the first is computed."""
        self.holders = Holders()
        self.instances: dict[str, str] = {}
        """Instance id to member id, of members that are there or will be back."""
        self._wanted: dict[Slot, str] = {}
        """Slot to the member whose target it is."""
        self._records: dict[tuple[Kind, str], Record] = {}
        self._changed: dict[str, Member] = {}
        """Members whose assignment changed in this event."""

    def instance_of(self, instance_id: str | None) -> Member | None:
        """The member that has that instance id."""
        return self.members.get(self.instances.get(instance_id or "", ""))

    def state_of(self, member_id: str) -> MemberState:
        """How far a member is on its way to its target."""
        return self.members[member_id].state(self.target.get(member_id, {}))

    @property
    def stable(self) -> bool:
        """Whether every member is where it shall be (O6)."""
        return self.target_epoch == self.epoch and all(
            self.state_of(name) is MemberState.STABLE for name in self.members
        )

    def wanting(self, slots: Iterable[Slot]) -> list[Member]:
        """Members whose target has one of the slots."""
        names = dict.fromkeys(self._wanted[slot] for slot in slots if slot in self._wanted)
        return [self.members[name] for name in names]

    # -- changes

    def came_later(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        """Numbers of partitions of the topics that are read, by id, before and after a change that
        was not the members'. An epoch that rises stores it."""
        for topic_id, partitions in now.items():
            first = before.get(topic_id, 0)
            if partitions > first:
                self.later[topic_id] = min(first, self.later.get(topic_id, first))

    def raise_epoch(self, topics_hash: int, read: Collection[str]) -> None:
        """RB1. Without members there is no target to come (RB9), and no subscription (F6)."""
        self.epoch += 1
        self.topics_hash = topics_hash
        self.later = {one: first for one, first in self.later.items() if one in read}
        if not self.members:
            self.target_epoch = self.epoch
        self._put_group()

    def declare(self, member: Member, instance_id: str | None, subscription: Subscription) -> None:
        """What a member says of itself; it becomes known if it was not."""
        old = member.instance_id
        if old is not None and self.instances.get(old) == member.member_id:
            del self.instances[old]
        member.instance_id, member.subscription = instance_id, subscription
        if instance_id is not None:
            self.instances[instance_id] = member.member_id
        self.members[member.member_id] = member
        self._put(Kind.MEMBER, member.member_id, member.declared())

    def changed(self, member: Member) -> None:
        """Its assignment is not what its record says."""
        self._changed[member.member_id] = member

    def free(self, member: Member) -> list[Slot]:
        """Everything that it held is nobody's."""
        freed = self.holders.free(member.held(), member.member_id)
        member.owned.clear()
        member.pending.clear()
        self.changed(member)
        return freed

    def forget(self, member: Member) -> None:
        """A member that holds nothing goes."""
        member_id = member.member_id
        invariant(not member.held(), f"{member_id} goes and holds {member.held()}")
        del self.members[member_id]
        if self.instances.get(member.instance_id or "") == member_id:
            del self.instances[str(member.instance_id)]
        self._changed.pop(member_id, None)
        self.retarget(member_id, None)
        self._put(Kind.ASSIGNMENT, member_id, None)
        self._put(Kind.MEMBER, member_id, None)

    def retarget(self, member_id: str, slots: dict[Slot, None] | None) -> None:
        """What a member shall own, kept as it is given; None: it has no target."""
        old = self.target.pop(member_id, None)
        for slot in old or ():
            if self._wanted.get(slot) == member_id:
                del self._wanted[slot]
        if slots is not None:
            self.target[member_id] = slots
            self._wanted.update(dict.fromkeys(slots, member_id))
            self._put(Kind.TARGET, member_id, TargetRecord(tuple(slots)))
        elif old is not None:
            self._put(Kind.TARGET, member_id, None)

    def store_target(self, epoch: int, target: Target) -> None:
        """A computed target. Who joined since it was asked for keeps of its old one what is left,
        which only a static member that was replaced has; the next target finds it there."""
        joined = [member_id for member_id in self.members if member_id not in target]
        if joined:
            taken = {slot for m, slots in target.items() if m in self.members for slot in slots}
            left = {
                m: [slot for slot in self.target.get(m, ()) if slot not in taken] for m in joined
            }
            target = {**target, **{m: tuple(slots) for m, slots in left.items()}}
        for member_id in self.members:
            old, new = self.target.get(member_id), dict.fromkeys(target[member_id])
            if old is None or old.keys() != new.keys():
                self.retarget(member_id, new)
        self.target_epoch = epoch
        self._put_group()

    def drain(self) -> tuple[Record, ...]:
        """Records of everything that changed since the last call."""
        for member_id, member in self._changed.items():
            self._put(Kind.ASSIGNMENT, member_id, member.assignment())
        self._changed.clear()
        records = tuple(self._records.values())
        self._records.clear()
        return records

    def _put_group(self) -> None:
        self._put(Kind.GROUP, "", self._group())

    def _group(self) -> GroupRecord:
        later = tuple(sorted(self.later.items()))
        return GroupRecord(self.epoch, self.target_epoch, self.topics_hash, later=later)

    def _put(self, kind: Kind, member_id: str, value: Value | None) -> None:
        self._records.pop((kind, member_id), None)
        self._records[kind, member_id] = Record(kind, member_id, value)

    # -- take-over and compaction

    def replay(self, record: Record) -> None:
        """A record, in the order of the log; compaction leaves the newest of each key (RB8)."""
        member_id = str(record.subject)
        match record.value:
            case GroupRecord(epoch, target_epoch, topics_hash, _, later):
                self.epoch, self.target_epoch = epoch, target_epoch
                self.topics_hash, self.later = topics_hash, dict(later)
            case MemberRecord(instance_id, subscription):
                member = self._replayed(member_id)
                member.instance_id, member.subscription = instance_id, subscription
            case TargetRecord(slots):
                self.target[member_id] = dict.fromkeys(slots)
            case AssignmentRecord():
                self._replayed(member_id).restore(record.value)
            case _ if record.kind is Kind.MEMBER:
                self.members.pop(member_id, None)
            case _ if record.kind is Kind.TARGET:
                self.target.pop(member_id, None)
            case _ if record.kind is Kind.GROUP:
                self.epoch = self.target_epoch = self.topics_hash = 0  # its members went before
                self.later = {}
            case _:
                pass  # an assignment goes with its member

    def _replayed(self, member_id: str) -> Member:
        """A member's records come in any order once compaction left only some of them."""
        fresh = Member(member_id, None, Subscription())
        return self.members.setdefault(member_id, fresh)

    def loaded(self) -> None:
        """Everything was replayed: what follows from the records, of an event cut short too."""
        for member_id, member in self.members.items():
            for slot, epoch in member.held():
                self.holders.take(slot, Holder(member_id, epoch))
            if member.instance_id is not None:
                self.instances[member.instance_id] = member_id
        self._wanted = {slot: m for m, slots in self.target.items() for slot in slots}
        for member_id, slots in list(self.target.items()):
            mine = {slot: None for slot in slots if self._wanted.get(slot) == member_id}
            if len(mine) < len(slots):  # it is computed again
                self.retarget(member_id, mine)

    def snapshot(self) -> Iterable[Record]:
        """Records that replay to this state, whatever was in front of them is left out."""
        yield from self.snapshot_of_group()
        yield from self.snapshot_of(self.members)

    def snapshot_of_group(self) -> Iterable[Record]:
        """The record of the group itself; none before its first epoch."""
        if self.epoch:
            yield Record(Kind.GROUP, "", self._group())

    def snapshot_of(self, member_ids: Iterable[str]) -> Iterable[Record]:
        """Records of members, of those that are still there."""
        for member_id in member_ids:
            member, target = self.members.get(member_id), self.target.get(member_id)
            if member is not None:
                yield Record(Kind.MEMBER, member_id, member.declared())
                yield Record(Kind.ASSIGNMENT, member_id, member.assignment())
            if target is not None:
                yield Record(Kind.TARGET, member_id, TargetRecord(tuple(target)))

    def validate(self) -> None:
        """GP-1, GP-2 and that every index says the same. Raises InvariantViolation."""
        held: dict[Slot, Holder] = {}
        instances: dict[str, str] = {}
        for member_id, member in self.members.items():
            invariant(
                0 <= member.epoch <= self.target_epoch <= self.epoch,
                f"GP-2: {member_id} {member.epoch}, target {self.target_epoch}, {self.epoch}",
            )
            invariant(not member.owned.keys() & member.pending.keys(), "owned and pending")
            if member.instance_id is not None:
                instances[member.instance_id] = member_id
            for slot, epoch in member.held():
                invariant(slot not in held, f"GP-1: {slot} is held twice")
                held[slot] = Holder(member_id, epoch)
        invariant(held == dict(self.holders.items()), "RB4: holders and members disagree")
        invariant(instances == self.instances, "instance ids and members disagree")
        invariant(self.target.keys() <= self.members.keys(), "a stranger has a target")
        wanted = {slot: m for m, slots in self.target.items() for slot in slots}
        invariant(wanted == self._wanted, "the target and its index disagree")
        invariant(
            len(wanted) == sum(map(len, self.target.values())), "two members' targets share a slot"
        )
        invariant(self.members or not self.later, "F6: partitions came later than nobody")
        invariant(not self._changed and not self._records, "records were left behind")
