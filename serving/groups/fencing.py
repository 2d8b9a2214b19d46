"""Which requests are not carried out, in the order of C1 (RB6, RB7). Pure questions to a state."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.proto.group_records import Slot
from octavo.serving.groups.member import Member
from octavo.serving.groups.state import GroupState
from octavo.serving.groups.values import JOIN_EPOCH, Committer, Heartbeat, Refusal


def heartbeat_refusal(state: GroupState, members_max: int, heartbeat: Heartbeat) -> Refusal | None:
    """Whether a heartbeat is refused (RB6)."""
    joins = heartbeat.epoch == JOIN_EPOCH
    holder = state.instance_of(heartbeat.instance_id)
    if holder is not None and not joins and holder.member_id != heartbeat.member_id:
        return Refusal.FENCED_INSTANCE_ID
    member = state.members.get(heartbeat.member_id)
    if member is None:
        if not joins:
            return Refusal.UNKNOWN_MEMBER_ID
        if holder is None and len(state.members) >= members_max:
            return Refusal.GROUP_MAX_SIZE_REACHED
        return None
    if heartbeat.sequence < member.sequence:
        return Refusal.FENCED_MEMBER_EPOCH  # overtaken by a later one of the same member
    if joins or heartbeat.epoch < JOIN_EPOCH or heartbeat.epoch == member.epoch:
        return None
    if repeated(member, heartbeat) or lost_reply(member, heartbeat):
        return None
    return Refusal.FENCED_MEMBER_EPOCH


def repeated(member: Member, heartbeat: Heartbeat) -> bool:
    """Whether this is the newest heartbeat once more: it was carried out, and gets its answer."""
    return heartbeat.sequence == member.sequence


def lost_reply(member: Member, heartbeat: Heartbeat) -> bool:
    """Whether the member was not reached by the reply that told its epoch: it gets it again.

    No step is taken for it: a second reply could be lost as well, and then it would be two behind.
    """
    return (
        heartbeat.epoch == member.previous_epoch != member.epoch
        and heartbeat.epoch != JOIN_EPOCH
        and (heartbeat.owned is None or heartbeat.owned <= member.held_slots())
    )


def commit_refusal(state: GroupState, who: Committer, slots: Iterable[Slot]) -> Refusal | None:
    """RB7: whether a member may not commit offsets of those slots.

    It may with any epoch since which it holds a slot; with an older one somebody else, or an
    earlier life of it, may have had the slot between. Its current epoch is also good for slots that
    nobody holds.
    """
    refusal, member = _known(state, who)
    if member is None:
        return refusal
    for slot in slots:
        since = member.owned.get(slot, member.pending.get(slot))
        if since is not None and since <= who.epoch:
            continue
        if who.epoch != member.epoch or state.holders[slot] is not None:
            return Refusal.STALE_MEMBER_EPOCH
    return None


def fetch_refusal(state: GroupState, who: Committer) -> Refusal | None:
    """Whether a member may not ask for offsets: one that is behind asks again when it is not."""
    refusal, member = _known(state, who)
    if member is None:
        return refusal
    return Refusal.STALE_MEMBER_EPOCH if who.epoch < member.epoch else None


def _known(state: GroupState, who: Committer) -> tuple[Refusal | None, Member | None]:
    holder = state.instance_of(who.instance_id)
    if holder is not None and holder.member_id != who.member_id:
        return Refusal.FENCED_INSTANCE_ID, None
    member = state.members.get(who.member_id or "")
    if member is None:
        return Refusal.UNKNOWN_MEMBER_ID, None
    if who.epoch > member.epoch:
        return Refusal.FENCED_MEMBER_EPOCH, None
    if who.epoch <= JOIN_EPOCH:
        return Refusal.STALE_MEMBER_EPOCH, None
    return None, member
