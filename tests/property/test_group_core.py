"""GP-1 to GP-7 in small worlds, in every schedule with one fault and in many with more.

The first sweep is exhaustive: a play of members that come, go and return runs in order, and at each
of its moments each single fault happens once. The second plays schedules of seeds, with faults
everywhere. Planted faults of the core show that the sweeps find what they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from octavo.proto.group_records import AssignmentRecord, GroupRecord, Kind, Record, Slot
from octavo.runtime.errors import InvariantViolation
from octavo.serving.groups import core as core_module
from octavo.serving.groups import fencing
from octavo.serving.groups import member as member_module
from octavo.serving.groups import state as state_module
from octavo.serving.groups.assignors import Target
from octavo.serving.groups.core import GroupCore
from octavo.serving.groups.deadlines import Due, DueKey
from octavo.serving.groups.member import Holders, Member
from octavo.serving.groups.state import GroupState
from octavo.serving.groups.topics import TopicDirectory, reading
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    Committer,
    Heartbeat,
    Refusal,
)
from tests.group_plays import DIRECTED, Play, plays, run
from tests.group_world import (
    World,
)

SEEDS = 240
BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_gp_1_to_7_hold_in_every_schedule(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        run(seed)


def test_gp_1_to_7_hold_with_each_fault_at_each_moment() -> None:
    struck: set[str] = set()
    for moment, fault, victim in plays():
        Play(World(), moment, fault, victim).run()
        struck.add(fault)
    assert len(struck) == 13


@pytest.mark.parametrize("play", DIRECTED)
def test_directed(play: Callable[[World], None]) -> None:
    play(World())


# --- planted faults ----------------------------------------------------------------------------


def _gives_before_revocation(
    member: Member, target: Mapping[Slot, None], target_epoch: int, holders: Holders
) -> bool:
    """What somebody still has is given all the same."""
    for slot in target:
        holder = holders[slot]
        if holder is not None and holder.member_id != member.member_id:
            holders.free([(slot, holder.epoch)], holder.member_id)
    return member_module.reconcile(member, target, target_epoch, holders)


def _forgets_pending(
    member: Member, target: Mapping[Slot, None], target_epoch: int, holders: Holders
) -> bool:
    """A new target forgets what is still to be given up."""
    holders.free(member.pending.items(), member.member_id)
    member.pending.clear()
    return member_module.reconcile(member, target, target_epoch, holders)


def _returns_with_a_new_epoch(
    member: Member, target: Mapping[Slot, None], target_epoch: int, holders: Holders
) -> bool:
    """A slot that the target gives back counts as given anew (RB4)."""
    for slot in member.pending.keys() & target.keys():
        holders.free([(slot, member.pending[slot])], member.member_id)
        member.pending[slot] = target_epoch + 1
        holders.take(slot, member_module.Holder(member.member_id, target_epoch + 1))
    return member_module.reconcile(member, target, target_epoch, holders)


def _drops_what_it_keeps(
    member: Member, target: Mapping[Slot, None], target_epoch: int, holders: Holders
) -> bool:
    """Everything is given up when one slot is: the world stops (GP-4)."""
    if any(slot not in target for slot in member.owned):
        target = {}
    return member_module.reconcile(member, target, target_epoch, holders)


def _released_by_list_alone(
    member: Member, holders: Holders, owned: frozenset[Slot] | None, applied: int
) -> member_module.Step:
    """An owned list counts, whatever assignment it is of."""
    return member_module.released(member, holders, owned, member.number)


def _released_by_any_heartbeat(
    member: Member, holders: Holders, owned: frozenset[Slot] | None, applied: int
) -> member_module.Step:
    """Whoever speaks has given up what it shall."""
    return member_module.released(member, holders, frozenset(), member.number)


def _released_by_number_alone(
    member: Member, holders: Holders, owned: frozenset[Slot] | None, applied: int
) -> member_module.Step:
    """A number counts that was seen, not carried out."""
    return member_module.released(member, holders, frozenset(), applied + 1)


class _ClearsByMember(Holders):
    """What a member gives up clears everything that it has."""

    def free(self, slots: Iterable[tuple[Slot, int]], member_id: str) -> list[Slot]:
        given = list(slots)
        mine = [(s, h.epoch) for s, h in self.items() if h.member_id == member_id and given]
        return super().free(mine, member_id)


def _fences_joins(state: GroupState, members_max: int, heartbeat: Heartbeat) -> Refusal | None:
    """Epoch 0 of a member that it knows is refused."""
    if heartbeat.epoch == JOIN_EPOCH and heartbeat.member_id in state.members:
        return Refusal.FENCED_MEMBER_EPOCH
    return fencing.heartbeat_refusal(state, members_max, heartbeat)


def _takes_stale(state: GroupState, members_max: int, heartbeat: Heartbeat) -> Refusal | None:
    """A heartbeat that was overtaken is carried out."""
    if (member := state.members.get(heartbeat.member_id)) is not None:
        member.sequence = -1
    return fencing.heartbeat_refusal(state, members_max, heartbeat)


def _knows_no_lost_reply(member: Member, heartbeat: Heartbeat) -> bool:
    """A member that is one epoch behind goes on as if it were not."""
    return False


def _fences_one_behind(state: GroupState, members_max: int, beat: Heartbeat) -> Refusal | None:
    """A member that a reply did not reach is fenced."""
    member = state.members.get(beat.member_id)
    if member is not None and 0 < beat.epoch < member.epoch:
        return Refusal.FENCED_MEMBER_EPOCH
    return fencing.heartbeat_refusal(state, members_max, beat)


def _forgets_instances(state: GroupState, members_max: int, beat: Heartbeat) -> Refusal | None:
    """A second holder of an instance id is one member more."""
    if beat.epoch == JOIN_EPOCH and beat.instance_id:
        state.instances.pop(beat.instance_id, None)
    return fencing.heartbeat_refusal(state, members_max, beat)


def _commits_by_membership(
    state: GroupState, who: Committer, slots: Iterable[Slot]
) -> Refusal | None:
    """A member may commit whatever it likes."""
    return fencing.commit_refusal(state, who, ())


def _commits_by_slot(state: GroupState, who: Committer, slots: Iterable[Slot]) -> Refusal | None:
    """Who holds a slot may commit it with any epoch that it ever had."""
    member = state.members.get(who.member_id or "")
    wanted = list(slots)
    if member is not None and all(slot in member.held_slots() for slot in wanted):
        return None
    return fencing.commit_refusal(state, who, wanted)


def _commits_by_newest_epoch(
    state: GroupState, who: Committer, slots: Iterable[Slot]
) -> Refusal | None:
    """A commit needs the newest epoch, whoever joined meanwhile (RB7)."""
    member = state.members.get(who.member_id or "")
    if member is not None and who.epoch != member.epoch:
        return Refusal.STALE_MEMBER_EPOCH
    return fencing.commit_refusal(state, who, slots)


FUNCTIONS: list[tuple[str, object]] = [
    ("reconcile", _gives_before_revocation),
    ("reconcile", _forgets_pending),
    ("reconcile", _returns_with_a_new_epoch),
    ("reconcile", _drops_what_it_keeps),
    ("released", _released_by_list_alone),
    ("released", _released_by_any_heartbeat),
    ("released", _released_by_number_alone),
    ("heartbeat_refusal", _fences_joins),
    ("heartbeat_refusal", _takes_stale),
    ("heartbeat_refusal", _fences_one_behind),
    ("heartbeat_refusal", _forgets_instances),
    ("lost_reply", _knows_no_lost_reply),
    ("commit_refusal", _commits_by_membership),
    ("commit_refusal", _commits_by_slot),
    ("commit_refusal", _commits_by_newest_epoch),
]


class _PassesOverTombstones(GroupState):
    """Who left is there again after a move."""

    def replay(self, record: Record) -> None:
        if record.value is not None:
            super().replay(record)


class _WritesNoSequence(GroupState):
    """A successor does not know which heartbeats were overtaken."""

    def drain(self) -> tuple[Record, ...]:
        return tuple(
            record._replace(value=record.value._replace(sequence=0))
            if isinstance(record.value, AssignmentRecord)
            else record
            for record in super().drain()
        )


class _ForgetsPendingInItsRecord(GroupState):
    """A successor does not know what is still to be given up."""

    def drain(self) -> tuple[Record, ...]:
        return tuple(
            record._replace(value=record.value._replace(pending=()))
            if isinstance(record.value, AssignmentRecord)
            else record
            for record in super().drain()
        )


class _WritesNoTargets(GroupState):
    """A target is told and not stored."""

    def drain(self) -> tuple[Record, ...]:
        return tuple(record for record in super().drain() if record.kind is not Kind.TARGET)


class _WritesNothingOfLaterPartitions(GroupState):
    """Which partitions came behind the subscription is told and not stored."""

    def drain(self) -> tuple[Record, ...]:
        return tuple(
            record._replace(value=record.value._replace(later=()))
            if isinstance(record.value, GroupRecord)
            else record
            for record in super().drain()
        )


class _BumpsOnMove(GroupCore):
    """A move is an event of its own."""

    def loaded(self, now_s: float) -> list[core_module.Action]:
        self.state.topics_hash = 0
        return super().loaded(now_s)


class _MissesTopicsOfTheMove(GroupCore):
    """Topics that changed while nobody was the coordinator stay unseen."""

    def loaded(self, now_s: float) -> list[core_module.Action]:
        directory, self._directory = self._directory, TopicDirectory()
        self.state.topics_hash = reading(self.state.members.values(), self._directory).hash()
        actions = super().loaded(now_s)
        self._directory = directory
        return actions


class _ForgetsToCompute(GroupCore):
    """Bumps during a computation are not computed afterwards."""

    def computed(self, epoch: int, target: Target, now_s: float) -> list[core_module.Action]:
        actions = super().computed(epoch, target, now_s)
        return [action for action in actions if not isinstance(action, core_module.Compute)]


class _ForgetsWhoCameBack(GroupCore):
    """The target of a static member that came back under another id is nobody's."""

    def computed(self, epoch: int, target: Target, now_s: float) -> list[core_module.Action]:
        self._renamed.clear()
        return super().computed(epoch, target, now_s)


class _TakesStepsTowardOldTargets(GroupCore):
    """Who joins again gets slots with an epoch of its earlier life."""

    def _advance(self, member: Member, now_s: float) -> None:
        joined, member.joined_epoch = member.joined_epoch, 0
        super()._advance(member, now_s)
        member.joined_epoch = joined


class _ForgetsWhatWasSeen(GroupCore):
    """The assignments of a member that joins again are numbered anew."""

    def _join(self, heartbeat: Heartbeat, now_s: float) -> None:
        super()._join(heartbeat._replace(seen=0), now_s)


class _NeverEnds(GroupCore):
    """Sessions are not looked after."""

    def tick(self, now_s: float) -> list[core_module.Action]:
        for name in self.state.members:
            self._lives(self.state.members[name], now_s)
        return super().tick(now_s)


class _EndsTooEarly(GroupCore):
    """A held heartbeat does not count as a sign of life."""

    def _lives(self, member: Member, now_s: float) -> None:
        self._deadlines.set(DueKey(Due.SESSION, member.member_id), now_s + 5.0)


CORES: list[type[GroupCore]] = [
    _BumpsOnMove,
    _MissesTopicsOfTheMove,
    _ForgetsToCompute,
    _ForgetsWhoCameBack,
    _TakesStepsTowardOldTargets,
    _ForgetsWhatWasSeen,
    _NeverEnds,
    _EndsTooEarly,
]
STATES: list[type[GroupState]] = [
    _PassesOverTombstones,
    _WritesNoSequence,
    _ForgetsPendingInItsRecord,
    _WritesNoTargets,
    _WritesNothingOfLaterPartitions,
]


def caught(world_type: type[World] = World) -> bool:
    """Whether a sweep finds the fault, the quicker one first."""
    found = (AssertionError, InvariantViolation, KeyError)
    try:
        for play in DIRECTED:
            play(world_type())
        for seed in range(SEEDS):
            run(seed, world_type)
        for moment, fault, victim in plays():
            Play(world_type(), moment, fault, victim).run()
    except found:
        return True
    return False


@pytest.mark.parametrize(("where", "planted"), FUNCTIONS)
def test_a_planted_fault_of_a_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, where: str, planted: object
) -> None:
    monkeypatch.setattr(core_module, where, planted)
    assert caught()


@pytest.mark.parametrize("planted", STATES)
def test_a_planted_fault_of_the_records_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: type[GroupState]
) -> None:
    monkeypatch.setattr(core_module, "GroupState", planted)
    assert caught()


def test_clearing_by_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "Holders", _ClearsByMember)
    assert caught()


@pytest.mark.parametrize("planted", CORES)
def test_a_planted_fault_of_the_core_is_found(planted: type[GroupCore]) -> None:
    assert caught(type("Planted", (World,), {"core_type": planted}))


def test_answering_before_the_record_is_durable_is_found() -> None:
    assert caught(type("Planted", (World,), {"early_answers": True}))
