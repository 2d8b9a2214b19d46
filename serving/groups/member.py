"""One member as its coordinator knows it, and its next step toward the target (RB3, RB4)."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.proto.group_records import AssignmentRecord, MemberRecord, Slot, Subscription
from octavo.runtime.invariant import invariant


class MemberState(enum.StrEnum):
    """How far a member is on its way to the target."""

    REVOKING = "revoking"
    WAITING = "waiting"
    STABLE = "stable"


class Holder(NamedTuple):
    """Who owns a slot or still has to give it up, and since which member epoch."""

    member_id: str
    epoch: int


class Holders:
    """Slot to holder, owned and pending alike; at most one each (GP-1, RB4)."""

    def __init__(self) -> None:
        self._of: dict[Slot, Holder] = {}

    def __getitem__(self, slot: Slot) -> Holder | None:
        return self._of.get(slot)

    def take(self, slot: Slot, holder: Holder) -> None:
        """A free slot. InvariantViolation when it is not."""
        has = self._of.setdefault(slot, holder)
        if has is not holder:  # words for each of 10,000 slots would take longer than the rest
            invariant(False, f"GP-1: {slot} was given to {holder} and is held by {has}")

    def free(self, slots: Iterable[tuple[Slot, int]], member_id: str) -> list[Slot]:
        """What that member held since that epoch, nothing else (RB4). The slots that are free."""
        freed: list[Slot] = []
        for slot, epoch in slots:
            if self._of.get(slot) == Holder(member_id, epoch):
                del self._of[slot]
                freed.append(slot)
        return freed

    def items(self) -> Collection[tuple[Slot, Holder]]:
        """All of them."""
        return self._of.items()


@dataclass(slots=True)
class Member:
    """State of one member, all of it in its records."""

    member_id: str
    instance_id: str | None
    subscription: Subscription
    epoch: int = 0
    previous_epoch: int = 0
    joined_epoch: int = 0
    """Group epoch of its join. It takes no step toward an older target, so that no member epoch of
    an earlier life of the same id comes again."""
    number: int = 0
    sequence: int = 0
    left: bool = False
    owned: dict[Slot, int] = field(default_factory=lambda: dict[Slot, int]())
    pending: dict[Slot, int] = field(default_factory=lambda: dict[Slot, int]())

    def held(self) -> list[tuple[Slot, int]]:
        """What nobody else may have."""
        return [*self.owned.items(), *self.pending.items()]

    def held_slots(self) -> set[Slot]:
        """The same without epochs."""
        return {*self.owned, *self.pending}

    def declared(self) -> MemberRecord:
        """Its record of what it declared."""
        return MemberRecord(self.instance_id, self.subscription)

    def assignment(self) -> AssignmentRecord:
        """Its record of what it owns."""
        return AssignmentRecord(
            self.epoch,
            self.previous_epoch,
            self.joined_epoch,
            self.number,
            self.sequence,
            self.left,
            tuple(sorted(self.owned.items())),
            tuple(sorted(self.pending.items())),
        )

    def restore(self, record: AssignmentRecord) -> None:
        """What a record says it owns."""
        self.epoch, self.previous_epoch = record.epoch, record.previous_epoch
        self.joined_epoch = record.joined_epoch
        self.number, self.sequence, self.left = record.number, record.sequence, record.left
        self.owned, self.pending = dict(record.owned), dict(record.pending)

    def awaits_first_target(self, instance_id: str | None, subscription: Subscription) -> bool:
        """Whether it joined so, and got nothing yet."""
        return (
            self.epoch == 0
            and not self.left
            and not self.held()
            and (self.instance_id, self.subscription) == (instance_id, subscription)
        )

    def returns(self, instance_id: str | None, subscription: Subscription) -> bool:
        """Whether it said that it would be back, and who joins is that (RB6)."""
        same = self.instance_id == instance_id and self.subscription.same_reading(subscription)
        return self.left and same

    def state(self, target: Collection[Slot]) -> MemberState:
        """How far it is on its way to its target."""
        if self.pending or any(slot not in target for slot in self.owned):
            return MemberState.REVOKING
        if len(self.owned) < len(target):
            return MemberState.WAITING
        return MemberState.STABLE


class Step(NamedTuple):
    """What one evaluation changed."""

    changed: bool
    freed: list[Slot]


def released(member: Member, holders: Holders, owned: frozenset[Slot] | None, applied: int) -> Step:
    """What the member says it gave up: everything pending, or not yet (RB3.2).

    It must have carried out the assignment that asked for it, and own none of it any more.
    """
    if not member.pending or owned is None or applied < member.number:
        return Step(False, [])
    if not owned.isdisjoint(member.pending):
        return Step(False, [])
    freed = holders.free(member.pending.items(), member.member_id)
    member.pending.clear()
    return Step(True, freed)


def reconcile(
    member: Member, target: Mapping[Slot, None], target_epoch: int, holders: Holders
) -> bool:
    """RB3: the member's next step toward its target; whether anything changed."""
    before = (member.epoch, len(member.owned), len(member.pending))
    told = set(member.owned)
    for slot in [slot for slot in member.pending if slot in target]:
        member.owned[slot] = member.pending.pop(slot)  # RB4: its old epoch, it never was free
    for slot in [slot for slot in member.owned if slot not in target]:
        member.pending[slot] = member.owned.pop(slot)
    if not member.pending:
        if member.epoch != target_epoch:
            member.previous_epoch, member.epoch = member.epoch, target_epoch
        for slot in target:
            if slot not in member.owned and holders[slot] is None:
                holders.take(slot, Holder(member.member_id, member.epoch))
                member.owned[slot] = member.epoch
    if told != member.owned.keys():
        member.number += 1
        return True
    return before != (member.epoch, len(member.owned), len(member.pending))
