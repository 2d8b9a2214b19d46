"""The pure core of a member of a consumer group: RB10 to RB14 of the group protocol.

Events in, actions out; `now_s` last and monotonic. Heartbeats are its shell's, which nothing of the
user's holds up. What concerns the user (callbacks, the commit before a revocation) is a `duty` that
the next reading call takes, one at a time and in RB11's order; `done` reports it. One assignment is
carried out at a time; whatever is told meanwhile is the newest one, and is taken afterwards.

A member stops by itself, by its own clock, before its partitions can be somebody else's (RB12): at
`limit_s` after the sending of the last heartbeat that was answered. A process that stood still
learns of that from whatever comes first, its timer or its user's next call.
"""

from __future__ import annotations

import math

from octavo.client.messaging.membership.heartbeats import Heartbeats
from octavo.client.messaging.membership.reconciliation import NOTHING, Reconciliation
from octavo.client.messaging.membership.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Action,
    Beat,
    Drop,
    Duty,
    MemberSettings,
    MemberState,
    Refused,
    Start,
    Stop,
    Task,
    Tell,
    Told,
)
from octavo.proto.group_records import Subscription
from octavo.runtime.entropy import Entropy
from octavo.runtime.invariant import invariant

LEAVE_ATTEMPTS_MAX = 5
"""Then the session timeout does what the goodbye should have done."""


class MemberCore(Reconciliation):
    """One member. Not for several threads."""

    def __init__(self, settings: MemberSettings, entropy: Entropy) -> None:
        super().__init__(auto_commit=settings.auto_commit, acknowledge=self._acknowledge_at_once)
        self.epoch = JOIN_EPOCH
        self._settings = settings
        self.beats = Heartbeats(settings, entropy)
        self.subscription: Subscription | None = None
        """None: there is nothing to read."""
        self._user_since_s: float | None = None
        """Since when the user's code runs and no reading call; None: one is under way."""
        self._acknowledging = 0
        """Sequence of the heartbeat that says what was given up."""
        self.leaving = 0
        """Epoch of the goodbye that is being said; 0: none."""
        self._goodbyes = 0
        self._active = False
        """It wants to be a member; else it waits for a reading call."""
        self._joins = False
        """A heartbeat that joins was sent, and may have made it a member."""
        self._fatal = False

    # --- what is so -----------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        """Where the member is."""
        if self._fatal:
            return MemberState.FATAL
        if self.leaving or self._ending:
            return MemberState.LEAVING
        if self._lost:
            return MemberState.FENCED
        if not self._active:
            return MemberState.UNSUBSCRIBED
        if self.epoch == JOIN_EPOCH:
            return MemberState.JOINING
        if self._acknowledging:
            return MemberState.ACKNOWLEDGING
        return MemberState.STABLE if self._change is None else MemberState.RECONCILING

    def next_deadline_s(self) -> float | None:
        """When `tick` is wanted next."""
        due_s = math.inf
        if self._speaks and self.beats.under_way is None:
            due_s = self.beats.next_s
        due_s = min(due_s, self.beats.late_at_s)
        if self._may_idle_until_s is not None:
            due_s = min(due_s, self._may_idle_until_s)
        return None if math.isinf(due_s) else due_s

    @property
    def _speaks(self) -> bool:
        """Whether it sends heartbeats: a member that lost everything waits for its callback."""
        if self.leaving:
            return True
        return self._active and not (self._lost or self._ending or self._fatal)

    @property
    def _may_idle_until_s(self) -> float | None:
        """When the user must have come back (RB13)."""
        waits = self.leaving or self._lost or self._ending
        if not self._active or waits or self._user_since_s is None:
            return None
        return self._user_since_s + self._settings.max_poll_interval_s

    # --- the user -------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription, now_s: float) -> list[Action]:
        """Read these topics; a member says so at once, another one joins with a reading call."""
        changed = subscription != self.subscription
        self.subscription = subscription
        if changed and self._active:
            self._say_at_once(now_s)
        return self._done()

    def entered(self, now_s: float) -> list[Action]:
        """A reading call began, or goes on after a callback: it joins, or joins again (RB13)."""
        actions = self.tick(now_s)
        self._user_since_s = None
        if not self._active and self.subscription is not None and not self._fatal:
            self._active = True
            self._pump(now_s)
            actions += self._done()
        return actions

    def left(self, now_s: float) -> None:
        """The user's code goes on: after the reading call, or in a callback."""
        self._user_since_s = now_s

    def done(self, duty: Duty, now_s: float) -> list[Action]:
        """The duty is done; a callback that raised is done, too: what it was about is so."""
        if duty == self._running:
            self._running = None
        change = self._change
        if duty.task is Task.LOST:
            if duty.number == self._duties:
                self._lost = ()
        elif self._parting:
            self._parting = ()
        elif change is not None and duty.number == self._duties and change.task is duty.task:
            if duty.task is Task.COMMIT:
                self._offer(change, Task.REVOKED)
            elif duty.task is Task.REVOKED:
                self._acknowledge(change, now_s)
            else:
                self.owned |= {*change.added}
                self._actions.append(Start(change.added))
                self._change = None
                self._take_newest(now_s)
        self._pump(now_s)
        self._actions.append(Tell())
        return self._done()

    def positions_known(self, number: int, now_s: float) -> list[Action]:
        """Where the added partitions begin is known, or being looked up (RB11 step 5)."""
        if self._change is not None and self.looks_up(number):
            self._offer(self._change, Task.ASSIGNED)
        self._pump(now_s)
        return self._done()

    # --- the end --------------------------------------------------------------------------------

    def part(self, now_s: float) -> list[Action]:
        """Nothing is read any more: the last revocation is due, then `leave`."""
        change, self._change = self._change, None
        self._actions += self.beats.give_up()
        held = self.owned
        if change is not None:
            told = change.begun and change.task is Task.REVOKED
            held = held.difference(change.revoked) if told else held
            called = change.begun and change.task is Task.ASSIGNED
            held = held.union(change.added) if called else held
            self._actions.append(Drop(change.added if not called else ()))
        self._duties += 1
        self._ending = True
        self._parting = () if self._lost else tuple(sorted(held))
        self._actions += [Stop(tuple(sorted(held))), Tell()]
        return self._done()

    def leave(self, now_s: float, *, stays: bool = False) -> list[Action]:
        """Say goodbye; `stays`: a static member that will be back (RB13)."""
        known = self.epoch != JOIN_EPOCH or self._joins
        self._forget()
        self._lost = self._parting = ()
        self.subscription = None
        self._active = self._ending = False
        if known:
            self._goodbye(STATIC_LEAVE_EPOCH if stays else LEAVE_EPOCH)
        self._pump(now_s)
        return self._done()

    # --- answers --------------------------------------------------------------------------------

    def answered(self, sequence: int, told: Told, now_s: float) -> list[Action]:
        """A reply to the heartbeat under way; others are late, and nobody's."""
        if not self.beats.ended(sequence):
            return []
        if self.leaving:
            return self._left_group(now_s)
        if sequence >= self._acknowledging:
            self._acknowledging = 0
        assigned = told.assigned if told.epoch != JOIN_EPOCH else None
        newer = assigned is not None and (told.number != self._seen or self._newest is None)
        self.beats.answered(told, now_s, news=newer or told.epoch != self.epoch)
        self.epoch = told.epoch
        if newer:
            # One that never came may have taken away what this member never had.
            self._unreleased = self._unreleased or told.number > self._seen + 1
            self._seen, self._newest = told.number, assigned
        self._take_newest(now_s)
        self._pump(now_s)
        return self._done()

    def refused(self, sequence: int, refused: Refused, now_s: float) -> list[Action]:
        """A final answer to the heartbeat under way (RB12)."""
        if not self.beats.ended(sequence):
            return []
        if self.leaving:
            return self._left_group(now_s)
        joining = self.epoch == JOIN_EPOCH
        self._lose(now_s)
        if joining:
            self.beats.pause(now_s)
        if refused is not Refused.FENCED:
            self._active = False
            self._fatal = refused is Refused.FATAL
        self._pump(now_s)
        return self._done()

    def unanswered(self, sequence: int, now_s: float) -> list[Action]:
        """No answer, or that of somebody who does not coordinate: what became of it is unknown."""
        if not self.beats.ended(sequence):
            return []
        if self.leaving and self._goodbyes >= LEAVE_ATTEMPTS_MAX:
            return self._left_group(now_s)
        self.beats.pause(now_s)
        self._pump(now_s)
        return self._done()

    def tick(self, now_s: float) -> list[Action]:
        """A moment that `next_deadline_s` named."""
        idle_until_s = self._may_idle_until_s
        if now_s >= self.beats.late_at_s:
            self._lose(now_s)
        elif idle_until_s is not None and now_s >= idle_until_s:
            self._lose(now_s)
            self._active = False
            self._goodbye(LEAVE_EPOCH)
        self._pump(now_s)
        return self._done()

    def validate(self) -> None:
        """Raise InvariantViolation when its parts contradict each other."""
        change = self._change
        invariant(not self._actions, "actions were left behind")
        invariant(self._applied <= self._seen, "an assignment was carried out before it came")
        invariant(self._active or not self.owned, f"{self.owned} are nobody's")
        invariant(not (self._lost and self.owned), "lost and owned")
        invariant(self.epoch != JOIN_EPOCH or not self.owned, "owned without being a member")
        if change is not None:
            invariant(self.owned.issuperset(change.revoked), "what is revoked was not owned")
            invariant(self.owned.isdisjoint(change.added), "what is added was owned")
        if self.beats.under_way is not None:
            invariant(self._speaks, "RB12: a heartbeat of who lost everything")

    # --- the rules ------------------------------------------------------------------------------

    def _lose(self, now_s: float) -> None:
        """RB12: everything is lost; its user hears of it, then it joins again under its id."""
        change = self._change
        lost = self.owned
        if change is not None and change.begun:
            if change.task is Task.REVOKED:
                lost = lost.difference(change.revoked)
            elif change.task is Task.ASSIGNED:
                lost = lost.union(change.added)
        self._forget()
        self._duties += 1
        self._lost = tuple(sorted(lost)) or self._lost
        self._actions.append(Tell())
        self.beats.begin_anew(now_s)

    def _forget(self) -> None:
        """This life of the member is over."""
        held = self.owned.union(() if self._change is None else self._change.added)
        self._actions += self.beats.give_up()
        self.beats.forget()
        self._change = None
        self.owned = NOTHING
        self._newest = None
        self._fresh = True
        self.epoch = JOIN_EPOCH
        self._applied = self._seen
        self._acknowledging = 0
        self._unreleased = self._joins = False
        if held:
            self._actions.append(Drop(tuple(sorted(held))))

    def _goodbye(self, epoch: int) -> None:
        self.leaving = epoch
        self._goodbyes = 0
        self.beats.next_s = -math.inf

    def _left_group(self, now_s: float) -> list[Action]:
        """The goodbye was heard, or is given up."""
        self.leaving = 0
        self.beats.begin_anew(now_s)
        self._actions.append(Tell())
        self._pump(now_s)
        return self._done()

    # --- heartbeats (RB10) ----------------------------------------------------------------------

    def _acknowledge_at_once(self, now_s: float) -> None:
        self._say_at_once(now_s)
        self._acknowledging = self.beats.sequence

    def _say_at_once(self, now_s: float) -> None:
        """Something changed: a heartbeat that is held by the coordinator is given up for it."""
        self.beats.begin_anew(now_s)
        self._actions += self.beats.give_up()
        self._pump(now_s)

    def _pump(self, now_s: float) -> None:
        """Send the next heartbeat, if it is time and none is under way."""
        beats = self.beats
        if not self._speaks or not beats.may_go(now_s):
            return
        beats.sequence += 1
        joins = self.epoch == JOIN_EPOCH and not self.leaving
        full = (beats.full or joins) and not self.leaving
        beat = Beat(
            beats.sequence,
            self.leaving or self.epoch,
            self._seen,
            self._applied,
            self.subscription if full else None,
            self.owned if full else None,
        )
        self._goodbyes += bool(self.leaving)
        self._joins = self._joins or joins
        beats.send(beat, now_s)
        self._actions.append(beat)

    def _done(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
