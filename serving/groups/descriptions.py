"""What an operator is told of a group: what it is now, whoever asks. Pure."""

from __future__ import annotations

from octavo.serving.groups.member import Member
from octavo.serving.groups.state import GroupState
from octavo.serving.groups.topics import favourite_assignor
from octavo.serving.groups.values import GroupDescription, ListedGroup, MemberDescription

EMPTY = "EMPTY"
ASSIGNING = "ASSIGNING"
RECONCILING = "RECONCILING"
STABLE = "STABLE"
CONSUMER = "consumer"
SIMPLE = "simple"


def listed(group_id: str, state: GroupState) -> ListedGroup:
    """A group in one line."""
    if not state.members:
        phase = EMPTY
    elif state.target_epoch != state.epoch:
        phase = ASSIGNING
    else:
        phase = STABLE if state.stable else RECONCILING
    return ListedGroup(
        group_id, phase, CONSUMER if state.epoch else SIMPLE, members=len(state.members)
    )


def described(group_id: str, state: GroupState, empty_since_ms: int | None) -> GroupDescription:
    """A group with its members in the order of their ids."""
    members = sorted(state.members.values(), key=lambda member: member.member_id)
    return GroupDescription(
        listed=listed(group_id, state),
        epoch=state.epoch,
        target_epoch=state.target_epoch,
        assignor=favourite_assignor(members),
        empty_since_ms=empty_since_ms,
        members=tuple(_member(state, member) for member in members),
    )


def _member(state: GroupState, member: Member) -> MemberDescription:
    target = state.target.get(member.member_id, {})
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        epoch=member.epoch,
        state=member.state(target).name,
        left=member.left,
        subscription=member.subscription,
        owned=tuple(sorted(member.owned)),
        pending=tuple(sorted(member.pending)),
        target=tuple(sorted(target)),
    )
