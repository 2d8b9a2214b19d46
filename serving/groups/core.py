"""One consumer group at its coordinator: members, epochs, target, who owns what (RB1 to RB9).

Pure: events in, actions out, `now_s` last and monotonic. The order of the actions binds: an
`Answer` may leave only after every `Append` in front of it is durable (RB8), which the core of the
group's partition sees to (`partition_core`). When an append fails the partition's groups are
dropped and read again by whoever owns it then; nothing that was not durable was told to anybody.

A heartbeat that has nothing to learn is held, for the heartbeat interval at most, and answered as
soon as its member has a step to take (RB5). A member takes steps only while a heartbeat of it is
there (RB3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from octavo.proto.group_records import Record, Slot, Subscription
from octavo.runtime.invariant import invariant
from octavo.serving.groups.assignors import SubscribedTopic, Subscriber, Target
from octavo.serving.groups.deadlines import Deadlines, Due, DueKey
from octavo.serving.groups.fencing import commit_refusal, heartbeat_refusal, lost_reply, repeated
from octavo.serving.groups.held import Answer, HeldHeartbeats
from octavo.serving.groups.member import Holder, Member, reconcile, released
from octavo.serving.groups.state import GroupState
from octavo.serving.groups.topics import TopicDirectory, favourite_assignor, reading
from octavo.serving.groups.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Committer,
    Heartbeat,
    HeartbeatReply,
    Refusal,
    Token,
)

STEPS_AT_ONCE = 100
"""Members that take a step in one event, a few milliseconds; the others in the next `tick`."""


class Append(NamedTuple):
    """Store these records in one batch."""

    records: tuple[Record, ...]


class Compute(NamedTuple):
    """Compute a target beside the loop, and tell `computed` (RB2)."""

    epoch: int
    assignor: str
    members: tuple[Subscriber, ...]
    topics: Mapping[str, SubscribedTopic]
    previous: Target


Action = Append | Answer | Compute


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds of a group."""

    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    members_max: int = 10_000


class GroupCore:
    """The group's state machine. Not for several threads."""

    def __init__(self, limits: GroupLimits, directory: TopicDirectory) -> None:
        self.state = GroupState()
        """To look at, and to replay into; else changes are made by events."""
        self._limits = limits
        self._directory = directory
        self._deadlines = Deadlines()
        self.held = HeldHeartbeats(self._deadlines, limits.heartbeat_interval_s)
        """Heartbeats that wait."""
        self._computing: int | None = None
        self._renamed: dict[str, str] = {}
        """Static members that came back under another id since the computation began."""
        self._steps: dict[str, None] = {}
        """Members that may have a step to take, in the order of their turns."""
        self._actions: list[Action] = []

    def next_deadline_s(self) -> float | None:
        """When `tick` is due."""
        return self._deadlines.next_s()

    # -- events

    def heartbeat(self, token: Token, heartbeat: Heartbeat, now_s: float) -> list[Action]:
        """A member's request (RB3, RB6); its answer may come with a later event."""
        refusal = heartbeat_refusal(self.state, self._limits.members_max, heartbeat)
        if refusal is not None:
            self._actions.append(Answer(token, HeartbeatReply(refusal)))
            return self._done()
        if heartbeat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            self._leave(heartbeat, now_s)
            self._actions.append(Answer(token, HeartbeatReply(None, heartbeat.epoch)))
            return self._done()
        known = self.state.members.get(heartbeat.member_id)
        again = known is not None and repeated(known, heartbeat)
        if known is not None and again:
            self._actions += self.held.tell(known)
        else:  # it was given up
            fenced = Refusal.FENCED_MEMBER_EPOCH
            self._actions += self.held.refuse(heartbeat.member_id, fenced)
        if heartbeat.epoch == JOIN_EPOCH and not again:
            self._join(heartbeat, now_s)
        member = self.state.members[heartbeat.member_id]
        answer_now = again or lost_reply(member, heartbeat)
        if not again:
            self._hear(member, heartbeat, now_s)
        self.held.hold(token, heartbeat, now_s)
        if not answer_now:
            self._advance(member, now_s)
        if answer_now or (heartbeat.owned is not None and heartbeat.epoch != JOIN_EPOCH):
            self._actions += self.held.tell(member)  # an outcome may be unknown to it
        return self._done()

    def topics_changed(self, directory: TopicDirectory, now_s: float) -> list[Action]:
        """Topics, or partitions of topics, came or went (RB1)."""
        old, self._directory = self._directory, directory
        self._compare_topics(lambda members: reading(members, old).partitions)
        return self._done()

    def computed(self, epoch: int, target: Target, now_s: float) -> list[Action]:
        """The target that was asked for with that epoch (RB2)."""
        if epoch != self._computing:
            return self._done()
        self._computing = None
        for old, new in self._renamed.items():
            target = {new if name == old else name: slots for name, slots in target.items()}
        self.state.store_target(epoch, target)
        self._compute()
        self._steps |= dict.fromkeys(self.held)
        if len(target) <= STEPS_AT_ONCE:
            self._take_steps(now_s)
        else:  # a large target takes its time by itself
            self._deadlines.set(DueKey(Due.STEPS, ""), now_s)
        return self._done()

    def tick(self, now_s: float) -> list[Action]:
        """Sessions and rebalance timeouts that ended, heartbeats held long enough (RB5)."""
        due = self._deadlines.due(now_s)
        for key in due:
            member = self.state.members.get(key.name)
            if key.due is not Due.HELD_HEARTBEAT and member is not None:
                self._remove(member, now_s)
        for key in due:
            if key.due is Due.HELD_HEARTBEAT and key.name in self.held:
                self._actions += self.held.tell(self.state.members[key.name])
        self._take_steps(now_s)
        return self._done()

    def commit(self, who: Committer, slots: Iterable[Slot], now_s: float) -> Refusal | None:
        """Whether offsets of these slots may be stored (RB7); if so the member lives (O3)."""
        refusal = commit_refusal(self.state, who, slots)
        if refusal is None:
            self._lives(self.state.members[str(who.member_id)], now_s)
        return refusal

    def remove(self, members: Iterable[Member], now_s: float) -> list[Action]:
        """An operator removes these members, static ones too: as if they had left (C6)."""
        for member in members:
            self._remove(member, now_s)
        return self._done()

    def drop(self) -> list[Token]:
        """Somebody else is the coordinator now: heartbeats that are held here."""
        return self.held.drop()

    # -- what is read at a take-over

    def loaded(self, now_s: float) -> list[Action]:
        """Every record was replayed into `state`: each member gets a fresh session (RB8)."""
        self.state.loaded()
        for member in self.state.members.values():
            self._lives(member, now_s)
            self._revoking(member, now_s)
        self._compare_topics(lambda _: targeted(self.state))
        state = self.state
        if state.target_epoch == state.epoch and state.target.keys() != state.members.keys():
            self._bump()  # of a join only a part was stored
        self._compute()
        return self._done()

    def validate(self) -> None:
        """The state's promises and those about what waits. Raises InvariantViolation."""
        state = self.state
        state.validate()
        invariant(not self._actions, "actions were left behind")
        invariant(
            self._computing is not None or state.target_epoch == state.epoch,
            "RB2: a target is due and nobody computes it",
        )
        for name, member in state.members.items():
            invariant(DueKey(Due.SESSION, name) in self._deadlines, f"{name} would live for ever")
            invariant(
                not member.pending or DueKey(Due.REVOCATION, name) in self._deadlines,
                f"{name} could revoke for ever",
            )
        for name in self.held:
            invariant(name in state.members, "a stranger's heartbeat is held")
            invariant(DueKey(Due.HELD_HEARTBEAT, name) in self._deadlines, "held for ever")

    # -- the rules

    def _join(self, heartbeat: Heartbeat, now_s: float) -> None:
        """A new member, a known one that begins anew, or a static one that is back."""
        state = self.state
        member_id, instance_id = heartbeat.member_id, heartbeat.instance_id
        subscription = heartbeat.subscription or Subscription()
        member = state.members.get(member_id)
        if member is not None and member.awaits_first_target(instance_id, subscription):
            return  # it asks again: were this a join of its own, a slow target would never come
        before = state.instance_of(instance_id) or member
        slots = None if before is None else state.target.get(before.member_id)
        freed: list[Slot] = []
        if before is not None:
            if member in (None, before) and before.returns(instance_id, subscription):
                self._inherit(before, heartbeat)
                return
            freed = state.free(before)
            if before is not member:
                fenced = Refusal.FENCED_INSTANCE_ID
                self._actions += self.held.refuse(before.member_id, fenced)
                state.forget(before)
        if member is None:
            member = Member(member_id, None, subscription)
            if slots is not None:  # sticky: the next target is computed against it
                state.retarget(member_id, slots)
        freed += state.free(member)
        member.epoch = member.previous_epoch = JOIN_EPOCH
        member.left = False
        member.number = max(member.number, heartbeat.seen)  # what it saw in an earlier life
        state.declare(member, instance_id, subscription)
        self._bump()
        member.joined_epoch = state.epoch
        self._revoking(member, now_s)
        self._offer(freed, now_s)

    def _inherit(self, old: Member, heartbeat: Heartbeat) -> None:
        """A static member is back, under its old id or another: nobody else notices (RB6)."""
        state, member_id = self.state, heartbeat.member_id
        new = old
        if member_id != old.member_id:
            new = Member(member_id, None, old.subscription)
            new.restore(old.assignment())
            instance_id, slots = old.instance_id, state.target.get(old.member_id)
            state.free(old)
            state.forget(old)
            for slot, epoch in new.owned.items():
                state.holders.take(slot, Holder(member_id, epoch))
            state.declare(new, instance_id, old.subscription)
            state.retarget(member_id, slots)
            self._renamed[old.member_id] = member_id
        new.previous_epoch = new.epoch
        new.number = max(new.number, heartbeat.seen) + 1  # it has not seen what is its
        state.changed(new)

    def _hear(self, member: Member, heartbeat: Heartbeat, now_s: float) -> None:
        """What a heartbeat says of its member."""
        member.sequence = heartbeat.sequence
        self._lives(member, now_s)
        if member.left:
            member.left = False
            self.state.changed(member)
        new, old = heartbeat.subscription, member.subscription
        if new is not None and new != old:
            self.state.declare(member, member.instance_id, new)
            self.state.changed(member)  # so that an older heartbeat does not undo it
            if not new.same_target(old):
                self._bump()
        step = released(member, self.state.holders, heartbeat.owned, heartbeat.applied)
        if step.changed:
            self.state.changed(member)
            self._revoking(member, now_s)
            self._offer(step.freed, now_s)

    def _advance(self, member: Member, now_s: float) -> None:
        """Its next step, if a heartbeat of it waits; the heartbeat is answered if there was one."""
        state = self.state
        if member.member_id not in self.held:
            return
        target = state.target.get(member.member_id)
        if target is not None and state.target_epoch >= member.joined_epoch:
            if reconcile(member, target, state.target_epoch, state.holders):
                state.changed(member)
            self._revoking(member, now_s)
        if self.held.has_news(member):
            self._actions += self.held.tell(member)

    def _take_steps(self, now_s: float) -> None:
        """Of some members at a time, because a target may concern a thousand."""
        for member_id in list(islice(self._steps, STEPS_AT_ONCE)):
            del self._steps[member_id]
            member = self.state.members.get(member_id)
            if member is not None:
                self._advance(member, now_s)
        if self._steps:
            self._deadlines.set(DueKey(Due.STEPS, ""), now_s)

    def _offer(self, slots: Iterable[Slot], now_s: float) -> None:
        """Slots are free: those whose target they are may take them, if they are here."""
        self._steps |= dict.fromkeys(one.member_id for one in self.state.wanting(slots))
        self._take_steps(now_s)

    def _leave(self, heartbeat: Heartbeat, now_s: float) -> None:
        state = self.state
        member = state.members[heartbeat.member_id]
        if heartbeat.epoch == LEAVE_EPOCH or member.instance_id is None:
            self._remove(member, now_s)
            return
        self._actions += self.held.refuse(member.member_id, Refusal.UNKNOWN_MEMBER_ID)
        member.left, member.sequence = True, heartbeat.sequence
        freed = state.holders.free(member.pending.items(), member.member_id)
        member.pending.clear()
        state.changed(member)
        self._lives(member, now_s)
        self._revoking(member, now_s)
        self._offer(freed, now_s)

    def _remove(self, member: Member, now_s: float) -> None:
        """It left or was fenced: what it held is free at once, the epoch rises (RB5)."""
        freed = self.state.free(member)
        self._actions += self.held.refuse(member.member_id, Refusal.UNKNOWN_MEMBER_ID)
        self.state.forget(member)
        for due in (Due.SESSION, Due.REVOCATION):
            self._deadlines.clear(DueKey(due, member.member_id))
        self._bump()
        self._offer(freed, now_s)

    # -- deadlines, epochs and answers

    def _lives(self, member: Member, now_s: float) -> None:
        key = DueKey(Due.SESSION, member.member_id)
        self._deadlines.set(key, now_s + self._limits.session_timeout_s)

    def _revoking(self, member: Member, now_s: float) -> None:
        """The rebalance timeout runs from the start of its revoking (RB5)."""
        key = DueKey(Due.REVOCATION, member.member_id)
        if not member.pending:
            self._deadlines.clear(key)
        elif key not in self._deadlines:
            self._deadlines.set(key, now_s + member.subscription.rebalance_timeout_s)

    def _compare_topics(
        self, before: Callable[[Collection[Member]], Mapping[str, int] | None]
    ) -> None:
        """Whether what is read is not any more what the epoch was raised for. `before` says of what
        was read how many partitions there were; None: that is not known."""
        members = self.state.members.values()
        if not members:
            return
        read = reading(members, self._directory)
        if read.hash() != self.state.topics_hash:
            known = before(members)
            if known is not None:
                self.state.came_later(known, read.partitions)
            self._bump()

    def _bump(self) -> None:
        """RB1: the epoch rises; a target of it is computed."""
        state = self.state
        read = reading(state.members.values(), self._directory)
        state.raise_epoch(read.hash(), read.topics)
        if not state.members:
            self._computing = None
        self._compute()

    def _compute(self) -> None:
        """Ask for the target of the newest epoch, one at a time."""
        state = self.state
        if self._computing is not None or state.target_epoch == state.epoch:
            return
        self._computing = state.epoch
        self._renamed.clear()
        members = state.members.values()
        read = reading(members, self._directory)
        previous = {m: tuple(slots) for m, slots in state.target.items()}
        self._actions.append(
            Compute(
                state.epoch, favourite_assignor(members), read.subscribers, read.topics, previous
            )
        )

    def _done(self) -> list[Action]:
        """The event's records, then its answers."""
        actions, self._actions = self._actions, []
        if self.state.later:
            actions = [with_later(action, self.state.later) for action in actions]
        if records := self.state.drain():
            actions.insert(0, Append(records))
        return actions


def targeted(state: GroupState) -> dict[str, int] | None:
    """By topic id how many partitions the last target was of: at a take-over, when nobody saw which
    came since. None while a newer target was due: the one that is stored may be of less."""
    if state.target_epoch != state.epoch:
        return None
    found: dict[str, int] = {}
    for slots in state.target.values():
        for topic_id, partition in slots:
            found[topic_id] = max(found.get(topic_id, 0), partition + 1)
    return found


def with_later(action: Action, later: Mapping[str, int]) -> Action:
    """An answer that gives partitions says which of them came behind the subscription (F6)."""
    if not isinstance(action, Answer) or not action.reply.assigned:
        return action
    ids = {slot.topic_id for slot in action.reply.assigned}
    told = {topic_id: first for topic_id, first in later.items() if topic_id in ids}
    return action._replace(reply=action.reply._replace(later=told))
